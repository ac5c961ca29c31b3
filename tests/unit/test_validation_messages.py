"""Every rule of `grouped_mm`, broken once: which exception, and what its message says."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest

import gemmjit
from gemmjit import RowScale, Sm80MmaConfig, SwiGLU
from gemmjit.epilogue import Bias
from gemmjit.errors import (
    GemmjitError,
    InvalidConfigError,
    InvalidDtypeError,
    InvalidEnvironmentError,
    InvalidProblemError,
    UnsupportedArchError,
)

BF = ml_dtypes.bfloat16


def arrays(dtype=BF, a=(8, 16), b=(2, 16, 24)):
    return np.zeros(a, dtype), np.zeros(b, dtype)


def call(a=None, b=None, offs=(3, 8), **keywords):
    plain_a, plain_b = arrays()
    a = plain_a if a is None else a
    b = plain_b if b is None else b
    offs = list(offs) if isinstance(offs, tuple) else offs
    return gemmjit.grouped_mm(a, b, offs=offs, **keywords)


def zeros(*shape, dtype=BF):
    return np.zeros(shape, dtype)


OVERLAP = zeros(32, 24)

#: name: (call, exception, argument, expected, got, mend)
RULES = {
    "mat_a of three dimensions": (
        lambda: call(a=zeros(2, 8, 16)),
        InvalidProblemError, "mat_a", "two dimensions", "(2, 8, 16)", "matmul",
    ),
    "mat_a of one dimension": (
        lambda: call(a=zeros(16)),
        InvalidProblemError, "mat_a", "(M, K) and (G, K, N)", "(16,)", "Reshape",
    ),
    "mat_a without dimensions": (
        lambda: call(a=np.zeros((), BF)),
        InvalidProblemError, "mat_a", "(M, K) and (G, K, N)", "()", "Reshape",
    ),
    "both without dimensions": (
        lambda: call(a=np.zeros((), BF), b=np.zeros((), BF)),
        InvalidProblemError, "mat_b", "(M, K) and (G, K, N)", "() and ()", "Reshape",
    ),
    "mat_b of four dimensions": (
        lambda: call(b=zeros(1, 2, 16, 24)),
        InvalidProblemError, "mat_b", "(G, K, N)", "(1, 2, 16, 24)", "Reshape",
    ),
    "contraction that does not match": (
        lambda: call(b=zeros(2, 17, 24)),
        InvalidProblemError, "mat_b", "K = mat_a.shape[1] = 16", "(2, 17, 24)", "one K",
    ),
    "BR-026 weight stored as (G, N, K)": (
        lambda: call(b=zeros(2, 32, 16)),
        InvalidProblemError, "mat_b", "K = mat_a.shape[1] = 16", "(2, 32, 16)", "transpose",
    ),
    "wgrad that does not match": (
        lambda: call(b=zeros(17, 24)),
        InvalidProblemError, "mat_b", "M = mat_a.shape[1] = 16", "(17, 24)", "one M",
    ),
    "wgrad of rows first": (
        lambda: call(b=zeros(8, 24)),
        InvalidProblemError, "mat_b", "M = mat_a.shape[1] = 16", "(8, 24)", "mat_a.T",
    ),
    "extent beyond 32 bits": (
        lambda: call(
            a=np.broadcast_to(np.zeros((1, 1), BF), (2**31 - 1, 1)), b=zeros(2, 1, 1), offs=(0, 0)
        ),
        InvalidProblemError, "mat_a", "2147482624", "2147483647", "Split",
    ),
    "BR-040 element types that differ": (
        lambda: call(a=zeros(8, 16, dtype=np.float32)),
        InvalidDtypeError, "mat_b", "float32, like mat_a", "bfloat16", "Cast",
    ),
    "element type that has no kernel": (
        lambda: call(a=zeros(8, 16, dtype=np.float64), b=zeros(2, 16, 24, dtype=np.float64)),
        InvalidDtypeError, "mat_a", "bfloat16, float16, float32", "float64", "Cast",
    ),
    "element type of mat_a that is unknown": (
        lambda: call(a=zeros(8, 16, dtype=np.complex64)),
        InvalidDtypeError, "mat_a", "bfloat16", "complex64", "Cast",
    ),
    "element type of mat_b that is unknown": (
        lambda: call(b=zeros(2, 16, 24, dtype=np.int8)),
        InvalidDtypeError, "mat_b", "bfloat16", "int8", "Cast",
    ),
    "element type in the other byte order": (
        lambda: call(a=zeros(8, 16, dtype=">f4")),
        InvalidDtypeError, "mat_a", "float32", ">f4", "Cast",
    ),
    "element type of out that is unknown": (
        lambda: call(out=zeros(8, 24, dtype=np.complex64)),
        InvalidDtypeError, "out", "bfloat16", "complex64", "Cast",
    ),
    "strides in fractions of an element": (
        lambda: call(a=np.zeros((8, 16), np.dtype([("x", "f4"), ("y", "i1")]))["x"]),
        InvalidDtypeError, "mat_a", "whole elements of 4 bytes", "(80, 5)", "ascontiguousarray",
    ),
    "no array": (
        lambda: call(a=[[1.0] * 16] * 8),
        InvalidDtypeError, "mat_a", "NumPy, CuPy or torch array", "got a list", "numpy.asarray",
    ),
    "mat_b that is no array": (
        lambda: call(b=1.0),
        InvalidDtypeError, "mat_b", "NumPy, CuPy or torch array", "got a float", "numpy.asarray",
    ),
    "out that is no array": (
        lambda: call(out=[1.0]),
        InvalidDtypeError, "out", "NumPy, CuPy or torch array", "got a list", "numpy.asarray",
    ),
    "offsets that are no array": (
        lambda: call(offs=7),
        InvalidProblemError, "offs", "one dimension of whole numbers", "()", "shape (G,)",
    ),
    "no offsets": (
        lambda: call(offs=None),
        InvalidProblemError, "offs", "end offset of each group", "none", "from_group_sizes",
    ),
    "a batch without offsets": (
        lambda: call(a=np.zeros((2, 8, 16), np.float32), offs=None),
        InvalidProblemError, "mat_a", "two dimensions", "(2, 8, 16)", "matmul",
    ),
    "too few offsets": (
        lambda: call(offs=(8,)),
        InvalidProblemError, "offs", "2 end offsets", "got 1", "tail",
    ),
    "offsets of two dimensions": (
        lambda: call(offs=np.zeros((2, 1), np.int32)),
        InvalidProblemError, "offs", "one dimension", "(2, 1)", "shape (G,)",
    ),
    "offsets of real numbers": (
        lambda: call(offs=np.array([3.0, 8.0])),
        InvalidProblemError, "offs", "whole numbers", "float64", "int32 or int64",
    ),
    "BR-016 offsets that fall": (
        lambda: call(offs=(8, 4)),
        InvalidProblemError, "offs", "never fall", "offs[1] = 4 after 8", "from_group_sizes",
    ),
    "BR-016 negative offset": (
        lambda: call(offs=(-1, 8)),
        InvalidProblemError, "offs", "from 0 on", "offs[0] = -1", "from_group_sizes",
    ),
    "BR-016 offset beyond the rows": (
        lambda: call(offs=(8, 32)),
        InvalidProblemError, "offs", "up to 8", "offs[1] = 32", "may be smaller",
    ),
    "out of another shape": (
        lambda: call(out=zeros(8, 25)),
        InvalidProblemError, "out", "(8, 24)", "(8, 25)", "Allocate",
    ),
    "out of another type than out_dtype": (
        lambda: call(out=zeros(8, 24), out_dtype="float32"),
        InvalidDtypeError, "out", "float32", "bfloat16", "one of the two",
    ),
    "out that no kernel stores": (
        lambda: call(out=zeros(8, 24, dtype=np.int32)),
        InvalidDtypeError, "out", "bfloat16, float16, float32", "int32", "float32",
    ),
    "out whose elements coincide": (
        lambda: call(out=np.lib.stride_tricks.as_strided(zeros(24), (8, 24), (0, 2))),
        InvalidProblemError, "out", "distinct elements", "(0, 1)", "array of its own",
    ),
    "BR-039 out over mat_a": (
        lambda: call(a=OVERLAP[:8, :16], out=OVERLAP[4:12]),
        InvalidProblemError, "out", "memory that mat_a does not use", "bytes", "another array",
    ),
    "out_dtype that no kernel stores": (
        lambda: call(out_dtype="int32"),
        InvalidDtypeError, "out_dtype", "bfloat16, float16, float32", "int32", "float32",
    ),
    "out_dtype that does not exist": (
        lambda: call(out_dtype="float12"),
        InvalidDtypeError, "out_dtype", "bfloat16", "float12", "another type",
    ),
    "accumulate without out": (
        lambda: call(accumulate=True),
        InvalidProblemError, "accumulate", "out=", "none", "Pass it",
    ),
    "accumulate into 16 bits": (
        lambda: call(accumulate=True, out=zeros(8, 24)),
        InvalidDtypeError, "accumulate", "float32", "bfloat16", "convert at the end",
    ),
    "bias of another shape": (
        lambda: call(bias=zeros(24)),
        InvalidProblemError, "bias", "shape (G, N) = (2, 24)", "(24,)", "Reshape",
    ),
    "bias of another type": (
        lambda: call(bias=zeros(2, 24, dtype=np.float16)),
        InvalidDtypeError, "bias", "bfloat16, like mat_a, or float32", "float16", "Cast",
    ),
    "bias that is no array": (
        lambda: call(bias=[[0.0] * 24] * 2),
        InvalidDtypeError, "bias", "NumPy, CuPy or torch array", "list", "Make an array",
    ),
    "scale of another shape": (
        lambda: call(epilogue=RowScale(zeros(8, 1))),
        InvalidProblemError, "scale", "shape (M,) = (8,)", "(8, 1)", "Reshape",
    ),
    "scale of another type": (
        lambda: call(epilogue=RowScale(np.ones(8))),
        InvalidDtypeError, "scale", "float32", "float64", "Cast",
    ),
    "epilogue that is none": (
        lambda: call(epilogue=object()),
        InvalidProblemError, "epilogue", "gemmjit.SwiGLU(...)", "object", "Make one",
    ),
    "epilogue as a class": (
        lambda: call(epilogue=SwiGLU),
        InvalidProblemError, "epilogue", "gemmjit.SwiGLU(...)", "a class", "Make one",
    ),
    "epilogue by its name": (
        lambda: call(epilogue="swiglu_split"),
        InvalidProblemError, "epilogue", "gemmjit.SwiGLU(...)", "'swiglu_split'",
        'Pass gemmjit.SwiGLU("split")',
    ),
    "steps out of order": (
        lambda: call(epilogue=(RowScale(zeros(8)), SwiGLU())),
        InvalidProblemError, "epilogue", "the order", "RowScale, SwiGLU", "Reorder",
    ),
    "a step twice": (
        lambda: call(bias=zeros(2, 24), epilogue=Bias(zeros(2, 24))),
        InvalidProblemError, "epilogue", "each step once", "Bias, Bias", "Reorder",
    ),
    "a layout that there is not": (
        lambda: SwiGLU("halves"),  # type: ignore[arg-type]
        InvalidProblemError, "layout", "interleaved or split", "'halves'", "Say how",
    ),
    "a gate over an odd N": (
        lambda: call(b=zeros(2, 16, 23), epilogue=SwiGLU()),
        InvalidProblemError, "epilogue", "an even N", "(2, 16, 23)", "Pass both",
    ),
    "an epilogue of wgrad": (
        lambda: call(a=zeros(16, 8), b=zeros(8, 24), epilogue=SwiGLU()),
        InvalidProblemError, "epilogue", "none for (K, M) @ (M, N)", "SwiGLU", "Apply it",
    ),
    "out of the shape of the product": (
        lambda: call(epilogue=SwiGLU(), out=zeros(8, 24)),
        InvalidProblemError, "out", "shape (8, 12)", "(8, 24)", "Allocate",
    ),
    "out over the bias": (
        lambda: call(out=OVERLAP[:8], bias=OVERLAP[7:9]),
        InvalidProblemError, "out", "bias does not use", "they overlap", "another array",
    ),
    "config of another type": (
        lambda: call(config=128),
        InvalidConfigError, "config", "Sm80MmaConfig", "128", "name of a kernel",
    ),
    "kernel that does not exist": (
        lambda: call(config="k99"),
        InvalidConfigError, "config: ", "k0 (simt_grouped_mm)", "'k99'", "k1",
    ),
    "kernel without this element type": (
        lambda: call(
            a=zeros(8, 16, dtype=np.float32), b=zeros(2, 16, 24, dtype=np.float32), config="k1"
        ),
        InvalidConfigError, "in_dtype", "bfloat16, float16", "float32", "k1 cannot be built",
    ),
    "tile that breaks a rule": (
        lambda: call(config=Sm80MmaConfig(block_m=48)),
        InvalidConfigError, "block_m", "k1 takes 32, 64", "48", "k1 cannot be built",
    ),
    "BR-065 tile that needs too much shared memory": (
        lambda: call(config=Sm80MmaConfig(block_n=256, block_k=64, num_stages=5)),
        InvalidConfigError, "shared memory", "232448", "261120", "smaller tile or fewer stages",
    ),
}  # fmt: skip


@pytest.mark.parametrize("rule", RULES)
def test_message_has_its_four_parts(rule):
    function, exception, *parts = RULES[rule]
    with pytest.raises(exception) as caught:
        function()
    text = str(caught.value)
    for part in parts:
        assert part in text, f"{part!r} is not in: {text}"
    if exception is not NotImplementedError:
        assert isinstance(caught.value, GemmjitError)
        assert re.match(r"(\w+, )?[\w ]+: ", text), f"begins with no argument: {text}"


def test_nothing_is_written_when_a_rule_is_broken():
    out = np.full((8, 24), 7, BF)
    for offs in ([8, 4], [3, 9], [3]):
        with pytest.raises(InvalidProblemError):
            call(offs=offs, out=out)
    assert (out == 7).all()


def test_executor_that_does_not_exist(monkeypatch):
    monkeypatch.setenv("GEMMJIT_EXECUTOR", "abacus")
    with pytest.raises(
        InvalidEnvironmentError, match=r"GEMMJIT_EXECUTOR: expected .*; got 'abacus'"
    ):
        call()


def test_architecture_that_does_not_exist(monkeypatch):
    monkeypatch.setenv("GEMMJIT_ARCH", "sm_61")
    with pytest.raises(
        UnsupportedArchError, match=r"GEMMJIT_ARCH: expected one of .*sm_75.*; got 'sm_61'"
    ):
        call()


def test_kernel_on_an_architecture_without_it(monkeypatch):
    monkeypatch.setenv("GEMMJIT_ARCH", "sm_75")
    with pytest.raises(InvalidConfigError, match=r"arch: k1 .* needs sm_80 or newer; got sm_75"):
        call(config="k1")


def test_br026_square_weights_cannot_be_told_apart():
    # K == N: a forgotten transpose is a legal call with another result. The documentation says so.
    a, w = zeros(4, 16), zeros(2, 16, 16)
    a[:, 0] = 1
    w[:, 0, 1] = 5
    assert call(a=a, b=w, offs=(2, 4)).any()
    assert not call(a=a, b=w.swapaxes(1, 2), offs=(2, 4)).any()
    assert "transpose where K equals N" in (gemmjit.grouped_mm.__doc__ or "")
