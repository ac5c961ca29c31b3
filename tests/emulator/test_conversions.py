"""cvt: between integers, floats and packed pairs."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from float_oracles import BF16, rounded, same
from lane_programs import evaluate, floats, integers

INTEGER_TYPES = ["u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"]


def kind_dtype(kind):
    return np.dtype(("i" if kind[0] == "s" else kind[0]) + str(int(kind[1:]) // 8))


@pytest.mark.parametrize("to", INTEGER_TYPES)
@pytest.mark.parametrize("source", INTEGER_TYPES)
def test_integer_conversions(to, source):
    a = integers(kind_dtype(source), 256, 3)
    wide = np.dtype(("i" if to[0] == "s" else "u") + str(max(int(to[1:]) // 8, 2)))
    got = evaluate(f"cvt.{to}.{source} %d, %a;", [a], wide)
    np.testing.assert_array_equal(got, a.astype(kind_dtype(to)).astype(wide))
    limits = np.iinfo(kind_dtype(to))
    got = evaluate(f"cvt.sat.{to}.{source} %d, %a;", [a], wide)
    clipped = [min(max(int(v), limits.min), limits.max) for v in a]
    np.testing.assert_array_equal(got, np.array(clipped, dtype=kind_dtype(to)).astype(wide))


@pytest.mark.parametrize("to", ["s8", "u16", "s32", "u32", "s64", "u64"])
@pytest.mark.parametrize("source", ["f16", "f32", "f64"])
def test_float_to_integer(to, source):
    dtype = kind_dtype(source)
    a = floats(dtype, 256, 11)
    limits = np.iinfo(kind_dtype(to))
    wide = np.dtype(("i" if to[0] == "s" else "u") + str(max(int(to[1:]) // 8, 2)))
    for name, function in (
        ("rni", np.rint),
        ("rzi", np.trunc),
        ("rmi", np.floor),
        ("rpi", np.ceil),
    ):
        expected = []
        for v in a.astype("f8"):
            if np.isnan(v):
                expected.append(0)
            elif np.isinf(v):
                expected.append(limits.max if v > 0 else limits.min)
            else:
                expected.append(min(max(int(function(v)), limits.min), limits.max))
        text = f"cvt.{name}.{to}.{source} %d, %a;"
        got = evaluate(text, [a], wide)
        np.testing.assert_array_equal(
            got, np.array(expected, dtype=kind_dtype(to)).astype(wide), err_msg=text
        )


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("source", ["s32", "u32", "s64", "u64", "f64"])
def test_to_f32_rounds_once(mode, source):
    dtype = kind_dtype(source)
    a = floats("f8", 256, 12, specials=False) if source == "f64" else integers(dtype, 256, 12)
    got = evaluate(f"cvt.{mode}.f32.{source} %d, %a;", [a], "f4")
    expected = np.array(
        [rounded(Fraction(float(v) if source == "f64" else int(v)), "f4", mode) for v in a]
    )
    assert same(got, expected)


def test_integral_rounding_and_widening():
    a = floats("f4", 256, 13)
    for name, function in (
        ("rni", np.rint),
        ("rzi", np.trunc),
        ("rmi", np.floor),
        ("rpi", np.ceil),
    ):
        assert same(evaluate(f"cvt.{name}.f32.f32 %d, %a;", [a], "f4"), function(a))
    assert same(evaluate("cvt.f64.f32 %d, %a;", [a], "f8"), a.astype("f8"))
    half = a.astype(np.float16)
    assert same(evaluate("cvt.f32.f16 %d, %a;", [half], "f4"), half.astype("f4"))
    brain = a.astype(BF16)
    assert same(evaluate("cvt.f32.bf16 %d, %a;", [brain], "f4"), brain.astype("f4"))
    assert same(evaluate("cvt.rn.bf16.f32 %d, %a;", [a], "u2").view(BF16), brain)
    assert same(evaluate("cvt.rn.f16.f32 %d, %a;", [a], "u2").view(np.float16), half)


def test_pair_conversions():
    a, b = floats("f4", 256, 14, specials=False), floats("f4", 256, 15, specials=False)
    for name, dtype in (("bf16x2", BF16), ("f16x2", np.float16)):
        got = evaluate(f"cvt.rn.{name}.f32 %d, %a, %b;", [a, b], "u4").view("u2").reshape(-1, 2)
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(got[:, 1], a.astype(dtype).view("u2"))
            np.testing.assert_array_equal(got[:, 0], b.astype(dtype).view("u2"))
    small = [np.clip(v, -400, 400) for v in (a, b)]
    for name, dtype in (("e4m3x2", ml_dtypes.float8_e4m3fn), ("e5m2x2", ml_dtypes.float8_e5m2)):
        got = evaluate(f"cvt.rn.satfinite.{name}.f32 %d, %a, %b;", small, "u2")
        np.testing.assert_array_equal(got >> 8, small[0].astype(dtype).view("u1"))
        np.testing.assert_array_equal(got & 255, small[1].astype(dtype).view("u1"))
        back = evaluate(f"cvt.rn.f16x2.{name} %d, %a;", [got], "u4").view(np.float16).reshape(-1, 2)
        np.testing.assert_array_equal(back[:, 1].astype("f4"), small[0].astype(dtype).astype("f4"))


def test_cvt_pack():
    a, b = integers("i4", 256, 1), integers("i4", 256, 2)
    got = evaluate("cvt.pack.sat.s16.s32 %d, %a, %b;", [a, b], "u4").view("i2").reshape(-1, 2)
    np.testing.assert_array_equal(got[:, 1], np.clip(a, -32768, 32767))
    np.testing.assert_array_equal(got[:, 0], np.clip(b, -32768, 32767))
    c = integers("u4", 256, 3)
    got = (
        evaluate("cvt.pack.sat.u8.s32.b32 %d, %a, %b, %c;", [a, b, c], "u4")
        .view("u1")
        .reshape(-1, 4)
    )
    np.testing.assert_array_equal(got[:, 1], np.clip(a, 0, 255))
    np.testing.assert_array_equal(got[:, 0], np.clip(b, 0, 255))
    np.testing.assert_array_equal(got[:, 2:].copy().view("u2")[:, 0], c & 0xFFFF)
