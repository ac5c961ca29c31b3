"""`tcgen05.alloc`, `dealloc`, `relinquish_alloc_permit` (PTX ISA 9.1, section 9.7.16.7.1).

An allocation waits for free columns, and with `.cta_group::2` for a warp of the other block, as
does a deallocation.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gemmjit.emulator.cta_group import blocks_of, cta_group, warps_of
from gemmjit.emulator.dispatch import instruction, reject
from gemmjit.emulator.faults import ConvergenceFault, MemoryFault
from gemmjit.emulator.grid import Grid
from gemmjit.emulator.instructions_mbarrier import shared_values
from gemmjit.emulator.lanes import WARP, LaneSet
from gemmjit.emulator.module import Instruction
from gemmjit.emulator.operands import Operands
from gemmjit.emulator.steps import Barrier, LaneOp, Step
from gemmjit.emulator.tensor_memory import tensor_memory

__all__: list[str] = []

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class _Request:
    """One warp that allocates or deallocates: `place` is where to write, or what to free."""

    pc: int
    lanes: LaneSet
    slot: int
    place: int
    columns: int


class _Waiting:
    """The requests of a grid that have not been served, by blocks, oldest first."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.allocations: dict[tuple[int, ...], deque[_Request]] = {}
        self.deallocations: dict[tuple[int, ...], deque[_Request]] = {}

    def allocate(self, blocks: list[int], request: _Request) -> None:
        """Take a request to allocate."""
        tensor_memory(self.grid).check_request(request.slot, request.columns)
        self.allocations.setdefault(tuple(blocks), deque()).append(request)
        self._serve(tuple(blocks))

    def deallocate(self, blocks: list[int], request: _Request) -> None:
        """Take a request to deallocate."""
        queue = self.deallocations.setdefault(tuple(blocks), deque())
        queue.append(request)
        together = self._together(tuple(blocks), queue)
        if together is None:
            return
        for each in together:
            tensor_memory(self.grid).free(each.slot, each.place, each.columns)
        self._resume(queue, together)
        self._serve(tuple(blocks))

    def _together(self, blocks: tuple[int, ...], queue: deque[_Request]) -> list[_Request] | None:
        """Return the oldest request of every block, once they all have one.

        Raises
        ------
        MemoryFault
            If they want different numbers of columns.
        """
        oldest = [next((r for r in queue if r.slot == slot), None) for slot in blocks]
        together = [r for r in oldest if r is not None]
        if len(together) < len(blocks):
            return None
        if len({r.columns for r in together}) > 1:
            sizes = [r.columns for r in together]
            raise MemoryFault(f"tcgen05: the blocks of a pair want {sizes} columns")
        return together

    def _serve(self, blocks: tuple[int, ...]) -> None:
        queue = self.allocations.get(blocks)
        while queue:
            together = self._together(blocks, queue)
            if together is None:
                return
            start = tensor_memory(self.grid).allocate(list(blocks), together[0].columns)
            if start is None:
                return
            for request in together:
                self.grid.shared.view(np.dtype(np.uint32))[request.place >> 2] = start
            self._resume(queue, together)

    def _resume(self, queue: deque[_Request], requests: list[_Request]) -> None:
        self.grid.machine.progress += 1
        for request in requests:
            queue.remove(request)
            self.grid.scheduler.make_ready(request.pc + 1, request.lanes)

    def describe(self) -> list[str]:
        """Return who waits, for a deadlock report."""
        memory, lines = tensor_memory(self.grid), []
        for what, queues in (("alloc", self.allocations), ("dealloc", self.deallocations)):
            for request in (r for queue in queues.values() for r in queue):
                lines.append(
                    f"{self.grid.block_name(request.slot)}: warp "
                    f"{int(request.lanes.warp_ids[0]) % (self.grid.space.threads // WARP)} waits "
                    f"in tcgen05.{what} for {request.columns} columns; allocated: "
                    f"{memory.allocations.get(request.slot, {})}"
                )
        return lines


