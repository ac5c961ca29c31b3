"""Tensor copies between global and shared memory (PTX ISA 9.7.9.27.1).

cp.async.bulk.tensor (loads, multicast, stores, gather4, scatter4), cp.reduce.async.bulk.tensor and
cp.async.bulk.prefetch.tensor. Which bytes go where is in :mod:`gemmjit.emulator.tma`.

Not here: im2col modes (refused).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gemmjit.arch import Arch
from gemmjit.emulator.async_engine import Operation
from gemmjit.emulator.box_copy import BoxCopy
from gemmjit.emulator.bulk_groups import BulkStore, bulk_groups
from gemmjit.emulator.bulk_reduce import REDUCTIONS, reduce_elements
from gemmjit.emulator.dispatch import instruction, reject
from gemmjit.emulator.faults import MemoryFault, TensorMapFault
from gemmjit.emulator.grid import Grid
from gemmjit.emulator.instructions_mbarrier import shared_values
from gemmjit.emulator.lanes import WARP, LaneSet
from gemmjit.emulator.module import Address, Instruction
from gemmjit.emulator.multicast import OFFSET_MASK, destinations
from gemmjit.emulator.operands import Operands
from gemmjit.emulator.runs import read_runs, write_runs
from gemmjit.emulator.shared_memory import RANK_SHIFT, SPAN
from gemmjit.emulator.steps import LaneOp, Step
from gemmjit.emulator.tensor_maps import read_map
from gemmjit.emulator.tma import check_map, gather4, load_box, scatter4, store_box
from gemmjit.tensormap import ElementType, TensorMap

__all__: list[str] = []

Array = npt.NDArray[Any]

_ELEMENTS = {
    ElementType.UINT32: "u32", ElementType.INT32: "s32", ElementType.UINT64: "u64",
    ElementType.INT64: "s64", ElementType.FLOAT16: "f16", ElementType.BFLOAT16: "bf16",
    ElementType.FLOAT32: "f32", ElementType.FLOAT32_FTZ: "f32",
}  # fmt: skip


class _TensorOperand:
    """`[map, {coordinates}]` and the mode of the instruction."""

    def __init__(self, operands: Operands, found: Instruction, position: int) -> None:
        operand = found.operands[position]
        dims = [int(m[0]) for m in found.mods if m in ("1d", "2d", "3d", "4d", "5d")]
        if not isinstance(operand, Address) or operand.coordinates is None or len(dims) != 1:
            raise reject(found, "expected [tensorMap, {coordinates}]")
        if any(m.startswith("im2col") for m in found.mods):
            raise reject(found, "im2col modes have no semantics")
        self.to_cluster = "shared::cluster" in found.mods
        self.four = any(m in ("tile::gather4", "tile::scatter4") for m in found.mods)
        items = operand.coordinates.items
        if len(items) != (5 if self.four else dims[0]):
            raise reject(found, f"{len(items)} coordinates")
        self.rank = dims[0]
        self.grid = operands.grid
        self.arch = operands.grid.program.module.target.split(",")[0].strip()
        self.map = operands.address(Address(operand.base, operand.offset))
        self.rows = [operands.source(item, "s32") for item in items]

    def values(self, lanes: LaneSet) -> tuple[list[int], list[tuple[int, ...]]]:
        """Return the map address and the coordinates of every lane."""
        addresses = self.map.values(lanes).reshape(-1).tolist()
        columns = [lanes.get(row).reshape(-1).tolist() for row in self.rows]
        return addresses, list(zip(*columns, strict=True))

    def tensor(self, address: int) -> tuple[TensorMap, int]:
        """Return a valid map and the address of its tensor."""
        tensor_map, base = read_map(self.grid, address)
        if tensor_map.rank != self.rank:
            raise TensorMapFault(
                f"tensor copy: a .{self.rank}d instruction got a map of rank {tensor_map.rank}"
            )
        check_map(tensor_map, base, self.arch)
        element = tensor_map.element_type
        if self.to_cluster and element.is_sub_byte and Arch.parse(self.arch).capability[0] == 12:
            raise TensorMapFault(
                f"tensor copy: {element.name} on {self.arch}: expected the destination space "
                "shared::cta; got shared::cluster"
            )
        return tensor_map, base

    def load(self, address: int, coordinates: tuple[int, ...], smem: int) -> BoxCopy:
        """Describe a load."""
        tensor_map, base = self.tensor(address)
        if self.four:
            return gather4(tensor_map, base, coordinates[0], coordinates[1:], smem)
        return load_box(tensor_map, base, coordinates, smem)

    def store(self, address: int, coordinates: tuple[int, ...], smem: int) -> BoxCopy:
        """Describe a store."""
        tensor_map, base = self.tensor(address)
        if self.four:
            return scatter4(tensor_map, base, coordinates[0], coordinates[1:], smem)
        return store_box(tensor_map, base, coordinates, smem)


def _check_range(grid: Grid, slot: int, box: BoxCopy) -> None:
    """Check that a box lies in the shared memory of a block that still runs."""
    shared = grid.shared
    low, high = box.shared_range
    if low < shared.base or high > shared.base + shared.limit:
        raise MemoryFault(
            f"tensor copy: the box spans offsets {low:#x} to {high:#x}, outside the block's shared "
            f"memory [{shared.base:#x}, {shared.base + shared.limit:#x})"
        )
    if not shared.slot_live[slot]:
        raise MemoryFault(f"tensor copy: the block in slot {slot} has exited")


def _units(box: BoxCopy, slot: int) -> Array:
    """Return the 16-byte units of the grid's shared memory that a box touches."""
    flat = box.whole.reshape(-1)
    if box.unit < 16:
        flat = np.unique(flat * box.unit // 16)
    units: Array = flat + slot * SPAN // 16
    return units


class _Load:
    """`cp.async.bulk.tensor` from global to shared memory."""

    def __init__(self, operands: Operands, found: Instruction) -> None:
        if len(found.operands) < 3:
            raise reject(found)
        self.grid = operands.grid
        self.where = operands.grid.program.describe(operands.pc)
        self.target = operands.address(found.operands[0])
        self.tensor = _TensorOperand(operands, found, 1)
        self.barrier = operands.address(found.operands[2])
        multicast = "multicast::cluster" in found.mods
        extra = found.operands[3:]
        if len(extra) != multicast + ("L2::cache_hint" in found.mods):
            raise reject(found, f"{len(found.operands)} operands")
        self.mask = operands.source(extra[0], "u16") if multicast else None
        self.own_block = "shared::cta" in found.mods
        self.pair = "cta_group::2" in found.mods

    def run(self, lanes: LaneSet) -> None:
        """Issue one copy for every lane."""
        targets = shared_values(self.target, lanes).reshape(-1).tolist()
        barriers = shared_values(self.barrier, lanes).reshape(-1).tolist()
        masks = None if self.mask is None else lanes.get(self.mask).reshape(-1).tolist()
        maps, coordinates = self.tensor.values(lanes)
        for i, lane in enumerate(lanes.lanes.tolist()):
            mask = None if masks is None else masks[i]
            self._issue(lane, targets[i], barriers[i], mask, maps[i], coordinates[i])

    def _issue(
        self,
        lane: int,
        target: int,
        barrier: int,
        mask: int | None,
        tensor_map: int,
        coordinates: tuple[int, ...],
    ) -> None:
        grid, machine = self.grid, self.grid.machine
        slot = lane // grid.space.threads
        receivers = destinations(grid, slot, target, barrier, mask, self.own_block, self.pair)
        box = self.tensor.load(tensor_map, coordinates, target & OFFSET_MASK)
        for destination, _ in receivers:
            _check_range(grid, destination, box)
            machine.races.async_issue_write(grid, destination, _units(box, destination))
        cells = grid.mbarriers.cells(np.array([flat for _, flat in receivers]))
        machine.races.barrier_use(grid, lane, cells)

        def complete() -> None:
            data = read_runs(machine.memory, box.runs, box.run_bytes)
            for destination, flat in receivers:
                _check_range(grid, destination, box)
                box.write_shared(grid.shared.data, data, destination * SPAN)
                machine.races.async_write(grid, destination, _units(box, destination))
                grid.mbarriers.complete_tx(flat, box.box_bytes)

        slots = (grid, frozenset(destination for destination, _ in receivers))
        machine.engine.submit(Operation("bulk load", complete, slots=slots, where=self.where))
        machine.progress += 1


class _Store:
    """`cp.async.bulk.tensor` and `cp.reduce.async.bulk.tensor` from shared to global memory."""

    def __init__(self, operands: Operands, found: Instruction, reduction: str | None) -> None:
        expected = 2 + ("L2::cache_hint" in found.mods)
        if len(found.operands) != expected or "bulk_group" not in found.mods:
            raise reject(found, f"{len(found.operands)} operands")
        self.grid = operands.grid
        self.where = operands.grid.program.describe(operands.pc)
        self.tensor = _TensorOperand(operands, found, 0)
        self.source = operands.address(found.operands[1])
        self.reduction = reduction
        self.groups = bulk_groups(operands.grid)

    def run(self, lanes: LaneSet) -> None:
        """Issue one copy for every lane."""
        sources = shared_values(self.source, lanes).reshape(-1).tolist()
        maps, coordinates = self.tensor.values(lanes)
        for i, lane in enumerate(lanes.lanes.tolist()):
            self._issue(lane, sources[i], maps[i], coordinates[i])

    def _issue(self, lane: int, source: int, tensor_map: int, coordinates: tuple[int, ...]) -> None:
        grid, machine = self.grid, self.grid.machine
        slot = lane // grid.space.threads
        if source >> RANK_SHIFT != slot % grid.cluster_size:
            raise MemoryFault("tensor copy: the source is in another block of the cluster")
        box = self.tensor.store(tensor_map, coordinates, source & OFFSET_MASK)
        _check_range(grid, slot, box)
        machine.races.async_issue_read(grid, slot, _units(box, slot), (lane // WARP,))
        write = partial(write_runs, machine.memory, box.runs)
        if self.reduction is not None:
            element = self._element(tensor_map)
            subnormals = self.tensor.tensor(tensor_map)[0].element_type is ElementType.FLOAT32
            write = partial(self._reduce, box, element, subnormals)

        def read() -> Array:
            machine.races.async_read(grid, slot, _units(box, slot))
            return box.read_shared(grid.shared.data, slot * SPAN)

        slots = (grid, frozenset((slot,)))
        self.groups.issue(lane, BulkStore(read, write, slots, self.where))
        machine.progress += 1

    def _element(self, tensor_map: int) -> str:
        element_type = self.tensor.tensor(tensor_map)[0].element_type
        name = _ELEMENTS.get(element_type, element_type.name)
        if self.reduction in ("and", "or", "xor"):
            name = f"b{element_type.bits}"
        if name not in REDUCTIONS[self.reduction or ""]:
            raise TensorMapFault(
                f"tensor reduction: .{self.reduction} does not take {element_type.name}"
            )
        return name

    def _reduce(self, box: BoxCopy, element: str, subnormals: bool, data: Array) -> None:
        memory = self.grid.machine.memory
        old = read_runs(memory, box.runs, box.run_bytes)
        new = reduce_elements(
            self.reduction or "", element, old, np.ascontiguousarray(data), subnormals=subnormals
        )
        write_runs(memory, box.runs, new)


@instruction("cp.async.bulk.tensor")
def build_tensor_copy(operands: Operands, found: Instruction) -> Step:
    """`cp.async.bulk.tensor.dim.dst.src{.load_mode}.completion{...}`."""
    spaces = [m for m in found.mods if m in ("global", "shared::cta", "shared::cluster")]
    if spaces in (["shared::cluster", "global"], ["shared::cta", "global"]):
        if "mbarrier::complete_tx::bytes" not in found.mods:
            raise reject(found)
        return LaneOp(_Load(operands, found).run)
    if spaces == ["global", "shared::cta"]:
        return LaneOp(_Store(operands, found, None).run)
    raise reject(found)


@instruction("cp.reduce.async.bulk.tensor")
def build_tensor_reduction(operands: Operands, found: Instruction) -> Step:
    """`cp.reduce.async.bulk.tensor.dim.global.shared::cta.redOp{.tile}.bulk_group{...}`."""
    operations = [m for m in found.mods if m in REDUCTIONS]
    if len(operations) != 1 or "shared::cta" not in found.mods:
        raise reject(found)
    return LaneOp(_Store(operands, found, operations[0]).run)


@instruction("cp.async.bulk.prefetch.tensor")
def build_tensor_prefetch(operands: Operands, found: Instruction) -> Step:
    """`cp.async.bulk.prefetch.tensor.dim.L2.global{.tile}`: checks its map, moves nothing."""
    tensor = _TensorOperand(operands, found, 0)

    def run(lanes: LaneSet) -> None:
        for address in tensor.values(lanes)[0]:
            tensor.tensor(address)

    return LaneOp(run)
