"""One instruction on random integers, beside an oracle in Python."""

from __future__ import annotations

import numpy as np
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


WIDTHS = ["u16", "s16", "u32", "s32", "u64", "s64"]
