"""Instructions on bits: logic, shifts, permutations, fields, counts."""

from __future__ import annotations

import pytest
from integer_oracles import check


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
