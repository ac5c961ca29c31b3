"""Problems: what a call asks for, without its data."""

from __future__ import annotations

import pytest

from gemmjit import Problem
from gemmjit.dtypes import BF16, F16, F32
from gemmjit.errors import InvalidDtypeError, InvalidProblemError
from gemmjit.problem import Strides, pointer_alignment


def test_contiguous_ragged_m():
    p = Problem.contiguous(num_groups=4, rows=100, n=24, k=16)
    assert (p.m, p.n, p.k, p.rows) == (100, 24, 16, 100)
    assert p.strides == Strides(am=16, ak=1, bg=384, bk=24, bn=1, dg=0, dm=24, dn=1)
    assert (p.in_dtype, p.out_dtype) == (BF16, BF16)
    assert p.zero_tail
    assert p.flops == 2 * 100 * 24 * 16


def test_contiguous_ragged_k():
    p = Problem.contiguous("ragged_k", num_groups=4, rows=100, n=24, k=16, out_dtype="float32")
    # (16, 100) @ (100, 24) -> (4, 16, 24); the activation is stored (100, 16)
    assert (p.m, p.n, p.k, p.rows) == (16, 24, 100, 100)
    assert p.strides == Strides(am=1, ak=16, bg=0, bk=24, bn=1, dg=384, dm=24, dn=1)
    assert p.out_dtype is F32


def test_memory_orders():
    p = Problem.contiguous(num_groups=4, rows=100, n=24, k=16, a_k_major=False, b_k_major=True)
    assert p.strides[:5] == (1, 100, 384, 1, 16)
    assert Problem.contiguous(num_groups=1, rows=1, n=1, k=1, dtype="float16").out_dtype is F16


@pytest.mark.parametrize("name", ["num_groups", "rows", "n", "k"])
def test_negative_sizes(name):
    sizes = {"num_groups": 1, "rows": 1, "n": 1, "k": 1, name: -1}
    with pytest.raises(
        InvalidProblemError, match=f"{name}: expected a whole number from 0 to 2147483647; got -1"
    ):
        Problem.contiguous(**sizes)


def test_unknown_types():
    with pytest.raises(InvalidDtypeError):
        Problem.contiguous(num_groups=1, rows=1, n=1, k=1, dtype="float12")


@pytest.mark.parametrize(
    ("form", "sizes", "empty"),
    [
        ("ragged_m", {"rows": 0}, True),
        ("ragged_m", {"n": 0}, True),
        ("ragged_m", {"k": 0}, False),
        ("ragged_m", {"num_groups": 0}, False),  # the rows are tail
        ("ragged_k", {"rows": 0}, False),  # zeros must be stored
        ("ragged_k", {"n": 0}, True),
        ("ragged_k", {"k": 0}, True),
        ("ragged_k", {"num_groups": 0}, True),
    ],
)
def test_empty_is_a_result_without_elements(form, sizes, empty):
    p = Problem.contiguous(form, **{"num_groups": 2, "rows": 3, "n": 4, "k": 5, **sizes})
    assert p.is_empty is empty


@pytest.mark.parametrize(
    ("pointer", "alignment"), [(0, 16), (16, 16), (8, 8), (6, 2), (3, 1), (1 << 40, 16), (36, 4)]
)
def test_pointer_alignment(pointer, alignment):
    assert pointer_alignment(pointer) == alignment


def test_problems_are_values():
    one = Problem.contiguous(num_groups=1, rows=2, n=3, k=4)
    two = Problem.contiguous(num_groups=1, rows=2, n=3, k=4)
    assert one == two
    assert hash(one) == hash(two)
