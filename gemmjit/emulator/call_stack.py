"""Calls and returns of lanes, and branches through tables (PTX ISA 9.7.12).

Every lane has a stack of return addresses. Where it returns to, or branches to, may differ between
lanes: they are then split by target.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gemmjit.emulator.faults import UnknownInstruction
from gemmjit.emulator.lanes import LaneSet
from gemmjit.emulator.memory import CODE_WINDOW
from gemmjit.emulator.steps import Control, Copy

if TYPE_CHECKING:
    from gemmjit.emulator.scheduler import Scheduler

__all__ = ["CallStack"]


class CallStack:
    """The return addresses of a grid's lanes."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler

    def ret(self, pc: int, lanes: LaneSet, step: Control) -> None:
        """Return from a function; at the bottom of the stack, exit."""
        grid = self.scheduler.grid
        depth = lanes.get(grid.depth)
        if not depth.any():
            self.scheduler.exit(pc, lanes, step)
            return
        flat_depth = grid.depth.reshape(-1)[lanes.lanes]
        level = np.maximum(flat_depth - 1, 0)
        back = grid.return_pc.reshape(len(grid.return_pc), -1)[level, lanes.lanes]
        back = np.where(flat_depth > 0, back, -1)
        for target in np.unique(back):
            part = lanes.select(back == target)
            assert part is not None
            if target < 0:
                self.scheduler.exit(pc, part, step)
                continue
            grid.depth.reshape(-1)[part.lanes] -= 1
            call = grid.step(int(target) - 1)
            assert isinstance(call, Control)
            function = grid.program.function_at(pc)
            for copy in call.payload.results(function):
                copy.bind(part, None)()
            self.scheduler.make_ready(int(target), part)

    def call(self, pc: int, lanes: LaneSet, step: Control) -> None:
        """Call a function, a function pointer, or one that the driver provides."""
        grid = self.scheduler.grid
        call = step.payload
        if call.builtin is not None:
            call.builtin(lanes)
            self.scheduler.make_ready(pc + 1, lanes)
            return
        if call.address is None:
            self._enter(pc, lanes, call, step.targets[0])
            return
        numbers = (lanes.get(call.address).reshape(-1).astype(np.int64) - CODE_WINDOW) // 16
        functions = grid.program.functions
        for number in np.unique(numbers):
            if not 0 <= number < len(functions):
                raise UnknownInstruction("call through a pointer that is no function")
            part = lanes.select(numbers == number)
            assert part is not None
            self._enter(pc, part, call, grid.program.starts[functions[number].name])

    def _enter(self, pc: int, lanes: LaneSet, call: Any, target: int) -> None:
        grid = self.scheduler.grid
        function = grid.program.function_at(target)
        for copy in call.arguments(function):
            assert isinstance(copy, Copy)
            copy.bind(lanes, None)()
        depth = grid.depth.reshape(-1)
        level = depth[lanes.lanes]
        if int(level.max()) + 1 >= len(grid.return_pc):
            raise UnknownInstruction("calls nest deeper than the emulator's stack")
        grid.return_pc.reshape(len(grid.return_pc), -1)[level, lanes.lanes] = pc + 1
        depth[lanes.lanes] = level + 1
        self.scheduler.make_ready(target, lanes)

    def table(self, pc: int, lanes: LaneSet, step: Control) -> None:
        """Branch through a table (brx.idx)."""
        index = lanes.get(step.payload).reshape(-1)
        for number in np.unique(index):
            if number >= len(step.targets):
                raise UnknownInstruction(
                    f"brx.idx: index {number} in a table of {len(step.targets)} targets"
                )
            part = lanes.select(index == number)
            assert part is not None
            self.scheduler.make_ready(step.targets[int(number)], part)
