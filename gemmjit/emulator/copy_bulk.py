"""Bulk copies of contiguous bytes: cp.async.bulk, cp.reduce.async.bulk, their prefetch.

PTX ISA 9.7.9.25.4. Copies into shared memory complete on an mbarrier, stores to global memory by
group (:mod:`gemmjit.emulator.bulk_groups`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gemmjit.emulator.async_engine import Operation
from gemmjit.emulator.bulk_groups import BulkStore, bulk_groups
from gemmjit.emulator.bulk_reduce import REDUCTIONS, reduce_elements
from gemmjit.emulator.dispatch import instruction, reject
from gemmjit.emulator.faults import MemoryFault
from gemmjit.emulator.grid import Grid
from gemmjit.emulator.instructions_mbarrier import shared_values
from gemmjit.emulator.lanes import WARP, LaneSet
from gemmjit.emulator.module import Instruction
from gemmjit.emulator.multicast import OFFSET_MASK, destinations
from gemmjit.emulator.operands import Operands
from gemmjit.emulator.runs import read_runs, write_runs
from gemmjit.emulator.shared_memory import RANK_SHIFT
from gemmjit.emulator.steps import LaneOp, Step

__all__: list[str] = []

Array = npt.NDArray[Any]
_GRAIN = 16
# Types of reductions in the shared memory of a cluster; those in global memory take more.
_CLUSTER_REDUCTIONS = {
    "add": ("u32", "s32", "u64"), "min": ("u32", "s32"), "max": ("u32", "s32"), "inc": ("u32",),
    "dec": ("u32",), "and": ("b32",), "or": ("b32",), "xor": ("b32",),
}  # fmt: skip


def _check(name: str, value: int) -> None:
    if value % _GRAIN:
        raise MemoryFault(f"bulk copy: {name}: expected a multiple of {_GRAIN}; got {value:#x}")


def _own(grid: Grid, slot: int, address: int, nbytes: int) -> int:
    """Return the flat index of a source range in the block's own shared memory."""
    if address >> RANK_SHIFT != slot % grid.cluster_size:
        raise MemoryFault("bulk copy: the source is in another block of the cluster")
    return grid.shared.flat_of(slot, address, nbytes, _GRAIN)


