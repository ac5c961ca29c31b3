"""Generic writes to shared memory that the asynchronous proxy may not see yet.

In granules of 16 bytes and by warp: a granule is *dirty* for the warps that have seen the write in
the order of barriers, and *fenced* for those that are ordered behind a `fence.proxy.async` of such
a warp. A bulk copy or wgmma that reads a dirty granule, or one fenced by a warp that the issuer is
not ordered behind, is a race.

Where several warps wrote one granule their union is kept, so that a race may be missed but none is
invented.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gemmjit.emulator.flights import GRANULE_BITS
from gemmjit.emulator.lanes import WARP, LaneSet
from gemmjit.emulator.shared_memory import SPAN

if TYPE_CHECKING:
    from gemmjit.emulator.grid import Grid

__all__ = ["UnfencedWrites"]

Array = npt.NDArray[Any]
_GRANULES = SPAN >> GRANULE_BITS


class UnfencedWrites:
    """The written granules of one grid.

    Attributes
    ----------
    dirty, fenced : uint32 array [granules]
        Sets of warps of the block.
    marked : set of int
        Slots of blocks with dirty or fenced granules.
    released : dict from mbarrier cell to int
        Warps that have arrived on it.
    """

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        granules = grid.space.blocks * _GRANULES
        self.dirty = np.zeros(granules, np.uint32)
        self.fenced = np.zeros(granules, np.uint32)
        self.marked: set[int] = set()
        self.released: dict[int, int] = {}

    def reset(self, slots: range) -> None:
        """Note that blocks start in these slots."""
        span = slice(slots.start * _GRANULES, slots.stop * _GRANULES)
        self.dirty[span] = 0
        self.fenced[span] = 0
        self.marked -= set(slots)

    def write(self, lanes: LaneSet, granules: Array, width: int) -> None:
        """Lanes write `width` bytes each, from these granules on."""
        blocks = granules // _GRANULES
        warps = lanes.lanes // WARP
        per_block = self.grid.space.threads // WARP
        flat_blocks = blocks.reshape(-1)
        local = flat_blocks == warps // per_block
        bits = (np.uint32(1) << (warps % per_block).astype(np.uint32))[local]
        places = granules.reshape(-1)[local]
        np.bitwise_or.at(self.dirty, places, bits)
        if width > 1 << GRANULE_BITS:
            np.bitwise_or.at(self.dirty, places + 1, bits)
        self.fenced[places] = 0
        self.marked.update(np.unique(flat_blocks[local]).tolist())

    def overwritten(self, slot: int, units: Array) -> None:
        """Note that an asynchronous write replaces what generic stores had left."""
        if slot in self.marked:
            self.dirty[units] = 0
            self.fenced[units] = 0

    def check(self, slot: int, units: Array, warps: Sequence[int]) -> None:
        """Look at what an asynchronous read, issued by these warps of the grid, will read."""
        if slot not in self.marked:
            return
        dirty, fenced = self.dirty[units], self.fenced[units]
        unfenced = np.where(fenced == 0, dirty, np.uint32(0))
        if unfenced.any():
            self._unfenced(units, unfenced)
        per_block = self.grid.space.threads // WARP
        mine = np.uint32(sum(1 << (w % per_block) for w in warps))
        unordered = (fenced != 0) & ((fenced & mine) != mine)
        if unordered.any():
            first = int(np.flatnonzero(unordered.reshape(-1))[0])
            warp = int(fenced.reshape(-1)[first]).bit_length() - 1
            self.grid.machine.found_race(
                f"{self._place(units, first)} was written and fenced by warp {warp}; no barrier "
                "orders that before this asynchronous read"
            )

    def _unfenced(self, units: Array, dirty: Array) -> None:
        first = int(np.flatnonzero(dirty.reshape(-1))[0])
        warps = [w for w in range(32) if int(dirty.reshape(-1)[first]) >> w & 1]
        self.grid.machine.found_race(
            f"the asynchronous copy or product reads {self._place(units, first)}, which was "
            f"written through the generic proxy (seen by warps {warps}); fence.proxy.async is "
            "missing between the two"
        )

    def _place(self, units: Array, position: int) -> str:
        slot, granule = divmod(int(units.reshape(-1)[position]), _GRANULES)
        return f"shared offset {granule << GRANULE_BITS:#x} of {self.grid.block_name(slot)}"

    def fence(self, lanes: LaneSet) -> None:
        """fence.proxy.async: what these warps have seen becomes visible to the async proxy."""
        if not self.marked:
            return
        for slot, bits in self._warps_by_block(lanes):
            if slot not in self.marked:
                continue
            span = slice(slot * _GRANULES, (slot + 1) * _GRANULES)
            dirty, fenced = self.dirty[span], self.fenced[span]
            # The fence may stand on either side of the barrier: a granule stays dirty for the
            # warps that have not fenced it.
            seen = dirty & bits
            chosen = np.flatnonzero(seen)
            fenced[chosen] |= seen[chosen]

    def met(self, slot: int, threads: Array) -> None:
        """Threads of one block (a mask) have met at a barrier."""
        if slot in self.marked:
            warps = np.flatnonzero(threads.reshape(-1, WARP).any(1))
            bits = sum(1 << int(w) for w in warps)
            self._order(slot, bits, bits)

    def cluster_met(self, slots: range) -> None:
        """All threads of these blocks have met."""
        for slot in slots:
            if slot in self.marked:
                self._order(slot, 0xFFFF_FFFF, 0xFFFF_FFFF)

    def release(self, lanes: LaneSet, cells: Array) -> None:
        """Lanes arrive on mbarriers, one each."""
        if not self.marked:
            return
        per_block = self.grid.space.threads // WARP
        for lane, cell in zip(lanes.lanes.tolist(), cells.tolist(), strict=True):
            warp = lane // WARP
            if cell // (SPAN >> 3) == warp // per_block:
                self.released[cell] = self.released.get(cell, 0) | 1 << warp % per_block

    def acquire(self, lanes: LaneSet, cell: int) -> None:
        """Lanes have seen a phase of an mbarrier complete."""
        if cell not in self.released:
            return
        for slot, bits in self._warps_by_block(lanes):
            if slot in self.marked:
                self._order(slot, self.released[cell], int(bits))

    def _order(self, slot: int, before: int, after: int) -> None:
        """Note that what the warps `before` have seen, the warps `after` have now seen too."""
        span = slice(slot * _GRANULES, (slot + 1) * _GRANULES)
        alive = self.grid.alive[slot].reshape(-1, WARP).any(1)
        everybody = sum(1 << int(w) for w in np.flatnonzero(alive))
        dirty, fenced = self.dirty[span], self.fenced[span]
        for table in (dirty, fenced):
            table[np.flatnonzero(table & np.uint32(before))] |= np.uint32(after)
        # What everybody has seen needs no more tracking.
        done = (fenced & np.uint32(everybody)) == np.uint32(everybody)
        dirty[done] = 0
        fenced[done] = 0
        if not (dirty.any() or fenced.any()):
            self.marked.discard(slot)

    def _warps_by_block(self, lanes: LaneSet) -> list[tuple[int, np.uint32]]:
        per_block = self.grid.space.threads // WARP
        found: dict[int, int] = {}
        for warp in lanes.warp_ids.tolist():
            slot = warp // per_block
            found[slot] = found.get(slot, 0) | 1 << warp % per_block
        return [(slot, np.uint32(bits)) for slot, bits in found.items()]
