"""Floating-point instructions: exact against fractions, approximate ones against float64."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from float_oracles import BF16, rounded, same
from lane_programs import evaluate, floats


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
def test_directed_roundings(dtype, mode):
    kind = "f32" if dtype == "f4" else "f64"
    a, b, c = (floats(dtype, 128, s, specials=False) for s in range(3))
    exact = [[Fraction(float(v)) for v in array] for array in (a, b, c)]
    cases = {
        f"add.{mode}.{kind} %d, %a, %b;": [x + y for x, y, _ in zip(*exact, strict=True)],
        f"sub.{mode}.{kind} %d, %a, %b;": [x - y for x, y, _ in zip(*exact, strict=True)],
        f"mul.{mode}.{kind} %d, %a, %b;": [x * y for x, y, _ in zip(*exact, strict=True)],
        f"fma.{mode}.{kind} %d, %a, %b, %c;": [x * y + z for x, y, z in zip(*exact, strict=True)],
        f"div.{mode}.{kind} %d, %a, %b;": [x / y for x, y, _ in zip(*exact, strict=True)],
        f"rcp.{mode}.{kind} %d, %b;": [1 / y for _, y, _ in zip(*exact, strict=True)],
    }
    for text, values in cases.items():
        got = evaluate(text, [a, b, c], dtype)
        expected = np.array([rounded(v, dtype, mode) for v in values])
        assert same(got, expected), text


def test_fma_rounds_once_at_the_middle_of_two_floats():
    # a b + c lies just beside the middle of two f32; rounding twice would take the wrong one.
    a = np.full(32, 1 + 2**-23, "f4")
    b = np.full(32, 1 + 2**-23, "f4")
    c = np.full(32, 2.0**-24, "f4")  # the exact sum is 1 + 2^-22 + 2^-24 + 2^-46
    exact = Fraction(float(a[0])) * Fraction(float(b[0])) + Fraction(float(c[0]))
    got = evaluate("fma.rn.f32 %d, %a, %b, %c;", [a, b, c], "f4")
    assert got[0] == rounded(exact, "f4", "rn")
    tiny = np.full(32, 2.0**-140, "f4")
    got = evaluate("fma.rn.f32 %d, %a, %b, %c;", [tiny, np.full(32, 0.75, "f4"), tiny], "f4")
    assert got[0] == np.float32(1.75 * 2.0**-140)


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_specials_and_min_max(kind):
    dtype = "f" + str(int(kind[1:]) // 8)
    a, b = floats(dtype, 256, 1), floats(dtype, 256, 2)
    with np.errstate(all="ignore"):
        assert same(evaluate(f"add.{kind} %d, %a, %b;", [a, b], dtype), a + b)
        assert same(evaluate(f"mul.{kind} %d, %a, %b;", [a, b], dtype), a * b)
        assert same(evaluate(f"div.rn.{kind} %d, %a, %b;", [a, b], dtype), a / b)
        assert same(evaluate(f"sqrt.rn.{kind} %d, %a;", [a], dtype), np.sqrt(a))
    assert same(evaluate(f"min.{kind} %d, %a, %b;", [a, b], dtype), np.fmin(a, b))
    assert same(evaluate(f"max.{kind} %d, %a, %b;", [a, b], dtype), np.fmax(a, b))
    if kind == "f32":
        assert same(evaluate("max.NaN.f32 %d, %a, %b;", [a, b], dtype), np.maximum(a, b))
    assert same(evaluate(f"abs.{kind} %d, %a;", [a], dtype), np.abs(a))
    assert same(evaluate(f"neg.{kind} %d, %a;", [a], dtype), -a)
    assert same(evaluate(f"copysign.{kind} %d, %a, %b;", [a, b], dtype), np.copysign(b, a))


def test_ftz_and_sat():
    a, b = floats("f4", 256, 3), floats("f4", 256, 4)
    a[:4], b[:4] = 2.0**-130, 0.5
    tiny = np.finfo("f4").tiny

    def flush(v):
        return np.where(np.abs(v) < tiny, np.copysign(np.float32(0), v), v).astype("f4")

    with np.errstate(all="ignore"):
        got = evaluate("add.ftz.f32 %d, %a, %b;", [a, b], "f4")
        assert same(got, flush(flush(a) + flush(b)))
        got = evaluate("mul.sat.f32 %d, %a, %b;", [a, b], "f4")
        product = a * b
        assert same(got, np.where(product > 0, np.minimum(product, 1), 0).astype("f4"))


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("sin", np.sin),
        ("cos", np.cos),
        ("lg2", np.log2),
        ("ex2", np.exp2),
        ("tanh", np.tanh),
        ("rsqrt", lambda v: 1 / np.sqrt(v)),
        ("sqrt", np.sqrt),
        ("rcp", lambda v: 1 / v),
    ],
)
def test_approximations(name, function):
    a = np.linspace(0.01, 20, 256).astype("f4")
    got = evaluate(f"{name}.approx.f32 %d, %a;", [a], "f4")
    np.testing.assert_allclose(got, function(a.astype("f8")), rtol=1e-7, atol=1e-9)


def test_testp():
    a = floats("f4", 256, 5)
    tests = {
        "finite": np.isfinite(a),
        "infinite": np.isinf(a),
        "number": ~np.isnan(a),
        "notanumber": np.isnan(a),
        "normal": np.isfinite(a) & (np.abs(a) >= np.finfo("f4").tiny),
        "subnormal": (a != 0) & (np.abs(a) < np.finfo("f4").tiny),
    }
    for name, expected in tests.items():
        got = evaluate(f"testp.{name}.f32 %p, %a; selp.u32 %d, 1, 0, %p;", [a], "u4")
        np.testing.assert_array_equal(got, expected)


def test_float_comparisons():
    a, b = floats("f4", 256, 6), floats("f4", 256, 7)
    b[::3] = a[::3]
    nan = np.isnan(a) | np.isnan(b)
    ordered = {
        "eq": a == b,
        "ne": (a != b) & ~nan,
        "lt": a < b,
        "le": a <= b,
        "gt": a > b,
        "ge": a >= b,
    }
    unordered = {k + "u": v | nan for k, v in ordered.items()}
    for name, expected in (ordered | unordered | {"num": ~nan, "nan": nan}).items():
        got = evaluate(f"setp.{name}.f32 %p, %a, %b; selp.u32 %d, 1, 0, %p;", [a, b], "u4")
        np.testing.assert_array_equal(got, expected, err_msg=name)
        got = evaluate(f"set.{name}.f32.f32 %d, %a, %b;", [a, b], "f4")
        np.testing.assert_array_equal(got, expected.astype("f4"), err_msg=name)


@pytest.mark.parametrize(("name", "dtype"), [("f16", np.float16), ("bf16", BF16)])
def test_halves_round_once(name, dtype):
    a, b, c = (floats("f4", 256, s, specials=False).astype(dtype) for s in (8, 9, 10))
    keep = [np.clip(v.astype("f8"), -200, 200).astype(dtype) for v in (a, b, c)]
    x, y, z = (v.astype("f8") for v in keep)
    cases = {
        f"add.rn.{name} %d, %a, %b;": x + y,
        f"sub.rn.{name} %d, %a, %b;": x - y,
        f"mul.rn.{name} %d, %a, %b;": x * y,
        f"fma.rn.{name} %d, %a, %b, %c;": None,
        f"min.{name} %d, %a, %b;": np.fmin(x, y),
        f"max.{name} %d, %a, %b;": np.fmax(x, y),
        f"abs.{name} %d, %a;": np.abs(x),
        f"neg.{name} %d, %a;": -x,
        f"fma.rn.relu.{name} %d, %a, %b, %c;": None,
    }
    for text, value in cases.items():
        got = evaluate(text, keep, "u2").view(dtype)
        if value is None:
            exact = [
                Fraction(p) * Fraction(q) + Fraction(r) for p, q, r in zip(x, y, z, strict=True)
            ]
            expected = np.array([nearest_half(v, dtype) for v in exact]).astype(dtype)
            if "relu" in text:
                expected = np.where(expected.astype("f4") > 0, expected, dtype(0)).astype(dtype)
        else:
            expected = np.array([nearest_half(Fraction(v), dtype) for v in value]).astype(dtype)
            if "neg" in text:
                expected = -keep[0]
        np.testing.assert_array_equal(
            got.view("u2") & 0x7FFF, expected.view("u2") & 0x7FFF, err_msg=text
        )
        np.testing.assert_array_equal(got.astype("f4"), expected.astype("f4"), err_msg=text)


def nearest_half(value, dtype):
    """Round a fraction to nearest even by looking at the neighbours of a first guess."""
    guess = np.array(float(value), "f4").astype(dtype)
    bits = int(guess.view("u2"))
    best = None
    for near in (bits - 1, bits, bits + 1):
        candidate = np.array(near & 0xFFFF, "u2").view(dtype)
        number = float(candidate)
        if not np.isfinite(number):
            continue
        distance = abs(Fraction(number) - value)
        if best is None or distance < best[0] or (distance == best[0] and near % 2 == 0):
            best = (distance, candidate)
    return best[1]


#: Bits of NaN, quiet and signalling, of either sign, none of them the canonical one.
NAN_BITS = {
    "f16": np.tile(np.array([0x7C10, 0x7E01, 0xFC01, 0xFFFF], "u2"), 8),
    "bf16": np.tile(np.array([0x7F82, 0x7FC1, 0xFF81, 0xFFFF], "u2"), 8),
}


def test_nan_of_halves_to_single():
    """As on an H200: f16 gives the canonical NaN, bf16 keeps its bits."""
    nan = NAN_BITS["f16"]
    got = evaluate("cvt.f32.f16 %d, %a;", [nan], "u4")
    assert (got == 0x7FFF_FFFF).all()
    plain = np.array([0x3C00, 0xFC00, 0x0001, 0x8000] * 8, "u2")
    mixed = np.where(np.arange(32) % 3 == 0, nan, plain).astype("u2")
    got = evaluate("cvt.f32.f16 %d, %a;", [mixed], "u4")
    expected = np.where(
        np.arange(32) % 3 == 0, 0x7FFF_FFFF, plain.view("f2").astype("f4").view("u4")
    )
    np.testing.assert_array_equal(got, expected)
    got = evaluate("cvt.f32.bf16 %d, %a;", [NAN_BITS["bf16"]], "u4")
    np.testing.assert_array_equal(got, NAN_BITS["bf16"].astype("u4") << 16)


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_nan_results_of_halves_are_canonical(name):
    nan = NAN_BITS[name]
    one = np.full(32, 0x3C00 if name == "f16" else 0x3F80, "u2")
    programs = [
        f"{op}.{name} %d, {operands};"
        for op, operands in (
            ("add.rn", "%a, %b"), ("sub.rn", "%b, %a"), ("mul.rn", "%a, %b"),
            ("fma.rn", "%b, %a, %b"), ("fma.rn.relu", "%b, %b, %a"), ("min", "%a, %a"),
            ("max.NaN", "%a, %b"), ("neg", "%a"), ("abs", "%a"), ("tanh.approx", "%a"),
        )
    ]  # fmt: skip
    other = "bf16" if name == "f16" else "f16"
    programs.append(f"cvt.rn.{other}.{name} %d, %a;")
    programs.append(f".reg .b32 %w; cvt.f32.{name} %w, %a; cvt.rn.{name}.f32 %d, %w;")
    if name == "f16":
        programs.append("cvt.rni.f16.f16 %d, %a;")
    for text in programs:
        got = evaluate(text, [nan, one], "u2")
        assert (got == 0x7FFF).all(), text
    pair = evaluate(f"neg.{name}x2 %d, %a;", [np.repeat(nan, 2).view("u4")], "u4")
    assert (pair == 0x7FFF_7FFF).all()
    got = evaluate(f"min.{name} %d, %a, %b;", [nan, one], "u2")
    np.testing.assert_array_equal(got, one)


@pytest.mark.parametrize(("name", "dtype"), [("f16x2", np.float16), ("bf16x2", BF16)])
def test_pairs_act_on_both_halves(name, dtype):
    single = name.removesuffix("x2")
    a, b, c = (
        np.clip(floats("f4", 512, s, specials=False), -99, 99).astype(dtype) for s in (1, 2, 3)
    )
    packed = [v.view("u4") for v in (a, b, c)]
    for op, n in (("add.rn", 2), ("mul.rn", 2), ("fma.rn", 3), ("max", 2)):
        names = ", ".join(f"%{r}" for r in "abc"[:n])
        one = evaluate(f"{op}.{single} %d, {names};", [a, b, c], "u2")
        two = evaluate(f"{op}.{name} %d, {names};", packed, "u4")
        np.testing.assert_array_equal(two.view("u2"), one)


@pytest.mark.parametrize("op", ["add", "mul", "fma"])
def test_f32x2(op):
    a, b, c = (floats("f4", 512, s, specials=False) for s in (1, 2, 3))
    names = "%a, %b, %c" if op == "fma" else "%a, %b"
    one = evaluate(f"{op}.rn.f32 %d, {names};", [a, b, c], "f4")
    two = evaluate(
        f"{op}.rn.f32x2 %d, {names};", [v.view("u8") for v in (a, b, c)], "u8", target="sm_100a"
    )
    assert same(two.view("f4"), one)
