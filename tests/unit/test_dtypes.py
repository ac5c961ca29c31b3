"""Element types."""

from __future__ import annotations

import pickle

import ml_dtypes
import numpy as np
import pytest

from gemmjit.dtypes import BF16, F16, F32, F64, I32, I64, U8, DType, dtype_of
from gemmjit.errors import InvalidDtypeError

ALL = (BF16, F16, F32, F64, I32, I64, U8)


@pytest.mark.parametrize(
    ("spec", "want"),
    [
        ("bfloat16", BF16), ("bf16", BF16), (ml_dtypes.bfloat16, BF16),
        (np.dtype(ml_dtypes.bfloat16), BF16), ("float16", F16), (np.float16, F16),
        (np.dtype("<f4"), F32), ("float32", F32), (float, F64), ("int64", I64), (np.int32, I32),
        ("uint8", U8), (BF16, BF16),
    ],
)  # fmt: skip
def test_every_spelling(spec, want):
    assert dtype_of(spec) is want


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_one_type_by_all_its_names(dtype):
    for spec in (dtype.name, dtype.short, dtype.numpy, dtype.numpy_type, dtype):
        assert dtype_of(spec) is dtype
    assert dtype.numpy.itemsize == dtype.itemsize == dtype.bits // 8
    assert str(dtype) == dtype.name
    assert pickle.loads(pickle.dumps(dtype)) is dtype


def test_torch_types_without_importing_torch():
    class Printed:
        def __str__(self):
            return "torch.bfloat16"

    assert dtype_of(Printed()) is BF16


@pytest.mark.parametrize("spec", ["float12", np.complex64, ">f4", object(), None, "torch.int7"])
def test_types_without_a_place(spec):
    if spec is None:
        assert dtype_of(None) is F64  # as NumPy reads it
        return
    with pytest.raises(InvalidDtypeError, match=r"^argument: expected one of bfloat16.*; got "):
        dtype_of(spec, "argument")


def test_an_error_names_what_is_served():
    with pytest.raises(InvalidDtypeError) as error:
        dtype_of("int8", "mat_a")
    assert "expected one of bfloat16, float16, float32; got int8" in str(error.value)
    with pytest.raises(InvalidDtypeError) as error:
        dtype_of("int8", "offs")
    assert "expected one of int32, int64; got int8" in str(error.value)


def test_four_bits_have_no_size_in_bytes():
    four = DType("float4", "f4", 4, "f4_t", np.uint8)
    with pytest.raises(InvalidDtypeError, match="4 bits"):
        _ = four.itemsize