def _units(flat: int, nbytes: int) -> Array:
    return np.arange(flat // _GRAIN, (flat + nbytes) // _GRAIN)


class _IntoShared:
    """A copy or reduction into shared memory, from global memory or from the block's own."""

    def __init__(self, operands: Operands, found: Instruction, reduction: str | None) -> None:
        multicast = "multicast::cluster" in found.mods
        extra = found.operands[4:]
        if (
            "mbarrier::complete_tx::bytes" not in found.mods
            or len(found.operands) < 4
            or len(extra) != multicast + ("L2::cache_hint" in found.mods)
        ):
            raise reject(found, f"{len(found.operands)} operands")
        self.grid = operands.grid
        self.where = operands.grid.program.describe(operands.pc)
        self.target, self.source = (operands.address(x) for x in found.operands[:2])
        self.size = operands.source(found.operands[2], "u32")
        self.barrier = operands.address(found.operands[3])
        self.mask = operands.source(extra[0], "u16") if multicast else None
        spaces = _spaces(found)
        self.from_global = spaces[1] == "global"
        self.own_block = spaces[0] == "shared::cta"
        self.reduction = reduction
        self.element = found.mods[-1]
        if reduction is not None and self.element not in _CLUSTER_REDUCTIONS[reduction]:
            raise reject(found, f".{reduction}.{self.element} into shared memory")

    def run(self, lanes: LaneSet) -> None:
        """Issue one copy for every lane."""
        targets, barriers = (
            shared_values(x, lanes).reshape(-1).tolist() for x in (self.target, self.barrier)
        )
        if self.from_global:
            sources = self.source.values(lanes).reshape(-1).tolist()
        else:
            sources = shared_values(self.source, lanes).reshape(-1).tolist()
        sizes = np.broadcast_to(lanes.get(self.size), lanes.get(self.grid.alive).shape)
        masks = None if self.mask is None else lanes.get(self.mask).reshape(-1).tolist()
        for i, (lane, nbytes) in enumerate(
            zip(lanes.lanes.tolist(), sizes.reshape(-1).tolist(), strict=True)
        ):
            mask = None if masks is None else masks[i]
            self._issue(lane, targets[i], sources[i], nbytes, barriers[i], mask)

    def _issue(
        self, lane: int, target: int, source: int, nbytes: int, barrier: int, mask: int | None
    ) -> None:
        grid, machine = self.grid, self.grid.machine
        slot = lane // grid.space.threads
        for name, value in (("size", nbytes), ("source", source), ("destination", target)):
            _check(name, value)
        receivers = destinations(grid, slot, target, barrier, mask, self.own_block)
        first = slot - slot % grid.cluster_size
        places = [
            grid.shared.flat_of(
                slot, (block - first) << RANK_SHIFT | (target & OFFSET_MASK), nbytes, _GRAIN
            )
            for block, _ in receivers
        ]
        read = self._reader(lane, slot, source, nbytes, target >> RANK_SHIFT)
        for (block, _), flat in zip(receivers, places, strict=True):
            machine.races.async_issue_write(grid, block, _units(flat, nbytes))
        cells = grid.mbarriers.cells(np.array([flat for _, flat in receivers]))
        machine.races.barrier_use(grid, lane, cells)
        smem = grid.shared.data

        def complete() -> None:
            data = read()
            for (block, signal), flat in zip(receivers, places, strict=True):
                if not grid.shared.slot_live[block]:
                    raise MemoryFault(f"bulk copy: the block in slot {block} has exited")
                old = smem[flat : flat + nbytes]
                if self.reduction is None:
                    old[...] = data
                else:
                    old[...] = reduce_elements(self.reduction, self.element, old, data)
                machine.races.async_write(grid, block, _units(flat, nbytes))
                grid.mbarriers.complete_tx(signal, nbytes)

        slots = (grid, frozenset(block for block, _ in receivers))
        machine.engine.submit(Operation("bulk load", complete, slots=slots, where=self.where))
        machine.progress += 1

    def _reader(
        self, lane: int, slot: int, source: int, nbytes: int, target_rank: int
    ) -> Callable[[], Array]:
        grid, machine = self.grid, self.grid.machine
        if self.from_global:
            runs = np.array([source], np.int64)
            return lambda: read_runs(machine.memory, runs, nbytes).reshape(-1)
        if target_rank == slot % grid.cluster_size:
            raise MemoryFault("bulk copy: expected a destination in another block of the cluster")
        flat = _own(grid, slot, source, nbytes)
        units = _units(flat, nbytes)
        machine.races.async_issue_read(grid, slot, units, (lane // WARP,))

        def read() -> Array:
            machine.races.async_read(grid, slot, units)
            data: Array = grid.shared.data[flat : flat + nbytes].copy()
            return data

        return read


class _ToGlobal:
    """A copy or reduction from shared to global memory."""

    def __init__(self, operands: Operands, found: Instruction, reduction: str | None) -> None:
        masked = "cp_mask" in found.mods
        expected = 3 + ("L2::cache_hint" in found.mods) + masked
        if "bulk_group" not in found.mods or len(found.operands) != expected:
            raise reject(found, f"{len(found.operands)} operands")
        self.grid = operands.grid
        self.where = operands.grid.program.describe(operands.pc)
        self.target, self.source = (operands.address(x) for x in found.operands[:2])
        self.size = operands.source(found.operands[2], "u32")
        self.byte_mask = operands.source(found.operands[-1], "u16") if masked else None
        self.groups = bulk_groups(operands.grid)
        self.reduction = reduction
        self.element = found.mods[-1]
        if reduction is not None and self.element not in REDUCTIONS[reduction]:
            raise reject(found, f".{reduction}.{self.element}")

    def run(self, lanes: LaneSet) -> None:
        """Issue one copy for every lane."""
        targets = self.target.values(lanes).reshape(-1).tolist()
        sources = shared_values(self.source, lanes).reshape(-1).tolist()
        shape = lanes.get(self.grid.alive).shape
        sizes = np.broadcast_to(lanes.get(self.size), shape).reshape(-1).tolist()
        masks = None
        if self.byte_mask is not None:
            masks = np.broadcast_to(lanes.get(self.byte_mask), shape).reshape(-1).tolist()
        for i, lane in enumerate(lanes.lanes.tolist()):
            mask = None if masks is None else masks[i]
            self._issue(lane, targets[i], sources[i], sizes[i], mask)

    def _issue(self, lane: int, target: int, source: int, nbytes: int, mask: int | None) -> None:
        grid, machine = self.grid, self.grid.machine
        slot = lane // grid.space.threads
        for name, value in (("size", nbytes), ("source", source), ("destination", target)):
            _check(name, value)
        flat = _own(grid, slot, source, nbytes)
        units = _units(flat, nbytes)
        machine.races.async_issue_read(grid, slot, units, (lane // WARP,))

        def read() -> Array:
            machine.races.async_read(grid, slot, units)
            data: Array = grid.shared.data[flat : flat + nbytes].copy()
            return data

        write = partial(self._write, np.array([target], np.int64), mask)
        slots = (grid, frozenset((slot,)))
        self.groups.issue(lane, BulkStore(read, write, slots, self.where))
        machine.progress += 1

    def _write(self, runs: Array, mask: int | None, data: Array) -> None:
        memory = self.grid.machine.memory
        row = data.reshape(1, -1)
        if self.reduction is not None:
            row = reduce_elements(
                self.reduction, self.element, read_runs(memory, runs, row.shape[1]), row
            )
        elif mask is not None:
            keep = np.array([mask >> i & 1 for i in range(_GRAIN)], np.bool_)
            row = np.where(
                np.tile(keep, row.shape[1] // _GRAIN), row, read_runs(memory, runs, row.shape[1])
            )
        write_runs(memory, runs, np.ascontiguousarray(row))


def _spaces(found: Instruction) -> list[str]:
    return [m for m in found.mods if m in ("global", "shared::cta", "shared::cluster")]


def _copy(operands: Operands, found: Instruction, reduction: str | None) -> Step:
    spaces = _spaces(found)
    into_shared = [["shared::cluster", "shared::cta"]]
    if reduction is None:
        into_shared += [["shared::cluster", "global"], ["shared::cta", "global"]]
    if spaces in into_shared:
        return LaneOp(_IntoShared(operands, found, reduction).run)
    if spaces == ["global", "shared::cta"]:
        return LaneOp(_ToGlobal(operands, found, reduction).run)
    raise reject(found)


@instruction("cp.async.bulk")
def build_bulk_copy(operands: Operands, found: Instruction) -> Step:
    """`cp.async.bulk.dst.src.completion{...} [dst], [src], size, ...`."""
    return _copy(operands, found, None)


@instruction("cp.reduce.async.bulk")
def build_bulk_reduction(operands: Operands, found: Instruction) -> Step:
    """`cp.reduce.async.bulk.dst.src.completion.redOp{.noftz}.type [dst], [src], size, ...`."""
    operations = [m for m in found.mods if m in REDUCTIONS]
    if len(operations) != 1:
        raise reject(found)
    return _copy(operands, found, operations[0])


@instruction("cp.async.bulk.prefetch")
def build_bulk_prefetch(operands: Operands, found: Instruction) -> Step:
    """`cp.async.bulk.prefetch.L2.global [src], size`: checks size and alignment."""
    source = operands.address(found.operands[0])
    size = operands.source(found.operands[1], "u32")

    def run(lanes: LaneSet) -> None:
        for name, values in (("size", lanes.get(size)), ("source", source.values(lanes))):
            for value in np.unique(values).tolist():
                _check(name, value)

    return LaneOp(run)
