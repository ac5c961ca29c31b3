"""Races and missing orderings in shared memory (PTX ISA chapter 8, 9.7.13.4, 9.7.9.25).

What is tracked, in granules of 16 bytes:

* generic writes that the asynchronous proxy may not see, :mod:`gemmjit.emulator.unfenced_writes`;
* generic reads that an asynchronous write might overtake, :mod:`gemmjit.emulator.unfenced_reads`;
* what asynchronous operations that have not completed write or read,
  :mod:`gemmjit.emulator.flights`: any conflicting access is a race (policies `lazy` and `random`;
  `eager` has nothing in flight);
* mbarriers whose init one cannot know of, :mod:`gemmjit.emulator.visibility`.

Order is that of execution barriers, cluster barriers and mbarriers (of reads, only the former two).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gemmjit.emulator.faults import BarrierFault
from gemmjit.emulator.flights import GRANULE_BITS, Flights
from gemmjit.emulator.lanes import LaneSet
from gemmjit.emulator.shared_memory import SPAN_BITS
from gemmjit.emulator.unfenced_reads import UnfencedReads
from gemmjit.emulator.unfenced_writes import UnfencedWrites
from gemmjit.emulator.visibility import InitVisibility

if TYPE_CHECKING:
    from gemmjit.emulator.grid import Grid
    from gemmjit.emulator.machine import Machine

__all__ = ["RaceTracker"]

Array = npt.NDArray[Any]


class _Tracks:
    """The tracked state of one grid."""

    def __init__(self, grid: Grid) -> None:
        self.writes = UnfencedWrites(grid)
        self.reads = UnfencedReads(grid)
        self.flights = Flights(grid)


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
        """Whether anything is outstanding that an mbarrier could order."""
        tracks = self._tracks.get(id(grid))
        return bool(self.inits.records) or (tracks is not None and bool(tracks.writes.marked))

    def reset(self, grid: Grid, group: int) -> None:
        """Note that a cluster starts in a slot group."""
        tracks = self._tracks.get(id(grid))
        slots = _slots(grid, group)
        self.inits.forget(grid, slots.start, len(slots))
        if tracks is not None:
            tracks.writes.reset(slots)
            tracks.reads.all_met(slots)

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
        if writes:
            self._check_barriers(grid, flat.reshape(-1))
            tracks.writes.write(lanes, granules, width)
        else:
            tracks.reads.read(lanes, granules, width)

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
        tracks.writes.check(slot, units, warps)
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
        tracks.reads.check(slot, units)
        if not self.machine.engine.eager:
            tracks.flights.begin(units, True)

    def async_write(self, grid: Grid, slot: int, units: Array) -> None:
        """Note that the write of :meth:`async_issue_write` happens now."""
        tracks = self._tracks.get(id(grid))
        if tracks is None:
            return
        if not self.machine.engine.eager:
            tracks.flights.end(units, True)
        tracks.writes.overwritten(slot, units)

    def async_store(self, grid: Grid, flat: Array) -> None:
        """Note that st.async or red.async is issued to flat indices, of any blocks."""
        tracks = self._tracks.get(id(grid))
        if tracks is not None:
            units = np.unique(flat >> GRANULE_BITS)
            slots = units >> SPAN_BITS - GRANULE_BITS
            for slot in np.unique(slots).tolist():
                tracks.reads.check(slot, units[slots == slot])

    def proxy_fence(self, grid: Grid, lanes: LaneSet) -> None:
        """fence.proxy.async: orders accesses of these warps and of the asynchronous proxy."""
        self.inits.proxy_fence(grid, lanes)
        tracks = self._tracks.get(id(grid))
        if tracks is not None:
            tracks.writes.fence(lanes)
            tracks.reads.fence(lanes)

    # -- order ------------------------------------------------------------------------------

    def block_barrier(self, grid: Grid, blocks: Array) -> None:
        """All threads of these blocks (a mask) have met."""
        if self.inits.records or id(grid) in self._tracks:
            for slot in np.flatnonzero(blocks).tolist():
                self.warps_met(grid, slot, grid.alive[slot])

    def warps_met(self, grid: Grid, slot: int, threads: Array) -> None:
        """Threads of one block (a mask) have met at a barrier."""
        if self.inits.records:
            self.inits.met(grid, slot, threads)
        tracks = self._tracks.get(id(grid))
        if tracks is not None:
            tracks.writes.met(slot, threads)
            tracks.reads.met(slot, threads)

    def cluster_arrive(self, grid: Grid, lanes: LaneSet, relaxed: bool) -> None:
        """Lanes arrive at the cluster barrier."""
        if self.inits.records:
            self.inits.cluster_arrive(grid, lanes, relaxed)

    def cluster_barrier(self, grid: Grid, group: int) -> None:
        """All threads of a cluster have met."""
        slots = _slots(grid, group)
        self.inits.cluster_met(grid, slots.start, len(slots))
        tracks = self._tracks.get(id(grid))
        if tracks is not None:
            tracks.writes.cluster_met(slots)
            tracks.reads.all_met(slots)

    def mbarrier_release(self, grid: Grid, lanes: LaneSet, cells: Array) -> None:
        """Lanes arrive on mbarriers."""
        if not self.orders(grid):
            return
        flat = cells.reshape(-1)
        self.inits.release(grid, lanes, flat)
        tracks = self._tracks.get(id(grid))
        if tracks is not None:
            tracks.writes.release(lanes, flat)

    def mbarrier_acquire(self, grid: Grid, lanes: LaneSet, cell: int) -> None:
        """Lanes have seen a phase of an mbarrier complete."""
        if not self.orders(grid):
            return
        self.inits.acquire(grid, lanes, cell)
        tracks = self._tracks.get(id(grid))
        if tracks is not None:
            tracks.writes.acquire(lanes, cell)

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


def _slots(grid: Grid, group: int) -> range:
    return range(group * grid.cluster_size, (group + 1) * grid.cluster_size)
