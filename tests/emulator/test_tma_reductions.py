"""Reductions of TMA."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from gemmjit.emulator.bulk_reduce import reduce_elements
from gemmjit.emulator.faults import UnknownInstruction


def test_integer_reductions():
    old = np.array([[5, 0, 2**32 - 1, 7]], np.uint32)
    new = np.array([[3, 9, 1, 7]], np.uint32)
    for op, expected in (
        ("add", [8, 9, 0, 14]),
        ("min", [3, 0, 1, 7]),
        ("max", [5, 9, 2**32 - 1, 7]),
        ("inc", [0, 1, 0, 0]),
        ("dec", [3, 9, 1, 6]),
    ):
        got = reduce_elements(op, "u32", old.view(np.uint8), new.view(np.uint8))
        assert got.view(np.uint32).tolist() == [expected]
    for op, function in (("and", int.__and__), ("or", int.__or__), ("xor", int.__xor__)):
        got = reduce_elements(op, "b32", old.view(np.uint8), new.view(np.uint8))
        pairs = zip(old[0].tolist(), new[0].tolist(), strict=True)
        assert got.view(np.uint32)[0].tolist() == [function(x, y) for x, y in pairs]
    signed = np.array([[-5, 5]], np.int32), np.array([[4, -4]], np.int32)
    got = reduce_elements("min", "s32", *(x.view(np.uint8) for x in signed))
    assert got.view(np.int32).tolist() == [[-5, -4]]


def test_float_reductions_round_once():
    old = np.array([[1.0, 256.0, np.nan, -3.0]], ml_dtypes.bfloat16)
    new = np.array([[2.0, 1.0, 1.0, 3.5]], ml_dtypes.bfloat16)
    got = reduce_elements("add", "bf16", old.view(np.uint8), new.view(np.uint8))
    total = got.view(ml_dtypes.bfloat16).astype(np.float32)[0]
    assert total[:2].tolist() == [3.0, 256.0]  # 257 is a tie: to even
    assert np.isnan(total[2])
    got = reduce_elements("max", "bf16", old.view(np.uint8), new.view(np.uint8))
    assert got.view(ml_dtypes.bfloat16).astype(np.float32)[0].tolist() == [2.0, 256.0, 1.0, 3.5]
    single = np.float32([[1.5, 2.0**24]])
    got = reduce_elements("add", "f32", single.view(np.uint8), np.float32([[1, 1]]).view(np.uint8))
    assert got.view(np.float32).tolist() == [[2.5, 2.0**24]]
    small = np.float32([[2.0**-127, 2.0**-126, -(2.0**-126)]])
    other = np.float32([[2.0**-127, -1.5 * 2.0**-126, 2.0**-126]])
    got = reduce_elements("add", "f32", small.view(np.uint8), other.view(np.uint8))
    assert got.view(np.uint32).tolist() == [[0, 0x80000000, 0]]


def test_reductions_outside_the_manual_are_refused():
    empty = np.zeros((1, 8), np.uint8)
    for op, element in (("min", "f32"), ("inc", "s32"), ("and", "u32"), ("mul", "u32")):
        with pytest.raises(UnknownInstruction, match=rf"{op}\.{element}"):
            reduce_elements(op, element, empty, empty)
