"""Correctly rounded f32 and f64 arithmetic on NumPy arrays, in all four roundings.

NumPy rounds to nearest even. The other roundings, and fma, need the error of an operation: it is
exact by the error-free transformations of Knuth (sum) and Dekker (product), and rounding to odd
makes a second rounding harmless (Boldo and Melquiond, "Emulation of FMA and correctly rounded
sums", IEEE Trans. Computers 57, 2008).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["add", "divide", "flush", "fma_f32", "fma_f64", "multiply", "round_to_f32", "saturate"]

Array = npt.NDArray[Any]
_F32_TINY = np.float32(2.0**-126)
_SPLITTER = 134217729.0  # 2**27 + 1


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """Return `a + b` in f64 and its error."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def two_product(a: Array, b: Array) -> tuple[Array, Array]:
    """Return `a * b` in f64 and its error."""
    product = a * b
    ah, bh = a * _SPLITTER, b * _SPLITTER
    ah, bh = ah - (ah - a), bh - (bh - b)
    al, bl = a - ah, b - bh
    return product, ((ah * bh - product) + ah * bl + al * bh) + al * bl


def to_odd(value: Array, error: Array) -> Array:
    """`value + error` rounded to odd, where `value` is it rounded to nearest."""
    bits = np.array(value, np.float64, copy=True).view(np.int64)
    inexact = (error != 0) & np.isfinite(value) & np.isfinite(error) & ((bits & 1) == 0)
    if not inexact.any():
        return value
    grow = (error > 0) == (value > 0)
    result: Array = np.where(inexact, bits + np.where(grow, 1, -1), bits).view(np.float64)
    return result


def _directed(nearest: Array, error: Array, mode: str) -> Array:
    """Move a value rounded to nearest to the neighbour that `mode` asks for."""
    if mode == "rn":
        return nearest
    infinity = np.array(np.inf, nearest.dtype)
    down = np.nextafter(nearest, -infinity)
    up = np.nextafter(nearest, infinity)
    if mode == "rm":
        return np.where(error < 0, down, nearest)
    if mode == "rp":
        return np.where(error > 0, up, nearest)
    toward_zero = np.where((nearest > 0) & (error < 0), down, nearest)
    return np.where((nearest < 0) & (error > 0), up, toward_zero)


def round_to_f32(value: Array, error: Array | float, mode: str) -> Array:
    """Round `value + error` (f64, `value` its rounding to nearest) to f32."""
    odd = to_odd(np.asarray(value, np.float64), np.broadcast_to(error, np.shape(value)))
    nearest = odd.astype(np.float32)
    if mode == "rn":
        return nearest
    return _directed(nearest, odd - nearest.astype(np.float64), mode)


def fma_f32(a: Array, b: Array, c: Array, mode: str = "rn") -> Array:
    """Return `a * b + c`, rounded once."""
    # The product of two f32 is exact in f64; the sum is rounded there a first time.
    product = np.multiply(a, b, dtype=np.float64)
    total = product + c
    if mode == "rn":
        result = total.astype(np.float32)
        # The second rounding can only go wrong from the middle between two f32, or into subnormals.
        middle = (total.view(np.int64) & 0x1FFF_FFFF) == 0x1000_0000
        if not middle.any() and (result.view(np.uint32) & 0x7F80_0000).min(initial=1):
            return result
    total, error = two_sum(product, np.asarray(c, np.float64))
    return round_to_f32(total, error, mode)


def fma_f64(a: Array, b: Array, c: Array, mode: str = "rn") -> Array:
    """Return `a * b + c`, rounded once (away from overflow and underflow of the product)."""
    high, low = two_product(a, b)
    special = ~np.isfinite(low)
    th, tl = two_sum(c, low)
    vh, vl = two_sum(high, th)
    z, ze = two_sum(tl, vl)
    z = to_odd(z, ze)
    result, error = two_sum(vh, z)
    result = _directed(result, error, mode)
    return np.where(special, a * b + c, result) if special.any() else result


def add(a: Array, b: Array, mode: str) -> Array:
    """Return `a + b` in the type of the arrays."""
    if mode == "rn":
        return a + b
    total, error = two_sum(a.astype(np.float64), b.astype(np.float64))
    if a.dtype == np.float32:
        return round_to_f32(total, error, mode)
    return _directed(total, error, mode)


def multiply(a: Array, b: Array, mode: str) -> Array:
    """Return `a * b` in the type of the arrays."""
    if mode == "rn":
        return a * b
    if a.dtype == np.float32:
        return round_to_f32(np.multiply(a, b, dtype=np.float64), 0.0, mode)
    return _directed(*two_product(a, b), mode)


def divide(a: Array, b: Array, mode: str) -> Array:
    """Return `a / b` in the type of the arrays."""
    quotient: Array = a / b
    if mode == "rn":
        return quotient
    # The sign of the remainder a - q b tells on which side of the quotient the true one lies.
    product, low = two_product(quotient.astype(np.float64), b.astype(np.float64))
    remainder = (a - product) - low
    return _directed(quotient, remainder * np.sign(b), mode)


def square_root(a: Array, mode: str) -> Array:
    """Return the square root in the type of the array."""
    root: Array = np.sqrt(a)
    if mode == "rn":
        return root
    product, low = two_product(root.astype(np.float64), root.astype(np.float64))
    return _directed(root, (a - product) - low, mode)


def flush(values: Array) -> Array:
    """Subnormal f32 to zero of the same sign (`.ftz`)."""
    return np.where(np.abs(values) < _F32_TINY, values * np.float32(0), values)


def saturate(values: Array) -> Any:
    """Clamp to [0, 1]; NaN becomes 0 (`.sat`)."""
    return np.where(values > 0, np.minimum(values, values.dtype.type(1)), values.dtype.type(0))
