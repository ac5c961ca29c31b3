"""Instructions on mbarrier objects (PTX ISA 9.7.13.15.9 to 9.7.13.15.18)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gemmjit.emulator.dispatch import instruction, reject
from gemmjit.emulator.lanes import LaneSet
from gemmjit.emulator.memory import SHARED_WINDOW
from gemmjit.emulator.module import Address, Instruction, Operand, Sink
from gemmjit.emulator.operands import AddressRow, Operands
from gemmjit.emulator.steps import Barrier, LaneOp, Map, Step

__all__ = ["barrier_indices", "shared_values"]

Array = npt.NDArray[Any]


def shared_values(address: AddressRow, lanes: LaneSet) -> Array:
    """Shared addresses of lanes; generic ones inside the shared window are converted."""
    values = address.values(lanes)
    if values.dtype == np.int64 and values.size and int(values.flat[0]) >= SHARED_WINDOW:
        return values - SHARED_WINDOW
    return values


def barrier_indices(operands: Operands, address: AddressRow, lanes: LaneSet) -> Array:
    """Flat shared indices of the barriers that lanes address."""
    return operands.grid.shared.index(lanes, shared_values(address, lanes), 8)


def _barrier(operands: Operands, operand: Operand) -> Any:
    """Return a callable from lanes to the cells of initialised barriers, checked for visibility."""
    address = operands.address(operand)
    grid = operands.grid

    def cells(lanes: LaneSet) -> Array:
        found = grid.mbarriers.cells(barrier_indices(operands, address, lanes))
        grid.machine.races.barrier_use(grid, lanes, found)
        return found

    return cells


@instruction("mbarrier.init")
def _init(operands: Operands, found: Instruction) -> Step:
    address = operands.address(found.operands[0])
    counts = operands.source(found.operands[1], "u32")

    def run(lanes: LaneSet) -> None:
        flat = barrier_indices(operands, address, lanes)
        operands.grid.mbarriers.init(lanes, flat, lanes.get(counts))

    return LaneOp(run)


@instruction("mbarrier.inval")
def _inval(operands: Operands, found: Instruction) -> Step:
    address = operands.address(found.operands[0])

    def run(lanes: LaneSet) -> None:
        operands.grid.mbarriers.invalidate(lanes, barrier_indices(operands, address, lanes))

    return LaneOp(run)


@instruction("mbarrier.arrive", "mbarrier.arrive_drop")
def _arrive(operands: Operands, found: Instruction) -> Step:
    items = list(found.operands)
    target: Operand = Sink() if isinstance(items[0], Address) else items.pop(0)
    cells = _barrier(operands, items[0])
    amount = operands.source(items[1], "u32") if len(items) > 1 else None
    expects = "expect_tx" in found.mods
    drop, completes = found.mods[0] == "arrive_drop", "noComplete" not in found.mods
    if expects and amount is None:
        raise reject(found, "expect_tx needs a byte count")
    state = None if isinstance(target, Sink) else operands.destination(target, "b64")
    grid = operands.grid

    def run(lanes: LaneSet) -> None:
        at = cells(lanes)
        count: Array | int = 1
        if amount is not None:
            given = np.broadcast_to(lanes.get(amount), at.shape).astype(np.int64)
            if expects:
                grid.mbarriers.expect_tx(at, given)
            else:
                count = given
        grid.machine.races.mbarrier_release(grid, lanes, at)
        tokens = grid.mbarriers.arrive(at, count, drop=drop, completes=completes)
        if state is not None:
            lanes.put(state, tokens)

    return LaneOp(run)


@instruction("mbarrier.expect_tx", "mbarrier.complete_tx")
def _transaction(operands: Operands, found: Instruction) -> Step:
    cells = _barrier(operands, found.operands[0])
    amount = operands.source(found.operands[1], "u32")
    mbarriers = operands.grid.mbarriers
    expects = found.mods[0] == "expect_tx"

    def run(lanes: LaneSet) -> None:
        at = cells(lanes)
        given = np.broadcast_to(lanes.get(amount), at.shape).astype(np.int64)
        if expects:
            mbarriers.expect_tx(at, given)
            return
        for cell, nbytes in zip(at.reshape(-1).tolist(), given.reshape(-1).tolist(), strict=True):
            mbarriers.complete_tx(cell << 3, nbytes)

    return LaneOp(run)


@instruction("mbarrier.test_wait", "mbarrier.try_wait")
def _wait(operands: Operands, found: Instruction) -> Step:
    predicate = operands.destination(found.operands[0], "pred")
    cells = _barrier(operands, found.operands[1])
    parity = "parity" in found.mods
    phase = operands.source(found.operands[2], "u32" if parity else "b64")
    grid = operands.grid
    mbarriers = grid.mbarriers

    def test(lanes: LaneSet) -> tuple[Array, Array]:
        at = cells(lanes)
        done = np.broadcast_to(mbarriers.passed(at, lanes.get(phase), parity), at.shape)
        lanes.put(predicate, done)
        if grid.machine.races.orders(grid):
            passed = lanes.select(done)
            if passed is not None:
                for cell in np.unique(at.reshape(-1)[done.reshape(-1)]).tolist():
                    part = lanes.select((at == cell).reshape(-1) & done.reshape(-1))
                    assert part is not None
                    grid.machine.races.mbarrier_acquire(grid, part, cell)
        return at, done

    if found.mods[0] == "test_wait":
        return LaneOp(lambda lanes: (test(lanes), None)[1])

    def run(pc: int, lanes: LaneSet) -> LaneSet | None:
        at, done = test(lanes)
        if done.all():
            return lanes
        blocked = lanes.select(~done)
        assert blocked is not None
        mbarriers.suspend(pc, blocked, at.reshape(-1)[~done.reshape(-1)], predicate)
        return lanes.minus(blocked)

    return Barrier(run)


@instruction("mbarrier.pending_count")
def _pending_count(operands: Operands, found: Instruction) -> Step:
    state = operands.source(found.operands[1], "b64")
    out = operands.destination(found.operands[0], "u32")
    return Map(lambda a: (a & np.uint64(0xFFFF_FFFF)).astype(np.uint32), (state,), out)
