"""Fences, cluster addresses, launch control and hints that have no effect on values.

PTX ISA 9.7.9.23, 9.7.13.5 to 9.7.13.7, 9.7.13.15, 9.7.19.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gemmjit.emulator.dispatch import instruction, reject
from gemmjit.emulator.faults import BarrierFault
from gemmjit.emulator.memory import SHARED_WINDOW
from gemmjit.emulator.module import Instruction
from gemmjit.emulator.operands import Operands
from gemmjit.emulator.shared_memory import RANK_SHIFT
from gemmjit.emulator.steps import LaneOp, Map, Nothing, Step

__all__: list[str] = []

Array = npt.NDArray[Any]


@instruction("membar", "fence")
def _fence(operands: Operands, found: Instruction) -> Step:
    grid = operands.grid
    races = grid.machine.races
    if found.mods[:2] == ("proxy", "async"):
        # Without a space all of them; `.global` says nothing about shared memory.
        if any(m == "global" for m in found.mods):
            return Nothing()
        return LaneOp(lambda lanes: races.proxy_fence(grid, lanes))
    if found.mods[:1] == ("proxy",):
        if not found.mods[1].startswith(("alias", "async", "tensormap")):
            raise reject(found)
        if found.mods[1].startswith("async::generic"):
            return LaneOp(lambda lanes: races.proxy_fence(grid, lanes))
        return Nothing()
    if found.mods[:1] == ("mbarrier_init",):
        return LaneOp(lambda lanes: races.init_fence(grid, lanes))
    return LaneOp(lambda lanes: races.memory_fence(grid, lanes))


@instruction("mapa")
def _mapa(operands: Operands, found: Instruction) -> Step:
    kind = found.mods[-1]
    source = operands.source(found.operands[1], kind)
    rank = operands.source(found.operands[2], "u32")
    out = operands.destination(found.operands[0], kind)
    size = operands.grid.cluster_size
    clear = ~(0xFF << RANK_SHIFT)

    def run(a: Array, r: Array) -> Any:
        if int(r.max()) >= size:
            raise BarrierFault(f"mapa: block rank {int(r.max())} in a cluster of {size}")
        kept = a & a.dtype.type(clear & ((1 << (8 * a.dtype.itemsize)) - 1))
        return kept | (r.astype(a.dtype) << a.dtype.type(RANK_SHIFT))

    # A lane operation: lanes that do not execute it may hold any rank.
    return LaneOp(lambda lanes: lanes.put(out, run(lanes.get(source), lanes.get(rank))))


@instruction("getctarank")
def _getctarank(operands: Operands, found: Instruction) -> Step:
    kind = found.mods[-1]
    source = operands.source(found.operands[1], kind)
    out = operands.destination(found.operands[0], "u32")
    window = 0 if any(m.startswith("shared") for m in found.mods) else SHARED_WINDOW

    def run(a: Array) -> Array:
        return ((a.astype(np.int64) - window) >> RANK_SHIFT & 0xFF).astype(np.uint32)

    return Map(run, (source,), out)


@instruction("nanosleep", "pmevent")
def _sleep(operands: Operands, found: Instruction) -> Step:
    return Nothing()
