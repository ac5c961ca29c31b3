"""Order between launches: serial, and programmatic with griddepcontrol (PTX ISA 9.7.13.8)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gemmjit.emulator.dispatch import instruction, reject
from gemmjit.emulator.lanes import LaneSet
from gemmjit.emulator.module import Instruction
from gemmjit.emulator.operands import Operands
from gemmjit.emulator.steps import Barrier, LaneOp, Step

if TYPE_CHECKING:
    from gemmjit.emulator.grid import Grid

__all__ = ["Dependencies"]

Array = npt.NDArray[Any]


class Dependencies:
    """What one grid waits for, and how far it has released those that wait for it.

    Attributes
    ----------
    serial, programmatic : list of Grid
        Grids that must finish before this one starts; that must have released it, and must finish
        before its griddepcontrol.wait returns.
    """

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.serial: list[Grid] = []
        self.programmatic: list[Grid] = []
        # Slots whose block has executed launch_dependents (every thread, or the rest has exited).
        self._released = np.zeros(grid.alive.shape, np.bool_)
        self.waiters: list[tuple[int, LaneSet]] = []

    def may_start(self) -> bool:
        """Whether the first block of this grid may start."""
        return all(g.finished() for g in self.serial) and all(
            g.dependencies.has_released() for g in self.programmatic
        )

    def has_released(self) -> bool:
        """Whether dependents may start: all blocks have released them or have ended."""
        alive = self.grid.alive
        blocks = alive.any(1)
        open_blocks = int((blocks & (alive & ~self._released).any(1)).sum())
        return not self.grid.waiting and open_blocks == 0

    def release(self, lanes: LaneSet) -> None:
        """griddepcontrol.launch_dependents."""
        self._released |= lanes.mask
        self.grid.machine.progress += 1
        self.grid.machine.fill()

    def block_started(self, slots: slice) -> None:
        """Forget what the slots' former blocks released."""
        self._released[slots] = False

    def wait(self, pc: int, lanes: LaneSet) -> LaneSet | None:
        """griddepcontrol.wait."""
        if all(g.finished() for g in self.programmatic):
            return lanes
        self.waiters.append((pc, lanes))
        return None

    def predecessor_finished(self) -> None:
        """Look again: a grid has finished."""
        if self.waiters and all(g.finished() for g in self.programmatic):
            waiting, self.waiters = self.waiters, []
            for pc, lanes in waiting:
                self.grid.scheduler.make_ready(pc + 1, lanes)

    def describe(self) -> list[str]:
        """Return what is waited for, for a deadlock report."""
        return [
            f"{lanes.count} threads of {self.grid.program.entry.name} wait for a preceding launch "
            f"at {self.grid.program.describe(pc)}"
            for pc, lanes in self.waiters
        ]


@instruction("griddepcontrol")
def _griddepcontrol(operands: Operands, found: Instruction) -> Step:
    dependencies = operands.grid.dependencies
    if found.mods == ("wait",):
        return Barrier(dependencies.wait)
    if found.mods == ("launch_dependents",):
        return LaneOp(dependencies.release)
    raise reject(found)
