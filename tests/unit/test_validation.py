"""From views of arrays to a problem; rules that only arrays on a device can break."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import gemmjit
from gemmjit import SimtConfig, Sm80MmaConfig
from gemmjit.arrays import CPU, ArrayView
from gemmjit.dtypes import BF16, F32, I32, I64
from gemmjit.errors import InvalidDtypeError, InvalidProblemError
from gemmjit.ops.validation import check_overlap, form_of, problem_of, result_shape


def view(shape, dtype=BF16, device=0, strides=None, pointer=1 << 20):
    if strides is None:
        strides = tuple(int(np.prod(shape[i + 1 :])) for i in range(len(shape)))
    return ArrayView(pointer, shape, strides, dtype, device)


def problem(a=None, b=None, offs=None, out=None, **keywords):
    a = a or view((8, 16))
    b = b or view((2, 16, 24), pointer=2 << 20)
    offs = offs or view((2,), I32, pointer=3 << 20)
    arguments = {"out_dtype": None, "accumulate": False, **keywords}
    return problem_of(a, b, offs, offs.shape[0], out, **arguments)


@pytest.mark.parametrize(
    ("function", "exception", "parts"),
    [
        (
            lambda: problem(b=view((2, 16, 24), device=1)),
            InvalidProblemError,
            ("mat_b", "cuda:0, like mat_a", "cuda:1", "Move"),
        ),
        (
            lambda: problem(b=view((2, 16, 24), device=CPU)),
            InvalidProblemError,
            ("mat_b", "cuda:0, like mat_a", "the CPU", "Move"),
        ),
        (
            lambda: problem(out=view((8, 24), device=1, pointer=4 << 20)),
            InvalidProblemError,
            ("out", "cuda:0, like mat_a", "cuda:1", "Allocate"),
        ),
        (
            lambda: problem(offs=view((2,), F32)),
            InvalidDtypeError,
            ("offs", "int32 or int64", "float32", "(G,)"),
        ),
        (
            lambda: problem(offs=view((2, 1), I32)),
            InvalidDtypeError,
            ("offs", "one dimension", "(2, 1)", "(G,)"),
        ),
        (
            lambda: problem(offs=view((2,), I64, strides=(2,))),
            InvalidProblemError,
            ("offs", "contiguous", "stride 2", "Copy"),
        ),
    ],
)
def test_rules_of_arrays_on_a_device(function, exception, parts):
    with pytest.raises(exception) as caught:
        function()
    for part in parts:
        assert part in str(caught.value)


def test_out_over_device_offsets():
    offs = view((2,), I32, pointer=4 << 20)
    with pytest.raises(InvalidProblemError, match="memory that offs does not use"):
        problem(offs=offs, out=view((8, 24), pointer=4 << 20))


def test_problem_of_a_plain_call():
    got = problem()
    assert got == gemmjit.Problem.contiguous(num_groups=2, rows=8, n=24, k=16)
    assert got.zero_tail
    into = problem(out=view((8, 24), F32, pointer=4 << 20), accumulate=True)
    assert not into.zero_tail
    assert into.epilogue == "accumulate"
    assert into.out_dtype is F32


def test_problem_of_wgrad():
    got = problem(a=view((16, 8), strides=(1, 16)), b=view((8, 24), pointer=2 << 20))
    assert got == gemmjit.Problem.contiguous("ragged_k", num_groups=2, rows=8, n=24, k=16)


def test_strides_of_length_1_axes_do_not_count():
    one = problem(a=view((1, 16), strides=(999, 1)), b=view((2, 16, 1), strides=(16, 1, 77)))
    two = problem(a=view((1, 16), strides=(16, 1)), b=view((2, 16, 1), strides=(16, 1, 1)))
    assert one == two


@pytest.mark.parametrize(
    ("a", "b", "form", "shape"),
    [((8, 16), (2, 16, 24), "ragged_m", (8, 24)), ((16, 8), (8, 24), "ragged_k", (2, 16, 24))],
)
def test_form_and_shape(a, b, form, shape):
    assert form_of(a, b) == form
    assert result_shape(form, a, b, 2) == shape


def test_views_that_interleave_are_no_overlap():
    left = view((4, 8), strides=(16, 1), pointer=4096)
    right = view((4, 8), strides=(16, 1), pointer=4096 + 16)
    check_overlap(left, [right])
    with pytest.raises(InvalidProblemError, match="mat_a"):
        check_overlap(left, [view((4, 9), strides=(16, 1), pointer=4096 + 14)])


def test_configs_that_are_right_are_taken():
    for config in ("k0", "k1", "simt_grouped_mm", SimtConfig(), Sm80MmaConfig(block_m=64)):
        a, b = np.ones((8, 16), ml_dtypes.bfloat16), np.ones((2, 16, 24), ml_dtypes.bfloat16)
        assert (gemmjit.grouped_mm(a, b, offs=[3, 8], config=config) == 16).all()
