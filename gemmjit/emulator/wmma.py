"""Warp matrix instructions with opaque fragments: wmma.load, wmma.store, wmma.mma.

PTX ISA 9.7.14.4.

The manual leaves open which lane holds which element. Here lane l holds elements l E to (l+1) E of
the matrix, A and C by rows, B by columns; where a fragment has more room (f16), they are repeated.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt

from gemmjit.emulator import accumulate
from gemmjit.emulator.dispatch import instruction, reject
from gemmjit.emulator.faults import ConvergenceFault
from gemmjit.emulator.lanes import WARP, LaneSet
from gemmjit.emulator.load_store import space_of
from gemmjit.emulator.mma import pack, unpack
from gemmjit.emulator.module import Instruction
from gemmjit.emulator.operands import AddressRow, Operands
from gemmjit.emulator.program import target_number
from gemmjit.emulator.spaces import space_named
from gemmjit.emulator.steps import LaneOp, Step

__all__: list[str] = []

Array = npt.NDArray[Any]
_BITS = {
    "f16": 16, "bf16": 16, "tf32": 32, "f32": 32, "s32": 32, "f64": 64, "s8": 8, "u8": 8, "s4": 4,
    "u4": 4, "b1": 1,
}  # fmt: skip
_SHAPES = {
    "f16": ("m16n16k16", "m8n32k16", "m32n8k16"), "bf16": ("m16n16k16", "m8n32k16", "m32n8k16"),
    "s8": ("m16n16k16", "m8n32k16", "m32n8k16"), "u8": ("m16n16k16", "m8n32k16", "m32n8k16"),
    "tf32": ("m16n16k8",), "f64": ("m8n8k4",), "s4": ("m8n8k32",), "u4": ("m8n8k32",),
    "b1": ("m8n8k128",),
}  # fmt: skip
_WORDS = {"qualifiers": {"sync", "aligned", "row", "col", "global", "shared", "shared::cta"}}


def _shape(found: Instruction) -> tuple[int, int, int]:
    name = next((m for m in found.mods if re.fullmatch(r"m\d+n\d+k\d+", m)), "")
    if not name:
        raise reject(found)
    m, n, k = (int(x) for x in re.findall(r"\d+", name))
    return m, n, k


def _matrix(found: Instruction, which: str, kind: str) -> tuple[int, int]:
    """Return rows and columns of a matrix as it is held: B by columns."""
    m, n, k = _shape(found)
    multiplicand = which in ("a", "b")
    shape = f"m{m}n{n}k{k}"
    known = (
        shape in _SHAPES.get(kind, ())
        if multiplicand
        else any(shape in s for s in _SHAPES.values())
    )
    if not known or kind not in _BITS:
        raise reject(found)
    return {"a": (m, k), "b": (n, k)}.get(which, (m, n))


class _Transfer:
    """Addresses and registers of one wmma.load or wmma.store."""

    def __init__(
        self, operands: Operands, found: Instruction, fragment: int, address: int, writes: bool
    ) -> None:
        self.which, self.kind = found.mods[1], found.mods[-1]
        known = _WORDS["qualifiers"] | {self.which, self.kind, "load", "store"}
        unknown = [m for m in found.mods if m not in known and not re.fullmatch(r"m\d+n\d+k\d+", m)]
        if unknown:
            raise reject(found, f"modifier .{unknown[0]} has no semantics")
        rows, columns = _matrix(found, self.which, self.kind)
        self.bits = _BITS[self.kind]
        self.per_lane = rows * columns // WARP
        # Sub-byte elements move by words.
        self.step = max(32 // self.bits, 1) if self.bits < 8 else 1
        self.dtype = np.dtype(f"u{max(self.bits, 32 if self.bits < 8 else 8) // 8}")
        self.group = operands.group(
            found.operands[fragment], "b64" if self.bits == 64 else "b32", writes=not writes
        )
        self.address: AddressRow = operands.address(found.operands[address])
        by_row = "row" in found.mods
        along = by_row if self.which != "b" else not by_row
        default = columns if along else rows
        self.stride = operands.constant(default, np.dtype(np.int64))
        if len(found.operands) > 2:
            self.stride = operands.source(found.operands[2], "u32")
        self.space = space_named(operands.grid, space_of(found))
        element = np.arange(WARP)[:, None] * self.per_lane + np.arange(0, self.per_lane, self.step)
        row, column = element // columns, element % columns
        self.outer, self.inner = (row, column) if along else (column, row)
        if self.bits < 8 and not along:
            raise reject(found)
        # The registers hold whole multiples of the lane's elements.
        held = len(self.group.rows) * (64 if self.bits == 64 else 32)
        if held % (self.per_lane * self.bits):
            raise reject(found, f"{len(self.group.rows)} registers for a fragment")
        self.repeat = held // (self.per_lane * self.bits)

    def addresses(self, lanes: LaneSet, number: int) -> Array:
        """Return where every lane's element `number` lies, shaped as `lanes.get` gives."""
        shape = lanes.get(lanes.space_zeros()).shape
        base = self.address.values(lanes).astype(np.int64).reshape(-1, WARP)
        stride = np.broadcast_to(lanes.get(self.stride), shape).astype(np.int64).reshape(-1, WARP)
        if (base != base[:, :1]).any() or (stride != stride[:, :1]).any():
            raise ConvergenceFault("wmma: address or stride differs within a warp")
        elements = self.outer[:, number] * stride + self.inner[:, number]
        found: Array = base + elements * self.bits // 8
        return found.reshape(shape)


