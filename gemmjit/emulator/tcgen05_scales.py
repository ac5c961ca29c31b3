"""Block scales of `tcgen05.mma` in tensor memory (PTX ISA 9.1, section 9.7.16.10.7).

The scales of row m (of A, or column of B) are bytes of lane ``m % 32``, column ``base + m // 32``;
every quadrant of 32 lanes holds the same. The layout is CUTLASS's and DeepGEMM's. With M = 128 of a
pair D is in two parts, and the quadrants of each hold the scales of its columns of B from the first
column on (CUTLASS's layout for this "2x2 data path", which none of its kernels uses). A kernel
whose quadrants differ, or whose blocks of a pair hold different scales of B, depends on what is
undecided.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gemmjit.emulator.faults import MemoryFault
from gemmjit.emulator.grid import Grid
from gemmjit.emulator.tcgen05_mma import Tcgen05Plan
from gemmjit.emulator.tensor_memory import LANES, split, tensor_memory
from gemmjit.emulator.tmem_hazards import region

__all__ = ["ScaleOperands"]

Array = npt.NDArray[Any]
_QUADRANT = 32


class ScaleOperands:
    """The scales of one product.

    Parameters
    ----------
    grid : Grid
    plan : Tcgen05Plan
    blocks : list of int
        Slots that take part, in the order of their ranks.
    a, b : int
        Addresses in tensor memory.
    where : str
        The instruction, for messages.
    """

    def __init__(
        self, grid: Grid, plan: Tcgen05Plan, blocks: list[int], a: int, b: int, where: str
    ) -> None:
        self.plan = plan
        self.blocks = blocks
        self.where = where
        self.memory = tensor_memory(grid)
        self.assumptions = grid.machine.assumptions
        self.regions = []
        self.columns = []
        self.num_parts = plan.layout.num_parts
        if self.num_parts > 1:
            self.assumptions.rely("scale_parts", where)
        self.b_rows = plan.what.n // self.num_parts
        for name, address, rows in (("A", a, plan.rows), ("B", b, self.b_rows)):
            lane, column = split(address)
            if lane:
                raise MemoryFault(
                    f"tcgen05.mma: lane of the scales of {name}: expected 0; got {lane}"
                )
            count = -(-rows // _QUADRANT)
            self.columns.append(column)
            for slot in blocks:
                self.memory.check_columns(slot, column, count, f"{where}: scales of {name}")
                self.regions.append(region(slot, 0, LANES, column, count))

    def product(self, slot: int, part: int, a: Array, b: Array, d: Array) -> Array:
        """Return the scaled product of one block's part; see `Tcgen05Plan.product`."""
        what, count = self.plan.what, 4 // self.num_parts
        own = slice(count * part, count * (part + 1))
        scales_a = self._quadrants(slot, self.columns[0], self.plan.rows, what.scale_a)[own]
        scales_b = self._scales_of_b(slot)[own]
        copies = (scales_a, scales_b)
        if all(np.array_equal(c, np.broadcast_to(c[:1], c.shape), True) for c in copies):
            return self.plan.product(a, b, d, (scales_a[0], scales_b[0]))
        reading = self.assumptions.rely("scale_quadrant", self.where)
        if reading == "first":
            return self.plan.product(a, b, d, (scales_a[0], scales_b[0]))
        parts = []
        for q in range(count):
            rows = slice(_QUADRANT * q, _QUADRANT * (q + 1))
            parts.append(self.plan.product(a[rows], b, d[rows], (scales_a[q][rows], scales_b[q])))
        return np.concatenate(parts)

    def _quadrants(self, slot: int, column: int, rows: int, first: int) -> Array:
        """Return what every quadrant holds, (4, rows, scales)."""
        row = np.arange(rows)
        memory = self.memory.data[slot]
        return np.stack([
            self.plan.scales_from_words(
                memory[row % _QUADRANT + _QUADRANT * q, column + row // _QUADRANT], first
            )
            for q in range(4)
        ])  # fmt: skip

    def _scales_of_b(self, slot: int) -> Array:
        what = self.plan.what
        held = [
            self._quadrants(each, self.columns[1], self.b_rows, what.scale_b)
            for each in self.blocks
        ]
        if len(held) == 1:
            return held[0]
        chosen = self.blocks.index(slot)
        if not np.array_equal(held[0], held[1], True):
            reading = self.assumptions.rely("scale_b_pair", self.where)
            chosen = 0 if reading == "leader" else chosen
        return held[chosen]
