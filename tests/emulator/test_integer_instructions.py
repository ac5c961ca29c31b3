"""Integer and bit instructions against Python's integers."""

from __future__ import annotations

import numpy as np
import pytest
from lane_programs import evaluate, integers


def wrap(value, kind):
    bits = int(kind[1:])
    value &= (1 << bits) - 1
    return value - (1 << bits) if kind[0] == "s" and value >> (bits - 1) else value


def dtype_of(kind):
    return np.dtype({"s": "i", "u": "u", "b": "u"}[kind[0]] + str(int(kind[1:]) // 8))


def check(text, kinds, result, oracle, count=256, **options):
    """`oracle` maps Python integers to the (unwrapped) Python integer."""
    args = [integers(dtype_of(k), count, seed=i) for i, k in enumerate(kinds)]
    got = evaluate(text, args, dtype_of(result), **options)
    expected = [wrap(oracle(*(int(v) for v in row)), result) for row in zip(*args, strict=True)]
    wrong = [
        (row, int(g), e) for *row, g, e in zip(*args, got, expected, strict=True) if int(g) != e
    ]
    assert not wrong, wrong[:5]


def truncated_div(a, b):
    q = abs(a) // abs(b)
    return q if (a < 0) == (b < 0) else -q


WIDTHS = ["u16", "s16", "u32", "s32", "u64", "s64"]


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


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_logic(bits):
    kind, u, full = f"b{bits}", f"u{bits}", (1 << bits) - 1
    check(f"and.{kind} %d, %a, %b;", [u, u], u, lambda a, b: a & b)
    check(f"or.{kind} %d, %a, %b;", [u, u], u, lambda a, b: a | b)
    check(f"xor.{kind} %d, %a, %b;", [u, u], u, lambda a, b: a ^ b)
    check(f"not.{kind} %d, %a;", [u], u, lambda a: a ^ full)
    check(f"cnot.{kind} %d, %a;", [u], u, lambda a: int(a == 0))


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_shifts_clamp_their_amount(bits):
    u, s = f"u{bits}", f"s{bits}"
    check(f"shl.b{bits} %d, %a, %b;", [u, "u32"], u, lambda a, n: a << min(n, 99))
    check(f"shr.u{bits} %d, %a, %b;", [u, "u32"], u, lambda a, n: a >> min(n, 99))
    check(f"shr.s{bits} %d, %a, %b;", [s, "u32"], s, lambda a, n: a >> min(n, 99))
    for n in (0, 3, bits - 1, bits, bits + 7):
        check(f"shl.b{bits} %d, %a, {n};", [u], u, lambda a, n=n: a << n)
        check(f"shr.s{bits} %d, %a, {n};", [s], s, lambda a, n=n: a >> n)


def test_funnel_shifts():
    for mode, amount in (("wrap", lambda c: c & 31), ("clamp", lambda c: min(c, 32))):
        check(
            f"shf.l.{mode}.b32 %d, %a, %b, %c;",
            ["u32"] * 3,
            "u32",
            lambda a, b, c, f=amount: ((b << 32 | a) << f(c)) >> 32,
        )
        check(
            f"shf.r.{mode}.b32 %d, %a, %b, %c;",
            ["u32"] * 3,
            "u32",
            lambda a, b, c, f=amount: (b << 32 | a) >> f(c),
        )


@pytest.mark.parametrize("table", [0x80, 0xE8, 0x96, 0xCA, 0x1D, 0x00, 0xFF])
def test_lop3(table):
    def oracle(a, b, c):
        return sum(
            (table >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | (c >> i & 1)) & 1) << i
            for i in range(32)
        )

    check(f"lop3.b32 %d, %a, %b, %c, {table:#x};", ["u32"] * 3, "u32", oracle)


def test_prmt():
    def pick(a, b, c):
        raw = (b << 32 | a).to_bytes(8, "little")
        out = []
        for i in range(4):
            n = c >> (4 * i) & 15
            byte = raw[n & 7]
            out.append((0xFF if byte & 0x80 else 0) if n & 8 else byte)
        return int.from_bytes(bytes(out), "little")

    check("prmt.b32 %d, %a, %b, %c;", ["u32"] * 3, "u32", pick)
    check(
        "prmt.b32 %d, %a, %b, 0x5410;",
        ["u32"] * 2,
        "u32",
        lambda a, b: (b & 0xFFFF) << 16 | a & 0xFFFF,
    )

    def mode(order):
        def oracle(a, b, c):
            raw = (b << 32 | a).to_bytes(8, "little")
            return int.from_bytes(bytes(raw[k] for k in order[c & 3]), "little")

        return oracle

    f4e = [[i + k for k in range(4)] for i in range(4)]
    b4e = [[(i - k) % 8 for k in range(4)] for i in range(4)]
    rc16 = [[0, 1, 0, 1], [2, 3, 2, 3]] * 2
    for name, order in (
        ("f4e", f4e),
        ("b4e", b4e),
        ("rc8", [[i] * 4 for i in range(4)]),
        ("rc16", rc16),
        ("ecl", [[max(i, k) for k in range(4)] for i in range(4)]),
        ("ecr", [[min(i, k) for k in range(4)] for i in range(4)]),
    ):
        check(f"prmt.b32.{name} %d, %a, %b, %c;", ["u32"] * 3, "u32", mode(order))


@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64"])
def test_bit_fields(kind):
    bits, signed = int(kind[1:]), kind[0] == "s"
    u = f"u{bits}"

    def extract(a, b, c):
        a, pos, n = a & ((1 << bits) - 1), b & 255, c & 255
        if n == 0:
            return 0
        sign = (a >> min(pos + n - 1, bits - 1)) & 1 if signed else 0
        result = 0
        for i in range(bits):
            bit = a >> (pos + i) & 1 if i < n and pos + i < bits else sign
            result |= bit << i
        return result

    def insert(a, b, c, d):
        pos, n = c & 255, d & 255
        result = b
        for i in range(n):
            if pos + i < bits:
                result = result & ~(1 << (pos + i)) | (a >> i & 1) << (pos + i)
        return result

    check(f"bfe.{kind} %d, %a, %b, %c;", [kind, "u32", "u32"], kind, extract)
    if not signed:
        declare = f".reg .b{bits} %out;"
        check(
            f"bfi.b{bits} %out, %a, %b, %c, %i2; mov.b{bits} %d, %out;",
            [u, u, "u32"],
            u,
            lambda a, b, c: insert(a, b, c, 5),
            declare=declare + ".reg .b32 %i2; mov.u32 %i2, 5;",
        )


def test_bmsk_brev_szext():
    check(
        "bmsk.clamp.b32 %d, %a, %b;",
        ["u32"] * 2,
        "u32",
        lambda a, b: ((1 << min(b, 32)) - 1) << min(a, 32),
    )
    check(
        "bmsk.wrap.b32 %d, %a, %b;",
        ["u32"] * 2,
        "u32",
        lambda a, b: ((1 << (b & 31)) - 1) << (a & 31),
    )
    check("brev.b32 %d, %a;", ["u32"], "u32", lambda a: int(f"{a:032b}"[::-1], 2))
    check("brev.b64 %d, %a;", ["u64"], "u64", lambda a: int(f"{a:064b}"[::-1], 2))

    def extend(a, n, signed):
        a &= (1 << n) - 1
        return a - (1 << n) if signed and n and a >> (n - 1) else a

    check(
        "szext.clamp.s32 %d, %a, %b;",
        ["s32", "u32"],
        "s32",
        lambda a, b: extend(a, min(b, 32), True),
    )
    check(
        "szext.wrap.u32 %d, %a, %b;", ["u32", "u32"], "u32", lambda a, b: extend(a, b & 31, False)
    )


@pytest.mark.parametrize("bits", [32, 64])
def test_counts(bits):
    u = f"u{bits}"
    check(f"popc.b{bits} %d, %a;", [u], "u32", lambda a: bin(a).count("1"))
    check(f"clz.b{bits} %d, %a;", [u], "u32", lambda a: bits - a.bit_length())
    check(f"bfind.u{bits} %d, %a;", [u], "u32", lambda a: a.bit_length() - 1)
    check(
        f"bfind.shiftamt.u{bits} %d, %a;", [u], "u32", lambda a: bits - a.bit_length() if a else -1
    )
    check(
        f"bfind.s{bits} %d, %a;",
        [f"s{bits}"],
        "u32",
        lambda a: (a if a >= 0 else ~a).bit_length() - 1,
    )


def test_fns():
    def nth(mask, base, offset):
        base, step = base & 31, 1 if offset >= 0 else -1
        left, at = abs(offset), base
        if offset == 0:
            return base if mask >> base & 1 else -1
        while 0 <= at < 32:
            left -= mask >> at & 1
            if left == 0:
                return at
            at += step
        return -1

    check("and.b32 %b, %b, 31; fns.b32 %d, %a, %b, %c;", ["u32", "u32", "s32"], "u32", nth)


@pytest.mark.parametrize("kind", WIDTHS)
def test_integer_comparisons(kind):
    ops = {
        "eq": lambda a, b: a == b,
        "ne": lambda a, b: a != b,
        "lt": lambda a, b: a < b,
        "le": lambda a, b: a <= b,
        "gt": lambda a, b: a > b,
        "ge": lambda a, b: a >= b,
    }
    if kind[0] == "u":
        ops |= {"lo": ops["lt"], "ls": ops["le"], "hi": ops["gt"], "hs": ops["ge"]}
    for name, oracle in ops.items():
        check(
            f"setp.{name}.{kind} %p, %a, %b; selp.u32 %d, 7, 9, %p;",
            [kind, kind],
            "u32",
            lambda a, b, f=oracle: 7 if f(a, b) else 9,
        )
        check(
            f"set.{name}.u32.{kind} %d, %a, %b;",
            [kind, kind],
            "u32",
            lambda a, b, f=oracle: -1 if f(a, b) else 0,
        )


def test_setp_combines_and_gives_both():
    body = """
    setp.ne.u32 %q, %c, 0;
    setp.lt.and.s32 %p|%r, %a, %b, !%q;
    selp.u32 %d, 1, 0, %p; @%r add.u32 %d, %d, 2;
    """
    check(
        body,
        ["s32", "s32", "u32"],
        "u32",
        lambda a, b, c: int(a < b and c == 0) + 2 * int(not a < b and c == 0),
        declare=".reg .pred %r;",
    )


def test_predicate_logic_and_slct():
    body = """
    setp.gt.s32 %p, %a, 0; setp.gt.s32 %q, %b, 0;
    and.pred %r, %p, !%q; xor.pred %s, %p, %q; not.pred %t, %r;
    selp.u32 %d, 1, 0, %r; @%s add.u32 %d, %d, 2; @!%t add.u32 %d, %d, 4;
    """
    check(
        body,
        ["s32", "s32"],
        "u32",
        lambda a, b: (1 + 4) * (a > 0 and b <= 0) + 2 * ((a > 0) != (b > 0)),
        declare=".reg .pred %r, %s, %t;",
    )
    check("slct.s32.s32 %d, %a, %b, %c;", ["s32"] * 3, "s32", lambda a, b, c: a if c >= 0 else b)
