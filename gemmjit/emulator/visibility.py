"""Who may know that an mbarrier has been initialised.

An init is seen by its own warp at once, by other warps behind a barrier of the block, by other
blocks of the cluster behind a cluster barrier whose arrival releases it (a relaxed arrival needs
fence.mbarrier_init). Using a barrier that one cannot know to be initialised is a race even when it
happens to be initialised in this run. The asynchronous proxy sees it behind fence.mbarrier_init or
fence.proxy.async (CUDA programming guide, asynchronous copies with the tensor memory accelerator).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gemmjit.emulator.lanes import WARP, LaneSet
from gemmjit.emulator.shared_memory import SPAN

if TYPE_CHECKING:
    from gemmjit.emulator.grid import Grid

__all__ = ["InitVisibility"]

Array = npt.NDArray[Any]
_CELLS = SPAN >> 3


class _Record:
    """One init that not everybody has seen yet."""

    __slots__ = ("cluster_released", "fenced", "first_slot", "grid", "seen", "through")

    def __init__(self, grid: Grid, seen: Array, first_slot: int) -> None:
        self.grid = grid
        self.seen = seen
        self.first_slot = first_slot
        self.fenced = False
        self.cluster_released = False
        self.through: set[int] = set()


class InitVisibility:
    """The inits that are not yet visible to their whole cluster."""

    def __init__(self) -> None:
        self.records: dict[tuple[int, int], _Record] = {}
        self.unfenced: set[tuple[int, int]] = set()

    def add(self, grid: Grid, lane: int, cell: int) -> None:
        """Note that a lane has initialised the barrier in a cell."""
        seen = np.zeros(grid.space.size // WARP, np.bool_)
        seen[lane // WARP] = True
        slot = cell // _CELLS
        self.records[id(grid), cell] = _Record(grid, seen, slot - slot % grid.cluster_size)
        self.unfenced.add((id(grid), cell))

    def forget(self, grid: Grid, first: int, count: int) -> None:
        """Blocks in these slots start or end."""
        for key in [k for k in self.records if k[0] == id(grid)]:
            if first <= key[1] // _CELLS < first + count:
                del self.records[key]
        for key in [k for k in self.unfenced if k[0] == id(grid)]:
            if first <= key[1] // _CELLS < first + count:
                self.unfenced.discard(key)

    def _of(self, grid: Grid) -> list[tuple[tuple[int, int], _Record]]:
        return [(key, r) for key, r in self.records.items() if r.grid is grid]

    def _see(self, key: tuple[int, int], record: _Record, warps: Array) -> None:
        record.seen[warps] = True
        grid = record.grid
        per_block = grid.space.threads // WARP
        slots = slice(record.first_slot, record.first_slot + grid.cluster_size)
        alive: Array = np.any(grid.alive[slots].reshape(-1, WARP), axis=1)
        span = slice(record.first_slot * per_block, record.first_slot * per_block + len(alive))
        if not (alive & ~record.seen[span]).any():
            del self.records[key]

    def check(self, grid: Grid, lanes: Array, cells: Array) -> None:
        """Lanes (flat indices) use the barriers in these cells, one each."""
        flat = cells.reshape(-1)
        for (_, cell), record in self._of(grid):
            users = lanes[flat == cell] // WARP
            if len(users) and not record.seen[users].all():
                warp = int(users[~record.seen[users]][0])
                grid.machine.found_race(
                    f"{grid.mbarriers.name(cell)} is used by {grid.thread_name(warp * WARP)} (its "
                    "warp), which no barrier orders behind the mbarrier.init"
                )

    def met(self, grid: Grid, slot: int, threads: Array) -> None:
        """Threads of one block have met at a barrier."""
        per_block = grid.space.threads // WARP
        warps = slot * per_block + np.flatnonzero(threads.reshape(-1, WARP).any(1))
        for key, record in self._of(grid):
            if record.seen[warps].any():
                self._see(key, record, warps)

    def fence(self, grid: Grid, lanes: LaneSet) -> None:
        """fence.mbarrier_init by lanes that have seen the init."""
        for _, record in self._of(grid):
            if record.seen[lanes.warp_ids].any():
                record.fenced = True

        self.proxy_fence(grid, lanes)

    def proxy_fence(self, grid: Grid, lanes: LaneSet) -> None:
        """Take a fence by lanes that have seen the init: the asynchronous proxy sees it too."""
        if not self.unfenced:
            return
        slots = set(lanes.blocks().tolist())
        for key in [k for k in self.unfenced if k[0] == id(grid)]:
            record = self.records.get(key)
            everybody = record is None and key[1] // _CELLS in slots
            if everybody or (record is not None and record.seen[lanes.warp_ids].any()):
                self.unfenced.discard(key)

    def check_async(self, grid: Grid, cells: Array) -> None:
        """Take a bulk copy's issue, which will complete on the barriers in these cells."""
        for cell in cells.reshape(-1).tolist():
            if (id(grid), cell) in self.unfenced:
                self.unfenced.discard((id(grid), cell))  # told once
                grid.machine.found(
                    "unfenced_inits",
                    f"a bulk copy completes on {grid.mbarriers.name(cell)}, whose init no "
                    "fence.mbarrier_init or fence.proxy.async makes visible to the asynchronous "
                    "proxy",
                )

    def publish(self, grid: Grid, lanes: LaneSet) -> None:
        """Take a full memory fence: whatever flag follows it may order others behind the init."""
        for key, record in self._of(grid):
            if record.seen[lanes.warp_ids].any():
                self._see(key, record, np.arange(len(record.seen)))

    def cluster_arrive(self, grid: Grid, lanes: LaneSet, relaxed: bool) -> None:
        """Lanes arrive at the barrier of their cluster."""
        for _, record in self._of(grid):
            if record.seen[lanes.warp_ids].any() and (record.fenced or not relaxed):
                record.cluster_released = True

    def cluster_met(self, grid: Grid, first: int, count: int) -> None:
        """Note that the barrier of a cluster is complete."""
        per_block = grid.space.threads // WARP
        for key, record in self._of(grid):
            if record.first_slot == first and record.cluster_released:
                self._see(key, record, np.arange(first * per_block, (first + count) * per_block))

    def release(self, grid: Grid, lanes: LaneSet, cells: Array) -> None:
        """Lanes arrive on mbarriers."""
        warps = lanes.lanes // WARP
        for _, record in self._of(grid):
            record.through.update(np.unique(cells[record.seen[warps]]).tolist())

    def acquire(self, grid: Grid, lanes: LaneSet, cell: int) -> None:
        """Lanes have waited for an mbarrier."""
        for key, record in self._of(grid):
            if cell in record.through:
                self._see(key, record, lanes.warp_ids)
