"""Formats and roundings against ml_dtypes (exhaustively) and exact rational arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from gemmjit.emulator.formats import FORMATS, decode, encode, format_of, truncate_tf32
from gemmjit.errors import EmulatorError

TWINS = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e2m1": ml_dtypes.float4_e2m1fn,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e3m2": ml_dtypes.float6_e3m2fn,
    "ue8m0": ml_dtypes.float8_e8m0fnu,
}
SIGNED_SMALL = ("e4m3", "e5m2", "e2m1", "e2m3", "e3m2")


def codes_of(name):
    f = FORMATS[name]
    return np.arange(1 << f.bits, dtype=f.container)


def same(a, b):
    """Equality of floats with signed zeros told apart and all NaN equal."""
    a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
    return (np.isnan(a) & np.isnan(b)) | ((a == b) & (np.signbit(a) == np.signbit(b)))


@pytest.mark.parametrize("name", TWINS)
def test_every_code_decodes_as_in_ml_dtypes(name):
    codes = codes_of(name)
    expected = codes.view(TWINS[name]).astype(np.float32)
    assert same(decode(name, codes), expected).all()


def test_unsigned_e4m3_is_e4m3_without_sign():
    codes = np.arange(128, dtype=np.uint8)
    assert same(decode("ue4m3", codes), decode("e4m3", codes)).all()
    assert encode("ue4m3", np.float32([-3.0, 3.0, 500.0]), satfinite=True).tolist() == [
        0,
        encode("e4m3", np.float32(3.0)).item(),
        0x7E,
    ]


def test_upper_bits_of_a_byte_are_ignored_by_narrow_formats():
    for name in ("e2m1", "e2m3", "e3m2"):
        f = FORMATS[name]
        codes = codes_of(name)
        filled = codes | np.uint8((0xFF << f.bits) & 0xFF)
        assert same(decode(name, filled), decode(name, codes)).all()


def test_tf32_reads_the_upper_19_bits():
    bits = np.array([0x3F801FFF, 0x3F802000, 0xBF80FFFF], np.uint32)
    assert decode("tf32", bits).tolist() == [1.0, 1.0 + 2**-10, -1.0 - 7 * 2**-10]
    assert truncate_tf32(bits).tolist() == decode("tf32", bits).tolist()


@pytest.mark.parametrize("name", TWINS)
def test_every_number_survives_a_round_trip(name):
    codes = codes_of(name)
    values = decode(name, codes)
    numbers = ~np.isnan(values)
    for rounding in ("rn", "rna", "rz", "rm", "rp"):
        for source in (np.float32, np.float64):
            with np.errstate(invalid="ignore"):
                typed = values.astype(source)
            back = encode(name, typed, rounding)
            np.testing.assert_array_equal(back[numbers], codes[numbers])
            assert (back[~numbers] == FORMATS[name].nan_code).all()


def interesting(rng):
    """Random bit patterns, all of float16's and float8's values, midpoints and neighbours."""
    bits = rng.integers(0, 2**32, 200_000, dtype=np.uint64).astype(np.uint32)
    random = bits.view(np.float32)
    scaled = (rng.standard_normal(100_000) * np.exp2(rng.integers(-30, 30, 100_000))).astype(
        np.float32
    )
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32)
    midpoints = (halves[:-1] + halves[1:]) / 2
    edge = np.float32([0.0, -0.0, np.inf, -np.inf, np.nan, 2.0**-149, 3.4e38, -3.4e38, 464, 480])
    out = np.concatenate([random, scaled, halves, midpoints, edge])
    return np.concatenate([out, np.nextafter(midpoints, np.float32(0))])


@pytest.mark.parametrize("name", ["f16", "bf16", *SIGNED_SMALL])
def test_nearest_even_equals_ml_dtypes(name):
    with np.errstate(all="ignore"):
        values = interesting(np.random.default_rng(1))
        expected = values.astype(TWINS[name])
    f = FORMATS[name]
    got = decode(name, encode(name, values, "rn"))
    expected = expected.astype(np.float32)
    if f.specials == "none":  # ml_dtypes saturates numbers; NaN has no code there
        keep = ~np.isnan(values)
        got, expected = got[keep], expected[keep]
    assert same(got, expected).all()


def test_tf32_nearest_even_and_away():
    rng = np.random.default_rng(2)
    values = (rng.standard_normal(1000) * np.exp2(rng.integers(-20, 20, 1000))).astype(np.float32)
    ties = (values.view(np.uint32) & np.uint32(0xFFFFE000) | np.uint32(0x1000)).view(np.float32)
    for source in (values, ties):
        for rounding in ("rn", "rna", "rz"):
            got = encode("tf32", source, rounding)
            assert (got & 0x1FFF == 0).all()
            for x, y in zip(source.tolist(), decode("tf32", got).tolist(), strict=True):
                assert y == nearest(x, 10, -126, rounding)


def nearest(x, mantissa_bits, min_exponent, rounding):
    """Round with fractions, without regard to overflow."""
    if x == 0:
        return x
    value = Fraction(x)
    exponent = max(math.frexp(x)[1] - 1, min_exponent)
    unit = Fraction(2) ** (exponent - mantissa_bits)
    quotient = abs(value) / unit
    down = quotient.numerator // quotient.denominator
    rest = quotient - down
    negative = x < 0
    up = {
        "rn": rest > Fraction(1, 2) or (rest == Fraction(1, 2) and down % 2 == 1),
        "rna": rest >= Fraction(1, 2),
        "rz": False,
        "rm": negative and rest > 0,
        "rp": not negative and rest > 0,
    }[rounding]
    magnitude = float((down + up) * unit)
    return -magnitude if negative else magnitude


@pytest.mark.parametrize("name", ["f16", "bf16", *SIGNED_SMALL])
@pytest.mark.parametrize("rounding", ["rn", "rna", "rz", "rm", "rp"])
def test_all_roundings_equal_rational_arithmetic(name, rounding):
    f = FORMATS[name]
    largest = decode(name, np.array([f.max_code], f.container)).item()
    rng = np.random.default_rng(3)
    values = rng.standard_normal(2000) * np.exp2(rng.uniform(f.min_exponent - 6, 8, 2000))
    for source in (values, values.astype(np.float32)):
        got = decode(name, encode(name, source, rounding))
        for x, y in zip(source.tolist(), got.tolist(), strict=True):
            expected = nearest(x, f.mantissa_bits, f.min_exponent, rounding)
            if abs(expected) <= largest:
                assert y == expected
                assert math.copysign(1, y) == math.copysign(1, x)


def test_overflow_without_saturation():
    big = np.float32([1e30, -1e30])
    f16 = decode("f16", encode("f16", big, "rn"))
    assert f16.tolist() == [np.inf, -np.inf]
    for rounding, expected in (
        ("rz", [65504, -65504]),
        ("rm", [65504, -np.inf]),
        ("rp", [np.inf, -65504]),
    ):
        assert decode("f16", encode("f16", big, rounding)).tolist() == expected
        infinite = decode("f16", encode("f16", np.float32([np.inf, -np.inf]), rounding))
        assert infinite.tolist() == [np.inf, -np.inf]
    # 65520 is the midpoint between the largest f16 and the next power of two: to even, up.
    assert decode("f16", encode("f16", np.float64([65519.99, 65520.0]))).tolist() == [65504, np.inf]
    assert (encode("e4m3", big) & 0x7F == 0x7F).all()
    assert decode("e5m2", encode("e5m2", big)).tolist() == [np.inf, -np.inf]


@pytest.mark.parametrize("name", ["f16", "bf16", "tf32", *SIGNED_SMALL])
def test_satfinite(name):
    f = FORMATS[name]
    largest = decode(name, np.array([f.max_code << f.shift], f.container)).item()
    values = np.float32([np.inf, -np.inf, 3.4e38, -3.4e38])
    if name in ("bf16", "tf32"):
        values = np.float32([np.inf, -np.inf, 3.4028235e38, -3.4028235e38])
    got = decode(name, encode(name, values, "rn", satfinite=True))
    assert got.tolist() == [largest, -largest, largest, -largest]
    nan = encode(name, np.float32([np.nan, -np.nan]), "rn", satfinite=True)
    expected = f.max_code if f.specials == "none" else f.nan_code
    assert (nan == expected << f.shift).all()


def test_relu():
    values = np.float32([-1.0, -0.0, 0.0, 2.0, np.nan, -np.inf])
    for name, nan in (("f16", 0x7FFF), ("bf16", 0x7FFF), ("e4m3", 0x7F), ("e2m1", 0x7)):
        two = encode(name, np.float32(2.0)).item()
        got = encode(name, values, "rn", relu=True, satfinite=True)
        assert got.tolist() == [0, 0, 0, two, nan, 0]


def test_canonical_nan():
    for name, nan in (
        ("f16", 0x7FFF),
        ("bf16", 0x7FFF),
        ("tf32", 0x7FFFE000),
        ("e4m3", 0x7F),
        ("e5m2", 0x7F),
        ("ue8m0", 0xFF),
    ):
        for rounding in ("rn", "rz"):
            assert encode(name, np.float32([-np.nan]), rounding).tolist() == [nan]


def test_scales_round_by_magnitude():
    values = np.float32([1.0, 1.5, 3.0, -3.0, 0.0, 2.0**-127, 2.0**-140, 3.4e38])
    assert encode("ue8m0", values, "rz").tolist() == [127, 127, 128, 128, 0, 0, 0, 254]
    up = encode("ue8m0", values, "rp", satfinite=True)
    assert up.tolist() == [127, 128, 129, 129, 0, 0, 0, 254]
    assert encode("ue8m0", np.float32([3.4e38, np.inf]), "rp").tolist() == [255, 255]
    assert encode("ue8m0", np.float32([np.inf, np.nan]), "rp", satfinite=True).tolist() == [
        254,
        255,
    ]


@pytest.mark.parametrize("rounding", ["rn", "rz", "rm", "rp"])
def test_wide_integers_are_rounded_once(rounding):
    rng = np.random.default_rng(4)
    signed = rng.integers(-(2**63), 2**63, 500, dtype=np.int64) >> rng.integers(0, 60, 500)
    # Just above and below ties of bf16, where a detour through float64 would round twice.
    ties = np.int64([2**62 + 2**54, 2**62 + 2**54 + 1, 2**62 + 2**54 - 1, -(2**63), 2**63 - 1])
    unsigned = rng.integers(0, 2**64, 200, dtype=np.uint64)
    for values in (signed, ties, unsigned, np.int32([-(2**31), 2**31 - 1, 3, -3])):
        got = decode("bf16", encode("bf16", values, rounding))
        for x, y in zip(values.tolist(), got.tolist(), strict=True):
            assert Fraction(y) == round_integer(x, 7, rounding)


def round_integer(x, mantissa_bits, rounding):
    magnitude = abs(x)
    drop = max(magnitude.bit_length() - 1 - mantissa_bits, 0)
    down, rest = magnitude >> drop, magnitude & ((1 << drop) - 1)
    half = (1 << drop) >> 1
    up = {
        "rn": drop > 0 and (rest > half or (rest == half and down % 2 == 1)),
        "rz": False,
        "rm": x < 0 and rest > 0,
        "rp": x > 0 and rest > 0,
    }[rounding]
    return Fraction((down + up) << drop) * (-1 if x < 0 else 1)


def test_double_sources_are_rounded_once():
    # 1 + 2^-11 + 2^-40 is above a tie of f16; through float32 it would become the tie.
    x = np.float64([1 + 2.0**-11 + 2.0**-40])
    assert decode("f16", encode("f16", x)).tolist() == [1 + 2.0**-10]


def test_unknown_names_are_refused():
    with pytest.raises(EmulatorError, match="e8m7"):
        format_of("e8m7")
    with pytest.raises(EmulatorError, match="rs"):
        encode("f16", np.float32([1.0]), "rs")
