"""Problems with nothing to multiply, with every kernel asked for by its config."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

import gemmjit
from gemmjit.errors import InvalidConfigError
from gemmjit.kernels import KERNELS

BF16 = ml_dtypes.bfloat16
CONFIGS = [k.default_config for k in KERNELS.values()]
ENDS = {"two groups": [3, 8], "empty groups": [0, 0], "no groups": []}


@pytest.fixture(autouse=True)
def _emulated(monkeypatch):
    monkeypatch.setenv("GEMMJIT_EXECUTOR", "emulator")
    monkeypatch.setenv("GEMMJIT_ARCH", "sm_90a")


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.kernel)
@pytest.mark.parametrize("ends", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize(("rows", "k", "n"), [(8, 0, 64), (8, 64, 0), (0, 64, 64), (0, 0, 0)])
def test_fprop_without_rows_contraction_or_columns(config, ends, rows, k, n):
    ends = [min(end, rows) for end in ends]
    a, b = np.ones((rows, k), BF16), np.ones((len(ends), k, n), BF16)
    got = gemmjit.grouped_mm(a, b, offs=np.array(ends, np.int32), config=config)
    assert got.shape == (rows, n)
    assert got.dtype == BF16
    assert not got.astype(np.float32).any()


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.kernel)
@pytest.mark.parametrize("ends", [[0, 0], []], ids=["empty groups", "no groups"])
def test_fprop_whose_groups_are_all_empty_makes_zeros_of_its_tail(config, ends):
    a, b = np.full((8, 64), np.nan, BF16), np.ones((len(ends), 64, 64), BF16)
    got = gemmjit.grouped_mm(a, b, offs=np.array(ends, np.int32), config=config)
    assert got.shape == (8, 64)
    assert not got.astype(np.float32).any()
    out = np.full((8, 64), 5, np.float32)
    assert gemmjit.grouped_mm(a, b, offs=ends, config=config, out=out) is out
    assert (out == 5).all()  # a caller's tail stays as it is


@pytest.mark.parametrize("config", [c for c in CONFIGS if c.kernel != "k2"], ids=lambda c: c.kernel)
@pytest.mark.parametrize(("rows", "ends"), [(0, [0, 0]), (8, [0, 0]), (8, []), (0, [])])
def test_wgrad_of_empty_groups_is_zero(config, rows, ends):
    x, dy = np.ones((rows, 64), BF16), np.ones((rows, 72), BF16)
    got = gemmjit.grouped_mm(x.T, dy, offs=np.array(ends, np.int32), config=config)
    assert got.shape == (len(ends), 64, 72)
    assert not got.astype(np.float32).any()


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.kernel)
def test_a_contraction_of_nothing_adds_nothing(config):
    a, b = np.ones((8, 0), BF16), np.ones((2, 0, 64), BF16)
    out = np.full((8, 64), 3, np.float32)
    gemmjit.grouped_mm(a, b, offs=[3, 8], config=config, out=out, accumulate=True)
    assert (out == 3).all()
    gemmjit.grouped_mm(a, b, offs=[3, 6], config=config, out=out)
    assert not out[:6].any()
    assert (out[6:] == 3).all()


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.kernel)
def test_a_tile_that_is_wrong_is_refused_all_the_same(config):
    a, b = np.ones((8, 0), BF16), np.ones((2, 0, 64), BF16)
    with pytest.raises(InvalidConfigError, match=f"block_k: {config.kernel} takes .*; got 7"):
        gemmjit.grouped_mm(a, b, offs=[3, 8], config=replace(config, block_k=7))


@pytest.mark.parametrize("accumulate", [False, True])
def test_a_result_without_elements_is_taken_as_it_is(accumulate):
    """NumPy gives arrays without elements strides of 0, which overlap nothing."""
    rows = np.ones((0, 32), np.float16)
    out = np.empty((0, 64), np.float32)
    w = np.ones((2, 32, 64), np.float16)
    ends = np.array([0, 0])
    assert gemmjit.grouped_mm(rows, w, offs=ends, out=out, accumulate=accumulate) is out
    out = np.empty((0, 32, 32), np.float32)
    no_ends = np.array([], np.int64)
    assert gemmjit.grouped_mm(rows.T, rows, offs=no_ends, out=out, accumulate=accumulate) is out


def bf16(*shape):
    return np.ones(shape, BF16)


NO_PRODUCTS = {
    "fprop, no rows": (bf16(0, 64), bf16(2, 64, 64), [0, 0]),
    "fprop, no contraction": (bf16(8, 0), bf16(2, 0, 64), [3, 8]),
    "fprop, no columns": (bf16(8, 64), bf16(2, 64, 0), [3, 8]),
    "fprop, no groups": (bf16(8, 64), bf16(0, 64, 64), []),
    "fprop, empty groups": (bf16(8, 64), bf16(2, 64, 64), [0, 0]),
    "wgrad, no rows": (bf16(0, 64).T, bf16(0, 72), [0, 0]),
    "wgrad, no columns": (bf16(8, 64).T, bf16(8, 0), [3, 8]),
    "wgrad, no groups": (bf16(8, 64).T, bf16(8, 72), []),
    "wgrad, empty groups": (bf16(8, 64).T, bf16(8, 72), [0, 0]),
}


@pytest.mark.parametrize("on_device", [False, True], ids=["on the host", "on the device"])
@pytest.mark.parametrize("case", NO_PRODUCTS)
@pytest.mark.parametrize("name", KERNELS)
def test_a_launched_kernel_does_what_the_operator_does(name, case, on_device):
    a, b, ends = NO_PRODUCTS[case]
    form = "ragged_m" if b.ndim == 3 else "ragged_k"
    if form not in KERNELS[name].forms:
        pytest.skip(f"{name} has no such form")
    offs = np.array(ends, np.int32) if on_device else ends
    for schedule in ("scan", "list") if form == "ragged_m" and not on_device else ("scan",):
        kernel = gemmjit.compile(name, form=form, out_dtype="float32", schedule=schedule)
        got = kernel.launch(a, b, offs=offs)
        want = gemmjit.grouped_mm(a, b, offs=offs, out_dtype="float32")
        np.testing.assert_array_equal(got, want, strict=True)
        assert not got.any()
        out = np.full(got.shape, 5, np.float32)
        assert kernel.launch(a, b, offs=offs, out=out) is out
        wanted = np.full(got.shape, 5, np.float32)
        gemmjit.grouped_mm(a, b, offs=offs, out=wanted)
        np.testing.assert_array_equal(out, wanted)


@pytest.mark.parametrize("name", KERNELS)
def test_a_launch_without_products_is_of_the_kernels_own_types_all_the_same(name):
    a, b = bf16(8, 0), bf16(2, 0, 64)
    kernel = gemmjit.compile(name, in_dtype="float16", out_dtype="float16")
    with pytest.raises(InvalidConfigError, match="in_dtype float16, the arrays need bfloat16"):
        kernel.launch(a, b, offs=np.array([3, 8], np.int32))
    adding = gemmjit.compile(name, out_dtype="float32", epilogue="accumulate")
    out = np.full((8, 64), 3, np.float32)
    adding.launch(a, b, offs=np.array([3, 8], np.int32), out=out)
    assert (out == 3).all()


STEPS = ["bias", "bias_f32", "bias_strided", "bias+swiglu_split+row_scale_f32"]


@pytest.mark.parametrize("on_device", [False, True], ids=["on the host", "on the device"])
@pytest.mark.parametrize("epilogue", STEPS)
@pytest.mark.parametrize("name", KERNELS)
def test_a_launch_without_groups_reads_no_operand_of_the_epilogue(name, epilogue, on_device):
    """Whatever strides they have: NumPy gives arrays without elements strides of 0."""
    given = {"bias": np.ones((0, 64), np.float32 if "f32" in epilogue.split("+")[0] else BF16)}
    if "swiglu" in epilogue:
        scale = np.ones(8, np.float32)
        given["epilogue"] = gemmjit.SwiGLU("split"), gemmjit.RowScale(scale)
    offs = np.zeros(0, np.int32) if on_device else []
    kernel = gemmjit.compile(name, epilogue=epilogue, b_k_major=name in ("k2", "k3"))
    got = kernel.launch(bf16(8, 64), bf16(0, 64, 64), offs=offs, **given)
    want = gemmjit.grouped_mm(bf16(8, 64), bf16(0, 64, 64), offs=offs, **given)
    np.testing.assert_array_equal(got, want, strict=True)
    assert got.shape == (8, 32 if "swiglu" in epilogue else 64)
    assert not got.astype(np.float32).any()


def test_a_kernel_for_any_strides_of_a_bias_takes_neighbours_too():
    a, b, bias = bf16(8, 64), bf16(2, 64, 64), np.arange(128).reshape(2, 64).astype(BF16)
    offs = np.array([3, 8], np.int32)
    for name in KERNELS:
        anyhow = gemmjit.compile(name, epilogue="bias_strided", out_dtype="float32")
        got = anyhow.launch(a, b, offs=offs, bias=bias)
        np.testing.assert_array_equal(got, 64.0 + np.repeat(bias, [3, 5], axis=0).astype(float))
        side_by_side = gemmjit.compile(name, epilogue="bias", out_dtype="float32")
        apart = np.repeat(bias, 2, axis=1)[:, ::2]
        with pytest.raises(InvalidConfigError, match="bias, the arrays need bias_strided"):
            side_by_side.launch(a, b, offs=offs, bias=apart)
        np.testing.assert_array_equal(anyhow.launch(a, b, offs=offs, bias=apart), got)


def test_a_contraction_of_nothing_still_adds_a_bias_as_it_lies():
    a, b = bf16(8, 0), bf16(2, 0, 64)
    apart = np.repeat(np.arange(128).reshape(2, 64), 2, axis=1).astype(BF16)[:, ::2]
    want = np.repeat(np.arange(128.0).reshape(2, 64), [3, 5], axis=0)
    got = gemmjit.grouped_mm(a, b, offs=np.array([3, 8], np.int32), bias=apart)
    np.testing.assert_array_equal(got.astype(float), want)


def test_a_launch_without_products_on_a_gpu(torch_gpu):
    """What is launched there is a kernel that writes zeros, with no TensorMap."""
    fake, maker = torch_gpu
    x, dy, offs = maker.empty(0, 64), maker.empty(0, 64), maker.offsets([0, 0])
    for form in ("by name", "launched"):
        if form == "by name":
            got = gemmjit.grouped_mm(x.mT, dy, offs=offs, config="k3")
        else:
            got = gemmjit.compile("k3", form="ragged_k").launch(x.mT, dy, offs=offs)
        assert tuple(got.shape) == (2, 64, 64)
        assert len(fake.launches) == 1 + (form == "launched")
        assert not fake.launches[-1].maps
