"""Which lanes run next, and how they meet again.

The deterministic scheduler keeps all lanes of a grid in one domain and runs the lowest program
counter that any of them has: lanes that diverged meet again at the join, and one issue serves all
blocks. The fuzzing scheduler gives every warp a domain of its own and picks one at random.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gemmjit.emulator.call_stack import CallStack
from gemmjit.emulator.faults import ConvergenceFault, Fault
from gemmjit.emulator.lanes import WARP, LaneSet
from gemmjit.emulator.steps import Barrier, Control, Guard, Step

if TYPE_CHECKING:
    from gemmjit.emulator.grid import Grid

__all__ = ["Domain", "Scheduler", "Segment"]

# Instructions that may be bound at once; each takes about half a kilobyte.
_MAX_BOUND = 500_000
# Undefined when a thread of the warp has exited; the other .aligned instructions are not.
_WHOLE_WARPS = frozenset(("mma", "ldmatrix", "stmatrix", "movmatrix", "wgmma", "wmma"))

Array = npt.NDArray[Any]


class Domain:
    """Lanes that are scheduled together: program counter -> runnable lanes."""

    __slots__ = ("queued", "ready", "scheduler")

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.ready: dict[int, LaneSet] = {}
        self.queued = False


class Segment:
    """A straight line of instructions bound to a set of lanes."""

    __slots__ = ("finish", "lanes", "length", "pc", "runs", "thunks", "warps")

    def __init__(self, pc: int, lanes: LaneSet) -> None:
        self.pc = pc
        self.lanes = lanes
        self.thunks: list[Callable[[], Any]] = []
        self.finish: Callable[[], None] = _unfinished
        self.length = 0
        self.runs = 0
        self.warps = lanes.warps


def _unfinished() -> None:
    raise AssertionError("segment without an end")


class Scheduler:
    """Scheduling of one grid.

    Parameters
    ----------
    grid : Grid
        The launch.
    per_warp : bool
        Whether every warp is a domain of its own.
    queue : list of Domain
        Where domains with runnable lanes are put.
    """

    def __init__(self, grid: Grid, per_warp: bool, queue: list[Domain]) -> None:
        self.grid = grid
        self.queue = queue
        self.per_warp = per_warp
        warps = grid.space.size // WARP
        self.domains = [Domain(self) for _ in range(warps if per_warp else 1)]
        grid.space.domain_of = self._domain_of
        self.converging: dict[int, LaneSet] = {}
        self.segments: list[Segment] = []
        self._bound = 0
        self._counts = np.zeros(len(grid.program.instructions) + 1, np.int64)
        grid.space.on_forget = self._fold
        self._single: dict[tuple[int, LaneSet], Segment] = {}
        self.leaders = _leaders(grid)
        self.live_lanes = 0
        self.stack = CallStack(self)

    def _domain_of(self, lanes: LaneSet) -> Domain | None:
        if not self.per_warp:
            return self.domains[0]
        return self.domains[int(lanes.warp_ids[0])] if lanes.warps == 1 else None

    # -- runnable lanes ---------------------------------------------------------------------

    def make_ready(self, pc: int, lanes: LaneSet) -> None:
        """Let lanes run on at `pc`."""
        domain = lanes.domain
        if domain is None:
            for warp in lanes.warp_ids:
                part = lanes.space.of_warp(int(warp), lanes.mask)
                if part is not None:
                    self.make_ready(pc, part)
            return
        ready = domain.ready
        present = ready.get(pc)
        ready[pc] = lanes if present is None else present.union(lanes)
        if not domain.queued:
            domain.queued = True
            self.queue.append(domain)

    def start(self, lanes: LaneSet) -> None:
        """Start lanes at the entry point."""
        self.live_lanes += lanes.count
        self.make_ready(0, lanes)

    # -- segments ---------------------------------------------------------------------------

    def bind(self, pc: int, lanes: LaneSet) -> Segment:
        """Prepare the straight line from `pc` on for these lanes."""
        grid = self.grid
        segment = Segment(pc, lanes)
        if self._bound > _MAX_BOUND:
            grid.space.forget()
        lanes.segments[pc] = segment
        self.segments.append(segment)
        at = pc
        while True:
            step = grid.step(at)
            if step.sync and not _whole(lanes, step.sync):
                segment.finish = partial(self._converge, at, lanes, step)
                break
            if step.ends_segment:
                segment.length += 1
                segment.finish = self._end(at, lanes, step)
                break
            segment.thunks.append(step.bind(lanes, grid.guard(at)))
            self._bound += 1
            segment.length += 1
            at += 1
            if at in self.leaders:
                segment.finish = partial(self.make_ready, at, lanes)
                break
        return segment

    def _fold(self) -> None:
        """Add up what the segments counted, and drop them."""
        for segment in self.segments:
            runs, segment.runs = segment.runs * segment.warps, 0
            self._counts[segment.pc] += runs
            self._counts[segment.pc + segment.length] -= runs
        self.segments = []
        self._bound = 0

    def executed(self) -> Array:
        """Return how many warps have executed each instruction."""
        self._fold()
        return np.cumsum(self._counts)[:-1]

    def _end(self, pc: int, lanes: LaneSet, step: Step) -> Callable[[], None]:
        guard = self.grid.guard(pc)
        if isinstance(step, Barrier):
            return partial(self._run_barrier, pc, lanes, step, guard)
        assert isinstance(step, Control)
        if step.opcode == "bra" and guard is None:
            return partial(self.make_ready, step.targets[0], lanes)
        if step.opcode == "bra":
            assert guard is not None
            return partial(self._branch, pc, lanes, step.targets[0], guard)
        stack = self.stack
        handler = {"exit": self.exit, "ret": stack.ret, "call": stack.call, "brx": stack.table}
        return partial(self._guarded, pc, lanes, step, guard, handler[step.opcode])

    def _branch(self, pc: int, lanes: LaneSet, target: int, guard: Guard) -> None:
        taken = lanes.where(guard.row, guard.negated)
        if taken is None:
            self.make_ready(pc + 1, lanes)
            return
        self.make_ready(target, taken)
        if taken is not lanes:
            rest = lanes.minus(taken)
            if rest is not None:
                self.make_ready(pc + 1, rest)

    def _guarded(
        self,
        pc: int,
        lanes: LaneSet,
        step: Control,
        guard: Guard | None,
        handler: Callable[[int, LaneSet, Control], None],
    ) -> None:
        chosen: LaneSet | None = lanes
        if guard is not None:
            chosen = lanes.where(guard.row, guard.negated)
            if chosen is not lanes:
                rest = lanes if chosen is None else lanes.minus(chosen)
                if rest is not None:
                    self.make_ready(pc + 1, rest)
        if chosen is not None:
            handler(pc, chosen, step)

    # -- convergence ------------------------------------------------------------------------

    def _converge(self, pc: int, lanes: LaneSet, step: Step) -> None:
        """Gather the lanes of a `.sync` instruction; run it for those that are complete."""
        waiting = self.converging.pop(pc, None)
        pool = lanes if waiting is None else waiting.union(lanes)
        complete = self._complete(pc, pool, step)
        if complete is None:
            self.converging[pc] = pool
            return
        rest = pool.minus(complete)
        if rest is not None:
            self.converging[pc] = rest
        guard = self.grid.guard(pc)
        if isinstance(step, Barrier):
            self._count(pc, complete)
            self._run_barrier(pc, complete, step, guard)
            return
        try:
            opcode = self.grid.program.instructions[pc].opcode
            if opcode in _WHOLE_WARPS and not complete.full_warps:
                raise ConvergenceFault("it needs all 32 threads of a warp; some have exited")
            step.bind(complete, guard)()
        except Fault as fault:
            fault.locate(self.grid.program.describe(pc))
            raise
        self._count(pc, complete)
        self.make_ready(pc + 1, complete)

    def _count(self, pc: int, lanes: LaneSet) -> None:
        """Count an instruction that was executed outside of a segment."""
        segment = self._single.get((pc, lanes))
        if segment is None:
            segment = self._single[pc, lanes] = Segment(pc, lanes)
            segment.length = 1
            self.segments.append(segment)
        segment.runs += 1
        machine = self.grid.machine
        machine.steps += 1
        if machine.trace is not None:
            machine.trace.segment(machine, segment, self.grid)

    def _complete(self, pc: int, pool: LaneSet, step: Step) -> LaneSet | None:
        alive = self.grid.alive.reshape(-1, WARP)
        present = pool.mask.reshape(-1, WARP)
        member = getattr(step, "member_mask", None)
        if member is not None:
            bits = np.uint32(1) << np.arange(WARP, dtype=np.uint32)
            missing = (alive & ~present) @ bits.astype(np.uint64)
            wanted = (
                member.reshape(-1, WARP)
                if member.flags.c_contiguous
                else (np.ascontiguousarray(member).reshape(-1, WARP))
            )
            ok = present & ((wanted.astype(np.uint64) & missing[:, None]) == 0)
        else:
            whole: Array = ~np.any(alive & ~present, axis=1)
            if step.sync == 128:
                whole = np.repeat(whole.reshape(-1, 4).all(1), 4)
            ok = present & whole[:, None]
        if not ok.any():
            return None
        return pool.space.intern(ok.reshape(pool.mask.shape))

    def release_converging(self) -> None:
        """Let waiting lanes try again: lanes they waited for have exited."""
        waiting, self.converging = self.converging, {}
        for pc, lanes in waiting.items():
            self.make_ready(pc, lanes)

    # -- barriers and control ---------------------------------------------------------------

    def _run_barrier(self, pc: int, lanes: LaneSet, step: Barrier, guard: Guard | None) -> None:
        chosen: LaneSet | None = lanes
        if guard is not None:
            chosen = lanes.where(guard.row, guard.negated)
            if chosen is not lanes:
                rest = lanes if chosen is None else lanes.minus(chosen)
                if rest is not None:
                    self.make_ready(pc + 1, rest)
        if chosen is None:
            return
        try:
            passed = step.run(pc, chosen)
        except Fault as fault:
            fault.locate(self.grid.program.describe(pc))
            raise
        if passed is not None:
            self.make_ready(pc + 1, passed)

    def exit(self, pc: int, lanes: LaneSet, step: Control) -> None:
        """Let lanes end."""
        grid = self.grid
        grid.alive &= ~lanes.mask
        self.live_lanes -= lanes.count
        grid.machine.lanes_exited(grid, lanes)
        if self.converging:
            self.release_converging()

    # -- deadlock ---------------------------------------------------------------------------

    def unconverged(self) -> ConvergenceFault | None:
        """Return the fault for lanes that wait for the rest of their warp, if there are any."""
        for pc, lanes in self.converging.items():
            name = self.grid.thread_name(int(lanes.lanes[0]))
            fault = ConvergenceFault(
                f"{lanes.count} threads (first: {name}) wait here for the other threads of their "
                "warp, which never arrive"
            )
            fault.locate(self.grid.program.describe(pc))
            return fault
        return None


def _whole(lanes: LaneSet, sync: int) -> bool:
    return lanes.full_warps if sync == WARP else lanes.full_groups


def _leaders(grid: Grid) -> set[int]:
    """Program counters where lanes can meet: branch targets and function starts."""
    program = grid.program
    found = set(program.starts.values())
    for pc, instruction in enumerate(program.instructions):
        if instruction.opcode in ("bra", "brx"):
            found.update(program.branch_targets(pc))
    return found
