"""The flat tile list of a grouped GEMM, and how well tiles are filled. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gemmjit.errors import InvalidProblemError

__all__ = ["max_row_tiles", "row_utilization", "tail_tiles", "tile_list"]

IntArray = npt.NDArray[np.int32]

_MAX_ROWS = 2**31 - 1


def tile_list(
    group_sizes: Sequence[int] | npt.NDArray[np.integer], n: int, block_m: int, block_n: int
) -> IntArray:
    """Return every output tile of a ragged-M grouped GEMM.

    Parameters
    ----------
    group_sizes : sequence of int, shape (G,)
        Rows of each group.
    n : int
        Columns of the result.
    block_m, block_n : int
        Tile of the result, in elements.

    Returns
    -------
    numpy.ndarray, shape (T, 4), int32
        Rows ``(group, row0, rows, col0)``: first row in A and in the result, rows that belong to
        the tile (at most ``block_m``), first column. Group-major, then m, then n.

    Raises
    ------
    InvalidProblemError
        If a size is negative or no whole number, there are more rows than 32 bits can number, or a
        block is not positive.

    Examples
    --------
    >>> tile_list([3, 0, 1], n=100, block_m=2, block_n=64).tolist()
    [[0, 0, 2, 0], [0, 0, 2, 64], [0, 2, 1, 0], [0, 2, 1, 64], [2, 3, 1, 0], [2, 3, 1, 64]]
    """
    sizes = _sizes(group_sizes)
    _positive(block_m=block_m, block_n=block_n)
    if n < 0:
        raise InvalidProblemError(f"n: expected a number >= 0; got {n}")
    row_tiles = -(-sizes // block_m)
    groups = np.repeat(np.arange(sizes.size), row_tiles)
    firsts = np.cumsum(row_tiles) - row_tiles
    inside = np.arange(groups.size) - firsts[groups]
    starts = np.cumsum(sizes) - sizes
    rows = np.minimum(block_m, sizes[groups] - inside * block_m)
    columns = np.arange(0, n, block_n)
    tiles = np.empty((groups.size, columns.size, 4), np.int32)
    tiles[..., 0] = groups[:, None]
    tiles[..., 1] = (starts[groups] + inside * block_m)[:, None]
    tiles[..., 2] = rows[:, None]
    tiles[..., 3] = columns
    return tiles.reshape(-1, 4)


def tail_tiles(
    group_sizes: Sequence[int] | npt.NDArray[np.integer],
    rows: int,
    n: int,
    block_m: int,
    block_n: int,
) -> IntArray:
    """Return the tiles of the rows past the last group, under the group number ``G``.

    Kernels store zeros for them. `rows` is the number of rows of A; the other parameters and the
    result are those of `tile_list`.
    """
    sizes = _sizes(group_sizes)
    used = int(sizes.sum())
    if rows < used:
        raise InvalidProblemError(
            f"rows: expected at least the {used} rows of all groups; got {rows}"
        )
    tiles = tile_list([rows - used], n, block_m, block_n)
    tiles[:, 0] = sizes.size
    tiles[:, 1] += used
    return tiles


def row_utilization(group_sizes: Sequence[int] | npt.NDArray[np.integer], block_m: int) -> float:
    """Return eta, the share of scheduled rows that belong to a group.

    ``eta = sum(m_g) / sum(ceil(m_g / block_m) * block_m)``, 1.0 where nothing is scheduled.

    Examples
    --------
    >>> row_utilization([100, 28], block_m=128)
    0.5
    """
    sizes = _sizes(group_sizes)
    _positive(block_m=block_m)
    scheduled = int((-(-sizes // block_m)).sum()) * block_m
    return int(sizes.sum()) / scheduled if scheduled else 1.0


def max_row_tiles(rows: int, num_groups: int, block_m: int) -> int:
    """Return how many tiles along M any grouping of `rows` into `num_groups` can need.

    Each group adds at most one partial tile, and a tile holds at least one row.
    """
    return min(rows, rows // block_m + num_groups)


def _sizes(group_sizes: Sequence[int] | npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    given = np.asarray(group_sizes)
    if given.ndim != 1:
        raise InvalidProblemError(
            f"group_sizes: expected one dimension; got shape {tuple(given.shape)}"
        )
    if given.size and given.dtype.kind not in "iu":
        raise InvalidProblemError(f"group_sizes: expected whole numbers; got {given.dtype}")
    sizes = given.astype(np.int64)
    if sizes.size and sizes.min() < 0:
        at = int(sizes.argmin())
        raise InvalidProblemError(
            f"group_sizes: expected numbers >= 0; got {int(sizes[at])} for group {at}"
        )
    if int(sizes.sum()) > _MAX_ROWS:
        raise InvalidProblemError(
            f"group_sizes: expected at most {_MAX_ROWS} rows together, row numbers have 32 bits; "
            f"got {int(sizes.sum())}"
        )
    return sizes


def _positive(**values: int) -> None:
    for name, value in values.items():
        if value <= 0:
            raise InvalidProblemError(f"{name}: expected a positive number; got {value}")
