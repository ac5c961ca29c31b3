"""`gemmjit.grouped_mm` on the CPU: the whole contract, for each executor that runs NumPy arrays."""

from __future__ import annotations

import numpy as np
import pytest
from cases import EXECUTORS, REAL_EXPERTS, Target
from contract_groups import GroupsContract, check_fprop, check_wgrad, operands, wgrad_operands
from contract_layouts import LayoutsContract
from contract_numerics import NumericsContract
from makers import NumpyMaker

import gemmjit
from gemmjit.errors import InvalidProblemError

TARGETS = [
    pytest.param((executor, Target(NumpyMaker(), offs, config)), id=f"{executor}-{offs}-{config}")
    for executor in EXECUTORS
    for offs, config in (("list", "k1"), ("int32", "k0"), ("int64", None))
]


@pytest.fixture(params=TARGETS)
def target(request, monkeypatch):
    executor, target = request.param
    monkeypatch.setenv("GEMMJIT_EXECUTOR", executor)
    return target


class TestGroups(GroupsContract):
    pass


class TestLayouts(LayoutsContract):
    pass


class TestNumerics(NumericsContract):
    pass


@pytest.mark.parametrize("arch", ["sm_75", "sm_80"])
def test_numerics_of_other_architectures(monkeypatch, arch):
    # sm_75 has no conversion to bfloat16: k0 rounds the bits itself there.
    monkeypatch.setenv("GEMMJIT_EXECUTOR", "emulator")
    monkeypatch.setenv("GEMMJIT_ARCH", arch)
    target, contract = Target(NumpyMaker(), "int32"), NumericsContract()
    for out_dtype in ("bfloat16", "float16", "float32"):
        contract.test_rounding_of_any_float32(target, out_dtype)
    contract.test_one_rounding_to_nearest_even(target)
    contract.test_float16_overflows_to_infinity_and_float32_does_not(target)
    contract.test_own_nan_and_infinity_go_where_they_belong(target)


def test_real_expert_counts(target):
    sizes = REAL_EXPERTS if "reference" in EXECUTORS else REAL_EXPERTS[:4]
    a, b, ends = operands(target, sizes, n=24, k=40)
    check_fprop(target, a, b, ends)
    a, b, ends = wgrad_operands(target, sizes, k=24, n=40)
    check_wgrad(target, a, b, ends, "float32", out_dtype="float32")


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "uint32"])
def test_host_offsets_of_any_integer_type(target, dtype):
    a, b, ends = operands(target, (5, 0, 9), n=24, k=40)
    want = target.read(target.grouped_mm(a, b, ends))
    got = gemmjit.grouped_mm(a.array, b.array, offs=np.asarray(ends, dtype))
    np.testing.assert_array_equal(got.astype(np.float64), want)
    for sequence in (tuple(ends), [np.int64(end) for end in ends]):
        got = gemmjit.grouped_mm(a.array, b.array, offs=sequence)
        np.testing.assert_array_equal(got.astype(np.float64), want)


@pytest.mark.parametrize(
    ("ends", "index", "value"),
    [([8, 4], 1, 4), ([-1, 8], 0, -1), ([8, 32], 1, 32), ([16, 8, 16], 1, 8), ([17, 17], 0, 17)],
)
def test_br016_bad_offsets_on_the_host(target, ends, index, value):
    a, b, _ = operands(target, (16,) + (0,) * (len(ends) - 1), n=16, k=16)
    offs = np.asarray(ends, np.int32)
    before = offs.copy()
    with pytest.raises(ValueError, match=rf"offs\[{index}\] = {value}\b") as caught:
        gemmjit.grouped_mm(a.array, b.array, offs=offs)
    assert isinstance(caught.value, InvalidProblemError)
    np.testing.assert_array_equal(offs, before)


def test_result_is_plain_numpy(target):
    a, b, ends = operands(target, (5, 0, 9), n=24, k=40)
    got = target.grouped_mm(a, b, ends)
    assert type(got) is np.ndarray
    assert got.flags.c_contiguous
    assert got.flags.writeable
    assert got.dtype == a.array.dtype


def test_out_that_is_read_only(target):
    a, b, ends = operands(target, (5, 0, 9), n=24, k=40)
    out = np.zeros((14, 24), a.array.dtype)
    out.flags.writeable = False
    with pytest.raises(InvalidProblemError, match="out: expected an array that can be written"):
        target.grouped_mm(a, b, ends, out=out)
    assert not out.any()


def test_operands_that_are_read_only(target):
    a, b, ends = operands(target, (5, 0, 9), n=24, k=40)
    a.array.flags.writeable = False
    b.array.flags.writeable = False
    check_fprop(target, a, b, ends)


def test_subclass_of_ndarray(target, tmp_path):
    a, b, ends = operands(target, (5, 0, 9), n=24, k=40)
    mapped = np.memmap(tmp_path / "a", a.array.dtype, "w+", shape=a.array.shape)
    mapped[...] = a.array
    got = target.grouped_mm(mapped, b, ends)
    np.testing.assert_array_equal(got, target.grouped_mm(a, b, ends))


def test_no_warning_reaches_the_caller(target, recwarn):
    a = np.full((4, 128), 300.0, np.float16)
    b = np.full((1, 128, 8), 300.0, np.float16)
    a[1] = np.inf
    a[2] = np.nan
    got = gemmjit.grouped_mm(a, b, offs=[4])
    assert np.isposinf(got[[0, 1, 3]]).all()
    assert np.isnan(got[2]).all()
    assert not [w for w in recwarn if issubclass(w.category, RuntimeWarning)]
