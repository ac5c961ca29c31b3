"""A timeline of warps, waits and asynchronous operations for Perfetto or chrome://tracing.

Time is the number of issued instructions, shown as microseconds: it orders events and compares
lengths, but it is no time of any hardware.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemmjit.emulator.lanes import WARP

if TYPE_CHECKING:
    from gemmjit.emulator.async_engine import Operation
    from gemmjit.emulator.grid import Grid
    from gemmjit.emulator.machine import Machine
    from gemmjit.emulator.scheduler import Segment

__all__ = ["Trace"]

_MAX_EVENTS = 1_000_000
_COPIES = 1000  # thread number of the row that shows a block's asynchronous operations


class Trace:
    """Collects events of one or more emulations; pass it as `trace=` to `emulate`.

    Attributes
    ----------
    events : list of dict
        Trace events (format "Trace Event Format" of the Chromium project).
    truncated : bool
        Whether there were more events than are kept.
    """

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.truncated = False
        self._origin = 0
        self._blocks: dict[tuple[int, int, int], int] = {}
        # (process, thread) -> (end of the last segment, what it ended with)
        self._last: dict[tuple[int, int], tuple[int, str]] = {}
        self._open: dict[int, tuple[int, int]] = {}
        self._names: dict[tuple[int, int], tuple[str, str]] = {}

    def start(self, machine: Machine) -> None:
        """Begin an emulation: it follows the earlier ones in time."""
        if self.events:
            self._origin = max(int(e.get("ts", 0)) + int(e.get("dur", 0)) for e in self.events) + 1
        self._blocks.clear()
        self._last.clear()
        machine.engine.observer = self

    def segment(self, machine: Machine, segment: Segment, grid: Grid) -> None:
        """Take note that warps have executed a straight line of instructions."""
        end = self._origin + machine.steps
        start = end - segment.length
        name, last = self._describe(grid, segment)
        per_block = grid.space.threads // WARP
        for warp in segment.lanes.warp_ids.tolist():
            process = self._process(grid, warp // per_block)
            row = (process, warp % per_block)
            before = self._last.get(row)
            if before is not None and before[1] and start > before[0]:
                self._add(name=f"wait: {before[1]}", cat="wait", ph="X", ts=before[0],
                          dur=start - before[0], pid=row[0], tid=row[1])  # fmt: skip
            self._add(name=name, cat="warp", ph="X", ts=start, dur=segment.length, pid=row[0],
                      tid=row[1])  # fmt: skip
            self._last[row] = (end, last)

    def _describe(self, grid: Grid, segment: Segment) -> tuple[str, str]:
        key = (id(grid), segment.pc)
        found = self._names.get(key)
        if found is None:
            program = grid.program
            instructions = program.instructions
            first = instructions[segment.pc]
            name = program.source_of(first).split(" in ")[0] or first.name
            last = instructions[min(segment.pc + segment.length, len(instructions)) - 1]
            waits = last.opcode in ("bar", "barrier", "mbarrier", "griddepcontrol")
            found = self._names[key] = (name, last.name if waits else "")
        return found

    def issued(self, machine: Machine, operation: Operation) -> None:
        """Take note of an asynchronous operation's issue."""
        if operation.slots is None:
            return
        grid, slots = operation.slots
        process = self._process(grid, min(slots))
        self._open[id(operation)] = (process, self._origin + machine.steps)

    def completed(self, machine: Machine, operation: Operation) -> None:
        """Take note of an asynchronous operation's completion."""
        opened = self._open.pop(id(operation), None)
        if opened is None:
            return
        process, start = opened
        number = f"{process}.{len(self.events)}"
        end = self._origin + machine.steps
        common = {"cat": "async", "name": operation.kind, "id": number, "pid": process}
        self._add(ph="b", ts=start, tid=_COPIES, args={"at": operation.where}, **common)
        self._add(ph="e", ts=max(end, start + 1), tid=_COPIES, **common)

    def _process(self, grid: Grid, slot: int) -> int:
        key = (id(grid), slot, int(grid.cluster_ids[slot // grid.cluster_size]))
        number = self._blocks.get(key)
        if number is None:
            number = self._blocks[key] = len(self._blocks) + 1
            name = f"{grid.program.entry.name} {grid.block_name(slot)}"
            self._add(name="process_name", ph="M", pid=number, args={"name": name})
            for warp in range(grid.space.threads // WARP):
                label = {"name": f"warp {warp}"}
                self._add(name="thread_name", ph="M", pid=number, tid=warp, args=label)
            label = {"name": "asynchronous operations"}
            self._add(name="thread_name", ph="M", pid=number, tid=_COPIES, args=label)
        return number

    def _add(self, **event: Any) -> None:
        if len(self.events) >= _MAX_EVENTS:
            self.truncated = True
            return
        self.events.append(event)

    def write(self, path: str | Path) -> None:
        """Write the events as JSON that Perfetto and chrome://tracing open."""
        document = {"traceEvents": self.events, "displayTimeUnit": "ms"}
        Path(path).write_text(json.dumps(document))
