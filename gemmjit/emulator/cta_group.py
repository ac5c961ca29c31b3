"""`.cta_group` of tcgen05 instructions, and the blocks that one names (PTX ISA 9.7.16.5).

A pair are the blocks of a cluster whose ranks differ in bit 0; they are in neighbouring slots.
"""

from __future__ import annotations

from gemmjit.emulator.dispatch import reject
from gemmjit.emulator.faults import ConvergenceFault, MemoryFault
from gemmjit.emulator.grid import Grid
from gemmjit.emulator.lanes import WARP, LaneSet
from gemmjit.emulator.module import Instruction
from gemmjit.emulator.operands import Operands

__all__ = ["blocks_of", "cta_group", "warps_of"]


def cta_group(operands: Operands, found: Instruction) -> int:
    """Return N of `.cta_group::N`, the same for all instructions of a kernel.

    Raises
    ------
    UnknownInstruction
        If there is none, or an earlier instruction had the other one.
    """
    given = [m for m in found.mods if m.startswith("cta_group::")]
    if given not in (["cta_group::1"], ["cta_group::2"]):
        raise reject(found, "expected .cta_group::1 or .cta_group::2")
    group = int(given[0][-1])
    if operands.grid.state.setdefault("cta_group", group) != group:
        raise reject(found, "all tcgen05 instructions of a kernel have the same .cta_group, not so")
    return group


def blocks_of(grid: Grid, slot: int, group: int) -> list[int]:
    """Return the slots that an instruction of a block concerns, in the order of their ranks.

    Raises
    ------
    MemoryFault
        If there is no other block in the cluster, or it has exited.
    """
    if group == 1:
        return [slot]
    if grid.cluster_size % 2:
        raise MemoryFault(
            f"tcgen05: .cta_group::2 needs pairs of blocks: expected an even cluster; got "
            f"{grid.cluster_size}"
        )
    pair = [slot & ~1, slot | 1]
    for other in pair:
        if not grid.shared.slot_live[other]:
            raise MemoryFault(f"tcgen05: the other block of {grid.block_name(slot)} has exited")
    return pair


def warps_of(grid: Grid, lanes: LaneSet) -> list[tuple[int, int, int]]:
    """Return first lane, slot and warp of the block, for all warps of a set of whole ones.

    Raises
    ------
    ConvergenceFault
        If a warp is not complete.
    """
    if not lanes.full_warps:
        raise ConvergenceFault("tcgen05: an .aligned instruction needs all threads of a warp")
    per_block = grid.space.threads // WARP
    return [
        (number * WARP, number // per_block, number % per_block)
        for number in lanes.warp_ids.tolist()
    ]