def _waiting(grid: Grid) -> _Waiting:
    found: _Waiting | None = grid.state.get("tmem_waiting")
    if found is None:
        found = grid.state["tmem_waiting"] = _Waiting(grid)
    return found


def _uniform(values: Array, what: str) -> list[int]:
    """Return one value a warp from `[warps, 32]`."""
    if (values != values[:, :1]).any():
        raise ConvergenceFault(f"tcgen05: {what} differs within a warp")
    found: list[int] = values[:, 0].tolist()
    return found


@instruction("tcgen05.alloc")
def build_alloc(operands: Operands, found: Instruction) -> Step:
    """`tcgen05.alloc.cta_group.sync.aligned{.shared::cta}.b32 [dst], nCols`."""
    known = {"alloc", "sync", "aligned", "shared::cta", "b32", "cta_group::1", "cta_group::2"}
    if not known.issuperset(found.mods) or "aligned" not in found.mods:
        raise reject(found)
    group, grid = cta_group(operands, found), operands.grid
    address = operands.address(found.operands[0])
    columns = operands.source(found.operands[1], "u32")

    def run(pc: int, lanes: LaneSet) -> LaneSet | None:
        warps = warps_of(grid, lanes)
        places = shared_values(address, lanes)
        flat = np.broadcast_to(
            grid.shared.index(lanes, places, 4), lanes.get(grid.alive).shape
        ).reshape(-1, WARP)
        counts = _uniform(np.ascontiguousarray(lanes.by_warp(columns)), "the number of columns")
        for (first, slot, _), place, count in zip(
            warps, _uniform(flat, "the address"), counts, strict=True
        ):
            part = lanes.space.of_warp(first // WARP, lanes.mask)
            assert part is not None
            if grid.machine.races.tracks(grid):
                lane = grid.space.of_lanes(np.array([first]))
                grid.machine.races.generic_access(grid, lane, np.array([place]), 4, True)
            request = _Request(pc, part, slot, place, count)
            _waiting(grid).allocate(blocks_of(grid, slot, group), request)
        return None

    return Barrier(run, WARP)


@instruction("tcgen05.dealloc")
def build_dealloc(operands: Operands, found: Instruction) -> Step:
    """`tcgen05.dealloc.cta_group.sync.aligned.b32 taddr, nCols`."""
    known = {"dealloc", "sync", "aligned", "b32", "cta_group::1", "cta_group::2"}
    if not known.issuperset(found.mods) or "aligned" not in found.mods:
        raise reject(found)
    group, grid = cta_group(operands, found), operands.grid
    address, columns = (operands.source(operand, "u32") for operand in found.operands)

    def run(pc: int, lanes: LaneSet) -> LaneSet | None:
        warps = warps_of(grid, lanes)
        both = [
            _uniform(np.ascontiguousarray(lanes.by_warp(row)), what)
            for row, what in ((address, "the address"), (columns, "the number of columns"))
        ]
        for (first, slot, _), place, count in zip(warps, *both, strict=True):
            part = lanes.space.of_warp(first // WARP, lanes.mask)
            assert part is not None
            request = _Request(pc, part, slot, place, count)
            _waiting(grid).deallocate(blocks_of(grid, slot, group), request)
        return None

    return Barrier(run, WARP)


@instruction("tcgen05.relinquish_alloc_permit")
def build_relinquish(operands: Operands, found: Instruction) -> Step:
    """`tcgen05.relinquish_alloc_permit.cta_group.sync.aligned`."""
    if found.operands or "aligned" not in found.mods:
        raise reject(found)
    cta_group(operands, found)
    grid = operands.grid

    def run(lanes: LaneSet) -> None:
        for _, slot, _ in warps_of(grid, lanes):
            tensor_memory(grid).relinquish(slot)

    return LaneOp(run, sync=WARP)
