"""The machine: grids on devices, one address space, one scheduler loop."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gemmjit.emulator import register_pool, tensor_memory, warpgroups
from gemmjit.emulator.assumptions import Assumptions
from gemmjit.emulator.async_engine import POLICIES, AsyncEngine
from gemmjit.emulator.barriers import ClusterBarriers, NamedBarriers
from gemmjit.emulator.bulk_groups import bulk_groups
from gemmjit.emulator.copy_async import AsyncCopies
from gemmjit.emulator.deadlock import deadlock_report
from gemmjit.emulator.dependencies import Dependencies
from gemmjit.emulator.faults import Deadlock, Fault, RaceError, StepBudgetExceeded
from gemmjit.emulator.grid import Grid
from gemmjit.emulator.lanes import LaneSet
from gemmjit.emulator.livelock import LivelockWatch
from gemmjit.emulator.mbarrier import MBarriers
from gemmjit.emulator.memory import AddressSpace, DeviceMemory
from gemmjit.emulator.races import RaceTracker
from gemmjit.emulator.scheduler import Domain, Scheduler, Segment
from gemmjit.emulator.warp_choice import WarpChoice

__all__ = ["Machine"]

Array = npt.NDArray[Any]
# So many segments without a store, an arrival or an issued copy: look at somebody else.
_PATIENCE = 64
_MAX_WARNINGS = 64


class Machine:
    """Executes grids until all have finished.

    Parameters
    ----------
    arenas : sequence of DeviceMemory
        Global memories; they share one address space.
    policy : str
        `"eager"`, `"lazy"` or `"random"`.
    seed : int
        Of the random choices.
    numerics : str
        `"fp32"` or `"tensor_core"`: how matrix products accumulate.
    max_steps : int or None
        Limit of issued instructions.
    """

    def __init__(
        self,
        arenas: Sequence[DeviceMemory],
        policy: str,
        seed: int,
        numerics: str,
        max_steps: int | None,
    ) -> None:
        if policy not in POLICIES:
            raise ValueError(f"policy: expected one of {POLICIES}, got {policy!r}")
        self.memory = AddressSpace(arenas)
        self.rng = random.Random(seed)
        self.policy = policy
        self.engine = AsyncEngine(policy, self.rng)
        self.engine.machine = self
        self.numerics = numerics
        self.max_steps = max_steps
        self.steps = 0
        self.progress = 0
        self.clock = np.zeros((), np.uint64)
        self.output: list[str] = []
        self.warnings: list[str] = []
        self.unwaited_stores = "drain"
        self.race_checks = "error"
        self.unfenced_inits = "warn"
        self.unfenced_reads = "warn"
        self.unfenced_tmem = "warn"
        self.assumptions = Assumptions(self, "warn", {})
        self.symbols: dict[tuple[int, int, str], int] = {}
        self.grids: list[Grid] = []
        self.queue: list[Domain] = []
        self.races = RaceTracker(self)
        self.residents: dict[int, int] = {}
        self.resident_limit: int | None = None
        self.trace: Any = None

    def add(self, grid: Grid) -> None:
        """Attach the facilities of a grid; its blocks start with :meth:`run`."""
        grid.scheduler = Scheduler(grid, self.policy == "random", self.queue)
        grid.bars = NamedBarriers(grid)
        grid.cluster_barriers = ClusterBarriers(grid)
        grid.mbarriers = MBarriers(grid)
        grid.async_copies = AsyncCopies(grid)
        grid.dependencies = Dependencies(grid)
        self.races.add(grid)
        self.grids.append(grid)

    # -- blocks -----------------------------------------------------------------------------

    def fill(self) -> bool:
        """Start waiting clusters in free slot groups; whether any could start."""
        started = False
        for grid in self.grids:
            size = grid.cluster_size
            mask: LaneSet | None = None
            for group in np.flatnonzero(grid.cluster_ids < 0):
                resident = self.residents.get(grid.device, 0)
                if not grid.waiting or not grid.dependencies.may_start():
                    break
                if self.resident_limit is not None and resident + size > self.resident_limit:
                    break
                self.residents[grid.device] = resident + size
                lanes = grid.start_cluster(int(group), grid.waiting.popleft())
                slots = slice(int(group) * size, (int(group) + 1) * size)
                grid.dependencies.block_started(slots)
                grid.cluster_barriers.reset(int(group))
                grid.mbarriers.reset(int(group))
                self.races.reset(grid, int(group))
                mask = lanes if mask is None else mask.union(lanes)
            if mask is not None:
                started = True
                grid.scheduler.start(mask)
        return started

    def lanes_exited(self, grid: Grid, lanes: LaneSet) -> None:
        """Blocks may have ended: check what they leave behind, free their slots."""
        self.progress += 1
        slots = lanes.blocks()
        grid.bars.lanes_exited(slots)
        grid.cluster_barriers.lanes_exited(slots)
        for slot in slots:
            if not grid.alive[slot].any():
                self._block_exited(grid, int(slot))

    def _block_exited(self, grid: Grid, slot: int) -> None:
        self.engine.wait_for(
            lambda op: op.kind == "bulk store" and op.slots is not None
            and op.slots[0] is grid and slot in op.slots[1]
        )  # fmt: skip
        warpgroups.block_exited(grid, slot)
        register_pool.block_exited(grid, slot)
        tensor_memory.block_exited(grid, slot)
        self._unwaited_stores(grid, slot)
        self.races.block_exited(grid, slot)
        grid.async_copies.block_exited(slot)
        grid.mbarriers.block_exited(slot)
        grid.shared.slot_live[slot] = False
        group, size = slot // grid.cluster_size, grid.cluster_size
        if not grid.alive[group * size : (group + 1) * size].any():
            grid.cluster_ids[group] = -1
            self.residents[grid.device] -= size
            if grid.finished():
                for other in self.grids:
                    other.dependencies.predecessor_finished()
                self.fill()
            elif self.policy == "random":
                self.fill()

    def _unwaited_stores(self, grid: Grid, slot: int) -> None:
        lane = bulk_groups(grid).unwaited(slot)
        if lane is None:
            return
        message = (
            f"{grid.thread_name(lane)} exits without having waited until its bulk stores have read "
            "shared memory (cp.async.bulk.wait_group.read)"
        )
        self.found("unwaited_stores", message)

    def found_race(self, message: str) -> None:
        """Take a race: an error, or a warning where the caller asked for that."""
        self.found("race_checks", message)

    def found(self, kind: str, message: str) -> None:
        """Take what hardware forgives at times; `kind` is the attribute that says how."""
        if getattr(self, kind) == "error":
            raise RaceError(message)
        self.warn(message)

    def warn(self, message: str) -> None:
        """Add a warning to the report."""
        if len(self.warnings) < _MAX_WARNINGS:
            self.warnings.append(message)

    # -- the loop ---------------------------------------------------------------------------

    def run(self) -> None:
        """Run all grids to their end.

        Raises
        ------
        Fault
            Whatever stopped the kernel, located.
        """
        with np.errstate(all="ignore"):
            self.fill()
            loop = self._run_random if self.policy == "random" else self._run_in_order
            stalled = -1
            while True:
                loop()
                # Nothing is runnable. In order: late copies, blocks not yet resident, a time-out
                # of try_wait; when none of them moved anything since the last time, a deadlock.
                if self.engine.complete_one() or self.fill():
                    continue
                if all(grid.finished() for grid in self.grids):
                    return
                if stalled != self.progress and any(g.mbarriers.time_out() for g in self.grids):
                    stalled = self.progress
                    continue
                self._deadlock()

    def _run_in_order(self) -> None:
        """Lowest program counter first, one grid after the other."""
        queue = self.queue
        watch = LivelockWatch(self)
        while queue:
            domain = queue[0]
            ready = domain.ready
            silent, last = 0, self.progress
            while ready:
                pc = min(ready)
                lanes = ready.pop(pc)
                segment = lanes.segments.get(pc)
                if segment is None:
                    segment = self._bind(domain, pc, lanes)
                self._issue(segment, domain)
                if self.progress != last:
                    silent, last = 0, self.progress
                    continue
                silent += 1
                if silent >= _PATIENCE:
                    self._yield(domain, watch)
                    silent = 0
                    if len(queue) > 1:
                        break
            if ready:
                queue.append(queue.pop(0))
            else:
                domain.queued = False
                queue.remove(domain)

    def _yield(self, domain: Domain, watch: LivelockWatch) -> None:
        """Somebody polls: complete late work, and run the other lanes for a while."""
        self.engine.complete_one()
        watch.look()
        ready = domain.ready
        for pc in sorted(ready)[1:]:
            lanes = ready.pop(pc, None)
            if lanes is None:
                continue
            segment = lanes.segments.get(pc) or self._bind(domain, pc, lanes)
            self._issue(segment, domain)

    def _run_random(self) -> None:
        """One random warp at a time, some for long; pending work completes now and then."""
        queue, rng, engine = self.queue, self.rng, self.engine
        watch = LivelockWatch(self)
        silent, last = 0, self.progress
        draw = rng.random
        choice = WarpChoice(queue, rng)
        while queue:
            number = choice.next()
            domain = queue[number]
            ready = domain.ready
            pcs = len(ready)
            pc = min(ready) if pcs == 1 or draw() < 0.75 else list(ready)[int(draw() * pcs)]
            lanes = ready.pop(pc)
            segment = lanes.segments.get(pc)
            if segment is None:
                segment = self._bind(domain, pc, lanes)
            self._issue(segment, domain)
            if not ready:
                domain.queued = False
                number = number if queue[number] is domain else queue.index(domain)
                queue[number] = queue[-1]
                queue.pop()
            if engine.pending and draw() < 0.1:
                engine.complete_one(idle=False)
            if self.progress != last:
                silent, last = 0, self.progress
            else:
                silent += 1
                if silent % 512 == 0:
                    engine.complete_one()
                    watch.look()

    def _bind(self, domain: Domain, pc: int, lanes: LaneSet) -> Segment:
        return domain.scheduler.bind(pc, lanes)

    def _issue(self, segment: Segment, domain: Domain) -> None:
        step: Any = None
        try:
            for step in segment.thunks:
                step()
            segment.runs += 1
            self.steps += segment.length
            step = None
            if self.trace is not None:
                self.trace.segment(self, segment, domain.scheduler.grid)
            segment.finish()
        except Fault as fault:
            offset = segment.thunks.index(step) if step is not None else len(segment.thunks)
            fault.locate(domain.scheduler.grid.program.describe(segment.pc + offset))
            raise
        if self.max_steps is not None and self.steps > self.max_steps:
            raise StepBudgetExceeded(
                f"{self.steps} instructions issued, max_steps is {self.max_steps}"
            )
        self.clock[...] = self.steps

    def _deadlock(self) -> None:
        waits = any(
            g.mbarriers.waiters
            or g.bars.pending
            or g.cluster_barriers.waiters
            or g.dependencies.waiters
            or register_pool.describe(g)
            or tensor_memory.describe(g)
            for g in self.grids
        )
        for grid in self.grids:
            fault = grid.scheduler.unconverged()
            if fault is not None and not waits:
                raise fault
        raise Deadlock(deadlock_report(self))
