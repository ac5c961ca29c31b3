"""Races and missing orderings in shared memory (PTX ISA chapter 8, 9.7.13.4, 9.7.9.25).

Three things are tracked, in granules of 16 bytes and by warp:

* *dirty*: written through the generic proxy, and by which warps that write has been seen in the
  order of barriers. `fence.proxy.async` of such a warp makes the granule
* *fenced*: visible to the asynchronous proxy, for that warp and the warps ordered behind it. A
  bulk copy or wgmma that reads a dirty granule, or one fenced by a warp that the issuer is not
  ordered behind, is a race.
* *in flight*: being written, or read, by an asynchronous operation that has not completed. Any
  conflicting access is a race (policies `lazy` and `random`; `eager` has nothing in flight).

Order is that of execution barriers, cluster barriers and mbarriers. Where several warps wrote one
granule the tracker keeps their union, so it may miss a race but does not invent one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gemmjit.emulator.faults import BarrierFault
from gemmjit.emulator.flights import GRANULE_BITS, Flights
from gemmjit.emulator.lanes import WARP, LaneSet
from gemmjit.emulator.shared_memory import SPAN, SPAN_BITS
from gemmjit.emulator.visibility import InitVisibility

if TYPE_CHECKING:
    from gemmjit.emulator.grid import Grid
    from gemmjit.emulator.machine import Machine

__all__ = ["RaceTracker"]

Array = npt.NDArray[Any]
_GRANULES = SPAN >> GRANULE_BITS


class _Tracks:
    """The tracked state of one grid."""

    def __init__(self, grid: Grid) -> None:
        granules = grid.space.blocks * _GRANULES
        self.dirty = np.zeros(granules, np.uint32)
        self.fenced = np.zeros(granules, np.uint32)
        self.flights = Flights(grid)
        # Blocks with dirty or fenced granules.
        self.marked: set[int] = set()
        # mbarrier cell -> warps that have arrived on it
        self.released: dict[int, int] = {}


class RaceTracker:
    """Watches all grids of a machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._tracks: dict[int, _Tracks] = {}
        self.inits = InitVisibility()

    def add(self, grid: Grid) -> None:
        """Track a grid if its program can read or write shared memory asynchronously."""
        names = {i.opcode for i in grid.program.instructions}
        bulk = any("bulk" in i.mods for i in grid.program.instructions)
        if bulk or names & {"wgmma", "tcgen05"}:
            self._tracks[id(grid)] = _Tracks(grid)

    def tracks(self, grid: Grid) -> bool:
        """Whether shared accesses of this grid must be reported."""
        return id(grid) in self._tracks

    def orders(self, grid: Grid) -> bool:
        """Whether anything is outstanding that a barrier could order."""
        tracks = self._tracks.get(id(grid))
        return bool(self.inits.records) or (tracks is not None and bool(tracks.marked))

    def reset(self, grid: Grid, group: int) -> None:
        """Note that a cluster starts in a slot group."""
        tracks = self._tracks.get(id(grid))
        size = grid.cluster_size
        self.inits.forget(grid, group * size, size)
        if tracks is not None:
            span = slice(group * size * _GRANULES, (group + 1) * size * _GRANULES)
            tracks.dirty[span] = 0
            tracks.fenced[span] = 0
            tracks.marked -= set(range(group * size, (group + 1) * size))

    def block_exited(self, grid: Grid, slot: int) -> None:
        """Note that a block has ended: nothing may still be writing into its shared memory."""
        tracks = self._tracks.get(id(grid))
        self.inits.forget(grid, slot, 1)
        if tracks is not None:
            tracks.flights.block_exited(slot)

    # -- the generic proxy ------------------------------------------------------------------

    def generic_access(
        self, grid: Grid, lanes: LaneSet, flat: Array, width: int, writes: bool
    ) -> None:
        """Lanes access shared memory at flat indices, `width` bytes each."""
        tracks = self._tracks[id(grid)]
        granules = flat >> GRANULE_BITS
        tracks.flights.check(granules, writes, "access")
        if not writes:
            return
        blocks = granules // _GRANULES
        warps = lanes.lanes // WARP
        own = warps // (grid.space.threads // WARP)
        flat_blocks = blocks.reshape(-1)
        local = flat_blocks == own
        per_block = grid.space.threads // WARP
        bits = (np.uint32(1) << (warps % per_block).astype(np.uint32))[local]
        places = granules.reshape(-1)[local]
        self._check_barriers(grid, flat.reshape(-1))
        np.bitwise_or.at(tracks.dirty, places, bits)
        if width > 1 << GRANULE_BITS:
            np.bitwise_or.at(tracks.dirty, places + 1, bits)
        tracks.fenced[places] = 0
        tracks.marked.update(np.unique(flat_blocks[local]).tolist())

    def _check_barriers(self, grid: Grid, flat: Array) -> None:
        valid = grid.mbarriers.valid[flat >> 3]
        if valid.any():
            cell = int(flat.reshape(-1)[np.flatnonzero(valid)[0]]) >> 3
            raise BarrierFault(f"a write destroys {grid.mbarriers.name(cell)}")

    # -- the asynchronous proxy -------------------------------------------------------------

    def async_issue_read(
        self, grid: Grid, slot: int, units: Array, warps: Sequence[int] = ()
    ) -> None:
        """Note that an asynchronous operation is issued that will read 16-byte units.

        Parameters
        ----------
        units : int array
            Distinct flat shared indices // 16.
        warps : sequence of int
            The issuing warps, numbered over the grid.
        """
        tracks = self._tracks.get(id(grid))
        if tracks is None:
            return
        if slot in tracks.marked:
            self._check_fences(grid, tracks, units, warps)
        if not self.machine.engine.eager:
            tracks.flights.begin(units, False)

    def async_read(self, grid: Grid, slot: int, units: Array) -> None:
        """Note that the read of :meth:`async_issue_read` happens now."""
        tracks = self._tracks.get(id(grid))
        if tracks is not None and not self.machine.engine.eager:
            tracks.flights.end(units, False)

    def async_issue_write(self, grid: Grid, slot: int, units: Array) -> None:
        """Note that an asynchronous operation is issued that will write 16-byte units."""
        tracks = self._tracks.get(id(grid))
        if tracks is None:
            return
        self._check_barriers(grid, units[:, None] * 16 + np.array([0, 8]))
        if not self.machine.engine.eager:
            tracks.flights.begin(units, True)

    def async_write(self, grid: Grid, slot: int, units: Array) -> None:
        """Note that the write of :meth:`async_issue_write` happens now."""
        tracks = self._tracks.get(id(grid))
        if tracks is None:
            return
        if not self.machine.engine.eager:
            tracks.flights.end(units, True)
        if slot in tracks.marked:
            # What generic stores had left there is gone.
            tracks.dirty[units] = 0
            tracks.fenced[units] = 0

    def _check_fences(
        self, grid: Grid, tracks: _Tracks, units: Array, warps: Sequence[int]
    ) -> None:
        dirty, fenced = tracks.dirty[units], tracks.fenced[units]
        unfenced = np.where(fenced == 0, dirty, np.uint32(0))
        if unfenced.any():
            self._unfenced(grid, units, unfenced, "the asynchronous copy or product")
        per_block = grid.space.threads // WARP
        mine = np.uint32(sum(1 << (w % per_block) for w in warps))
        unordered = (fenced != 0) & ((fenced & mine) != mine)
        if unordered.any():
            first = int(np.flatnonzero(unordered.reshape(-1))[0])
            slot, offset = _place(int(units.reshape(-1)[first]))
            warp = int(fenced.reshape(-1)[first]).bit_length() - 1
            self.machine.found_race(
                f"shared offset {offset:#x} of {grid.block_name(slot)} was written and fenced by "
                f"warp {warp}; no barrier orders that before this asynchronous read"
            )

    def _unfenced(self, grid: Grid, granules: Array, dirty: Array, what: str) -> None:
        first = int(np.flatnonzero(dirty.reshape(-1))[0])
        slot, offset = _place(int(granules.reshape(-1)[first]))
        warps = [w for w in range(32) if int(dirty.reshape(-1)[first]) >> w & 1]
        self.machine.found_race(
            f"{what} reads shared offset {offset:#x} of {grid.block_name(slot)}, which was written "
            f"through the generic proxy (seen by warps {warps}); fence.proxy.async is missing "
            "between the two"
        )

    def proxy_fence(self, grid: Grid, lanes: LaneSet) -> None:
        """fence.proxy.async: what these warps have seen becomes visible to the async proxy."""
        self.inits.proxy_fence(grid, lanes)
        tracks = self._tracks.get(id(grid))
        if tracks is None or not tracks.marked:
            return
        for slot, bits in _warps_by_block(grid, lanes):
            if slot not in tracks.marked:
                continue
            span = slice(slot * _GRANULES, (slot + 1) * _GRANULES)
            dirty, fenced = tracks.dirty[span], tracks.fenced[span]
            # The fence may stand on either side of the barrier: a granule stays dirty for the
            # warps that have not fenced it.
            seen = dirty & bits
            chosen = np.flatnonzero(seen)
            fenced[chosen] |= seen[chosen]

    # -- order ------------------------------------------------------------------------------

    def block_barrier(self, grid: Grid, blocks: Array) -> None:
        """All threads of these blocks (a mask) have met."""
        if not self.orders(grid):
            return
        for slot in np.flatnonzero(blocks).tolist():
            self.warps_met(grid, slot, grid.alive[slot])

    def warps_met(self, grid: Grid, slot: int, threads: Array) -> None:
        """Threads of one block (a mask) have met at a barrier."""
        if not self.orders(grid):
            return
        self.inits.met(grid, slot, threads)
        tracks = self._tracks.get(id(grid))
        if tracks is not None and slot in tracks.marked:
            warps = np.flatnonzero(threads.reshape(-1, WARP).any(1))
            bits = sum(1 << int(w) for w in warps)
            self._order(grid, tracks, slot, bits, bits)

    def _order(self, grid: Grid, tracks: _Tracks, slot: int, before: int, after: int) -> None:
        """Note that what the warps `before` have seen, the warps `after` have now seen too."""
        span = slice(slot * _GRANULES, (slot + 1) * _GRANULES)
        alive = grid.alive[slot].reshape(-1, WARP).any(1)
        everybody = sum(1 << int(w) for w in np.flatnonzero(alive))
        dirty, fenced = tracks.dirty[span], tracks.fenced[span]
        for table in (dirty, fenced):
            table[np.flatnonzero(table & np.uint32(before))] |= np.uint32(after)
        # What everybody has seen needs no more tracking.
        done = (fenced & np.uint32(everybody)) == np.uint32(everybody)
        dirty[done] = 0
        fenced[done] = 0
        if not (dirty.any() or fenced.any()):
            tracks.marked.discard(slot)

    def cluster_arrive(self, grid: Grid, lanes: LaneSet, relaxed: bool) -> None:
        """Lanes arrive at the cluster barrier."""
        if self.inits.records:
            self.inits.cluster_arrive(grid, lanes, relaxed)

    def cluster_barrier(self, grid: Grid, group: int) -> None:
        """All threads of a cluster have met."""
        if not self.orders(grid):
            return
        size = grid.cluster_size
        self.inits.cluster_met(grid, group * size, size)
        for slot in range(group * size, (group + 1) * size):
            tracks = self._tracks.get(id(grid))
            if tracks is not None and slot in tracks.marked:
                self._order(grid, tracks, slot, 0xFFFF_FFFF, 0xFFFF_FFFF)

    def mbarrier_release(self, grid: Grid, lanes: LaneSet, cells: Array) -> None:
        """Lanes arrive on mbarriers."""
        if not self.orders(grid):
            return
        flat = cells.reshape(-1)
        self.inits.release(grid, lanes, flat)
        tracks = self._tracks.get(id(grid))
        if tracks is None or not tracks.marked:
            return
        per_block = grid.space.threads // WARP
        for lane, cell in zip(lanes.lanes.tolist(), flat.tolist(), strict=True):
            warp = lane // WARP
            if cell // (SPAN >> 3) == warp // per_block:
                tracks.released[cell] = tracks.released.get(cell, 0) | 1 << warp % per_block

    def mbarrier_acquire(self, grid: Grid, lanes: LaneSet, cell: int) -> None:
        """Lanes have seen a phase of an mbarrier complete."""
        if not self.orders(grid):
            return
        self.inits.acquire(grid, lanes, cell)
        tracks = self._tracks.get(id(grid))
        if tracks is None or cell not in tracks.released:
            return
        for slot, bits in _warps_by_block(grid, lanes):
            if slot in tracks.marked:
                self._order(grid, tracks, slot, tracks.released[cell], int(bits))

    # -- visibility of mbarrier.init --------------------------------------------------------

    def barrier_init(self, grid: Grid, lane: int, cell: int) -> None:
        """Note that a lane initialises a barrier."""
        self.inits.add(grid, lane, cell)

    def barrier_use(self, grid: Grid, lanes: LaneSet | int, cells: Array) -> None:
        """Lanes use one barrier each (or one lane all): they must be ordered behind the init."""
        by_copy = isinstance(lanes, int)
        if self.inits.records:
            ids = np.full(cells.size, lanes) if isinstance(lanes, int) else lanes.lanes
            self.inits.check(grid, ids, cells)
        if by_copy and self.inits.unfenced:
            self.inits.check_async(grid, cells)

    def init_fence(self, grid: Grid, lanes: LaneSet) -> None:
        """fence.mbarrier_init.release.cluster."""
        self.inits.fence(grid, lanes)

    def memory_fence(self, grid: Grid, lanes: LaneSet) -> None:
        """membar, fence.acq_rel, fence.sc: may publish an init through any later flag."""
        self.inits.publish(grid, lanes)

    def warp_barrier(self, grid: Grid, lanes: LaneSet) -> None:
        """bar.warp.sync orders the lanes of a warp; tracking is by warp, so nothing changes."""


def _place(granule: int) -> tuple[int, int]:
    return granule >> (SPAN_BITS - GRANULE_BITS), granule % _GRANULES << GRANULE_BITS


def _warps_by_block(grid: Grid, lanes: LaneSet) -> list[tuple[int, np.uint32]]:
    per_block = grid.space.threads // WARP
    found: dict[int, int] = {}
    for warp in lanes.warp_ids.tolist():
        slot = warp // per_block
        found[slot] = found.get(slot, 0) | 1 << warp % per_block
    return [(slot, np.uint32(bits)) for slot, bits in found.items()]
