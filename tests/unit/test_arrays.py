"""Views of NumPy arrays, and the registry of frameworks."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from gemmjit import arrays
from gemmjit.arrays import CPU, ArrayView, frontend_of
from gemmjit.dtypes import BF16, F16, F32, I64
from gemmjit.errors import InvalidDtypeError, InvalidProblemError

NUMPY = frontend_of(np.zeros(1), "mat_a")


def test_view_of_a_plain_array():
    array = np.zeros((3, 5), ml_dtypes.bfloat16)
    view = NUMPY.view(array)
    assert view == ArrayView(array.ctypes.data, (3, 5), (5, 1), BF16, CPU)
    assert view.ndim == 2
    assert NUMPY.pointer(array) == view.pointer


@pytest.mark.parametrize(
    ("cut", "shape", "strides"),
    [
        (lambda x: x.T, (8, 6), (1, 8)),
        (lambda x: x[1:5:2, ::3], (2, 3), (16, 3)),
        (lambda x: x[::-1], (6, 8), (-8, 1)),
        (lambda x: np.broadcast_to(x[0], (4, 8)), (4, 8), (0, 1)),
        (lambda x: x[:0], (0, 8), (8, 1)),
        (lambda x: x[2, 3], None, None),
    ],
)
def test_views_of_views(cut, shape, strides):
    part = cut(np.zeros((6, 8), np.float32))
    if shape is None:
        with pytest.raises(InvalidDtypeError, match=r"numpy\.float32"):
            frontend_of(part, "mat_a")  # a scalar is no array
        return
    view = NUMPY.view(part)
    assert (view.shape, view.strides, view.dtype) == (shape, strides, F32)
    assert view.pointer == part.__array_interface__["data"][0]


def test_signatures_tell_apart_what_views_tell_apart():
    base = np.zeros((6, 8), np.float32)
    variants = [base, base.T, base[:5], base[:, ::2], base.astype(np.float16)]
    assert len({NUMPY.signature(v) for v in variants}) == len(variants)
    assert NUMPY.signature(base) == NUMPY.signature(base + 1)
    assert all(NUMPY.signature(v)[-1] == CPU for v in variants)


@pytest.mark.parametrize(
    ("shape", "strides", "low", "high"),
    [
        ((3, 5), (5, 1), 0, 30),
        ((3, 5), (8, 1), 0, 42),
        ((3, 5), (-5, 1), -20, 10),
        ((3, 5), (0, 1), 0, 10),
        ((1, 1), (99, 99), 0, 2),
        ((0, 5), (5, 1), 0, 0),
    ],
)
def test_byte_range(shape, strides, low, high):
    view = ArrayView(1000, shape, strides, F16, 0)
    assert view.byte_range() == (1000 + low, 1000 + high)


def test_byte_range_is_what_numpy_says():
    rng = np.random.default_rng(0)
    for _ in range(200):
        cut = [slice(*sorted(rng.integers(0, 9, 2)), int(rng.integers(1, 4))) for _ in range(2)]
        part = np.zeros((8, 8), np.float32)[tuple(cut)]
        if rng.integers(2):
            part = part[::-1]
        if part.size:
            assert NUMPY.view(part).byte_range() == np.lib.array_utils.byte_bounds(part)


def test_empty_is_c_contiguous_and_of_the_type_asked():
    got = NUMPY.empty((3, 5), BF16, CPU)
    assert type(got) is np.ndarray
    assert (got.shape, got.dtype) == ((3, 5), BF16.numpy)
    assert got.flags.c_contiguous
    assert NUMPY.current_stream(CPU) == 0
    assert not NUMPY.requires_grad(got)
    NUMPY.check_differentiable(got, "mat_a")


def test_writable():
    array = np.zeros(3)
    NUMPY.check_writable(array, "out")
    array.flags.writeable = False
    with pytest.raises(InvalidProblemError, match="out: expected an array that can be written"):
        NUMPY.check_writable(array, "out")


def test_subclasses_are_served_by_their_base():
    class Mine(np.ndarray):
        pass

    assert frontend_of(np.zeros(1).view(Mine), "mat_a") is NUMPY


def test_other_objects_are_refused_by_name():
    with pytest.raises(InvalidDtypeError, match=r"offs: expected a NumPy.*; got builtins\.set"):
        frontend_of({1}, "offs")


def test_a_framework_can_register(monkeypatch):
    class Stored:
        pass

    class Stores(arrays.Frontend):
        name = "stored"

        def view(self, array, argument="array"):
            return ArrayView(0, (1,), (1,), I64, CPU)

        def signature(self, array):
            return ((1,), CPU)

        def pointer(self, array):
            return 0

        def empty(self, shape, dtype, device):
            return Stored()

        def current_stream(self, device):
            return 0

    monkeypatch.setattr(arrays, "FRONTENDS", dict(arrays.FRONTENDS))
    mine = Stores()
    arrays.register(Stored, mine)
    assert frontend_of(Stored(), "mat_a") is mine
