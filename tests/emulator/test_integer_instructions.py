"""Integer and bit instructions against Python's integers."""

from __future__ import annotations

import numpy as np
import pytest
from integer_oracles import WIDTHS, check
from lane_programs import evaluate, integers


def truncated_div(a, b):
    q = abs(a) // abs(b)
    return q if (a < 0) == (b < 0) else -q


@pytest.mark.parametrize("kind", WIDTHS)
def test_add_sub_mul(kind):
    for name, oracle in (("add", lambda a, b: a + b), ("sub", lambda a, b: a - b)):
        check(f"{name}.{kind} %d, %a, %b;", [kind, kind], kind, oracle)
    bits = int(kind[1:])
    check(f"mul.lo.{kind} %d, %a, %b;", [kind, kind], kind, lambda a, b: a * b)
    check(f"mul.hi.{kind} %d, %a, %b;", [kind, kind], kind, lambda a, b: a * b >> bits)
    check(f"mad.lo.{kind} %d, %a, %b, %c;", [kind] * 3, kind, lambda a, b, c: a * b + c)
    check(f"mad.hi.{kind} %d, %a, %b, %c;", [kind] * 3, kind, lambda a, b, c: (a * b >> bits) + c)


@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32"])
def test_wide_products(kind):
    wide = kind[0] + str(2 * int(kind[1:]))
    check(f"mul.wide.{kind} %d, %a, %b;", [kind, kind], wide, lambda a, b: a * b)
    check(f"mad.wide.{kind} %d, %a, %b, %c;", [kind, kind, wide], wide, lambda a, b, c: a * b + c)


@pytest.mark.parametrize("kind", WIDTHS)
def test_division_truncates(kind):
    ones = (1 << int(kind[1:])) - 1
    check(
        f"div.{kind} %d, %a, %b;",
        [kind, kind],
        kind,
        lambda a, b: truncated_div(a, b) if b else ones,
    )
    check(
        f"rem.{kind} %d, %a, %b;",
        [kind, kind],
        kind,
        lambda a, b: a - b * truncated_div(a, b) if b else a,
    )


@pytest.mark.parametrize("kind", WIDTHS)
def test_min_max_sad(kind):
    check(f"min.{kind} %d, %a, %b;", [kind, kind], kind, min)
    check(f"max.{kind} %d, %a, %b;", [kind, kind], kind, max)
    check(f"sad.{kind} %d, %a, %b, %c;", [kind] * 3, kind, lambda a, b, c: c + abs(a - b))


@pytest.mark.parametrize("kind", ["s16", "s32", "s64"])
def test_abs_neg(kind):
    check(f"abs.{kind} %d, %a;", [kind], kind, abs)
    check(f"neg.{kind} %d, %a;", [kind], kind, lambda a: -a)


def test_saturating_sums():
    def clamp(v):
        return max(-(2**31), min(2**31 - 1, v))

    check("add.sat.s32 %d, %a, %b;", ["s32", "s32"], "s32", lambda a, b: clamp(a + b))
    check("sub.sat.s32 %d, %a, %b;", ["s32", "s32"], "s32", lambda a, b: clamp(a - b))
    check(
        "mad.hi.sat.s32 %d, %a, %b, %c;",
        ["s32"] * 3,
        "s32",
        lambda a, b, c: clamp((a * b >> 32) + c),
    )


def test_packed_halves():
    def halves(v):
        return [v & 0xFFFF, v >> 16 & 0xFFFF]

    def signed(v):
        return v - 0x10000 if v >= 0x8000 else v

    def both(f, a, b):
        low, high = (f(x, y) & 0xFFFF for x, y in zip(halves(a), halves(b), strict=True))
        return high << 16 | low

    check(
        "add.u16x2 %d, %a, %b;", ["u32", "u32"], "u32", lambda a, b: both(lambda x, y: x + y, a, b)
    )
    check(
        "min.s16x2 %d, %a, %b;",
        ["u32", "u32"],
        "u32",
        lambda a, b: both(lambda x, y: min(signed(x), signed(y)), a, b),
    )
    check(
        "max.relu.s16x2 %d, %a, %b;",
        ["u32", "u32"],
        "u32",
        lambda a, b: both(lambda x, y: max(signed(x), signed(y), 0), a, b),
    )


