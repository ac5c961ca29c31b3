"""Arithmetic of bulk reductions: cp.reduce.async.bulk and its tensor form.

Source: PTX ISA 9.1, sections 9.7.9.25.5 and 9.7.9.27.1.3 (which operation goes with which type).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemmjit.emulator.faults import UnknownInstruction
from gemmjit.emulator.formats import decode, encode

__all__ = ["REDUCTIONS", "reduce_elements"]

Bytes = NDArray[np.uint8]

#: Element types (as PTX spells them) by operation.
REDUCTIONS: dict[str, tuple[str, ...]] = {
    "add": ("u32", "s32", "u64", "f16", "bf16", "f32", "f64"),
    "min": ("u32", "s32", "u64", "s64", "f16", "bf16"),
    "max": ("u32", "s32", "u64", "s64", "f16", "bf16"),
    "inc": ("u32",),
    "dec": ("u32",),
    "and": ("b32", "b64"),
    "or": ("b32", "b64"),
    "xor": ("b32", "b64"),
}

_NUMPY: dict[str, Any] = {
    "u32": np.uint32, "s32": np.int32, "u64": np.uint64, "s64": np.int64, "b32": np.uint32,
    "b64": np.uint64, "f16": np.uint16, "bf16": np.uint16, "f32": np.float32, "f64": np.float64,
}  # fmt: skip
_BITWISE = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}


def _flushed(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return values with subnormals replaced by zeros of their sign."""
    small = np.abs(values) < np.finfo(np.float32).tiny
    return np.where(small, np.copysign(np.float32(0), values), values)


def reduce_elements(
    op: str, element: str, old: Bytes, new: Bytes, *, subnormals: bool = False
) -> Bytes:
    """Return ``op(old, new)`` element by element.

    Parameters
    ----------
    op : str
        One of `REDUCTIONS`.
    element : str
        Element type as PTX spells it.
    old, new : ndarray of uint8, same shape, C-contiguous
        Contents of memory and of the source; the last axis holds whole elements.
    subnormals : bool
        Whether those of f32 count, as in tensor reductions to FLOAT32 maps (seen on an H200,
        2026-11-30).

    Returns
    -------
    ndarray of uint8, same shape
        Sums of f16 and bf16 are rounded to nearest even once, those of f32 lose subnormal inputs
        and results (the manual's "current implementation") unless told otherwise; minimum and
        maximum ignore a NaN operand.

    Raises
    ------
    UnknownInstruction
        If the operation does not take the type.
    """
    if element not in REDUCTIONS.get(op, ()):
        known = "; ".join(f"{o}: {', '.join(t)}" for o, t in REDUCTIONS.items())
        raise UnknownInstruction(f"bulk reduction: expected one of {known}; got {op}.{element}")
    kind = _NUMPY[element]
    a, b = old.view(kind), new.view(kind)
    result: NDArray[Any]
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        if element in ("f16", "bf16"):
            x, y = decode(element, a), decode(element, b)
            combined = {"add": np.add, "min": np.fmin, "max": np.fmax}[op](x, y)
            result = encode(element, combined)
        elif element == "f32":
            result = a + b if subnormals else _flushed(_flushed(a) + _flushed(b))
        elif op in _BITWISE:
            result = _BITWISE[op](a, b)
        elif op == "inc":
            result = np.where(a >= b, 0, a + 1)
        elif op == "dec":
            result = np.where((a == 0) | (a > b), b, a - 1)
        else:
            result = {"add": np.add, "min": np.minimum, "max": np.maximum}[op](a, b)
    return np.ascontiguousarray(result.astype(kind, copy=False)).view(np.uint8)
