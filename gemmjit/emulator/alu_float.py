"""Floating-point arithmetic f32 and f64, and the opcodes that integers share (PTX ISA 9.7.3).

The `.approx` functions are computed in f64 and rounded once: closer to the true value than any
hardware, within the error that the manual allows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from gemmjit.emulator import float_math
from gemmjit.emulator.alu_half import half_arithmetic, is_half
from gemmjit.emulator.alu_integer import integer_binary, integer_multiply, integer_unary
from gemmjit.emulator.dispatch import instruction, reject
from gemmjit.emulator.module import Instruction
from gemmjit.emulator.operands import Operands, type_of
from gemmjit.emulator.steps import Map, Step, Ufunc

__all__: list[str] = []

Array = npt.NDArray[Any]
_ROUNDINGS = ("rn", "rz", "rm", "rp")


def _rounding(found: Instruction) -> str:
    return next((m for m in found.mods if m in _ROUNDINGS), "rn")


def _finish(
    operands: Operands, found: Instruction, function: Callable[..., Any], ufunc: Any = None
) -> Step:
    """Add `.ftz` and `.sat` to a function of the source operands."""
    kind = found.mods[-1]
    sources = [operands.source(o, kind) for o in found.operands[1:]]
    out = operands.destination(found.operands[0], kind)
    ftz, sat = "ftz" in found.mods and kind == "f32", "sat" in found.mods
    if not ftz and not sat:
        return Ufunc(ufunc, sources, out) if ufunc is not None else Map(function, sources, out)

    def run(*values: Array) -> Array:
        if ftz:
            values = tuple(float_math.flush(v) for v in values)
        result = function(*values)
        result = float_math.flush(result) if ftz else result
        return float_math.saturate(result) if sat else result

    return Map(run, sources, out)


@instruction("add", "sub", "mul")
def _basic(operands: Operands, found: Instruction) -> Step:
    kind = type_of(found.mods[-1])
    if is_half(found):
        return half_arithmetic(operands, found)
    if kind.name == "f32x2":
        return _packed(operands, found)
    if kind.kind != "f":
        return (integer_multiply if found.opcode == "mul" else integer_binary)(operands, found)
    mode = _rounding(found)
    if len(found.mods) > 1 and found.mods[-2] in ("f16", "bf16"):
        raise reject(found)
    if found.opcode == "mul":
        plain: Any = np.multiply
        return _finish(
            operands,
            found,
            lambda a, b: float_math.multiply(a, b, mode),
            plain if mode == "rn" else None,
        )
    plain = np.add if found.opcode == "add" else np.subtract
    sign = 1 if found.opcode == "add" else -1

    def total(a: Array, b: Array) -> Array:
        return float_math.add(a, b if sign > 0 else -b, mode)

    return _finish(operands, found, total, plain if mode == "rn" else None)


@instruction("fma", "mad")
def _fma(operands: Operands, found: Instruction) -> Step:
    kind = type_of(found.mods[-1])
    if is_half(found):
        return half_arithmetic(operands, found)
    if kind.name == "f32x2":
        return _packed(operands, found)
    if kind.kind != "f":
        return integer_multiply(operands, found)
    mode = _rounding(found)
    exact = float_math.fma_f32 if kind.name == "f32" else float_math.fma_f64
    return _finish(operands, found, lambda a, b, c: exact(a, b, c, mode))


def _packed(operands: Operands, found: Instruction) -> Step:
    """add, sub, mul, fma on `.f32x2`."""
    mode = _rounding(found)
    functions: dict[str, Callable[..., Array]] = {
        "add": lambda a, b: float_math.add(a, b, mode),
        "sub": lambda a, b: float_math.add(a, -b, mode),
        "mul": lambda a, b: float_math.multiply(a, b, mode),
        "fma": lambda a, b, c: float_math.fma_f32(a, b, c, mode),
    }
    function, ftz = functions[found.opcode], "ftz" in found.mods

    def run(*values: Array) -> Array:
        pairs = [np.ascontiguousarray(v)[..., None].view(np.float32) for v in values]
        pairs = [float_math.flush(p) for p in pairs] if ftz else pairs
        result = function(*pairs)
        result = float_math.flush(result) if ftz else result
        return np.ascontiguousarray(result, np.float32).view(np.uint64)[..., 0]

    sources = [operands.source(o, "b64") for o in found.operands[1:]]
    return Map(run, sources, operands.destination(found.operands[0], "b64"))


@instruction("min", "max")
def _min_max(operands: Operands, found: Instruction) -> Step:
    kind = type_of(found.mods[-1])
    if is_half(found):
        return half_arithmetic(operands, found)
    if kind.kind != "f":
        return integer_binary(operands, found)
    keeps_nan, by_magnitude = "NaN" in found.mods, "xorsign" in found.mods
    if by_magnitude:
        raise reject(found, ".xorsign.abs")
    low = found.opcode == "min"
    plain: Any = (np.minimum if low else np.maximum) if keeps_nan else (np.fmin if low else np.fmax)
    if len(found.operands) == 4:
        return _finish(operands, found, lambda a, b, c: plain(plain(a, b), c))
    return _finish(operands, found, plain, plain)


@instruction("abs", "neg")
def _sign(operands: Operands, found: Instruction) -> Step:
    kind = type_of(found.mods[-1])
    if is_half(found):
        return half_arithmetic(operands, found)
    if kind.kind != "f":
        return integer_unary(operands, found)
    plain: Any = np.absolute if found.opcode == "abs" else np.negative
    return _finish(operands, found, plain, plain)


@instruction("div", "rem")
def _div(operands: Operands, found: Instruction) -> Step:
    if type_of(found.mods[-1]).kind != "f":
        return integer_binary(operands, found)
    mode = _rounding(found)
    return _finish(
        operands, found, lambda a, b: float_math.divide(a, b, mode),
        np.divide if mode == "rn" else None,
    )  # fmt: skip


@instruction("rcp", "sqrt")
def _rounded_unary(operands: Operands, found: Instruction) -> Step:
    mode = _rounding(found)
    if found.opcode == "sqrt":
        return _finish(operands, found, lambda a: float_math.square_root(a, mode))
    return _finish(operands, found, lambda a: float_math.divide(np.ones_like(a), a, mode))


def _rsqrt(a: Array) -> Array:
    return 1.0 / np.sqrt(a)


_APPROXIMATE: dict[str, Callable[[Array], Array]] = {
    "rsqrt": _rsqrt, "sin": np.sin, "cos": np.cos, "lg2": np.log2, "ex2": np.exp2, "tanh": np.tanh,
}  # fmt: skip


@instruction("rsqrt", "sin", "cos", "lg2", "ex2", "tanh")
def _approximate(operands: Operands, found: Instruction) -> Step:
    if is_half(found):
        return half_arithmetic(operands, found)
    function = _APPROXIMATE[found.opcode]
    return _finish(operands, found, lambda a: function(a.astype(np.float64)).astype(a.dtype))


@instruction("copysign")
def _copysign(operands: Operands, found: Instruction) -> Step:
    return _finish(operands, found, lambda a, b: np.copysign(b, a))


@instruction("testp")
def _testp(operands: Operands, found: Instruction) -> Step:
    tests: dict[str, Callable[[Array], Array]] = {
        "finite": np.isfinite,
        "infinite": np.isinf,
        "number": lambda a: ~np.isnan(a),
        "notanumber": np.isnan,
        "normal": lambda a: np.isfinite(a) & (np.abs(a) >= np.finfo(a.dtype).tiny),
        "subnormal": lambda a: (a != 0) & (np.abs(a) < np.finfo(a.dtype).tiny),
    }
    kind = found.mods[-1]
    source = operands.source(found.operands[1], kind)
    return Map(tests[found.mods[0]], (source,), operands.destination(found.operands[0], "pred"))
