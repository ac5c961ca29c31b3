"""Generic reads of shared memory that a later asynchronous write might overtake.

A warp that has read a stage and tells so through an mbarrier has not thereby finished reading:
ptxas lets the arrival go while ldmatrix is under way, and on an H200 the bulk copy that the arrival
had let loose overwrote unswizzled tiles before they were read (2026-11-30). With
`fence.proxy.async` in every reading lane, before the arrival, it did not.

So generic reads are remembered by warp and granule of 16 bytes until each lane of the warp that has
read has executed a proxy fence, or has taken part in an execution barrier (bar, barrier.cluster),
or has exited. That a barrier suffices the documents leave open; kernels in the field rely on it.
Order through an mbarrier alone does not suffice. An asynchronous write (bulk copy, tensor copy,
multicast, st.async, red.async) that is issued to a granule with such reads is a finding. For
st.async and red.async the manual does not name the proxy; they are taken to be asynchronous.

Not here: reads of the shared memory of another block of the cluster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gemmjit.emulator.flights import GRANULE_BITS
from gemmjit.emulator.lanes import WARP, LaneSet
from gemmjit.emulator.shared_memory import SPAN

if TYPE_CHECKING:
    from gemmjit.emulator.grid import Grid

__all__ = ["UnfencedReads"]

Array = npt.NDArray[Any]
_GRANULES = SPAN >> GRANULE_BITS
_NEVER = np.iinfo(np.int64).max


class UnfencedReads:
    """The read granules of one grid.

    A warp's time is cut into periods, which its fences and barriers end; the table holds the period
    in which a warp last read a granule. So a fence forgets all reads of a warp in one addition.
    """

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        shape = (grid.space.blocks, grid.space.threads)
        warps = grid.space.size // WARP
        self._read_in = np.zeros((warps, _GRANULES), np.uint32)  # pages are taken when touched
        self._periods = np.ones(shape, np.uint32)  # a warp's period, for each of its lanes
        self._reading = np.zeros(shape, np.bool_)  # lanes that have read in their warp's period
        # Granules between which a warp has read in its period.
        self._first = np.full(warps, _NEVER)
        self._last = np.full(warps, -1)
        # What leads from a granule of the grid to its place in the table of a lane's warp.
        warp = np.arange(grid.space.size).reshape(shape) // WARP
        self._shift = (warp - np.arange(shape[0])[:, None]) * _GRANULES

    def read(self, lanes: LaneSet, granules: Array, width: int) -> None:
        """Lanes read `width` bytes each, from these granules on (shaped as `lanes.get`)."""
        places = granules + lanes.get(self._shift)
        periods = lanes.get(self._periods)
        if self.grid.cluster_size > 1:
            own = granules // _GRANULES == lanes.lanes.reshape(granules.shape) // (
                self.grid.space.threads
            )
            if not own.any():
                return
            places, periods, granules = places[own], periods[own], granules[own]
        table = self._read_in.reshape(-1)
        table[places] = periods
        if width > 1 << GRANULE_BITS:
            table[places + 1] = periods
        lanes.put(self._reading, True)
        ids = lanes.warp_ids
        self._first[ids] = np.minimum(self._first[ids], granules.min())
        self._last[ids] = np.maximum(self._last[ids], granules.max() + (width - 1 >> GRANULE_BITS))

    def _end(self, warps: Array) -> None:
        """Let the period of warps end whose lanes have all fenced what they had read."""
        reading = self._reading.reshape(-1, WARP)[warps]
        if reading.any():
            reading &= self.grid.alive.reshape(-1, WARP)[warps]
            warps = warps[~reading.any(1)]
        self._periods.reshape(-1, WARP)[warps] += np.uint32(1)
        self._first[warps] = _NEVER
        self._last[warps] = -1

    def fence(self, lanes: LaneSet) -> None:
        """Lanes execute a proxy fence."""
        ids = lanes.warp_ids
        if self._last[ids].max() >= 0:
            lanes.put(self._reading, False)
            self._end(ids)

    def met(self, slot: int, threads: Array) -> None:
        """Threads of one block (a mask) have met at a barrier."""
        per_block = self.grid.space.threads // WARP
        warps = slot * per_block + np.flatnonzero(threads.reshape(-1, WARP).any(1))
        if self._last[warps].max(initial=-1) >= 0:
            self._reading[slot][threads] = False
            self._end(warps)

    def all_met(self, slots: range) -> None:
        """All threads of these blocks have met, or start."""
        per_block = self.grid.space.threads // WARP
        span = slice(slots.start * per_block, slots.stop * per_block)
        if self._last[span].max() >= 0:
            self._reading[slots.start : slots.stop] = False
            self._end(np.arange(span.start, span.stop))

    def check(self, slot: int, units: Array) -> None:
        """Look at granules of one block to which an asynchronous write is issued."""
        per_block = self.grid.space.threads // WARP
        span = slice(slot * per_block, (slot + 1) * per_block)
        last = self._last[span]
        if last.max() < 0:
            return
        flat = units.reshape(-1)
        near = np.flatnonzero((last >= flat.min()) & (self._first[span] <= flat.max()))
        if not near.size:
            return
        local = flat - slot * _GRANULES
        periods = self._periods[slot, ::WARP]
        found = {
            int(warp): hits
            for warp in near
            if (hits := self._read_in[span.start + warp].take(local) == periods[warp]).any()
        }
        if found:
            self._report(slot, local, found)

    def _report(self, slot: int, local: Array, found: dict[int, Array]) -> None:
        warps = sorted(found)
        offset = int(local[np.flatnonzero(found[warps[0]])[0]]) << GRANULE_BITS
        per_block = self.grid.space.threads // WARP
        ids = slot * per_block + np.array(warps)
        self._reading.reshape(-1, WARP)[ids] = False  # told once
        self._end(ids)
        self.grid.machine.found(
            "unfenced_reads",
            f"an asynchronous write is issued to shared offset {offset:#x} of "
            f"{self.grid.block_name(slot)}, which warps {warps} have read through the generic "
            "proxy; between the two, every lane that has read needs a fence.proxy.async or a "
            "barrier (bar, barrier.cluster): an mbarrier alone does not make the write wait until "
            "the reads are over",
        )
