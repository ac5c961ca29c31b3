"""Block-scaled products in both models, against rational arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from mma_kinds import finite_codes, values

from gemmjit.emulator.accumulate_scaled import scaled_accumulation, scaled_product

MIN_EXPONENT = {"e4m3": -6, "e2m1": 0, "ue8m0": -127, "ue4m3": -6, "f32": -126}


def exponent(value, name):
    """Exponent of the leading bit, not below that of the smallest normal number."""
    if value == 0:
        return -126
    return max(math.frexp(value)[1] - 1, MIN_EXPONENT[name])


def truncated(value, bits):
    """Toward zero, to a multiple of 2**-bits."""
    scaled = value * Fraction(2) ** bits
    return Fraction(math.trunc(scaled), 1) / Fraction(2) ** bits


def to_float32(value):
    if value == 0:
        return 0.0
    top = max(math.frexp(float(value))[1] - 1, -126)
    return float(truncated(value, 23 - top))


def oracle(a, b, c, sa, sb, types):
    """One element of D by the published model; a, b over K, sa, sb over the blocks of K."""
    k, blocks = len(a), len(sa)
    terms = [(Fraction(float(c)), exponent(c, "f32"))]
    if k == 32:
        e_scale = exponent(sa[0], types[2]) + exponent(sb[0], types[2])
        for x, y in zip(a, b, strict=True):
            value = Fraction(x) * Fraction(y) * Fraction(sa[0]) * Fraction(sb[0])
            terms.append((value, exponent(x, types[0]) + exponent(y, types[1]) + e_scale))
        bits = 25
    else:
        for g in range(4):
            s = g * blocks // 4
            pairs = zip(a[16 * g : 16 * g + 16], b[16 * g : 16 * g + 16], strict=True)
            value = sum(Fraction(x) * Fraction(y) for x, y in pairs)
            value *= Fraction(sa[s]) * Fraction(sb[s])
            terms.append((value, exponent(sa[s], types[2]) + exponent(sb[s], types[2])))
        bits = 35
    largest = max(e for _, e in terms)
    return to_float32(sum(truncated(v, bits - largest) for v, _ in terms))


@pytest.mark.parametrize(
    ("types", "k", "blocks"),
    [(("e4m3", "e2m1", "ue8m0"), 32, 1), (("e2m1", "e2m1", "ue8m0"), 64, 2),
     (("e2m1", "e2m1", "ue4m3"), 64, 4)],
)  # fmt: skip
def test_the_published_model(types, k, blocks):
    rng = np.random.default_rng(k + blocks)
    a = values(types[0], finite_codes(rng, types[0], (4, k)))
    b = values(types[1], finite_codes(rng, types[1], (k, 5)))
    low, high = (117, 138) if types[2] == "ue8m0" else (0, 127)
    sa = values(types[2], rng.integers(low, high, (4, blocks)))
    sb = values(types[2], rng.integers(low, high, (blocks, 5)))
    c = (rng.standard_normal((4, 5)) * 2.0 ** rng.integers(-12, 12, (4, 5))).astype(np.float32)
    operands = [x.astype(np.float32)[None] for x in (a, b, c, sa, sb)]
    got = scaled_product(
        *operands, types=types, accumulation=scaled_accumulation("tensor_core", k)
    )[0]
    expected = np.array(
        [[oracle(a[i], b[:, j], c[i, j], sa[i], sb[:, j], types) for j in range(5)]
         for i in range(4)], np.float32,
    )  # fmt: skip
    np.testing.assert_array_equal(got, expected)
    plain = scaled_product(*operands, types=types)[0]
    size = k // blocks
    exact = (a * np.repeat(sa, size, 1)) @ (b * np.repeat(sb, size, 0)) + c
    np.testing.assert_array_equal(plain, exact.astype(np.float32))
    assert (plain != got).any()  # the models differ on such numbers


@pytest.mark.parametrize("accumulation", [None, scaled_accumulation("tensor_core", 32)])
def test_infinities_and_nan(accumulation):
    a, b = np.zeros((1, 3, 32), np.float32), np.ones((1, 32, 2), np.float32)
    a[0, 0, 3], a[0, 1, 3:5] = np.inf, (np.inf, -np.inf)
    scale_a, scale_b = np.ones((1, 3, 1), np.float32), np.ones((1, 1, 2), np.float32)
    scale_b[0, 0, 1] = np.nan
    got = scaled_product(
        a, b, np.zeros((1, 3, 2), np.float32), scale_a, scale_b,
        types=("e5m2", "e4m3", "ue8m0"), accumulation=accumulation,
    )  # fmt: skip
    assert got[0, 0, 0] == np.inf
    assert np.isnan(got[0, 1, 0])
    assert got[0, 2, 0] == 0
    assert np.isnan(got[0, :, 1]).all()
    assert set(got.view(np.uint32)[np.isnan(got)].tolist()) == {0x7FFFFFFF}