def test_carry_chains():
    body = """
    .reg .b32 %x0, %x1, %y0, %y1, %s0, %s1, %s2;
    mov.b64 {%x0, %x1}, %a; mov.b64 {%y0, %y1}, %b;
    add.cc.u32 %s0, %x0, %y0; addc.cc.u32 %s1, %x1, %y1; addc.u32 %s2, 0, 0;
    mov.b64 %d0, {%s0, %s1}; mov.u32 %d1, %s2;
    sub.cc.u32 %s0, %x0, %y0; subc.cc.u32 %s1, %x1, %y1; mov.b64 %d2, {%s0, %s1};
    mad.lo.cc.u32 %s0, %x0, %y0, %x1; madc.hi.u32 %s1, %x0, %y0, 0; mov.b64 %d3, {%s0, %s1};
    """
    a, b = integers("u8", 256, 1).astype("u8"), integers("u8", 256, 2)
    a, b = integers(np.uint64, 256, 1), integers(np.uint64, 256, 2)
    total, carry, difference, product = evaluate(body, [a, b], ["u8", "u4", "u8", "u8"])
    for x, y, t, c, m, p in zip(
        *(v.tolist() for v in (a, b, total, carry, difference, product)), strict=True
    ):
        assert (c << 64) + t == x + y
        assert m == (x - y) % 2**64
        assert p == (x & 0xFFFFFFFF) * (y & 0xFFFFFFFF) + (x >> 32)


def test_mul24_uses_the_low_24_bits():
    def low(v, signed):
        v &= 0xFFFFFF
        return v - (1 << 24) if signed and v >> 23 else v

    for kind, s in (("u32", False), ("s32", True)):
        check(
            f"mul24.lo.{kind} %d, %a, %b;",
            [kind, kind],
            kind,
            lambda a, b, s=s: low(a, s) * low(b, s),
        )
        check(
            f"mul24.hi.{kind} %d, %a, %b;",
            [kind, kind],
            kind,
            lambda a, b, s=s: low(a, s) * low(b, s) >> 16,
        )
        check(
            f"mad24.lo.{kind} %d, %a, %b, %c;",
            [kind] * 3,
            kind,
            lambda a, b, c, s=s: low(a, s) * low(b, s) + c,
        )


def bytes_of(v, signed, size=1):
    return [
        int.from_bytes(
            (v & 0xFFFFFFFF).to_bytes(4, "little")[i : i + size], "little", signed=signed
        )
        for i in range(0, 4, size)
    ]


@pytest.mark.parametrize("a_kind", ["s32", "u32"])
@pytest.mark.parametrize("b_kind", ["s32", "u32"])
def test_dot_products(a_kind, b_kind):
    result = "s32" if "s32" in (a_kind, b_kind) else "u32"

    def dp4a(a, b, c):
        return c + sum(
            x * y
            for x, y in zip(bytes_of(a, a_kind == "s32"), bytes_of(b, b_kind == "s32"), strict=True)
        )

    def dp2a(a, b, c):
        halves, octets = bytes_of(a, a_kind == "s32", 2), bytes_of(b, b_kind == "s32")
        return c + sum(x * y for x, y in zip(halves, octets[:2], strict=True))

    check(f"dp4a.{a_kind}.{b_kind} %d, %a, %b, %c;", ["b32", "b32", result], result, dp4a)
    check(f"dp2a.lo.{a_kind}.{b_kind} %d, %a, %b, %c;", ["b32", "b32", result], result, dp2a)
