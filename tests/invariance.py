"""Batch invariance: the bits of a row, or of a group's gradient, whatever else is in the batch.

Random numbers, so that any other order of summation shows. A maker puts them on a device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from makers import PLAIN, SWAPPED

import gemmjit
from gemmjit.config import Config
from gemmjit.dtypes import BF16

__all__ = ["BATCHES", "draw", "gradient_bits", "row_bits"]

GROUPS, PICKED = 3, 1  # the row's group, of so many

#: Rows before the picked one in its group, after it there, and of the other groups.
BATCHES = (
    (0, 0, (0, 0)),  # alone
    (1, 0, (0, 0)),
    (0, 1, (3, 0)),
    (63, 0, (1, 5)),
    (64, 70, (0, 2)),
    (130, 3, (65, 0)),
    (127, 128, (10, 129)),
)

_Bits = npt.NDArray[np.uint16]
_K = 200  # neither whole slices of 64 nor of 32


def draw(seed: int, *shape: int) -> Any:
    """Return normally distributed bfloat16."""
    return np.random.default_rng(seed).standard_normal(shape, np.float32).astype(BF16.numpy)


def row_bits(
    maker: Any, config: Config, batch: tuple[int, int, Sequence[int]], *, b_k_major: bool = False,
    offs: str = "device", foreign: float | None = None,
) -> _Bits:  # fmt: skip
    """Return the result's bits of the same row in a batch.

    Parameters
    ----------
    maker : object
        Of `tests/makers.py`.
    config : Config
    batch : tuple
        See `BATCHES`.
    b_k_major : bool
    offs : {"device", "list"}
    foreign : float, optional
        Value of all other rows, instead of random ones.
    """
    before, after, (first, last) = batch
    sizes = [first, before + 1 + after, last]
    position = first + before
    x = draw(1 + sum(sizes) + before, sum(sizes), _K)
    if foreign is not None:
        x[:] = foreign
    x[position] = draw(0, _K)
    w = draw(99, GROUPS, _K, config.block_n + 40)  # two tiles, the second in part
    placed = maker.place(w, "bfloat16", SWAPPED if b_k_major else PLAIN)
    a, ends = maker.array(x, "bfloat16"), _offsets(maker, sizes, offs)
    result = gemmjit.grouped_mm(a, placed.array, offs=ends, config=config)
    return _bits(maker, result)[position]


def gradient_bits(maker: Any, config: Config, others: tuple[int, int], rows: int) -> _Bits:
    """Return the bits of the gradient of a group with the same rows among others.

    Parameters
    ----------
    maker : object
    config : Config
    others : tuple of int
        Rows of the groups before and after.
    rows : int
        Rows of the group.
    """
    sizes = [others[0], rows, others[1]]
    x, dy = (draw(10 + others[0] + i, sum(sizes), n) for i, n in enumerate((72, 136)))
    for i, array in enumerate((x, dy)):
        array[others[0] : others[0] + rows] = draw(20 + i, rows, array.shape[1])
    placed = maker.place(x.T, "bfloat16", SWAPPED)  # NaN follows the last row
    b, ends = maker.array(dy, "bfloat16"), _offsets(maker, sizes, "device")
    result = gemmjit.grouped_mm(placed.array, b, offs=ends, config=config)
    return _bits(maker, result)[PICKED]


def _offsets(maker: Any, sizes: Sequence[int], offs: str) -> Any:
    ends = np.cumsum(sizes).astype(np.int32)
    return maker.array(ends, "int32") if offs == "device" else ends.tolist()


def _bits(maker: Any, result: Any) -> _Bits:
    return maker.download(result).view(np.uint16)
