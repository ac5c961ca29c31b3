"""Tensor memory: 128 lanes of 512 columns of 32 bits a block, and who has allocated what.

PTX ISA 9.1, sections 9.7.16.1 and 9.7.16.7. An address is `lane << 16 | column`. Allocated columns
hold poison. Every block is taken to have a multiprocessor of its own, so that an allocation waits
for columns of its own block only; with `.cta_group::2` both blocks of a pair get the same columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gemmjit.emulator.faults import MemoryFault, RaceError
from gemmjit.emulator.tmem_hazards import TmemHazards

if TYPE_CHECKING:
    from gemmjit.emulator.grid import Grid

__all__ = ["COLUMNS", "LANES", "TensorMemory", "block_exited", "describe", "split", "tensor_memory"]

Array = npt.NDArray[Any]

LANES, COLUMNS = 128, 512
_UNIT = 32
_POISON = 0xFFFFFFFF


def split(address: int) -> tuple[int, int]:
    """Return lane and column of an address.

    Raises
    ------
    MemoryFault
        If there is no such lane or column.
    """
    lane, column = address >> 16 & 0xFFFF, address & 0xFFFF
    if lane >= LANES or column >= COLUMNS:
        raise MemoryFault(
            f"tensor memory address {address:#x}: lane {lane}, column {column}: expected less than "
            f"{LANES} and {COLUMNS}"
        )
    return lane, column


class TensorMemory:
    """The tensor memory of all resident blocks of a grid.

    Attributes
    ----------
    data : uint32 array [blocks, lanes, columns]
    allocations : dict from slot to dict
        First column to number of columns.
    hazards : TmemHazards
    """

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        blocks = grid.space.blocks
        self.data: Array = np.full((blocks, LANES, COLUMNS), _POISON, np.uint32)
        self.taken = np.zeros((blocks, COLUMNS), np.bool_)
        self.allocations: dict[int, dict[int, int]] = {}
        self.smallest: dict[int, int] = {}
        self.relinquished: set[int] = set()
        self.hazards = TmemHazards(grid)

    # -- allocation -------------------------------------------------------------------------

    def check_request(self, slot: int, columns: int) -> None:
        """Check an allocation of a block against the rules.

        Raises
        ------
        MemoryFault
            Naming the rule.
        """
        name = self.grid.block_name(slot)
        if columns not in (32, 64, 128, 256, 512):
            raise MemoryFault(
                f"tcgen05.alloc: expected a power of two from 32 to 512 columns; got {columns}"
            )
        if slot in self.relinquished:
            raise MemoryFault(f"tcgen05.alloc: {name} has relinquished its permit to allocate")
        before = self.smallest.get(slot, COLUMNS)
        if columns > before:
            raise MemoryFault(
                f"tcgen05.alloc: {name} allocates {columns} columns after {before}: the number "
                "must not increase"
            )

    def allocate(self, slots: list[int], columns: int) -> int | None:
        """Return the first of so many columns that are free in all these blocks, or None."""
        busy: Array = np.any(self.taken[slots].reshape(len(slots), -1, _UNIT), axis=(0, 2))
        count = columns // _UNIT
        starts = [s for s in range(len(busy) - count + 1) if not busy[s : s + count].any()]
        if not starts:
            return None
        machine = self.grid.machine
        start = (machine.rng.choice(starts) if machine.policy == "random" else starts[0]) * _UNIT
        span = slice(start, start + columns)
        for slot in slots:
            self.taken[slot, span] = True
            self.data[slot, :, span] = _POISON
            self.allocations.setdefault(slot, {})[start] = columns
            self.smallest[slot] = columns
            self.hazards.forget(slot, span)
        return start

    def free(self, slot: int, address: int, columns: int) -> None:
        """Deallocate.

        Raises
        ------
        MemoryFault
            If that was not allocated as a whole.
        RaceError
            If something still uses the columns.
        """
        lane, start = split(address)
        held = self.allocations.get(slot, {})
        if lane or held.get(start) != columns:
            raise MemoryFault(
                f"tcgen05.dealloc: {columns} columns at {address:#x}: expected an allocation of "
                f"{self.grid.block_name(slot)}; got {held}"
            )
        span = slice(start, start + columns)
        self.hazards.check_idle(slot, span)
        del held[start]
        self.taken[slot, span] = False

    def relinquish(self, slot: int) -> None:
        """Give up the right to allocate."""
        self.relinquished.add(slot)

    def check_columns(self, slot: int, first: int, count: int, what: str) -> None:
        """Check that an access stays in allocated columns.

        Raises
        ------
        MemoryFault
            Naming the columns.
        """
        end = first + count
        if end > COLUMNS or not self.taken[slot, first:end].all():
            raise MemoryFault(
                f"{what}: columns {first} to {end - 1} of {self.grid.block_name(slot)}: expected "
                f"allocated ones; got {self.allocations.get(slot, {})}"
            )

    def block_exited(self, slot: int) -> None:
        """Check and forget what an ended block leaves behind."""
        name = self.grid.block_name(slot)
        held = self.allocations.pop(slot, {})
        if held:
            raise MemoryFault(f"{name} exits without a tcgen05.dealloc of its tensor memory {held}")
        self.hazards.block_exited(slot)
        self.smallest.pop(slot, None)
        self.relinquished.discard(slot)


def tensor_memory(grid: Grid) -> TensorMemory:
    """Return the tensor memory of a grid, made at its first use."""
    found: TensorMemory | None = grid.state.get("tensor_memory")
    if found is None:
        found = grid.state["tensor_memory"] = TensorMemory(grid)
    return found


def block_exited(grid: Grid, slot: int) -> None:
    """Take back the tensor memory of an ended block, and finish what it has in flight.

    Raises
    ------
    MemoryFault
        If the block has not deallocated.
    RaceError
        If a product or copy was not waited for.
    """
    found: TensorMemory | None = grid.state.get("tensor_memory")
    if found is None:
        return
    engine = grid.machine.engine
    mine = [
        op for op in engine.pending
        if op.kind.startswith("tcgen05") and op.slots is not None
        and op.slots[0] is grid and slot in op.slots[1]
    ]  # fmt: skip
    for operation in mine:
        if operation.kind != "tcgen05.commit" and not operation.done:
            raise RaceError(
                f"{grid.block_name(slot)} exits while {operation.where} has not completed"
            )
        if not operation.done:
            engine.finish(operation)
    found.block_exited(slot)


def describe(grid: Grid) -> list[str]:
    """Return who waits for tensor memory in a grid, for a deadlock report."""
    waiting = grid.state.get("tmem_waiting")
    found: list[str] = waiting.describe() if waiting is not None else []
    return found
