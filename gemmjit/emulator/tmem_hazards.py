"""Accesses of tensor memory that nothing orders (PTX ISA 9.1, section 9.7.16.6).

In pieces of 16 lanes of one column. In flight, a piece may be: written by products, read by them
(A and scales), written by copies, read by `tcgen05.ld` and written by `tcgen05.st` until the wait.
Ordered by themselves are only products with the same accumulator and shape, copies before products,
and shifts around products. That a copy stays behind the products issued before it is assumed: known
kernels overwrite scales so.

Between threads an order also needs `tcgen05.fence::before_thread_sync` and `::after_thread_sync`
around the barrier; `tcgen05.commit` has the former in it. Fences are followed by warp and in time:
an access needs an after-fence of its warp that is younger than what it must follow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gemmjit.emulator.faults import RaceError
from gemmjit.emulator.lanes import WARP

if TYPE_CHECKING:
    from gemmjit.emulator.grid import Grid

__all__ = ["PIECE", "Region", "TmemHazards", "region"]

Array = npt.NDArray[Any]

#: Lanes of a piece.
PIECE = 16
_PIECES, _COLUMNS = 8, 512
# What is in flight.
_STATES = ("product writes", "product reads", "copy writes", "load reads", "store writes")
# Which accesses conflict with what is in flight.
_CONFLICTS = {
    "product writes": ("product reads", "load reads", "store writes"),
    "product reads": ("product writes", "store writes"),
    "copy writes": ("product writes", "load reads", "store writes"),
    "load reads": ("product writes", "copy writes", "store writes"),
    "store writes": _STATES,
}
_ADVICE = {
    "product writes": "wait for an mbarrier that a tcgen05.commit signals",
    "product reads": "wait for an mbarrier that a tcgen05.commit signals",
    "copy writes": "wait for an mbarrier that a tcgen05.commit signals",
    "load reads": "tcgen05.wait::ld is missing",
    "store writes": "tcgen05.wait::st is missing",
}

#: Slot, slice of pieces, slice of columns.
Region = tuple[int, slice, slice]


def region(slot: int, first_lane: int, lanes: int, column: int, columns: int) -> Region:
    """Return a region from lanes and columns."""
    pieces = slice(first_lane // PIECE, -(-(first_lane + lanes) // PIECE))
    return slot, pieces, slice(column, column + columns)


class TmemHazards:
    """What is in flight in the tensor memory of one grid, and what fences order.

    Attributes
    ----------
    flights : dict from state to int16 array [blocks, pieces, columns]
    accumulators : int64 array [blocks, pieces, columns]
        Identity of the accumulator that products in flight write.
    """

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        blocks = grid.space.blocks
        shape = (blocks, _PIECES, _COLUMNS)
        self.flights = {state: np.zeros(shape, np.int16) for state in _STATES}
        self.accumulators = np.zeros(shape, np.int64)
        # Times count accesses and fences. Of products and copies: when they were over; of loads
        # and stores: when they were waited for, and by which warp of the block.
        self.time = 1
        self.completed = np.zeros(shape, np.int64)
        self.touched = np.zeros(shape, np.int64)
        self.toucher = np.zeros(shape, np.int16)
        warps = grid.space.threads // WARP
        self.before = np.zeros((blocks, warps), np.int64)
        self.after = np.zeros((blocks, warps), np.int64)
        self.told: set[str] = set()

    def forget(self, slot: int, columns: slice) -> None:
        """Note that columns are allocated anew."""
        for times in (self.completed, self.touched):
            times[slot, :, columns] = 0

    def begin(self, state: str, where: Region, what: str, accumulator: int = 0) -> None:
        """Issue an access.

        Raises
        ------
        RaceError
            If nothing orders it behind one in flight.
        """
        self.check(state, where, what, accumulator)
        self.flights[state][where] += 1
        if state == "product writes":
            self.accumulators[where] = accumulator

    def end(self, state: str, where: Region) -> None:
        """Complete the access of :meth:`begin`."""
        self.flights[state][where] -= 1
        self.time += 1
        if not state.startswith(("load", "store")):
            self.completed[where] = self.time

    def check(self, state: str, where: Region, what: str, accumulator: int = 0) -> None:
        """Refuse an access that conflicts with one in flight; see :meth:`begin`."""
        for other in _CONFLICTS[state]:
            if self.flights[other][where].any():
                self._report(other, where, what)
        if state == "product writes":
            busy = self.flights[state][where] != 0
            if (busy & (self.accumulators[where] != accumulator)).any():
                self._report("product writes", where, f"{what} (of another shape)")

    def _report(self, other: str, where: Region, what: str) -> None:
        slot, _, columns = where
        self.grid.machine.found_race(
            f"{what} accesses columns {columns.start} to {columns.stop - 1} of "
            f"{self.grid.block_name(slot)}, of which a {other.split()[0]} in flight "
            f"{other.split()[1]} a part; {_ADVICE[other]}"
        )

    def check_idle(self, slot: int, columns: slice) -> None:
        """Refuse a deallocation of columns that are in use."""
        for state in _STATES:
            if self.flights[state][slot, :, columns].any():
                self._report(state, (slot, slice(0, _PIECES), columns), "tcgen05.dealloc")

    def block_exited(self, slot: int) -> None:
        """Refuse the end of a block with loads or stores that were not waited for."""
        for state in _STATES:
            if self.flights[state][slot].any():
                name = self.grid.block_name(slot)
                raise RaceError(
                    f"{name} exits with a {state.split()[0]} of tensor memory in flight"
                )
        for table in (self.before, self.after, self.completed, self.touched):
            table[slot] = 0

    # -- fences -----------------------------------------------------------------------------

    def fence(self, warps: Array, before: bool) -> None:
        """tcgen05.fence by warps, numbered over the grid."""
        self.time += 1
        (self.before if before else self.after).reshape(-1)[warps] = self.time

    def waited(self, where: Region, warp: int) -> None:
        """Note that a warp (of its block) has waited for a load or store."""
        self.time += 1
        self.touched[where] = self.time
        self.toucher[where] = warp

    def by_warp(self, where: Region, warp: int, what: str) -> None:
        """Take a load or store: its warp must have fenced behind the last product or copy."""
        last = int(self.completed[where].max())
        if last > self.after[where[0], warp]:
            self._unfenced(
                "load or store",
                f"{what}: no tcgen05.fence::after_thread_sync stands between this and the wait for "
                "the product or copy",
            )

    def by_issuer(self, where: Region, issuer: tuple[int, int], what: str) -> None:
        """Take a product or copy, issued by slot and warp: those that touched it have fenced."""
        touched = self.touched[where]
        last = int(touched.max())
        if last == 0:
            return
        slot = where[0]
        for warp in np.unique(self.toucher[where][touched > 0]).tolist():
            if (slot, warp) == issuer:
                continue
            latest = int(touched[self.toucher[where] == warp].max())
            if self.before[slot, warp] < latest:
                self._unfenced(
                    "before",
                    f"{what}: warp {warp} has no tcgen05.fence::before_thread_sync behind its last "
                    "tcgen05.ld or .st of this region",
                )
            elif self.after[issuer] < latest:
                self._unfenced(
                    "after",
                    f"{what}: no tcgen05.fence::after_thread_sync stands between this and what "
                    f"warp {warp} did to this region",
                )

    def _unfenced(self, rule: str, message: str) -> None:
        if rule not in self.told:  # once a rule: compilers leave fences out by the dozen
            self.told.add(rule)
            self.grid.machine.found("unfenced_tmem", message)