@instruction("wmma.load")
def _load(operands: Operands, found: Instruction) -> Step:
    move = _Transfer(operands, found, 0, 1, writes=False)
    word = np.dtype("u8" if move.bits == 64 else "u4")

    def run(lanes: LaneSet) -> None:
        parts = [
            move.space.load(lanes, move.addresses(lanes, e), move.dtype, 1).reshape(-1, WARP)
            for e in range(move.outer.shape[1])
        ]
        elements = np.ascontiguousarray(np.stack(parts, -1))
        registers = elements.view(word) if elements.dtype != word else elements
        move.group.write_warps(lanes, np.tile(registers, (1, 1, move.repeat)))

    return LaneOp(run, WARP)


@instruction("wmma.store")
def _store(operands: Operands, found: Instruction) -> Step:
    move = _Transfer(operands, found, 1, 0, writes=True)

    def run(lanes: LaneSet) -> None:
        registers = np.ascontiguousarray(move.group.read_warps(lanes))
        elements = registers.view(move.dtype)
        shape = lanes.get(lanes.space_zeros()).shape
        for e in range(move.outer.shape[1]):
            values = elements[:, :, e].reshape(shape)
            move.space.store(lanes, move.addresses(lanes, e), values, move.dtype, 1)

    return LaneOp(run, WARP)


@instruction("wmma.mma")
def _mma(operands: Operands, found: Instruction) -> Step:
    m, n, k = _shape(found)
    types = [x for x in found.mods if x in _BITS]
    if len(types) == 2:
        d_type, c_type = types
        a_type = b_type = "f16"
    elif len(types) == 4:
        d_type, a_type, b_type, c_type = types
    else:
        raise reject(found)
    if f"m{m}n{n}k{k}" not in _SHAPES.get(a_type, ()):
        raise reject(found)
    known = {"mma", "sync", "aligned", "row", "col", "rn", "satfinite", "popc", "and", "xor"}
    if any(x not in known and x not in _BITS and not re.match(r"m\d", x) for x in found.mods):
        raise reject(found)
    word = "b64" if a_type == "f64" else "b32"
    d, a, b, c = (operands.group(x, word, writes=i == 0) for i, x in enumerate(found.operands))
    used_a, used_b = (
        max(s * k * _BITS[a_type] // WARP // (64 if word == "b64" else 32), 1) for s in (m, n)
    )
    satfinite, bit_op = "satfinite" in found.mods, "xor" in found.mods
    machine = operands.grid.machine
    arch = target_number(operands.grid.program.module.target)
    model = None
    if a_type in ("f16", "bf16", "tf32"):
        model = accumulate.accumulation_model(machine.numerics, arch, "mma", a_type, k)

    def product(x: Array, y: Array, z: Array) -> Any:
        if a_type == "f64":
            return np.matmul(x, y) + z
        if model is not None or a_type in ("f16", "bf16", "tf32"):
            return accumulate.matrix_product(
                x, y, z, a_type=a_type, b_type=b_type, accumulation=model,
                half_result=d_type == "f16",
            )  # fmt: skip
        both = np.matmul(x, y)
        if bit_op:
            both = x.sum(axis=2, keepdims=True) + y.sum(axis=1, keepdims=True) - 2 * both
        return accumulate.add_saturating(both, z, satfinite)

    def run(lanes: LaneSet) -> None:
        fetched = [np.ascontiguousarray(g.read_warps(lanes)) for g in (a, b, c)]
        x = unpack(a_type, np.ascontiguousarray(fetched[0][:, :, :used_a])).reshape(-1, m, k)
        y = unpack(b_type, np.ascontiguousarray(fetched[1][:, :, :used_b])).reshape(-1, n, k)
        z = unpack(c_type, fetched[2]).reshape(-1, m, n)
        result = product(x, y.transpose(0, 2, 1), z)
        d.write_warps(lanes, pack(d_type, result.reshape(len(result), -1), len(result), WARP))

    return LaneOp(run, WARP)
