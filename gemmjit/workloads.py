"""Generators of group sizes for tests and measurements, and numbers that describe a routing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gemmjit.errors import InvalidProblemError

__all__ = ["entropy_deficit", "power_law"]


def power_law(rows: int, groups: int, skew: float) -> npt.NDArray[np.int64]:
    """Distribute rows over groups by a power law.

    Group g gets rows in proportion to ``(g + 1) ** -skew``. Shares are rounded down; the rows left
    over go one each to the first groups.

    Parameters
    ----------
    rows : int
        Rows to distribute.
    groups : int
        Number of groups.
    skew : float
        0 for an even distribution; 1.2 is the strong skew of the measurements.

    Returns
    -------
    numpy.ndarray, shape (groups,), int64
        Rows of each group; they add up to `rows`.

    Raises
    ------
    InvalidProblemError
        If a number is out of range.

    Examples
    --------
    >>> power_law(16384, 64, 1.2)[[0, -1]].tolist()
    [4793, 32]
    """
    if rows < 0 or groups < 1 or not np.isfinite(skew):
        raise InvalidProblemError(
            "power_law: expected rows >= 0, groups >= 1 and a finite skew; "
            f"got rows={rows}, groups={groups}, skew={skew}"
        )
    with np.errstate(over="ignore"):
        weights = np.arange(1, groups + 1, dtype=np.float64) ** -skew
    if not np.isfinite(weights.sum()):
        raise InvalidProblemError(
            f"power_law: expected weights (g + 1) ** -skew that fit a float; got skew={skew}"
        )
    sizes: npt.NDArray[np.int64] = np.floor(rows * weights / weights.sum()).astype(np.int64)
    left = rows - int(sizes.sum())
    sizes[: max(left, 0)] += 1
    return sizes


def entropy_deficit(group_sizes: Sequence[int] | npt.NDArray[np.integer]) -> float:
    """Return how far a routing is from even, 0 for even and 1 for everything in one group.

    ``1 - H / log(G)`` with the Shannon entropy H of the groups' shares of the rows; 0.0 where
    there are no rows or a single group.

    Raises
    ------
    InvalidProblemError
        If a size is negative.

    Examples
    --------
    >>> entropy_deficit([8, 8]), entropy_deficit([16, 0])
    (0.0, 1.0)
    """
    sizes = np.asarray(group_sizes, dtype=np.float64)
    if sizes.size and sizes.min() < 0:
        raise InvalidProblemError(f"group_sizes: expected numbers >= 0; got {sizes.min():g}")
    total = sizes.sum()
    if sizes.size < 2 or total == 0 or (sizes == sizes[0]).all():
        return 0.0
    shares = sizes[sizes > 0] / total
    entropy = -float((shares * np.log(shares)).sum())
    return min(max(1.0 - entropy / float(np.log(sizes.size)), 0.0), 1.0)
