"""Which element of tensor memory each register of `tcgen05.ld` and `.st` is.

Shapes of PTX ISA 9.1, section 9.7.16.2.3.1 (whose figures were not seen): the maps are those of
CUTLASS (`copy_traits_sm100.hpp`). With ``g = lane // 4`` and ``t = lane % 4``, relative to the
address, repetition i of ``.xN``:

=========  =========  ===============================================================
shape      registers  lane, column
=========  =========  ===============================================================
32x32b     1          ``lane``, ``i``
16x64b     1          ``g + 8 * (lane % 2)``, ``2i + lane // 2 % 2``
16x128b    2          ``g + 8r``, ``4i + t``
16x256b    4          ``g + 8 * (r // 2)``, ``8i + 2t + r % 2``
16x32bx2   1          ``lane % 16``, ``i``, plus the split for the upper 16 lanes
=========  =========  ===============================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemmjit.emulator.faults import UnknownInstruction

__all__ = ["SHAPES", "TmemFragment", "tmem_fragment"]

#: Registers of one repetition, columns of one repetition, largest N of .xN.
SHAPES = {
    "32x32b": (1, 1, 128), "16x64b": (1, 2, 128), "16x128b": (2, 4, 64), "16x256b": (4, 8, 32),
    "16x32bx2": (1, 1, 128),
}  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class TmemFragment:
    """One shape and number of repetitions.

    Attributes
    ----------
    num_lanes : int
        Lanes of tensor memory that a warp touches: 32 or 16.
    registers : int
    lanes, columns : ndarray of intp, (registers, 32)
        Place of each register of each lane, relative to the address. A packed register is the
        column and the next one.
    ranges : tuple of (int, int)
        Touched columns: first and count.
    packed : bool
        Whether a register holds the low halves of two columns.
    """

    num_lanes: int
    registers: int
    lanes: NDArray[np.intp]
    columns: NDArray[np.intp]
    ranges: tuple[tuple[int, int], ...]
    packed: bool

    def load(self, data: NDArray[np.uint32], lane: int, column: int) -> NDArray[np.uint32]:
        """Return registers, (32, registers), from the memory of a block, (lanes, columns)."""
        rows, columns = self.lanes + lane, self.columns + column
        words = data[rows, columns]
        if self.packed:
            words = words & np.uint32(0xFFFF) | data[rows, columns + 1] << np.uint32(16)
        return words.T

    def store(
        self, data: NDArray[np.uint32], lane: int, column: int, registers: NDArray[np.uint32]
    ) -> None:
        """Write registers, (32, registers), to the memory of a block.

        What the upper halves of unpacked columns hold afterwards is not documented: poison.
        """
        rows, columns = self.lanes + lane, self.columns + column
        words = registers.T
        if not self.packed:
            data[rows, columns] = words
            return
        upper = np.uint32(0xFFFF0000)
        data[rows, columns] = words & np.uint32(0xFFFF) | upper
        data[rows, columns + 1] = words >> np.uint32(16) | upper


@lru_cache(maxsize=256)
def tmem_fragment(shape: str, num: int, packed: bool = False, split: int = 0) -> TmemFragment:
    """Return the fragment of an instruction.

    Parameters
    ----------
    shape : str
        Key of `SHAPES`.
    num : int
        N of ``.xN``.
    packed : bool
        ``.pack::16b`` or ``.unpack::16b``: twice as many columns.
    split : int
        ``immHalfSplitoff`` of ``16x32bx2``, in columns.

    Raises
    ------
    UnknownInstruction
        If the manual does not list shape and number together.
    """
    if shape not in SHAPES:
        raise UnknownInstruction(f"tcgen05: expected a shape of {', '.join(SHAPES)}; got {shape}")
    per, wide, most = SHAPES[shape]
    if num not in (1, 2, 4, 8, 16, 32, 64, 128) or num > most:
        raise UnknownInstruction(f"tcgen05: .{shape}: expected .x1 to .x{most}; got .x{num}")
    lane = np.arange(32)
    g, t = lane >> 2, lane & 3
    count = num * per
    lanes, columns = (np.zeros((count, 32), np.intp) for _ in range(2))
    for register in range(count):
        i, r = divmod(register, per)
        row: Any
        column: Any
        if shape == "32x32b":
            row, column = lane, i
        elif shape == "16x64b":
            row, column = g + 8 * (lane & 1), 2 * i + (lane >> 1 & 1)
        elif shape == "16x128b":
            row, column = g + 8 * r, 4 * i + t
        elif shape == "16x256b":
            row, column = g + 8 * (r >> 1), 8 * i + 2 * t + (r & 1)
        else:
            row, column = lane % 16, i
        lanes[register], columns[register] = row, column
    scale = 2 if packed else 1
    columns *= scale
    width = num * wide * scale
    ranges: tuple[tuple[int, int], ...] = ((0, width),)
    if shape == "16x32bx2":
        columns[:, 16:] += split
        ranges = ((0, width), (split, width))
    for table in (lanes, columns):
        table.setflags(write=False)
    return TmemFragment(32 if shape == "32x32b" else 16, count, lanes, columns, ranges, packed)
