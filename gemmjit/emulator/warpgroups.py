"""Warpgroups with matrix products in flight (PTX ISA 9.7.15.3 to 9.7.15.7).

The accumulators of a warpgroup leave its registers when a `wgmma.mma_async` is issued and come back
with the `wgmma.wait_group` that covers it; in between the registers hold poison, so that a missing
wait shows. Products of one warpgroup complete in order; each reads shared memory when it completes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gemmjit.emulator.async_engine import Operation
from gemmjit.emulator.faults import RaceError
from gemmjit.emulator.register_list import RegisterList
from gemmjit.emulator.wgmma import WgmmaPlan

if TYPE_CHECKING:
    from gemmjit.emulator.grid import Grid

__all__ = ["GROUP", "Accumulator", "Warpgroup", "block_exited", "warpgroup"]

Array = npt.NDArray[Any]

#: Threads of a warpgroup.
GROUP = 128


class Accumulator:
    """The registers of one D, taken out of a warpgroup while products are in flight.

    Attributes
    ----------
    rows : tuple of array
        Register rows of the grid, `[slots, threads]`.
    matrix : array (64, n) or None
        Current value; None before the first product of one that does not add to it.
    last : Operation
        The newest product into it.
    """

    __slots__ = ("last", "matrix", "plan", "rows")

    def __init__(self, rows: RegisterList, plan: WgmmaPlan) -> None:
        self.rows = rows
        self.plan = plan
        self.matrix: Array | None = None
        self.last: Operation | None = None


@dataclass(slots=True, eq=False)
class Warpgroup:
    """One warpgroup of a resident block.

    Attributes
    ----------
    grid : Grid
    slot, first : int
        Block and first thread.
    fenced : bool
        Whether a `wgmma.fence` was executed after the last write to registers that is known of.
    open : list of Operation
        Issued since the last commit.
    groups : deque of list of Operation
        Committed and not yet waited for, oldest first.
    in_flight : list of Accumulator
        Accumulators that are not in registers.
    inputs : list of (operation, registers, values)
        A in registers, which must stay as it was.
    returned : dict from registers to values
        What waits have put back since the last fence.
    last : Operation or None
        The newest product.
    """

    grid: Grid
    slot: int
    first: int
    fenced: bool = False
    open: list[Operation] = field(default_factory=list)
    groups: deque[list[Operation]] = field(default_factory=deque)
    in_flight: list[Accumulator] = field(default_factory=list)
    inputs: list[tuple[Operation, RegisterList, Array]] = field(default_factory=list)
    returned: dict[tuple[int, ...], Array] = field(default_factory=dict)
    last: Operation | None = None

    @property
    def file(self) -> Array:
        """The 32-bit registers of the grid, `[registers, slots, threads]`."""
        return self.grid.registers[4]

    def fence(self) -> None:
        """Execute `wgmma.fence`."""
        self.fenced = True
        self.returned.clear()

    def _must_be_fenced(self, rows: RegisterList, held: Array, what: str) -> None:
        """Raise if registers may have been written since the last fence."""
        if self.fenced:
            return
        known = self.returned.get(rows.order)
        if known is not None and np.array_equal(known, held):
            return  # as a wait left them: products of one shape are ordered by themselves
        raise RaceError(
            f"wgmma.mma_async: {what} registers were written after the last wgmma.fence of the "
            "warpgroup, or there was none"
        )

    def take(self, rows: RegisterList, plan: WgmmaPlan, reads: bool) -> Accumulator:
        """Return the accumulator that an instruction names, taking it out of the registers.

        Raises
        ------
        RaceError
            If the registers overlap those of another product in flight, or no fence orders what
            was written to them.
        """
        for known in self.in_flight:
            if known.rows.order == rows.order and known.plan.d_type == plan.d_type:
                return known
            if known.rows.numbers & rows.numbers:
                raise RaceError(
                    "wgmma.mma_async: D overlaps the registers of another product in flight"
                )
        held = rows.read(self.file, self.slot, self.first, GROUP)
        if reads or not self.fenced:
            self._must_be_fenced(rows, held, "accumulator")
        found = Accumulator(rows, plan)
        if reads:
            found.matrix = plan.d_from_registers(held[None])[0]
        rows.write(self.file, self.slot, self.first, GROUP, 0xFFFFFFFF)
        self.in_flight.append(found)
        return found

    def take_input(self, rows: RegisterList) -> Array:
        """Return A's registers, `[128, 4]`, which must stay unchanged until the wait."""
        for known in self.in_flight:
            if known.rows.numbers & rows.numbers:
                raise RaceError("wgmma.mma_async: A overlaps an accumulator in flight")
        held = rows.read(self.file, self.slot, self.first, GROUP)
        if not self.fenced:
            self._must_be_fenced(rows, held, "A")
        return held

    def issue(
        self, accumulator: Accumulator, complete: Callable[[], None], where: str
    ) -> Operation:
        """Submit a product; it completes after the warpgroup's earlier ones."""
        operation = Operation(
            "wgmma",
            complete,
            owner=self,
            after=self.last if self.last is not None and not self.last.done else None,
            slots=(self.grid, frozenset((self.slot,))),
            where=where,
        )
        self.last = accumulator.last = operation
        self.open.append(operation)
        self.grid.machine.engine.submit(operation)
        return operation

    def commit(self) -> None:
        """Execute `wgmma.commit_group`."""
        self.groups.append(self.open)
        self.open = []

    def wait(self, pending: int) -> None:
        """Execute `wgmma.wait_group`: at most ``pending`` of the newest groups stay in flight.

        Raises
        ------
        RaceError
            If A's registers were changed under a product.
        """
        engine = self.grid.machine.engine
        while len(self.groups) > pending:
            for operation in self.groups.popleft():
                if not operation.done:
                    engine.finish(operation)
        busy = set(map(id, self.open))
        busy.update(id(op) for group in self.groups for op in group)
        self._check_inputs(busy)
        staying = []
        for accumulator in self.in_flight:
            if id(accumulator.last) in busy:
                staying.append(accumulator)
                continue
            assert accumulator.matrix is not None
            held = accumulator.plan.d_to_registers(accumulator.matrix[None])[0]
            accumulator.rows.write(self.file, self.slot, self.first, GROUP, held)
            self.returned[accumulator.rows.order] = held
        if len(staying) < len(self.in_flight):
            self.fenced = False
            self.in_flight = staying

    def _check_inputs(self, busy: set[int]) -> None:
        staying = []
        for operation, rows, held in self.inputs:
            if not np.array_equal(rows.read(self.file, self.slot, self.first, GROUP), held):
                raise RaceError(
                    "wgmma.mma_async: registers of A were changed before the wait for the product"
                )
            if id(operation) in busy:
                staying.append((operation, rows, held))
        self.inputs = staying


def _warpgroups(grid: Grid) -> dict[tuple[int, int], Warpgroup]:
    """Return the warpgroups of a grid, by slot and first thread."""
    found: dict[tuple[int, int], Warpgroup] = grid.state.setdefault("warpgroups", {})
    return found


def warpgroup(grid: Grid, slot: int, first: int) -> Warpgroup:
    """Return the warpgroup of a block that starts at thread ``first``."""
    known = _warpgroups(grid)
    found = known.get((slot, first))
    if found is None:
        found = known[slot, first] = Warpgroup(grid, slot, first)
    return found


def block_exited(grid: Grid, slot: int) -> None:
    """Forget the warpgroups of a block.

    Raises
    ------
    RaceError
        If one of them has products that nobody waited for.
    """
    known = _warpgroups(grid)
    for key in [key for key in known if key[0] == slot]:
        group = known.pop(key)
        if group.in_flight:
            raise RaceError(
                f"{grid.block_name(slot)}: threads {group.first} to {group.first + GROUP - 1} "
                "exited without a wgmma.wait_group for their last products"
            )
