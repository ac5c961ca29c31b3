"""Shared memory of the resident blocks, and its window in the cluster (PTX ISA chapter 5.1.6).

A `shared::cluster` address is `rank << 24 | offset`; a block's own addresses carry its own rank, as
on hardware. Every block owns a span of `SPAN` bytes of one flat buffer, so the low bits of a flat
index equal those of the address and a swizzle can be applied to either.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gemmjit.emulator.faults import MemoryFault
from gemmjit.emulator.lanes import LaneSet
from gemmjit.emulator.memory import POISON, Storage

__all__ = ["RANK_SHIFT", "SPAN", "SPAN_BITS", "SharedMemory"]

Array = npt.NDArray[Any]

RANK_SHIFT = 24
SPAN_BITS = 18
SPAN = 1 << SPAN_BITS
_OFFSET_MASK = (1 << RANK_SHIFT) - 1


class SharedMemory(Storage):
    """Shared memory of all blocks of a grid.

    Parameters
    ----------
    blocks, threads : int
        Resident blocks (slots) and threads of each.
    cluster_size : int
        Blocks of a cluster; they occupy neighbouring slots.
    base : int
        First usable offset.
    nbytes : int
        Usable bytes of a block.
    """

    __slots__ = (
        "base", "blocks", "cluster_size", "delta", "limit", "origin", "slot_base", "slot_live",
    )  # fmt: skip

    def __init__(
        self, blocks: int, threads: int, cluster_size: int, base: int, nbytes: int
    ) -> None:
        super().__init__(np.empty(max(blocks, 1) * SPAN, np.uint8))
        self.blocks = blocks
        self.cluster_size = cluster_size
        self.base = base
        self.limit = nbytes
        slot = np.arange(blocks, dtype=np.int64)[:, None]
        rank = slot % cluster_size
        shape = (blocks, threads)
        # Flat index = address + delta; offset within the usable part = address - origin.
        self.slot_base = np.broadcast_to(slot * SPAN, shape)
        self.delta = np.broadcast_to(slot * SPAN - (rank << RANK_SHIFT), shape)
        self.origin = np.broadcast_to((rank << RANK_SHIFT) + base, shape)
        self.slot_live = np.zeros(blocks, np.bool_)

    def reset(self, slot: int) -> None:
        """Poison a block's memory before it starts."""
        start = slot * SPAN
        self.data[start : start + self.base] = 0
        self.data[start + self.base : start + self.base + self.limit] = POISON
        self.slot_live[slot] = True

    def index(self, lanes: LaneSet, addresses: Array, width: int) -> Array:
        """Flat indices of shared addresses, checked for bounds and alignment.

        Parameters
        ----------
        lanes : LaneSet
            The executing lanes.
        addresses : integer array, shaped as `lanes.get` gives
            Shared addresses, own or of another block of the cluster.
        width : int
            Bytes of one access, a power of two; also its alignment.
        """
        offsets = addresses - lanes.get(self.origin)
        bits = int(np.bitwise_or.reduce(offsets, axis=None))
        # The OR of all offsets bounds the largest: only when that is too much, look exactly.
        inside = bits >= 0 and bits + width <= self.limit
        if not inside and (int(offsets.min()) < 0 or int(offsets.max()) + width > self.limit):
            return self._cluster_index(lanes, addresses, width)
        if bits & (width - 1) and int(np.bitwise_or.reduce(addresses, axis=None)) & (width - 1):
            bad = np.flatnonzero(addresses.reshape(-1) & (width - 1))[0]
            address = int(addresses.reshape(-1)[bad])
            raise self._fault(lanes, int(bad), f"{address:#x} is not a multiple of {width}")
        flat: Array = addresses + lanes.get(self.delta)
        return flat

    def _cluster_index(self, lanes: LaneSet, addresses: Array, width: int) -> Array:
        flat = addresses.astype(np.int64)
        rank, offset = flat >> RANK_SHIFT, flat & _OFFSET_MASK
        relative = offset - self.base
        wrong = (rank < 0) | (rank >= self.cluster_size)
        wrong |= (relative < 0) | (relative + width > self.limit) | ((offset & (width - 1)) != 0)
        slot = lanes.get(self.slot_base) >> SPAN_BITS
        target = slot - slot % self.cluster_size + np.clip(rank, 0, self.cluster_size - 1)
        if wrong.any():
            bad = int(np.flatnonzero(wrong)[0])
            raise self._fault(lanes, bad, self._why(int(flat.reshape(-1)[bad]), width))
        dead = ~self.slot_live[target]
        if dead.any():
            bad = int(np.flatnonzero(dead)[0])
            raise self._fault(
                lanes, bad, f"block {int(rank.reshape(-1)[bad])} of the cluster has exited"
            )
        result: Array = target * SPAN + offset
        return result

    def _why(self, address: int, width: int) -> str:
        rank, offset = address >> RANK_SHIFT, address & _OFFSET_MASK
        if not 0 <= rank < self.cluster_size:
            return f"{address:#x} names block {rank} of a cluster of {self.cluster_size}"
        if offset & (width - 1):
            return f"{address:#x} is not a multiple of {width}"
        first, end = self.base, self.base + self.limit
        return f"offset {offset:#x} lies outside the block's shared memory [{first:#x}, {end:#x})"

    def _fault(self, lanes: LaneSet, position: int, why: str) -> MemoryFault:
        lane = int(lanes.lanes[position])
        block, thread = divmod(lane, lanes.space.threads)
        return MemoryFault(f"shared access of slot {block} thread {thread}: {why}")

    def flat_of(self, slot: int, address: int, nbytes: int, alignment: int = 1) -> int:
        """Flat index of one range that `slot` addresses, checked."""
        rank, offset = address >> RANK_SHIFT, address & _OFFSET_MASK
        relative = offset - self.base
        if (
            not 0 <= rank < self.cluster_size
            or relative < 0
            or relative + nbytes > self.limit
            or offset % alignment
        ):
            why = self._why(address, 1)
            if offset % alignment:
                why = f"{address:#x} is not a multiple of {alignment}"
            elif relative + nbytes > self.limit and relative >= 0:
                why = (
                    f"{nbytes} bytes at offset {offset:#x} pass the end {self.base + self.limit:#x}"
                )
            raise MemoryFault(f"shared memory range: {why}")
        target = slot - slot % self.cluster_size + rank
        if not self.slot_live[target]:
            raise MemoryFault(f"shared memory range: block {rank} of the cluster has exited")
        return target * SPAN + offset
