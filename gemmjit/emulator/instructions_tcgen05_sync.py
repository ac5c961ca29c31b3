"""`tcgen05.commit` and `tcgen05.fence` (PTX ISA 9.1, sections 9.7.16.11 and 9.7.16.12)."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gemmjit.emulator.cta_group import blocks_of, cta_group
from gemmjit.emulator.dispatch import instruction, reject
from gemmjit.emulator.faults import MemoryFault
from gemmjit.emulator.instructions_mbarrier import shared_values
from gemmjit.emulator.lanes import LaneSet
from gemmjit.emulator.module import Instruction
from gemmjit.emulator.multicast import OFFSET_MASK
from gemmjit.emulator.operands import Operands
from gemmjit.emulator.shared_memory import RANK_SHIFT
from gemmjit.emulator.steps import LaneOp, Step
from gemmjit.emulator.tcgen05_pipe import submit
from gemmjit.emulator.tensor_memory import tensor_memory

__all__: list[str] = []

Array = npt.NDArray[Any]


@instruction("tcgen05.commit")
def build_commit(operands: Operands, found: Instruction) -> Step:
    """`tcgen05.commit.cta_group.mbarrier::arrive::one{.shared::cluster}{.multicast}.b64 [mbar]`."""
    group = cta_group(operands, found)
    multicast = "multicast::cluster" in found.mods
    known = {
        "commit", f"cta_group::{group}", "mbarrier::arrive::one", "shared::cluster",
        "multicast::cluster", "b64",
    }  # fmt: skip
    if set(found.mods) - known or "mbarrier::arrive::one" not in found.mods:
        raise reject(found)
    if len(found.operands) != 1 + multicast:
        raise reject(found, f"{len(found.operands)} operands")
    grid = operands.grid
    where = grid.program.describe(operands.pc)
    barrier = operands.address(found.operands[0])
    mask = operands.source(found.operands[1], "u16") if multicast else None

    def arrive(cells: Array) -> None:
        grid.mbarriers.arrive(cells, 1)

    def run(lanes: LaneSet) -> None:
        targets = shared_values(barrier, lanes).reshape(-1).tolist()
        masks: list[int | None] = [None] * lanes.count
        if mask is not None:
            shape = lanes.get(grid.alive).shape
            masks = np.broadcast_to(lanes.get(mask), shape).reshape(-1).tolist()
        for lane, target, chosen in zip(lanes.lanes.tolist(), targets, masks, strict=True):
            slot = lane // grid.space.threads
            size = grid.cluster_size
            places = [target]
            if chosen is not None:
                if not chosen or chosen >> size:
                    raise MemoryFault(
                        f"tcgen05.commit: ctaMask {chosen:#x}: expected blocks of a cluster of "
                        f"{size}"
                    )
                offset = target & OFFSET_MASK
                places = [r << RANK_SHIFT | offset for r in range(size) if chosen >> r & 1]
            flat = np.array([grid.shared.flat_of(slot, place, 8, 8) for place in places])
            cells = grid.mbarriers.cells(flat)
            grid.machine.races.barrier_use(grid, lane, cells)
            blocks = blocks_of(grid, slot, group)
            submit(grid, "tcgen05.commit", lane, blocks, partial(arrive, cells), where)

    return LaneOp(run)


@instruction("tcgen05.fence::before_thread_sync", "tcgen05.fence::after_thread_sync")
def build_fence(operands: Operands, found: Instruction) -> Step:
    """`tcgen05.fence::before_thread_sync` and `tcgen05.fence::after_thread_sync`."""
    if len(found.mods) != 1 or found.operands:
        raise reject(found)
    before = found.mods[0] == "fence::before_thread_sync"
    grid = operands.grid

    def run(lanes: LaneSet) -> None:
        tensor_memory(grid).hazards.fence(lanes.warp_ids, before)

    return LaneOp(run)
