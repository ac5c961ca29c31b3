"""Where the rows and columns of D lie in the tensor memory of a block, after `tcgen05.mma`.

PTX ISA 9.1, section 9.7.16.10.5, names the layouts; the formulas are CUTLASS's
(`mma_traits_sm100_frag.hpp`). Row m of a block, column n of D:

==================================  ============================  ================
M (layout)                          lane                          column
==================================  ============================  ================
128 (D), 256 of a pair (A)          m                             n
64 (F)                              ``m % 16 + 32 * (m // 16)``   n
128 of a pair (B), 64 of ``.ws``    ``m + 64 * (n // (N / 2))``   ``n % (N / 2)``
(E)
32 of ``.ws`` (G)                   ``m + 32 * (n // (N / 4))``   ``n % (N / 4)``
==================================  ============================  ================

A in tensor memory has its rows in the lanes of D. Where D is in several parts, each is computed
from what its own lanes hold of A: FlashMLA's `.ws` products of 64 rows keep two different A in the
halves, CUTLASS calls that of a pair duplicated.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

__all__ = ["ResultLayout", "result_layout"]

_LANES = 128


@dataclass(frozen=True, slots=True, eq=False)
class ResultLayout:
    """Places of one block's D.

    Attributes
    ----------
    lanes : ndarray of intp, (rows,)
        Of the first part.
    columns : int
        Columns of tensor memory.
    num_parts : int
        Parts of N that lie below each other.
    is_half : bool
        Whether only 16 lanes of each quadrant are used, and the address chooses which.
    """

    lanes: NDArray[np.intp]
    columns: int
    num_parts: int
    is_half: bool

    @property
    def parts(self) -> list[tuple[NDArray[np.intp], slice]]:
        """Lanes, and columns of D, of every part."""
        step, width = _LANES // self.num_parts, self.columns
        return [
            (self.lanes + step * i, slice(width * i, width * (i + 1)))
            for i in range(self.num_parts)
        ]


@lru_cache(maxsize=256)
def result_layout(m: int, n: int, blocks: int, stationary: bool) -> ResultLayout:
    """Return the layout of D.

    Parameters
    ----------
    m, n : int
        Extents over all blocks.
    blocks : {1, 2}
    stationary : bool
        Whether it is `.ws`.
    """
    rows = m // blocks
    row = np.arange(rows)
    if stationary or (blocks == 2 and rows == 64):
        parts = _LANES // rows
        return ResultLayout(row, n // parts, parts, False)
    if rows == 64:
        return ResultLayout(row % 16 + 32 * (row // 16), n, 1, True)
    return ResultLayout(row, n, 1, False)
