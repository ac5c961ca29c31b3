"""Block scales of `tcgen05.mma` in tensor memory (PTX ISA 9.1, section 9.7.16.10.7).

The scales of row m (of A, or column of B) are bytes of lane ``m % 32``, column ``base + m // 32``;
every quadrant of 32 lanes holds the same. The layout is CUTLASS's and DeepGEMM's. A kernel whose
quadrants differ, or whose blocks of a pair hold different scales of B, depends on what is
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
        for name, address, rows in (("A", a, plan.rows), ("B", b, plan.what.n)):
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

    def product(self, slot: int, a: Array, b: Array, d: Array) -> Array:
        """Return the scaled product of one block; see `Tcgen05Plan.product`."""
        what = self.plan.what
        scales_a = self._quadrants(slot, self.columns[0], self.plan.rows, what.scale_a)
        scales_b = self._scales_of_b(slot)
        copies = (scales_a, scales_b)
        if all(np.array_equal(c, np.broadcast_to(c[:1], c.shape), True) for c in copies):
            return self.plan.product(a, b, d, (scales_a[0], scales_b[0]))
        reading = self.assumptions.rely("scale_quadrant", self.where)
        if reading == "first":
            return self.plan.product(a, b, d, (scales_a[0], scales_b[0]))
        parts = []
        for q in range(4):
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
            self._quadrants(each, self.columns[1], what.n, what.scale_b) for each in self.blocks
        ]
        if len(held) == 1:
            return held[0]
        chosen = self.blocks.index(slot)
        if not np.array_equal(held[0], held[1], True):
            reading = self.assumptions.rely("scale_b_pair", self.where)
            chosen = 0 if reading == "leader" else chosen
        return held[chosen]
