"""Execution barriers of a block and of a cluster: bar, barrier, barrier.cluster.

PTX ISA 9.7.13.1 to 9.7.13.4.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gemmjit.emulator.dispatch import instruction, reject
from gemmjit.emulator.faults import BarrierFault
from gemmjit.emulator.lanes import WARP, LaneSet
from gemmjit.emulator.module import Instruction, Operand
from gemmjit.emulator.operands import Operands
from gemmjit.emulator.steps import Barrier, LaneOp, Step

if TYPE_CHECKING:
    from gemmjit.emulator.grid import Grid

__all__ = ["ClusterBarriers", "NamedBarriers"]

Array = npt.NDArray[Any]
_NUM_BARRIERS = 16


@dataclass(slots=True)
class _Pending:
    """A barrier on which somebody has arrived."""

    count: int | None
    arrived: Array
    threads: int = 0
    waiters: list[tuple[int, LaneSet]] = field(default_factory=list)
    on_complete: list[Callable[[], None]] = field(default_factory=list)


class NamedBarriers:
    """The sixteen barriers of every resident block."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.pending: dict[tuple[int, int], _Pending] = {}

    def arrive(
        self,
        pc: int,
        lanes: LaneSet,
        numbers: Array,
        counts: Array | None,
        waits: bool,
        reduce: Callable[[_Pending, LaneSet], None] | None = None,
    ) -> LaneSet | None:
        """Let lanes arrive; those that need not wait (any more) are returned."""
        if counts is None and waits and reduce is None and not self.pending:
            alive = self.grid.alive
            blocks: Array = np.any(lanes.mask, axis=1)
            if not (alive[blocks] & ~lanes.mask[blocks]).any() and (numbers < _NUM_BARRIERS).all():
                self.grid.machine.races.block_barrier(self.grid, blocks)
                return lanes
        passed: LaneSet | None = None if waits else lanes
        ids = np.broadcast_to(numbers, lanes.get(self.grid.alive).shape).reshape(-1)
        for slot in lanes.blocks():
            in_block = lanes.lanes // self.grid.space.threads == slot
            for number in np.unique(ids[in_block]):
                part = lanes.select(in_block & (ids == number))
                assert part is not None
                count = None
                if counts is not None:
                    count = int(part.get(np.broadcast_to(counts, self.grid.alive.shape)).max())
                done = self._arrive_one(pc, int(slot), int(number), count, part, waits, reduce)
                if done and waits:
                    passed = part if passed is None else passed.union(part)
        return passed

    def _arrive_one(
        self, pc: int, slot: int, number: int, count: int | None, lanes: LaneSet, waits: bool,
        reduce: Callable[[_Pending, LaneSet], None] | None,
    ) -> bool:  # fmt: skip
        if not 0 <= number < _NUM_BARRIERS:
            raise BarrierFault(f"barrier {number}: a block has barriers 0 to 15")
        if count is not None and (count % WARP or count <= 0):
            raise BarrierFault(f"barrier {number}: thread count {count} is no multiple of 32")
        key = (slot, number)
        entry = self.pending.get(key)
        if entry is None:
            entry = self.pending[key] = _Pending(count, np.zeros_like(self.grid.alive[slot]))
        if entry.count != count:
            raise BarrierFault(
                f"barrier {number} of {self.grid.block_name(slot)}: thread count {count}, but an "
                f"earlier arrival said {entry.count}"
            )
        mask = lanes.mask[slot]
        if (entry.arrived & mask).any():
            raise BarrierFault(f"barrier {number}: a thread arrives twice in one phase")
        entry.arrived |= mask
        entry.threads += self._threads(slot, mask)
        if count is not None and entry.threads > count:
            raise BarrierFault(
                f"barrier {number} of {self.grid.block_name(slot)}: {entry.threads} threads "
                f"arrive, expected {count}"
            )
        if reduce is not None:
            reduce(entry, lanes)
        if waits:
            entry.waiters.append((pc, lanes))
        done = self._complete(key, entry, lanes if waits else None)
        if waits and not done and self.grid.machine.trace is not None:
            self.grid.machine.trace.waits(self.grid, lanes, f"bar.sync {number}")
        return done

    def _threads(self, slot: int, mask: Array) -> int:
        """Arriving threads; a warp whose running threads are all here counts 32, as on hardware."""
        by_warp = mask.reshape(-1, WARP)
        alive = self.grid.alive[slot].reshape(-1, WARP)
        whole = by_warp.any(1) & ~(alive & ~by_warp).any(1)
        return int(np.where(whole, WARP, by_warp.sum(1)).sum())

    def _complete(self, key: tuple[int, int], entry: _Pending, last: LaneSet | None) -> bool:
        slot, _ = key
        if entry.count is None:
            done = not (self.grid.alive[slot] & ~entry.arrived).any()
        else:
            done = entry.threads == entry.count
        if not done:
            return False
        del self.pending[key]
        grid = self.grid
        grid.machine.progress += 1
        for action in entry.on_complete:
            action()
        grid.machine.races.warps_met(grid, slot, entry.arrived)
        for pc, lanes in entry.waiters:
            if lanes is not last:
                grid.scheduler.make_ready(pc + 1, lanes)
        return True

    def lanes_exited(self, slots: Array) -> None:
        """Look again at barriers of all threads: the exited ones are no longer waited for."""
        for key, entry in list(self.pending.items()):
            if key[0] in slots and entry.count is None and entry.waiters:
                self._complete(key, entry, None)

    def describe(self) -> list[str]:
        """Return what is waited for, for a deadlock report."""
        lines = []
        for (slot, number), entry in self.pending.items():
            wanted = entry.count or int(self.grid.alive[slot].sum())
            where = sorted({self.grid.program.describe(pc) for pc, _ in entry.waiters})
            found = sorted({int(w) for _, lanes in entry.waiters for w in lanes.warp_ids})
            warps = [w % (self.grid.space.threads // WARP) for w in found]
            lines.append(
                f"{self.grid.block_name(slot)}: barrier {number}: {entry.threads} of {wanted} "
                f"threads arrived; warps {warps} wait at {'; '.join(where)}"
            )
        return lines


class ClusterBarriers:
    """The barrier of every resident cluster."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        groups = grid.space.blocks // grid.cluster_size
        shape = (groups, grid.cluster_size, grid.space.threads)
        self.arrived = np.zeros(shape, np.bool_)
        self.phase = np.zeros(groups, np.int64)
        # Phase in which a lane arrived, plus one; 0 when it has not arrived since its last wait.
        self.lane_phase = np.zeros(grid.alive.shape, np.int64)
        self.waiters: dict[int, list[tuple[int, LaneSet]]] = {}

    def reset(self, group: int) -> None:
        """Forget the barrier of a cluster that starts in this slot group."""
        self.arrived[group] = False
        size = self.grid.cluster_size
        self.lane_phase[group * size : (group + 1) * size] = 0

    def arrive(self, lanes: LaneSet) -> None:
        """barrier.cluster.arrive."""
        if lanes.get(self.lane_phase).any():
            raise BarrierFault("barrier.cluster.arrive twice without a wait between")
        mask = lanes.mask.reshape(self.arrived.shape)
        self.arrived |= mask
        groups = np.flatnonzero(mask.any((1, 2)))
        size = self.grid.cluster_size
        lanes.put(
            self.lane_phase,
            lanes.get(np.repeat(self.phase, size)[:, None] + 1 + 0 * self.lane_phase),
        )
        for group in groups:
            self._complete(int(group))

    def _complete(self, group: int) -> None:
        size = self.grid.cluster_size
        slots = slice(group * size, group * size + size)
        if (self.grid.alive[slots] & ~self.arrived[group]).any() or not self.arrived[group].any():
            return
        self.grid.machine.progress += 1
        self.arrived[group] = False
        self.phase[group] += 1
        self.grid.machine.races.cluster_barrier(self.grid, group)
        for pc, lanes in self.waiters.pop(group, ()):
            lanes.put(self.lane_phase, 0)
            self.grid.scheduler.make_ready(pc + 1, lanes)

    def wait(self, pc: int, lanes: LaneSet) -> LaneSet | None:
        """barrier.cluster.wait: the lanes whose phase is over."""
        mine = lanes.get(self.lane_phase).reshape(-1)
        if not mine.all():
            raise BarrierFault("barrier.cluster.wait without an arrive before it")
        size = self.grid.cluster_size
        group = lanes.lanes // (self.grid.space.threads * size)
        over = self.phase[group] >= mine
        if over.all():
            lanes.put(self.lane_phase, 0)
            return lanes
        for number in np.unique(group[~over]):
            part = lanes.select(~over & (group == number))
            assert part is not None
            self.waiters.setdefault(int(number), []).append((pc, part))
            if self.grid.machine.trace is not None:
                self.grid.machine.trace.waits(self.grid, part, "barrier.cluster")
        passed = lanes.select(over)
        if passed is not None:
            passed.put(self.lane_phase, 0)
        return passed

    def lanes_exited(self, slots: Array) -> None:
        """Look again: exited threads count as arrived."""
        for group in np.unique(slots // self.grid.cluster_size):
            self._complete(int(group))

    def describe(self) -> list[str]:
        """Return what is waited for, for a deadlock report."""
        lines = []
        size = self.grid.cluster_size
        for group, entries in self.waiters.items():
            alive = self.grid.alive[group * size : (group + 1) * size]
            where = sorted({self.grid.program.describe(pc) for pc, _ in entries})
            lines.append(
                f"cluster of {self.grid.block_name(group * size)}: barrier.cluster: "
                f"{int(self.arrived[group].sum())} of {int(alive.sum())} threads arrived; "
                f"wait at {'; '.join(where)}"
            )
        return lines


@instruction("bar.sync", "bar.cta.sync", "barrier.sync", "barrier.cta.sync")
def _sync(operands: Operands, found: Instruction) -> Step:
    numbers = operands.source(found.operands[0], "u32")
    counts = _count(operands, found, 1)
    bars = operands.grid.bars

    def run(pc: int, lanes: LaneSet) -> LaneSet | None:
        return bars.arrive(pc, lanes, lanes.get(numbers), counts, True)

    return Barrier(run, _sync_width(found))


@instruction("bar.arrive", "bar.cta.arrive", "barrier.arrive", "barrier.cta.arrive")
def _arrive(operands: Operands, found: Instruction) -> Step:
    numbers = operands.source(found.operands[0], "u32")
    counts = _count(operands, found, 1)
    if counts is None:
        raise reject(found, "an arrive needs a thread count")
    bars = operands.grid.bars

    def run(lanes: LaneSet) -> None:
        bars.arrive(-1, lanes, lanes.get(numbers), counts, False)

    return LaneOp(run, _sync_width(found))


@instruction("bar.red", "bar.cta.red", "barrier.red", "barrier.cta.red")
def _red(operands: Operands, found: Instruction) -> Step:
    operation, kind = found.mods[-2], found.mods[-1]
    if operation == "aligned":
        raise reject(found)
    result = operands.destination(found.operands[0], "pred" if kind == "pred" else "u32")
    numbers = operands.source(found.operands[1], "u32")
    counts = _count(operands, found, 2) if len(found.operands) > 3 else None
    value, negated = operands.predicate_reader(found.operands[-1])
    bars = operands.grid.bars
    totals: dict[int, list[tuple[LaneSet, Array]]] = {}

    def reduce(entry: _Pending, lanes: LaneSet) -> None:
        seen = totals.setdefault(id(entry), [])
        seen.append((lanes, (lanes.get(value) ^ negated).reshape(-1).copy()))
        if len(seen) == 1:
            entry.on_complete.append(partial(finish, id(entry)))

    def finish(key: int) -> None:
        seen = totals.pop(key)
        flags = np.concatenate([v for _, v in seen])
        answer: Any = int(flags.sum())
        if operation in ("and", "or"):
            answer = bool(flags.all() if operation == "and" else flags.any())
        for lanes, _ in seen:
            lanes.put(result, answer)

    def run(pc: int, lanes: LaneSet) -> LaneSet | None:
        return bars.arrive(pc, lanes, lanes.get(numbers), counts, True, reduce)

    return Barrier(run, _sync_width(found))


@instruction("barrier.cluster.arrive")
def _cluster_arrive(operands: Operands, found: Instruction) -> Step:
    barriers = operands.grid.cluster_barriers
    relaxed = "relaxed" in found.mods

    def run(lanes: LaneSet) -> None:
        operands.grid.machine.races.cluster_arrive(operands.grid, lanes, relaxed)
        barriers.arrive(lanes)

    return LaneOp(run, WARP if "aligned" in found.mods else 0)


@instruction("barrier.cluster.wait")
def _cluster_wait(operands: Operands, found: Instruction) -> Step:
    return Barrier(operands.grid.cluster_barriers.wait, WARP if "aligned" in found.mods else 0)


def _count(operands: Operands, found: Instruction, position: int) -> Array | None:
    if len(found.operands) <= position:
        return None
    operand: Operand = found.operands[position]
    return operands.source(operand, "u32")


def _sync_width(found: Instruction) -> int:
    # `bar` is `barrier.aligned`; `barrier` without `.aligned` may be reached lane by lane.
    return WARP if found.opcode == "bar" or "aligned" in found.mods else 0
