"""Half-precision arithmetic: f16, bf16 and their pairs (PTX ISA 9.7.4).

Operands are decoded to f64, where sums and products of two halves are exact and those of three are
rounded to odd, and the result is rounded once. Every NaN that comes out is the canonical 0x7FFF,
that of `neg` and `abs` too: the manual leaves theirs open, ptxas makes HADD2 and HFMA2 of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from gemmjit.emulator import float_math, formats
from gemmjit.emulator.dispatch import reject
from gemmjit.emulator.module import Instruction
from gemmjit.emulator.operands import Operands
from gemmjit.emulator.steps import Map, Step

__all__ = ["decode_half", "encode_half", "half_arithmetic", "is_half"]

Array = npt.NDArray[Any]
_HALF_TYPES = ("f16", "bf16", "f16x2", "bf16x2")


def is_half(found: Instruction) -> bool:
    """Whether the instruction computes in half precision."""
    return found.mods[-1] in _HALF_TYPES


def decode_half(name: str, bits: Array) -> Array:
    """`f16` or `bf16` bits (uint16) to f64."""
    return formats.decode(name, np.ascontiguousarray(bits)).astype(np.float64)


def encode_half(name: str, values: Array) -> Array:
    """f64 to `f16` or `bf16` bits (uint16), to nearest even."""
    return formats.encode(name, np.asarray(values, np.float64), rounding="rn").astype(np.uint16)


def _fma(a: Array, b: Array, c: Array) -> Array:
    total, error = float_math.two_sum(a * b, c)
    return float_math.to_odd(total, error)


def _add(a: Array, b: Array) -> Array:
    # Two bf16 of far apart exponents do not fit f64: the error keeps the rounding right.
    total, error = float_math.two_sum(a, b)
    return float_math.to_odd(total, error)


_FUNCTIONS: dict[str, Callable[..., Array]] = {
    "add": _add,
    "sub": lambda a, b: _add(a, -b),
    "mul": np.multiply,
    "fma": _fma,
    "min": np.fmin,
    "max": np.fmax,
    "abs": np.abs,
    "neg": np.negative,
    "ex2": np.exp2,
    "tanh": np.tanh,
}


def half_arithmetic(operands: Operands, found: Instruction) -> Step:
    """Any arithmetic instruction on f16, bf16, f16x2 or bf16x2."""
    kind = found.mods[-1]
    name, pair = kind.removesuffix("x2"), kind.endswith("x2")
    function = _FUNCTIONS.get(found.opcode)
    if function is None or "xorsign" in found.mods:
        raise reject(found)
    if "NaN" in found.mods:
        function = {"min": np.minimum, "max": np.maximum}[found.opcode]
    mixed = found.mods[-2] if found.opcode in ("add", "sub", "fma") and len(found.mods) > 1 else ""
    if mixed == "f32":
        raise reject(found)
    ftz, sat, relu = (m in found.mods for m in ("ftz", "sat", "relu"))
    bits = "b32" if pair else "b16"
    sources = [operands.source(o, bits) for o in found.operands[1:]]
    chosen = function

    def run(*rows: Array) -> Array:
        halves = [np.ascontiguousarray(r)[..., None].view(np.uint16) if pair else r for r in rows]
        values = [decode_half(name, h) for h in halves]
        if ftz and name == "f16":
            values = [np.where(np.abs(v) < 2.0**-14, v * 0, v) for v in values]
        result = chosen(*values)
        if sat:
            result = float_math.saturate(result)
        if relu:
            result = np.where(result > 0, result, np.where(np.isnan(result), result, 0.0))
        if ftz and name == "f16":
            result = np.where(np.abs(result) < 2.0**-14, result * 0, result)
        encoded = encode_half(name, result)
        return np.ascontiguousarray(encoded).view(np.uint32)[..., 0] if pair else encoded

    return Map(run, sources, operands.destination(found.operands[0], bits))
