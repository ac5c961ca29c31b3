"""Which blocks of a cluster a bulk copy into shared memory goes to, and which barriers it signals.

PTX ISA 9.7.9.25.4.1 and 9.7.9.27.1.2: data and signal go to the same offsets in every block of the
mask; without a mask the barrier must lie in the block that receives the data. With `.cta_group::2`
it may also lie in the other block of the pair (ranks that differ in bit 0): every receiver then
signals the block of its own pair whose rank has the bit 0 of the barrier's address (CUTLASS and
DeepGEMM rely on it).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemmjit.emulator.faults import BarrierFault, MemoryFault
from gemmjit.emulator.shared_memory import RANK_SHIFT

if TYPE_CHECKING:
    from gemmjit.emulator.grid import Grid

__all__ = ["OFFSET_MASK", "destinations"]

#: The offset within a block of a shared::cluster address.
OFFSET_MASK = (1 << RANK_SHIFT) - 1


def destinations(
    grid: Grid,
    slot: int,
    target: int,
    barrier: int,
    mask: int | None,
    own_block: bool,
    pair: bool = False,
) -> list[tuple[int, int]]:
    """Return slot, and flat index of the barrier, of every block that receives a copy.

    Parameters
    ----------
    grid : Grid
    slot : int
        The issuing block.
    target, barrier : int
        shared::cluster addresses.
    mask : int or None
        ctaMask of a multicast.
    own_block : bool
        Whether the destination space is shared::cta.
    pair : bool
        Whether the instruction says `.cta_group::2`.

    Raises
    ------
    BarrierFault
        If data and barrier are in different blocks.
    MemoryFault
        If a block is not one of the cluster, or the barrier lies outside its shared memory.
    """
    size = grid.cluster_size
    first = slot - slot % size
    rank = target >> RANK_SHIFT
    signalled = barrier >> RANK_SHIFT
    if pair and size % 2:
        raise MemoryFault(f"bulk copy: .cta_group::2 in a cluster of {size}: expected pairs")
    if signalled != rank and not (pair and signalled ^ rank == 1):
        raise BarrierFault(
            f"bulk copy: the mbarrier is in block {signalled} of the cluster, "
            f"its data go to block {rank}"
        )
    if mask is None:
        if own_block and first + rank != slot:
            raise MemoryFault("bulk copy: .shared::cta names another block of the cluster")
        return [(first + rank, grid.shared.flat_of(slot, barrier, 8, 8))]
    if not mask or mask >> size:
        raise MemoryFault(f"bulk copy: ctaMask {mask:#x}: expected blocks of a cluster of {size}")
    offset = barrier & OFFSET_MASK

    def _block_of(receiver: int) -> int:
        return receiver & ~1 | signalled & 1 if pair else receiver

    return [
        (first + r, grid.shared.flat_of(slot, _block_of(r) << RANK_SHIFT | offset, 8, 8))
        for r in range(size)
        if mask >> r & 1
    ]
