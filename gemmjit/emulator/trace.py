"""A timeline of an emulation: what every warp, copy, matrix product and barrier did, and when.

Time is the number of instructions that the emulator has issued so far, on all warps together. It
shows order and overlap, not the speed of hardware. Under `eager` every warp of every block runs in
one issue and asynchronous work takes no time; `random` shows a pipeline.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gemmjit.emulator.lanes import WARP, LaneSet

if TYPE_CHECKING:
    from gemmjit.emulator.async_engine import Operation
    from gemmjit.emulator.grid import Grid
    from gemmjit.emulator.machine import Machine
    from gemmjit.emulator.mbarrier import MBarriers
    from gemmjit.emulator.scheduler import Segment

__all__ = ["Kind", "Span", "Trace"]

Kind = Literal["run", "wait", "copy", "mma", "phase"]

_PRODUCTS = frozenset(("mma", "wgmma"))


@dataclass(slots=True)
class Span:
    """Something that lasted.

    Attributes
    ----------
    kind : {"run", "wait", "copy", "mma", "phase"}
        A warp's instructions; its wait at a barrier; an asynchronous copy, from its issue to its
        completion; a matrix product, likewise; a phase of an mbarrier.
    kernel, block : str
        Entry, and ``block (x, y, z)``.
    track : str
        Whose it is: ``warp 3``, ``warpgroup 1``, ``mbarrier 0x18000``, or the kind of a copy.
    name : str
        Source line, or what is waited for.
    start, end : int
        In issued instructions.
    details : mapping
        More about it.
    """

    kind: Kind
    kernel: str
    block: str
    track: str
    name: str
    start: int
    end: int
    details: Mapping[str, object] = field(default_factory=dict)


class Trace:
    """Collects spans; pass it to `gemmjit.emulator.emulate`, then look at `spans` or `write` it.

    Several emulations with one trace follow each other in time.

    Parameters
    ----------
    max_spans : int
        What comes after so many is counted in `dropped`, not kept.

    Attributes
    ----------
    spans : list of Span
        By the time at which they were complete.
    dropped : int
        Spans that were one too many.
    """

    def __init__(self, max_spans: int = 500_000) -> None:
        self.max_spans = max_spans
        self.spans: list[Span] = []
        self.dropped = 0
        self._start = 0
        self._machine: Machine | None = None
        self._pending: dict[int, tuple[Operation, int]] = {}
        self._waits: dict[tuple[int, int], tuple[int, str]] = {}
        self._phases: dict[tuple[int, int], int] = {}
        self._instant: list[Span] = []
        self._sources: dict[tuple[int, int], tuple[str, dict[str, object], str]] = {}

    def write(self, path: str | Path) -> None:
        """Write Chrome's trace-event JSON, which Perfetto and chrome://tracing open."""
        from gemmjit.emulator.chrome_trace import write

        write(self, path)

    # -- called by the emulator -------------------------------------------------------------

    def start(self, machine: Machine) -> None:
        """Begin an emulation; it follows what was recorded before."""
        self._machine = machine
        machine.engine.observer = self
        self._start = max((span.end + 1 for span in self.spans), default=0)

    def stop(self) -> None:
        """Close what is open: the emulation has ended, or a fault has stopped it."""
        now = self._now()
        assert self._machine is not None
        for operation, start in list(self._pending.values()):
            self._add_operation(operation, start, now, {"complete": False})
        for (grid_id, warp), (start, what) in self._waits.items():
            grid = self._grid(grid_id)
            self._add_warp("wait", grid, warp, what, start, now, {"complete": False})
        for (grid_id, cell), start in self._phases.items():
            barriers = self._grid(grid_id).mbarriers
            if barriers.pending[cell] != barriers.expected[cell] or barriers.tx[cell]:
                self._add_phase(barriers, cell, start, now, {"state": barriers.state(cell)})
        for table in (self._pending, self._waits, self._phases, self._sources):
            table.clear()
        self._instant.clear()
        self._machine = None

    def segment(self, machine: Machine, segment: Segment, grid: Grid) -> None:
        """Take note of a straight line of instructions that lanes have executed."""
        now = self._now()
        start = now - segment.length
        for span in self._instant:  # completed within this segment
            span.end = now
        self._instant.clear()
        if not segment.length:
            return
        name, details, product = self._describe(grid, segment)
        for warp in segment.lanes.warp_ids.tolist():
            wait = self._waits.pop((id(grid), warp), None)
            if wait is not None and wait[0] < start:
                self._add_warp("wait", grid, warp, wait[1], wait[0], start, {})
            self._add_warp("run", grid, warp, name, start, now, details)
            if product:
                self._add_warp("mma", grid, warp, product, start, now, details)

    def waits(self, grid: Grid, lanes: LaneSet, what: str) -> None:
        """Take note of lanes that wait; a warp's wait ends when any lane of it runs on."""
        now = self._now()
        for warp in lanes.warp_ids.tolist():
            self._waits.setdefault((id(grid), warp), (now, what))

    def issued(self, machine: Machine, operation: Operation) -> None:
        """Take note of an asynchronous operation's issue."""
        self._pending[id(operation)] = (operation, self._now())

    def completed(self, machine: Machine, operation: Operation) -> None:
        """Take note of an asynchronous operation's completion."""
        found = self._pending.pop(id(operation), None)
        if found is not None:
            self._add_operation(operation, found[1], self._now(), {})

    def phase_begins(self, barriers: MBarriers, cell: int) -> None:
        """Take note of an mbarrier's initialisation."""
        self._phases[id(barriers.grid), cell] = self._now()

    def phase_ends(self, barriers: MBarriers, cell: int) -> None:
        """Take note of the end of an mbarrier's phase; the next one begins."""
        now = self._now()
        start = self._phases.get((id(barriers.grid), cell), now)
        self._phases[id(barriers.grid), cell] = now
        self._add_phase(barriers, cell, start, now, {"arrivals": int(barriers.expected[cell])})

    def block_exits(self, grid: Grid, slot: int) -> None:
        """Forget the barriers of a block that has ended."""
        for grid_id, cell in list(self._phases):
            if grid_id == id(grid) and grid.mbarriers.slot_of(cell) == slot:
                del self._phases[grid_id, cell]

    # -- spans ------------------------------------------------------------------------------

    def _now(self) -> int:
        assert self._machine is not None
        return self._start + self._machine.steps

    def _grid(self, number: int) -> Grid:
        assert self._machine is not None
        return next(grid for grid in self._machine.grids if id(grid) == number)

    def _describe(self, grid: Grid, segment: Segment) -> tuple[str, dict[str, object], str]:
        """Return name, details and matrix product of a segment."""
        key = (id(grid), segment.pc)
        found = self._sources.get(key)
        if found is None or found[1]["instructions"] != segment.length:
            program = grid.program
            line = program.instructions[segment.pc : segment.pc + segment.length]
            names = [i.name for i in line if i.opcode in _PRODUCTS and "mma" in i.name]
            names = [n for n in names if n.startswith("mma.sync")]
            source = program.source_of(line[0])
            details: dict[str, object] = {
                "source": source,
                "PTX line": line[0].ptx_line,
                "instructions": segment.length,
            }
            product = f"{len(names)} x {names[0]}" if names else ""
            found = (_position(source) or f"PTX line {line[0].ptx_line}", details, product)
            self._sources[key] = found
        return found

    def _add(self, span: Span) -> None:
        if len(self.spans) >= self.max_spans:
            self.dropped += 1
        else:
            self.spans.append(span)

    def _add_warp(
        self, kind: Kind, grid: Grid, warp: int, name: str, start: int, end: int,
        details: Mapping[str, object],
    ) -> None:  # fmt: skip
        slot, number = divmod(warp, grid.space.threads // WARP)
        block, kernel = grid.block_name(slot), grid.program.entry.name
        self._add(Span(kind, kernel, block, f"warp {number}", name, start, end, details))

    def _add_phase(
        self, barriers: MBarriers, cell: int, start: int, end: int, details: Mapping[str, object]
    ) -> None:
        grid = barriers.grid
        slot = barriers.slot_of(cell)
        number = int(barriers.phase[cell])
        track, kernel = f"mbarrier {barriers.offset_of(cell):#x}", grid.program.entry.name
        name = f"phase {number}"
        self._add(Span("phase", kernel, grid.block_name(slot), track, name, start, end, details))

    def _add_operation(
        self, operation: Operation, start: int, end: int, details: dict[str, object]
    ) -> None:
        if operation.slots is None:
            return
        grid, slots = operation.slots
        kind: Kind = "mma" if operation.kind == "wgmma" else "copy"
        first: Any = getattr(operation.owner, "first", None)
        track = operation.kind if first is None else f"warpgroup {first // 128}"
        name = f"{operation.kind} {_position(operation.where)}".strip()
        kernel, details = grid.program.entry.name, {"at": operation.where, **details}
        for slot in sorted(slots):
            span = Span(kind, kernel, grid.block_name(slot), track, name, start, end, details)
            self._add(span)
            if start == end:
                self._instant.append(span)


def _position(source: str) -> str:
    """Return the position in a kernel's template that a chain of inlined positions comes from."""
    positions: list[str] = re.findall(r"[\w.]+:\d+", source.rsplit("[", 1)[-1])
    kernels = [p for p in positions if ".cu" in p.rsplit(":", 1)[0].removesuffix(".cuh")]
    return (kernels or positions or [""])[0]
