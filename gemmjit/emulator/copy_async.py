"""Non-bulk asynchronous copies: cp.async, its groups, cp.async.mbarrier.arrive.

PTX ISA 9.7.9.25.3 and 9.7.13.15.17.

The copies belong to the generic proxy. Every thread has its own groups: a group is the copies since
the last commit, and `wait_group n` waits for all but the newest n.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gemmjit.emulator.async_engine import Operation
from gemmjit.emulator.dispatch import instruction, reject
from gemmjit.emulator.faults import MemoryFault, RaceError
from gemmjit.emulator.instructions_mbarrier import barrier_indices
from gemmjit.emulator.lanes import LaneSet
from gemmjit.emulator.module import Immediate, Instruction, Register
from gemmjit.emulator.operands import Operands
from gemmjit.emulator.spaces import space_named
from gemmjit.emulator.steps import LaneOp, Nothing, Step

if TYPE_CHECKING:
    from gemmjit.emulator.grid import Grid
    from gemmjit.emulator.memory import Storage

__all__ = ["AsyncCopies"]

Array = npt.NDArray[Any]


class _Batch:
    """What one issue of cp.async still has to copy: rows of one size, one per lane."""

    __slots__ = ("group", "lanes", "left", "operation", "parts", "target", "width")

    def __init__(self, lanes: Array, group: Array, target: Array, width: int) -> None:
        self.lanes = lanes
        self.group = group
        self.target = target
        self.width = width
        self.left = np.ones(len(lanes), np.bool_)
        # (storage or None for zeros, byte offsets, positions, bytes to read)
        self.parts: list[tuple[Storage | None, Array, Array, int]] = []
        self.operation: Operation | None = None

    def copy(self, grid: Grid, chosen: Array) -> None:
        """Copy for the chosen positions."""
        rows = np.zeros((len(self.lanes), self.width), np.uint8)
        for storage, offsets, positions, nbytes in self.parts:
            if storage is None:
                continue
            keep = chosen[positions]
            at = offsets.reshape(-1)[keep]
            if nbytes == self.width and not (at % nbytes).any():
                rows[positions[keep]] = storage.view(np.dtype("u1"), nbytes)[at // nbytes]
            else:
                rows[positions[keep], :nbytes] = storage.data[at[:, None] + np.arange(nbytes)]
        target = grid.shared.view(np.dtype("u1"), self.width)
        target[self.target[chosen] // self.width] = rows[chosen]
        self.left &= ~chosen


class AsyncCopies:
    """The cp.async copies of a grid that have not completed."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.committed = np.zeros(grid.space.size, np.int64)
        self.batches: list[_Batch] = []

    def issue(self, batch: _Batch, where: str) -> None:
        """Copy now, or keep the batch for later."""
        grid = self.grid
        engine = grid.machine.engine
        if engine.eager and engine.observer is None:
            batch.copy(grid, np.ones(len(batch.lanes), np.bool_))
            engine.completed += 1
            return
        slots = frozenset((batch.lanes // grid.space.threads).tolist())

        def complete() -> None:
            batch.copy(grid, batch.left.copy())
            self.batches.remove(batch)

        batch.operation = Operation(
            "cp.async", complete, owner=self, slots=(grid, slots), where=where
        )
        self.batches.append(batch)
        engine.submit(batch.operation)

    def wait(self, lanes: LaneSet, newest: int | None) -> None:
        """Complete the lanes' groups but the newest; None also completes uncommitted copies."""
        members = lanes.mask.reshape(-1)
        for batch in list(self.batches):
            chosen = batch.left & members[batch.lanes]
            if newest is not None:
                chosen &= batch.group < self.committed[batch.lanes] - newest
            if chosen.any():
                self._finish_part(batch, chosen)

    def _finish_part(self, batch: _Batch, chosen: Array) -> None:
        engine = self.grid.machine.engine
        batch.copy(self.grid, chosen)
        self.grid.machine.progress += 1
        if not batch.left.any() and batch.operation is not None:
            self.batches.remove(batch)
            engine.retire(batch.operation)

    def block_exited(self, slot: int) -> None:
        """Check that no copy outlives its block."""
        threads = self.grid.space.threads
        for batch in self.batches:
            left = batch.lanes[batch.left] // threads == slot
            if left.any():
                lane = int(batch.lanes[batch.left][left][0])
                raise RaceError(
                    f"{self.grid.thread_name(lane)} exits with cp.async copies in flight; wait for "
                    "them (cp.async.wait_all) before the end of the kernel"
                )


@instruction("cp.async.ca", "cp.async.cg")
def _cp_async(operands: Operands, found: Instruction) -> Step:
    size = found.operands[2]
    if not isinstance(size, Immediate) or size.value not in (4, 8, 16):
        raise reject(found, "the copy size must be the literal 4, 8 or 16")
    width = int(size.value)
    if width != 16 and found.mods[1] == "cg":
        raise reject(found, ".cg copies 16 bytes;")
    target, source = (operands.address(o) for o in found.operands[:2])
    space = space_named(operands.grid, "global")
    sizes = ignore = None
    for extra in found.operands[3:]:
        if isinstance(extra, Register) and extra.type == "pred":
            ignore = operands.predicate(extra)
        elif sizes is None and not (isinstance(extra, Register) and extra.type.endswith("64")):
            sizes = operands.source(extra, "u32")
    grid = operands.grid
    where = grid.program.describe(operands.pc)

    def run(lanes: LaneSet) -> None:
        flat = grid.shared.index(lanes, target.values(lanes), width).reshape(-1)
        if grid.machine.races.tracks(grid):
            grid.machine.races.generic_access(grid, lanes, flat, width, True)
        copies = grid.async_copies
        batch = _Batch(lanes.lanes, copies.committed[lanes.lanes], flat, width)
        wanted = np.full(lanes.count, width, np.int64)
        if sizes is not None:
            wanted[...] = lanes.get(sizes).reshape(-1)
        if ignore is not None:
            wanted[lanes.get(ignore).reshape(-1)] = 0
        if (wanted > width).any():
            raise MemoryFault(f"cp.async: source size {int(wanted.max())} exceeds {width}")
        addresses = source.values(lanes).reshape(-1)
        for nbytes in np.unique(wanted).tolist():
            _add_part(batch, lanes, space, addresses, wanted == nbytes, nbytes, width)
        copies.issue(batch, where)

    return LaneOp(run)


def _add_part(
    batch: _Batch, lanes: LaneSet, space: Any, addresses: Array, chosen: Array, nbytes: int,
    width: int,
) -> None:  # fmt: skip
    """Locate the sources of the lanes that read `nbytes` bytes."""
    if nbytes == 0:
        return
    part = lanes.select(chosen)
    assert part is not None
    positions = np.flatnonzero(chosen)
    at = addresses[positions]
    if (at & (width - 1)).any():
        raise MemoryFault(f"cp.async: a source address is not a multiple of {width}")
    shaped = at.reshape(part.get(part.space_zeros()).shape)
    if nbytes == width:
        located = space.locate(part, shaped, width, False)
    else:
        space.locate(part, shaped + (nbytes - 1), 1, False)
        located = space.locate(part, shaped, 1, False)
    for storage, offsets, where in located:
        batch.parts.append(
            (storage, offsets, positions if where is None else positions[where], nbytes)
        )


@instruction("cp.async.commit_group")
def _commit(operands: Operands, found: Instruction) -> Step:
    copies = operands.grid.async_copies
    if operands.grid.machine.engine.eager:
        return Nothing()

    def run(lanes: LaneSet) -> None:
        copies.committed[lanes.lanes] += 1

    return LaneOp(run)


@instruction("cp.async.wait_group", "cp.async.wait_all")
def _wait(operands: Operands, found: Instruction) -> Step:
    copies = operands.grid.async_copies
    if operands.grid.machine.engine.eager:
        return Nothing()
    newest = None
    if found.mods[1] == "wait_group":
        count = found.operands[0]
        if not isinstance(count, Immediate):
            raise reject(found, "the number of groups must be a literal")
        newest = int(count.value)
    return LaneOp(lambda lanes: copies.wait(lanes, newest))


@instruction("cp.async.mbarrier.arrive")
def _mbarrier_arrive(operands: Operands, found: Instruction) -> Step:
    address = operands.address(found.operands[0])
    counted = "noinc" in found.mods
    grid = operands.grid

    def run(lanes: LaneSet) -> None:
        cells = grid.mbarriers.cells(barrier_indices(operands, address, lanes))
        grid.machine.races.barrier_use(grid, lanes, cells)
        if not counted:
            np.add.at(grid.mbarriers.pending, cells.reshape(-1), 1)
        slots = frozenset(lanes.blocks().tolist())

        def complete() -> None:
            # The arrival is triggered by the completion of the thread's earlier copies.
            grid.async_copies.wait(lanes, None)
            grid.machine.races.mbarrier_release(grid, lanes, cells)
            grid.mbarriers.arrive(cells, 1)

        grid.machine.engine.submit(Operation("cp.async arrive", complete, slots=(grid, slots)))

    return LaneOp(run)
