"""Floats beside their exact values."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np

BF16 = ml_dtypes.bfloat16


def same(a, b):
    """Equal bit for bit, any NaN for any NaN."""
    both_nan = np.isnan(a.astype("f8")) & np.isnan(b.astype("f8"))
    bits = f"u{a.dtype.itemsize}"
    return bool((both_nan | (a.view(bits) == b.view(bits))).all())


def rounded(value, dtype, mode):
    """A fraction rounded to f32 or f64 in a direction, by stepping from the nearest."""
    nearest = np.array(float(value) if dtype == "f8" else 0.0, dtype)
    if dtype == "f4":
        low = np.float32(float(value))
        candidates = [
            np.nextafter(low, np.float32(-np.inf)),
            low,
            np.nextafter(low, np.float32(np.inf)),
        ]
    else:
        low = np.float64(value.numerator / value.denominator)
        candidates = [np.nextafter(low, -np.inf), low, np.nextafter(low, np.inf)]
    below = [c for c in candidates if Fraction(float(c)) <= value]
    above = [c for c in candidates if Fraction(float(c)) >= value]
    down, up = max(below), min(above)
    if mode == "rm":
        nearest = down
    elif mode == "rp":
        nearest = up
    elif mode == "rz":
        nearest = down if value > 0 else up
    else:
        d, u = value - Fraction(float(down)), Fraction(float(up)) - value
        even = np.array(down, dtype).view("u" + dtype[1]) % 2 == 0
        nearest = down if d < u or (d == u and even) else up
    return np.array(nearest, dtype)[()]
