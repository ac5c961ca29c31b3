"""`tcgen05.mma` and `.ws` (PTX ISA 9.1, section 9.7.16.10.9): operands meet the memories.

The numbers and layouts are in :mod:`gemmjit.emulator.tcgen05_mma`. Not here: `.sp` and `.ashift`
(refused). What `.collector` says changes no result.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gemmjit.emulator.cta_group import blocks_of, cta_group
from gemmjit.emulator.dispatch import instruction, reject
from gemmjit.emulator.faults import MemoryFault
from gemmjit.emulator.lanes import WARP, LaneSet
from gemmjit.emulator.module import Address, Immediate, Instruction, Operand, Vector
from gemmjit.emulator.operands import Operands
from gemmjit.emulator.small_floats import SMALL_FLOATS
from gemmjit.emulator.steps import LaneOp, Step
from gemmjit.emulator.tcgen05_descriptor import BLOCK_SCALED, KINDS
from gemmjit.emulator.tcgen05_mma import A_COLUMNS, Tcgen05Plan, tcgen05_plan
from gemmjit.emulator.tcgen05_pipe import SharedOperand, submit
from gemmjit.emulator.tcgen05_scales import ScaleOperands
from gemmjit.emulator.tensor_memory import LANES, split, tensor_memory
from gemmjit.emulator.tmem_hazards import Region, region
from gemmjit.emulator.zero_columns import zero_columns

__all__: list[str] = []

Array = npt.NDArray[Any]

_OPS = ("fill", "use", "lastuse", "discard")
_COLLECTOR = tuple(f"collector::a::{op}" for op in _OPS)
_STATIONARY_COLLECTOR = tuple(f"collector::b{i}::{op}" for i in range(4) for op in _OPS)
_SCALES = {"scale_vec::1X": 1, "scale_vec::2X": 2, "scale_vec::4X": 4, "block16": 4}
_BLOCK_32 = {"mxf8f6f4": 1, "mxf4": 2, "mxf4nvf4": 2}
_ALLOWED_SCALES = {"mxf8f6f4": (1,), "mxf4": (2,), "mxf4nvf4": (2, 4)}


def _scales(found: Instruction, kind: str, sizes: list[str]) -> int:
    """Return the scales of a row in K that the opcode says."""
    if kind not in BLOCK_SCALED:
        if sizes or "block_scale" in found.mods:
            raise reject(found)
        return 0
    if "block_scale" not in found.mods or (not sizes and kind == "mxf4nvf4") or len(sizes) > 1:
        raise reject(found, "expected .block_scale and one scale vector size")
    size = sizes[0] if sizes else "block32"
    count = _BLOCK_32[kind] if size == "block32" else _SCALES[size]
    if count not in _ALLOWED_SCALES[kind]:
        raise reject(found, f".{size} does not belong to kind::{kind}")
    return count


class _Mma:
    """One instruction."""

    def __init__(self, operands: Operands, found: Instruction) -> None:
        self.grid = operands.grid
        self.where = operands.grid.program.describe(operands.pc)
        self.group = cta_group(operands, found)
        kinds = [m.removeprefix("kind::") for m in found.mods if m.startswith("kind::")]
        sizes = [m for m in found.mods if m in _SCALES or m == "block32"]
        self.stationary = "ws" in found.mods
        collector = _STATIONARY_COLLECTOR if self.stationary else _COLLECTOR
        known = {"mma", "ws", "block_scale", f"cta_group::{self.group}", *sizes, *collector}
        known.update(f"kind::{kind}" for kind in kinds)
        if len(kinds) != 1 or kinds[0] not in KINDS or set(found.mods) - known:
            raise reject(found)
        self.kind = kinds[0]
        if self.stationary and (self.group != 1 or self.kind in BLOCK_SCALED):
            raise reject(found, "expected .ws with .cta_group::1 and a kind without block scales")
        self.scales = _scales(found, self.kind, sizes)
        self._operands(operands, found)

    def _operands(self, operands: Operands, found: Instruction) -> None:
        items: list[Operand] = list(found.operands)
        if len(items) < 5:
            raise reject(found, f"{len(items)} operands")
        self.d = operands.address(items[0])
        in_tensor_memory = isinstance(items[1], Address)
        self.a_address = operands.address(items[1]) if in_tensor_memory else None
        self.a = None if in_tensor_memory else operands.source(items[1], "b64")
        self.b = operands.source(items[2], "b64")
        self.descriptor = operands.source(items[3], "b32")
        rest = items[4:]
        self.scale_addresses = None
        if self.scales:
            self.scale_addresses = [operands.address(item) for item in rest[:2]]
            rest = rest[2:]
        self.disabled: list[Array] = []
        if rest and isinstance(rest[0], Vector):
            self.disabled = [operands.source(x, "b32") for x in operands.items(rest.pop(0))]
            if self.scales or self.stationary or len(self.disabled) != 4 * self.group:
                raise reject(found, f"disable-output-lane: expected {4 * self.group} registers")
        if len(rest) not in (1, 2):
            raise reject(found, f"{len(found.operands)} operands")
        self.enable, self.negated = operands.predicate_reader(rest[0])
        self.shift = 0
        self.mask: Array | None = None
        if len(rest) == 2:
            given = rest[1]
            if self.stationary:
                self.mask = operands.source(given, "b64")
                return
            if self.kind not in ("f16", "tf32") or not isinstance(given, Immediate):
                raise reject(found, "scale-input-d is a constant of kind::f16 and kind::tf32")
            self.shift = int(given.value)
            if not 0 <= self.shift <= 15:
                raise reject(found, f"scale-input-d: expected 0 to 15; got {self.shift};")

    def run(self, lanes: LaneSet) -> None:
        """Issue one product for every lane."""

        def column(row: Array) -> list[int]:
            values = np.broadcast_to(lanes.get(row), lanes.get(self.grid.alive).shape)
            found: list[int] = values.reshape(-1).tolist()
            return found

        def addresses(operand: Any) -> list[int]:
            found: list[int] = operand.values(lanes).reshape(-1).tolist()
            return found

        d, b, bits, enable = (
            addresses(self.d),
            column(self.b),
            column(self.descriptor),
            column(self.enable),
        )
        a = column(self.a) if self.a is not None else addresses(self.a_address)
        scales = [addresses(operand) for operand in self.scale_addresses or ()]
        masks = [column(row) for row in self.disabled]
        zeros = [0] * len(d) if self.mask is None else column(self.mask)
        for i, lane in enumerate(lanes.lanes.tolist()):
            self._issue(
                lane, d[i], a[i], b[i], bits[i], bool(enable[i]) != self.negated,
                [each[i] for each in scales], [each[i] for each in masks], zeros[i],
            )  # fmt: skip

    def _issue(
        self, lane: int, d: int, a: int, b: int, bits: int, accumulate: bool, scales: list[int],
        masks: list[int], zeros: int,
    ) -> None:  # fmt: skip
        grid = self.grid
        slot = lane // grid.space.threads
        blocks = blocks_of(grid, slot, self.group)
        plan = tcgen05_plan(
            self.kind, bits, self.group, self.scales, grid.machine.numerics, self.stationary
        )
        product = _Product(self, plan, blocks, lane, accumulate)
        product.place(d, a if self.a is None else None)
        if self.a is not None:
            product.share_a(a)
        product.share_b(b)
        if scales:
            product.scales = ScaleOperands(grid, plan, blocks, scales[0], scales[1], self.where)
        product.disable(masks)
        product.zero(zeros)
        product.begin()
        submit(grid, "tcgen05.mma", lane, blocks, product.complete, self.where)


class _Product:
    """One product in flight."""

    def __init__(
        self, what: _Mma, plan: Tcgen05Plan, blocks: list[int], lane: int, accumulate: bool
    ) -> None:
        self.what = what
        self.grid = what.grid
        self.plan = plan
        self.blocks = blocks
        self.lane = lane
        self.accumulate = accumulate
        self.memory = tensor_memory(what.grid)
        self.scales: ScaleOperands | None = None
        self.a: list[SharedOperand] = []
        self.b: list[SharedOperand] = []
        self.a_place: tuple[int, int] | None = None
        self.enabled: list[Array] | None = None
        self.zeros: Array | None = None
        self.writes: list[Region] = []
        self.reads: list[Region] = []

    def place(self, d: int, a: int | None) -> None:
        """Take the addresses in tensor memory."""
        plan, where = self.plan, self.what.where
        self.d_lane, self.d_column = split(d)
        plan.check_lane(self.d_lane, "D")
        for slot in self.blocks:
            columns = plan.layout.columns
            self.memory.check_columns(slot, self.d_column, columns, f"{where}: D")
            self.writes += self._regions(slot, self.d_lane, self.d_column, columns)
        if a is None:
            return
        a_lane, a_column = self.a_place = split(a)
        plan.check_lane(a_lane, "A")
        if a_lane != self.d_lane:
            raise MemoryFault(
                f"tcgen05.mma: lane of A: expected that of D, {self.d_lane}; got {a_lane}"
            )
        if plan.what.mn_major_a:
            raise MemoryFault("tcgen05.mma: A in tensor memory: expected no transpose")
        for slot in self.blocks:
            self.memory.check_columns(slot, a_column, A_COLUMNS, f"{where}: A")
            self.reads += self._regions(slot, a_lane, a_column, A_COLUMNS)

    def _regions(self, slot: int, lane: int, column: int, columns: int) -> list[Region]:
        if self.plan.layout.is_half:
            return [region(slot, 32 * q + lane, 16, column, columns) for q in range(4)]
        return [region(slot, 0, LANES, column, columns)]

    def share_a(self, bits: int) -> None:
        """Take A's descriptor."""
        chunks = self.plan.chunks_of_a(bits)
        self.a = [self._shared(slot, chunks, "A") for slot in self.blocks]

    def share_b(self, bits: int) -> None:
        """Take B's descriptor."""
        chunks = self.plan.chunks_of_b(bits)
        self.b = [self._shared(slot, chunks, "B") for slot in self.blocks]

    def _shared(self, slot: int, chunks: Array, name: str) -> SharedOperand:
        return SharedOperand(self.grid, slot, chunks, f"tcgen05.mma: matrix {name}", self.lane)

    def disable(self, masks: list[int]) -> None:
        """Take disable-output-lane: bit i of the vector is lane i, 128 a block."""
        if any(masks):
            words = np.array(masks, "<u4").view(np.uint8)
            bits = np.unpackbits(words, bitorder="little").reshape(-1, LANES)
            self.enabled = [row == 0 for row in bits]

    def zero(self, bits: int) -> None:
        """Take the zero-column mask descriptor of `.ws`; 0 stands for none."""
        if bits:
            reading = self.grid.machine.assumptions.rely("zero_column_spans", self.what.where)
            layout = self.plan.layout
            self.zeros = zero_columns(bits, self.plan.what.n, layout.num_parts, reading)

    def begin(self) -> None:
        """Check against what is in flight, and join it."""
        hazards, where = self.memory.hazards, self.what.where
        if self.scales is not None:
            self.reads += self.scales.regions
        threads = self.grid.space.threads
        slot, thread = divmod(self.lane, threads)
        issuer = (slot, thread // WARP)
        what = self.plan.what
        accumulator = hash((self.d_lane, self.d_column, what.m, what.n, what.d_type))
        for part in self.reads:
            hazards.begin("product reads", part, where)
            hazards.by_issuer(part, issuer, where)
        for part in self.writes:
            hazards.begin("product writes", part, where, accumulator)
            hazards.by_issuer(part, issuer, where)

    def complete(self) -> None:
        """Read the operands, multiply, and write D."""
        plan = self.plan
        b = np.concatenate([plan.b_from_chunks(operand.read()) for operand in self.b], axis=1)
        if self.zeros is not None:
            b = np.where(self.zeros, np.float32(0), b)
        for i, slot in enumerate(self.blocks):
            memory = self.memory.data[slot]
            d = plan.read_d(memory, self.d_lane, self.d_column)
            if not self.accumulate:
                d = np.zeros_like(d)
            elif self.what.shift:
                d = d * np.float32(2.0**-self.what.shift)
            shared_a = plan.a_from_chunks(self.a[i].read()) if self.a else None
            results = []
            for number, (lanes, columns) in enumerate(plan.layout.parts):
                a = self._a(slot, lanes) if shared_a is None else shared_a
                own_b, own_d = b[:, columns], d[:, columns]
                if self.scales is None:
                    results.append(plan.product(a, own_b, own_d, None))
                else:
                    results.append(self.scales.product(slot, number, a, own_b, own_d))
            d = np.concatenate(results, axis=1)
            enabled = self.enabled[i] if self.enabled is not None else None
            plan.write_d(memory, self.d_lane, self.d_column, d, enabled)
        for part in self.reads:
            self.memory.hazards.end("product reads", part)
        for part in self.writes:
            self.memory.hazards.end("product writes", part)

    def _a(self, slot: int, lanes: Array) -> Array:
        """Return A from the tensor memory of a block, by the lanes that compute with it."""
        plan = self.plan
        assert self.a_place is not None
        lane, column = self.a_place
        words = self.memory.data[slot][lanes + lane, column : column + A_COLUMNS]
        containers = "middle"
        if plan.what.k == 32 and plan.what.a_type in SMALL_FLOATS[2:]:
            containers = self.grid.machine.assumptions.rely(
                "tmem_containers", f"{self.what.where}: A of {plan.what.a_type}"
            )
        return plan.a_from_columns(words, containers)


@instruction("tcgen05.mma")
def build_mma(operands: Operands, found: Instruction) -> Step:
    """`tcgen05.mma{.ws}.cta_group.kind{.block_scale{.size}}{.collector} [d], a, b, idesc, ...`."""
    return LaneOp(_Mma(operands, found).run)
