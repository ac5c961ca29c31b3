"""Shared memory that asynchronous operations in flight write or read, in granules of 16 bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gemmjit.emulator.shared_memory import SPAN

if TYPE_CHECKING:
    from gemmjit.emulator.grid import Grid

__all__ = ["GRANULE_BITS", "Flights"]

Array = npt.NDArray[Any]
GRANULE_BITS = 4
_GRANULES = SPAN >> GRANULE_BITS


class Flights:
    """What is in flight in one grid.

    Attributes
    ----------
    writing, reading : uint16 array [granules]
        Operations that will write, or read, a granule.
    count : int
        Operations in flight.
    """

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        granules = grid.space.blocks * _GRANULES
        self.writing = np.zeros(granules, np.uint16)
        self.reading = np.zeros(granules, np.uint16)
        self.count = 0

    def begin(self, granules: Array, writes: bool) -> None:
        """Issue an operation on distinct granules, unless it conflicts with one in flight."""
        self.check(granules, writes, "asynchronous write" if writes else "asynchronous read")
        (self.writing if writes else self.reading)[granules] += 1
        self.count += 1

    def end(self, granules: Array, writes: bool) -> None:
        """Complete the operation of :meth:`begin`."""
        (self.writing if writes else self.reading)[granules] -= 1
        self.count -= 1

    def check(self, granules: Array, writes: bool, what: str) -> None:
        """Refuse an access that conflicts with an operation in flight.

        Raises
        ------
        RaceError
            Names offset and block.
        """
        if not self.count:
            return
        busy = self.writing[granules] != 0
        if writes:
            busy = busy | (self.reading[granules] != 0)
        if busy.any():
            granule = int(granules.reshape(-1)[np.flatnonzero(busy.reshape(-1))[0]])
            slot, offset = granule // _GRANULES, granule % _GRANULES << GRANULE_BITS
            doing = "writes" if self.writing[granule] else "reads"
            self.grid.machine.found_race(
                f"{what} of shared offset {offset:#x} of {self.grid.block_name(slot)} while an "
                f"asynchronous operation {doing} it; a wait is missing"
            )

    def block_exited(self, slot: int) -> None:
        """Refuse the end of a block while a copy writes into its memory."""
        if not self.count:
            return
        busy = np.flatnonzero(self.writing[slot * _GRANULES : (slot + 1) * _GRANULES])
        if len(busy):
            self.grid.machine.found_race(
                f"{self.grid.block_name(slot)} exits while an asynchronous copy writes into its "
                f"shared memory at offset {int(busy[0]) << GRANULE_BITS:#x}"
            )
