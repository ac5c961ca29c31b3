"""What messages of `grouped_mm` propose where the mistake can be guessed."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import gemmjit
from gemmjit import RowScale
from gemmjit.errors import InvalidConfigError, InvalidDtypeError, InvalidProblemError


def zeros(*shape, dtype=ml_dtypes.bfloat16):
    return np.zeros(shape, dtype)


def call(a=None, b=None, **keywords):
    a = zeros(8, 16) if a is None else a
    b = zeros(2, 16, 24) if b is None else b
    return gemmjit.grouped_mm(a, b, offs=[3, 8], **keywords)


MISTAKES = {
    "kernel without this form": (
        lambda: call(a=zeros(16, 8).T.copy().T, b=zeros(8, 24), config="k2"),
        InvalidConfigError, "config: k2", "form", "ragged_k", "Choose k0 or k1", "leave config out",
    ),
    "operands that TMA does not take": (
        lambda: call(a=zeros(8, 20), b=zeros(2, 20, 24), config="k3"),
        InvalidConfigError, "config: k3", "mat_a", "strides of (40, 2) bytes", "Choose k0 or k1",
    ),
    "kernel without float32": (
        lambda: call(
            a=zeros(8, 16, dtype=np.float32), b=zeros(2, 16, 24, dtype=np.float32), config="k3"
        ),
        InvalidConfigError, "config: k3", "bfloat16, float16", "float32", "Choose k0, or leave",
    ),
    "name of two steps": (
        lambda: call(epilogue="bias+row_scale_f32"),
        InvalidProblemError, "epilogue", "bias=values and gemmjit.RowScale(scale)",
    ),
    "list for a scale": (
        lambda: call(epilogue=RowScale([1.0] * 8)),
        InvalidDtypeError, "scale", "a NumPy, CuPy or torch array", "got a list", "numpy.asarray",
    ),
    "mat_b with all dimensions reversed": (
        lambda: call(b=zeros(2, 24, 16).T),
        InvalidProblemError, "mat_b", "(G, K, N)", "(16, 24, 2)", ".T of three", "use .mT",
    ),
    "square mat_b with all dimensions reversed": (
        lambda: call(b=zeros(2, 16, 16).T),
        InvalidProblemError, "mat_b", "G = 2", "(16, 16, 2)", ".T of three", "use .mT",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_message_says_what_to_do(mistake):
    function, exception, *parts = MISTAKES[mistake]
    with pytest.raises(exception) as caught:
        function()
    for part in parts:
        assert part in str(caught.value), f"{part!r} is not in: {caught.value}"


def test_the_transpose_is_written_alike_in_all_frameworks():
    with pytest.raises(InvalidProblemError, match=r"pass its transpose, mat_b\.mT$"):
        call(b=zeros(2, 24, 16))
    assert zeros(2, 24, 16).mT.shape == (2, 16, 24)
    cupy = pytest.importorskip("cupy")
    assert hasattr(cupy.ndarray, "mT")
