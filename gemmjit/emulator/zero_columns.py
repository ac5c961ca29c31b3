"""Zero-column masks of `tcgen05.mma.ws` (PTX ISA 9.1, section 9.7.16.4.3, table 45).

A set bit stands for a column of B that counts as zero. The mask consists of sub-masks, one for
every part that D has in tensor memory, in which spans of zeroed and of used columns take turns.
The table and the examples of the section contradict each other: see `zero_column_spans` in
:mod:`gemmjit.emulator.assumptions`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gemmjit.emulator.faults import MemoryFault, UnknownInstruction

__all__ = ["zero_columns"]

_GENERATE = 39
_RESERVED = (36, 3)


def _field(bits: int, low: int, width: int) -> int:
    return bits >> low & ((1 << width) - 1)


def zero_columns(bits: int, n: int, parts: int, reading: str) -> NDArray[np.bool_]:
    """Return which columns of B are zero, (n,).

    Parameters
    ----------
    bits : int
        The 64-bit descriptor.
    n : int
        Columns of B.
    parts : {1, 2, 4}
        Sub-masks: 1 for M = 128, 2 for 64, 4 for 32.
    reading : {"examples", "table"}
        Whether the skip span counts zeroed columns, as in the examples, or used ones.

    Raises
    ------
    MemoryFault
        If a reserved bit is set.
    UnknownInstruction
        If the columns of B are to be shifted.
    """
    text = f"tcgen05.mma.ws zero-column mask descriptor {bits:#018x}"
    if _field(bits, *_RESERVED):
        raise MemoryFault(f"{text}: bits 36 to 38: expected 0; got {_field(bits, *_RESERVED)}")
    if _field(bits, 56, 6):
        raise UnknownInstruction(f"{text}: a column shift has no semantics in the emulator")
    if not _field(bits, _GENERATE, 1):
        return np.zeros(n, np.bool_)
    skip, use = _field(bits, 40, 8) + 1, _field(bits, 48, 8) + 1
    zeroed, used = (skip, use) if reading == "examples" else (use, skip)
    width = n // parts
    masks = []
    for i in range(parts):
        # The spans from the first one on, without the columns of it that are skipped.
        starts_zeroed = bool(_field(bits, 32 + i, 1))
        place = np.arange(width) + _field(bits, 8 * i, 8)
        place %= zeroed + used
        masks.append(place < zeroed if starts_zeroed else place >= used)
    return np.concatenate(masks)
