"""Comparisons of integers, predicates and selections."""

from __future__ import annotations

import pytest
from integer_oracles import WIDTHS, check


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
