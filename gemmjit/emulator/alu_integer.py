"""Integer arithmetic (PTX ISA 9.7.1 and the extended-precision forms of 9.7.2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from gemmjit.emulator.dispatch import instruction, reject
from gemmjit.emulator.module import Instruction
from gemmjit.emulator.operands import Operands, type_of
from gemmjit.emulator.steps import Map, MapMany, Step, Ufunc

__all__ = ["integer_binary", "integer_multiply", "integer_unary"]

Array = npt.NDArray[Any]


def _divide(a: Array, b: Array) -> Any:
    if a.dtype.kind == "u":
        # A zero divisor is unspecified by the manual; hardware gives all ones.
        return np.where(
            b == 0,
            a.dtype.type(-1 & (2 ** (8 * a.dtype.itemsize) - 1)),
            a // np.where(b, b, b.dtype.type(1)),
        )
    safe = np.where(b == 0, b.dtype.type(1), b)
    quotient = np.floor_divide(a, safe)
    inexact = (quotient * safe != a) & ((a < 0) != (safe < 0))
    return np.where(b == 0, a.dtype.type(-1), quotient + inexact.astype(a.dtype))


def _remainder(a: Array, b: Array) -> Array:
    safe = np.where(b == 0, b.dtype.type(1), b)
    return np.where(b == 0, a, np.fmod(a, safe))


_BINARY: dict[str, Any] = {
    "add": np.add, "sub": np.subtract, "min": np.minimum, "max": np.maximum,
    "div": _divide, "rem": _remainder,
}  # fmt: skip


def integer_binary(operands: Operands, found: Instruction) -> Step:
    """add, sub, min, max, div, rem on integers."""
    kind = found.mods[-1]
    if kind in ("u16x2", "s16x2"):
        return _packed(operands, found, kind[:3])
    a, b = (operands.source(o, kind) for o in found.operands[1:3])
    out = operands.destination(found.operands[0], kind)
    function = _BINARY[found.opcode]
    if "cc" in found.mods:
        return _carrying(operands, found, a, b, out)
    if "sat" in found.mods:
        return Map(lambda x, y: _saturate(function, x, y), (a, b), out)
    if "relu" in found.mods:
        return Map(lambda x, y: np.maximum(function(x, y), 0), (a, b), out)
    if isinstance(function, np.ufunc) and out.dtype == a.dtype:
        return Ufunc(function, (a, b), out)
    return Map(function, (a, b), out)


def _saturate(function: Callable[[Array, Array], Array], a: Array, b: Array) -> Array:
    limits = np.iinfo(a.dtype)
    return np.clip(function(a.astype(np.int64), b.astype(np.int64)), limits.min, limits.max)


def _packed(operands: Operands, found: Instruction, half: str) -> Step:
    a, b = (operands.source(o, "b32") for o in found.operands[1:3])
    dtype = type_of(half).dtype
    function, relu = _BINARY[found.opcode], "relu" in found.mods

    def both(x: Array, y: Array) -> Array:
        halves = function(_halves(x, dtype), _halves(y, dtype))
        halves = np.maximum(halves, 0) if relu else halves
        return np.ascontiguousarray(halves).view(np.uint32)[..., 0]

    return Map(both, (a, b), operands.destination(found.operands[0], "b32"))


def _halves(values: Array, dtype: Any) -> Array:
    return np.ascontiguousarray(values)[..., None].view(dtype)


def integer_multiply(operands: Operands, found: Instruction) -> Step:
    """Build mul and mad on integers: lo, hi, wide."""
    kind = found.mods[-1]
    info = type_of(kind)
    a, b = (operands.source(o, kind) for o in found.operands[1:3])
    wide = "wide" in found.mods
    result = f"{info.kind}{info.bits * 2}" if wide else kind
    out = operands.destination(found.operands[0], result)
    adds = len(found.operands) > 3
    c = operands.source(found.operands[3], result) if adds else None
    if "lo" in found.mods:
        if c is None:
            return Ufunc(np.multiply, (a, b), out)
        if "cc" in found.mods or found.opcode == "madc":
            return _mad_carry(operands, found, a, b, c, out, high=False)
        return Map(lambda x, y, z: x * y + z, (a, b, c), out)
    if wide:
        double = type_of(result).dtype

        def product(x: Array, y: Array, *z: Array) -> Array:
            value = np.multiply(x, y, dtype=double)
            return value + z[0] if z else value

        return Map(product, (a, b) if c is None else (a, b, c), out)
    if "hi" not in found.mods:
        raise reject(found)
    if c is not None and ("cc" in found.mods or found.opcode == "madc"):
        return _mad_carry(operands, found, a, b, c, out, high=True)
    if c is None:
        return Map(_high, (a, b), out)
    saturates = "sat" in found.mods

    def high_add(x: Array, y: Array, z: Array) -> Array:
        return _saturate(np.add, _high(x, y), z) if saturates else _high(x, y) + z

    return Map(high_add, (a, b, c), out)


def _high(a: Array, b: Array) -> Any:
    """Return the upper half of the full product."""
    bits = 8 * a.dtype.itemsize
    if bits < 64:
        double = np.dtype(f"{a.dtype.kind}{a.dtype.itemsize * 2}")
        return (np.multiply(a, b, dtype=double) >> double.type(bits)).astype(a.dtype)
    ua, ub = a.view(np.uint64) if a.flags.c_contiguous else a.astype(np.uint64), b.astype(np.uint64)
    low, shift = np.uint64(0xFFFF_FFFF), np.uint64(32)
    al, ah, bl, bh = ua & low, ua >> shift, ub & low, ub >> shift
    middle = ah * bl + ((al * bl) >> shift)
    other = al * bh + (middle & low)
    high = ah * bh + (middle >> shift) + (other >> shift)
    if a.dtype.kind == "i":
        high = (
            high
            - np.where(a < 0, ub, 0).astype(np.uint64)
            - np.where(b < 0, ua, 0).astype(np.uint64)
        )
    return high.astype(a.dtype)


def _carrying(operands: Operands, found: Instruction, a: Array, b: Array, out: Array) -> Step:
    """add.cc, sub.cc: also write the carry."""
    carry = operands.grid.carry
    subtract = found.opcode.startswith("sub")
    takes = found.opcode in ("addc", "subc")
    gives = "cc" in found.mods
    bits = 8 * a.dtype.itemsize
    unsigned = np.dtype(f"u{a.dtype.itemsize}")

    def run(x: Array, y: Array, flag: Array) -> tuple[Array, Array]:
        ux, uy = x.astype(unsigned), y.astype(unsigned)
        extra = flag.astype(unsigned) if takes else unsigned.type(0)
        if subtract:
            value = ux - uy - extra
            over = (ux < uy) | ((ux == uy) & (extra != 0))
        else:
            value = ux + uy + extra
            over = (value < ux) | ((value == ux) & (extra != 0) & (uy != 0))
        return value.astype(x.dtype), over if gives else flag

    assert bits in (32, 64)
    return MapMany(run, (a, b, carry), (out, carry))


def _mad_carry(
    operands: Operands, found: Instruction, a: Array, b: Array, c: Array, out: Array, high: bool
) -> Step:
    carry = operands.grid.carry
    takes, gives = found.opcode == "madc", "cc" in found.mods
    unsigned = np.dtype(f"u{a.dtype.itemsize}")

    def run(x: Array, y: Array, z: Array, flag: Array) -> tuple[Array, Array]:
        product = (_high(x, y) if high else x * y).astype(unsigned)
        uz = z.astype(unsigned)
        extra = flag.astype(unsigned) if takes else unsigned.type(0)
        value = product + uz
        over = value < uz
        total = value + extra
        return total.astype(x.dtype), (over | (total < value)) if gives else flag

    return MapMany(run, (a, b, c, carry), (out, carry))


@instruction("addc", "subc")
def _carry_in(operands: Operands, found: Instruction) -> Step:
    kind = found.mods[-1]
    a, b = (operands.source(o, kind) for o in found.operands[1:3])
    return _carrying(operands, found, a, b, operands.destination(found.operands[0], kind))


@instruction("madc")
def _madc(operands: Operands, found: Instruction) -> Step:
    return integer_multiply(operands, found)


def _abs(a: Array) -> Any:
    return np.abs(a)


def integer_unary(operands: Operands, found: Instruction) -> Step:
    """Build abs and neg on integers."""
    kind = found.mods[-1]
    a = operands.source(found.operands[1], kind)
    out = operands.destination(found.operands[0], kind)
    return Ufunc(np.absolute if found.opcode == "abs" else np.negative, (a,), out)


@instruction("mul24", "mad24")
def _mul24(operands: Operands, found: Instruction) -> Step:
    kind = found.mods[-1]
    sources = [operands.source(o, kind) for o in found.operands[1:]]
    high = "hi" in found.mods

    def run(x: Array, y: Array, *z: Array) -> Array:
        shift = np.int64(40)
        x, y = (v.astype(np.int64) << shift for v in (x, y))
        if kind == "u32":
            x, y = (v.view(np.uint64) >> np.uint64(40) for v in (x, y))
            product = (x * y).view(np.int64)
        else:
            product = (x >> shift) * (y >> shift)
        value = (product >> np.int64(16)) if high else product
        return (value + z[0] if z else value).astype(np.int64)

    out = operands.destination(found.operands[0], kind)
    return Map(lambda *v: run(*v).astype(out.dtype), sources, out)


@instruction("sad")
def _sad(operands: Operands, found: Instruction) -> Step:
    kind = found.mods[-1]
    sources = [operands.source(o, kind) for o in found.operands[1:]]
    out = operands.destination(found.operands[0], kind)
    return Map(lambda a, b, c: c + np.where(a < b, b - a, a - b), sources, out)


@instruction("dp4a")
def _dp4a(operands: Operands, found: Instruction) -> Step:
    types = found.mods[-2:]
    a, b = (operands.source(o, "b32") for o in found.operands[1:3])
    signed = "s32" in types
    c = operands.source(found.operands[3], "s32" if signed else "u32")
    out = operands.destination(found.operands[0], "s32" if signed else "u32")
    bytes_of = ["i1" if t == "s32" else "u1" for t in types]

    def run(x: Array, y: Array, z: Array) -> Any:
        xs = np.ascontiguousarray(x)[..., None].view(bytes_of[0]).astype(np.int64)
        ys = np.ascontiguousarray(y)[..., None].view(bytes_of[1]).astype(np.int64)
        return (z + (xs * ys).sum(-1)).astype(z.dtype)

    return Map(run, (a, b, c), out)


@instruction("dp2a")
def _dp2a(operands: Operands, found: Instruction) -> Step:
    types = found.mods[-2:]
    low = "lo" in found.mods
    a, b = (operands.source(o, "b32") for o in found.operands[1:3])
    signed = "s32" in types
    c = operands.source(found.operands[3], "s32" if signed else "u32")
    out = operands.destination(found.operands[0], "s32" if signed else "u32")

    def run(x: Array, y: Array, z: Array) -> Any:
        xs = np.ascontiguousarray(x)[..., None].view("i2" if types[0] == "s32" else "u2")
        ys = np.ascontiguousarray(y)[..., None].view("i1" if types[1] == "s32" else "u1")
        ys = ys[..., :2] if low else ys[..., 2:]
        return (z + (xs.astype(np.int64) * ys.astype(np.int64)).sum(-1)).astype(z.dtype)

    return Map(run, (a, b, c), out)
