"""`clusterlaunchcontrol.try_cancel` and `query_cancel` (PTX ISA 9.7.13.17 and 9.7.13.18, sm_100).

A request takes the next cluster that has not started; its response, 16 opaque bytes, arrives
asynchronously in the shared memory of the requesting block, or of all blocks of its cluster. The
encoding is the emulator's own: ctaid.x and .y in the lower half, .z and 1 in the upper one, zeros
when nothing was left.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gemmjit.emulator.async_engine import Operation
from gemmjit.emulator.dispatch import instruction, reject
from gemmjit.emulator.faults import BarrierFault
from gemmjit.emulator.grid import Grid
from gemmjit.emulator.instructions_mbarrier import shared_values
from gemmjit.emulator.lanes import LaneSet
from gemmjit.emulator.module import Instruction
from gemmjit.emulator.multicast import OFFSET_MASK
from gemmjit.emulator.operands import Operands
from gemmjit.emulator.shared_memory import RANK_SHIFT
from gemmjit.emulator.steps import LaneOp, Map, Step

__all__: list[str] = []

Array = npt.NDArray[Any]

_NBYTES = 16
_CANCELED = 1 << 32


def _response(grid: Grid, cluster: int | None) -> Array:
    """Return the 16 bytes for a cluster, or for none."""
    if cluster is None:
        return np.zeros(2, np.uint64)
    counts = [g // c for g, c in zip(grid.grid, grid.cluster, strict=True)]
    at = (cluster % counts[0], cluster // counts[0] % counts[1], cluster // (counts[0] * counts[1]))
    x, y, z = (a * c for a, c in zip(at, grid.cluster, strict=True))
    return np.array([x | y << 32, z | _CANCELED], np.uint64)


@instruction("clusterlaunchcontrol.try_cancel")
def build_try_cancel(operands: Operands, found: Instruction) -> Step:
    """`clusterlaunchcontrol.try_cancel.async{.shared::cta}.completion{.multicast}.b128`."""
    known = {"try_cancel", "async", "shared::cta", "mbarrier::complete_tx::bytes",
             "multicast::cluster::all", "b128"}  # fmt: skip
    if set(found.mods) - known or "mbarrier::complete_tx::bytes" not in found.mods:
        raise reject(found)
    grid, machine = operands.grid, operands.grid.machine
    where = grid.program.describe(operands.pc)
    target, barrier = (operands.address(operand) for operand in found.operands)
    everywhere = "multicast::cluster::all" in found.mods
    refused: set[int] = grid.state.setdefault("try_cancel refused", set())

    def issue(lane: int, address: int, signal: int) -> None:
        slot = lane // grid.space.threads
        size = grid.cluster_size
        cluster_id = int(grid.cluster_ids[slot // size])
        if cluster_id in refused:
            raise BarrierFault(
                f"clusterlaunchcontrol.try_cancel: {grid.block_name(slot)} has been refused before"
            )
        taken = grid.waiting.popleft() if grid.waiting else None
        ranks = range(size) if everywhere else (address >> RANK_SHIFT,)
        places = [
            [grid.shared.flat_of(slot, r << RANK_SHIFT | x & OFFSET_MASK, n, n)
             for x, n in ((address, _NBYTES), (signal, 8))]
            for r in ranks
        ]  # fmt: skip
        cells = grid.mbarriers.cells(np.array([flat for _, flat in places]))
        machine.races.barrier_use(grid, lane, cells)
        slots = [slot - slot % size + r for r in ranks]
        units = [np.array([flat >> 4]) for flat, _ in places]
        for each, unit in zip(slots, units, strict=True):
            machine.races.async_issue_write(grid, each, unit)

        def complete() -> None:
            words = grid.shared.view(np.dtype(np.uint64))
            if taken is None:
                refused.add(cluster_id)
            for each, unit, (flat, signalled) in zip(slots, units, places, strict=True):
                words[flat >> 3 : (flat >> 3) + 2] = _response(grid, taken)
                machine.races.async_write(grid, each, unit)
                grid.mbarriers.complete_tx(signalled, _NBYTES)

        machine.engine.submit(
            Operation("bulk load", complete, slots=(grid, frozenset(slots)), where=where)
        )
        machine.progress += 1

    def run(lanes: LaneSet) -> None:
        addresses, signals = (
            shared_values(operand, lanes).reshape(-1).tolist() for operand in (target, barrier)
        )
        for lane, address, signal in zip(lanes.lanes.tolist(), addresses, signals, strict=True):
            issue(lane, address, signal)

    return LaneOp(run)


@instruction("clusterlaunchcontrol.query_cancel.is_canceled")
def build_is_canceled(operands: Operands, found: Instruction) -> Step:
    """`clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 p, response`."""
    response = operands.source(found.operands[1], "b128")
    out = operands.destination(found.operands[0], "pred")
    return Map(lambda r: r["hi"] & np.uint64(_CANCELED) != 0, (response,), out)


@instruction("clusterlaunchcontrol.query_cancel.get_first_ctaid")
def build_first_ctaid(operands: Operands, found: Instruction) -> Step:
    """`...get_first_ctaid.v4.b32.b128 {x, y, z, _}, response`."""
    if "v4" not in found.mods:
        raise reject(found, "expected .v4 or a dimension")
    return _ctaid(operands, found, operands.items(found.operands[0]), ("x", "y", "z", ""))


@instruction(*(f"clusterlaunchcontrol.query_cancel.get_first_ctaid::{d}" for d in "xyz"))
def build_one_ctaid(operands: Operands, found: Instruction) -> Step:
    """`...get_first_ctaid::dim.b32.b128 r, response`."""
    dimension = found.mods[1][-1]
    return _ctaid(operands, found, (found.operands[0],), (dimension,))


def _ctaid(
    operands: Operands, found: Instruction, items: tuple[Any, ...], dimensions: tuple[str, ...]
) -> Step:
    response = operands.source(found.operands[1], "b128")
    rows = [operands.destination(item, "b32") for item in items]
    if len(rows) != len(dimensions):
        raise reject(found, f"expected {len(dimensions)} registers; got {len(rows)}")
    places = {"x": ("lo", 0), "y": ("lo", 32), "z": ("hi", 0), "": ("hi", 32)}

    def run(lanes: LaneSet) -> None:
        held = lanes.get(response)
        if not (held["hi"] & np.uint64(_CANCELED)).all():
            raise BarrierFault(
                "clusterlaunchcontrol.query_cancel.get_first_ctaid of a request that was refused"
            )
        for row, dimension in zip(rows, dimensions, strict=True):
            half, shift = places[dimension]
            lanes.put(row, (held[half] >> np.uint64(shift)).astype(np.uint32))

    return LaneOp(run)
