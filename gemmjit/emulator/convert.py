"""Conversions: cvt and cvt.pack (PTX ISA 9.7.9.21, 9.7.9.22)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from gemmjit.emulator import float_math, formats
from gemmjit.emulator.dispatch import instruction, reject
from gemmjit.emulator.module import Instruction, Vector
from gemmjit.emulator.operands import Operands, type_of
from gemmjit.emulator.steps import Copy, Map, Step

__all__: list[str] = []

Array = npt.NDArray[Any]
_INTEGER_ROUNDINGS: dict[str, Any] = {
    "rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil,
}  # fmt: skip
_NARROW = {
    "f16": "f16", "bf16": "bf16", "tf32": "tf32", "e4m3x2": "e4m3", "e5m2x2": "e5m2",
    "e2m1x2": "e2m1", "e2m3x2": "e2m3", "e3m2x2": "e3m2", "ue8m0x2": "ue8m0", "f16x2": "f16",
    "bf16x2": "bf16",
}  # fmt: skip
_CANONICAL_NAN = np.array(0x7FFF_FFFF, np.uint32).view(np.float32)


def _bits_type(name: str) -> str:
    """Return the untyped type of the container."""
    return f"b{max(type_of(name).bits, 8)}"


@instruction("cvt")
def _cvt(operands: Operands, found: Instruction) -> Step:
    to, source = found.mods[-2], found.mods[-1]
    if "rs" in found.mods or "scaled::n2::ue8m0" in found.name:
        raise reject(found)
    if to.endswith("x2") or source.endswith("x2"):
        return _pairs(operands, found, to, source)
    to_kind, from_kind = type_of(to), type_of(source)
    if to_kind.kind != "f" and from_kind.kind != "f":
        return _integers(operands, found, to, source)
    if to_kind.kind != "f":
        return _to_integer(operands, found, to, source)
    return _to_float(operands, found, to, source)


def _integers(operands: Operands, found: Instruction, to: str, source: str) -> Step:
    row = operands.source(found.operands[1], source)
    out = operands.destination(found.operands[0], to)
    narrow = type_of(to).dtype
    if "sat" in found.mods:
        limits = np.iinfo(narrow)
        low, high = (
            max(limits.min, np.iinfo(row.dtype).min),
            min(limits.max, np.iinfo(row.dtype).max),
        )
        return Map(
            lambda a: np.clip(a, row.dtype.type(low), row.dtype.type(high)).astype(narrow),
            (row,),
            out,
        )
    if out.dtype.itemsize > narrow.itemsize:
        # Narrow first, then extend into the wider register.
        return Map(lambda a: a.astype(narrow), (row,), out)
    return Copy(row, out)


def _read(kind: str, bits: Array) -> Array:
    """Values of a float row: f32 and f64 as they are, halves exactly as f32.

    A NaN of f16 becomes the canonical one of f32 (seen on an H200); bf16 keeps its payload, as the
    conversion is a shift.
    """
    if kind in ("f32", "f64"):
        return bits
    values = formats.decode(kind, np.ascontiguousarray(bits))
    if kind == "f16":
        nan = np.isnan(values)
        if nan.any():
            values = np.where(nan, _CANONICAL_NAN, values)
    return values


def _source(operands: Operands, found: Instruction, position: int, kind: str) -> Array:
    name = kind if kind in ("f32", "f64") or type_of(kind).kind != "f" else _bits_type(kind)
    return operands.source(found.operands[position], name)


def _to_integer(operands: Operands, found: Instruction, to: str, source: str) -> Step:
    rounding = next((m for m in found.mods if m in _INTEGER_ROUNDINGS), "")
    if not rounding:
        raise reject(found, "a float to integer conversion needs a rounding")
    row = _source(operands, found, 1, source)
    out = operands.destination(found.operands[0], to)
    dtype = type_of(to).dtype
    limits = np.iinfo(dtype)
    ftz = "ftz" in found.mods

    def run(a: Array) -> Array:
        values = _read(source, a)
        if ftz and source == "f32":
            values = float_math.flush(values)
        whole = _INTEGER_ROUNDINGS[rounding](values.astype(np.float64))
        # Out of range clamps, NaN gives 0; 2**63 and 2**64 - 1 are not exact in f64.
        below, above = (
            whole < limits.min,
            whole >= float(limits.max) + (1 if dtype.itemsize < 8 else 0),
        )
        safe = np.where(below | above | np.isnan(whole), 0.0, whole)
        result = safe.astype(dtype)
        result = np.where(below, dtype.type(limits.min), result)
        return np.where(above, dtype.type(limits.max), result)

    return Map(run, (row,), out)


def _to_float(operands: Operands, found: Instruction, to: str, source: str) -> Step:
    row = _source(operands, found, 1, source)
    out = operands.destination(found.operands[0], to if to in ("f32", "f64") else _bits_type(to))
    mods = set(found.mods[:-2])
    rounding = next((m for m in found.mods if m in ("rn", "rz", "rm", "rp", "rna")), "rn")
    integral = next((m for m in found.mods if m in _INTEGER_ROUNDINGS), "")
    ftz, sat, relu, satfinite = (m in mods for m in ("ftz", "sat", "relu", "satfinite"))
    if to == source and not integral and not (ftz or sat or relu):
        return Copy(row, out)
    convert = _rounder(to, rounding, satfinite, relu)

    def run(a: Array) -> Array:
        values = _read(source, a) if type_of(source).kind == "f" else a
        if ftz and source == "f32":
            values = float_math.flush(values)
        if integral:
            values = _INTEGER_ROUNDINGS[integral](values)
        if sat:
            values = float_math.saturate(
                values if values.dtype.kind == "f" else values.astype(np.float64)
            )
        result = convert(values)
        return float_math.flush(result) if ftz and to == "f32" else result

    return Map(run, (row,), out)


def _rounder(to: str, rounding: str, satfinite: bool, relu: bool) -> Callable[[Array], Array]:
    if to == "f64":
        return lambda values: values.astype(np.float64)
    if to == "f32":

        def single(values: Array) -> Array:
            if values.dtype == np.float32:
                return np.maximum(values, 0) if relu else values
            wide = values.astype(np.float64) if values.dtype.itemsize < 8 else values
            if wide.dtype.kind != "f":
                return _large_integer(wide, rounding)
            return float_math.round_to_f32(wide, 0.0, rounding)

        return single
    name = _NARROW[to]
    return lambda values: formats.encode(name, values, rounding, satfinite=satfinite, relu=relu)


def _large_integer(values: Array, rounding: str) -> Array:
    """64-bit integers to f32 in one rounding: the bits that f64 cannot hold become sticky."""
    high = (values >> values.dtype.type(32)).astype(np.float64) * 2.0**32
    low = (values & values.dtype.type(0xFFFF_FFFF)).astype(np.float64)
    return float_math.round_to_f32(*float_math.two_sum(high, low), rounding)


def _pairs(operands: Operands, found: Instruction, to: str, source: str) -> Step:
    """Two values to or from a packed pair; operand a goes to the upper half."""
    rounding = next((m for m in found.mods if m in ("rn", "rz", "rna", "rp", "rm")), "rn")
    satfinite, relu = "satfinite" in found.mods, "relu" in found.mods
    out = operands.destination(found.operands[0], _bits_type(to))
    width = type_of(to).bits // 2
    name = _NARROW[to]
    if source == "f32":
        rows = [operands.source(o, "f32") for o in found.operands[1:3]]
        if len(rows) != 2 or isinstance(found.operands[1], Vector):
            raise reject(found)

        def from_two(a: Array, b: Array) -> Any:
            high, low = (
                formats.encode(name, v, rounding, satfinite=satfinite, relu=relu).astype(out.dtype)
                for v in (a, b)
            )
            return (high << out.dtype.type(width)) | low

        return Map(from_two, rows, out)
    if source.removesuffix("x2") not in formats.FORMATS or not source.endswith("x2"):
        raise reject(found)
    row = operands.source(found.operands[1], _bits_type(source))
    from_name, from_width = source.removesuffix("x2"), type_of(source).bits // 2
    mask = row.dtype.type((1 << from_width) - 1)

    def from_pair(a: Array) -> Array:
        result = np.zeros(a.shape, out.dtype)
        for half in (1, 0):
            bits = (a >> a.dtype.type(half * from_width)) & mask
            values = formats.decode(from_name, bits)
            code = formats.encode(name, values, rounding, satfinite=satfinite, relu=relu)
            result |= code.astype(out.dtype) << out.dtype.type(half * width)
        return result

    return Map(from_pair, (row,), out)


@instruction("cvt.pack")
def _cvt_pack(operands: Operands, found: Instruction) -> Step:
    to, source = found.mods[2], found.mods[3]
    dtype = np.dtype({"u16": "u2", "s16": "i2", "u8": "u1", "s8": "i1"}.get(to, "u1"))
    if to not in ("u16", "s16", "u8", "s8"):
        raise reject(found)
    sources = [operands.source(o, source) for o in found.operands[1:3]]
    sources += [operands.source(o, "b32") for o in found.operands[3:]]
    limits, bits = np.iinfo(dtype), 8 * dtype.itemsize

    def run(a: Array, b: Array, *c: Array) -> Array:
        high, low = (
            np.clip(v.astype(np.int64), limits.min, limits.max) & ((1 << bits) - 1) for v in (a, b)
        )
        packed = (high << bits) | low
        if c:
            packed = (c[0].astype(np.int64) << (2 * bits)) | packed
        return packed.astype(np.uint32)

    return Map(run, sources, operands.destination(found.operands[0], "b32"))
