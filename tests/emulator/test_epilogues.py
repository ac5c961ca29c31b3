"""Every kernel with every epilogue, instruction by instruction; and SwiGLU at its ends."""

from __future__ import annotations

import numpy as np
import pytest
from epilogue_cases import TILES, check, epilogue_cases
from makers import NumpyMaker

import gemmjit
from gemmjit import RowScale, Sm90WgmmaConfig, SwiGLU
from gemmjit.emulator import emulating

CASES = epilogue_cases()


@pytest.fixture(autouse=True)
def _target(monkeypatch):
    monkeypatch.setenv("GEMMJIT_ARCH", "sm_90a")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_case(case):
    with emulating("eager", unwaited_stores="error", num_sms=2):
        check(NumpyMaker(), case)


@pytest.mark.parametrize(
    "case", [c for c in CASES if c.config.kernel in ("k2", "k3")][::5], ids=str
)
def test_case_in_random_order(case):
    with emulating("random", 3, unwaited_stores="error", num_sms=1):
        check(NumpyMaker(), case)


@pytest.mark.parametrize("case", CASES[::7], ids=str)
def test_the_reference_computes_the_same(case, monkeypatch):
    monkeypatch.setenv("GEMMJIT_EXECUTOR", "reference")
    check(NumpyMaker(), case)


#: Gate, factor, and silu(gate) * factor; None for a NaN.
ENDS = [
    (-np.inf, 2.0, 0.0),
    (-3e38, 2.0, 0.0),
    (-100.0, 1e30, 0.0),
    (-89.0, 1.0, 0.0),
    (-0.0, 5.0, 0.0),
    (0.0, 5.0, 0.0),
    (100.0, 3.0, 300.0),
    (np.inf, 2.0, np.inf),
    (np.nan, 1.0, None),
    (1.0, np.nan, None),
]


@pytest.mark.parametrize("executor", ["emulator", "reference"])
def test_swiglu_at_its_ends(monkeypatch, executor):
    monkeypatch.setenv("GEMMJIT_EXECUTOR", executor)
    gates, factors, want = zip(*ENDS, strict=True)
    # The product of a one with each gate and factor: FP32 operands keep them as they are.
    b = np.array([[*gates, *factors]], np.float32)[None]
    got = gemmjit.grouped_mm(np.ones((1, 1), np.float32), b, offs=[1], epilogue=SwiGLU("split"))
    for value, expected, gate in zip(got[0], want, gates, strict=True):
        if expected is None:
            assert np.isnan(value), gate
        else:
            assert value == pytest.approx(expected, abs=1e-7), gate


@pytest.mark.parametrize("n", [16, 208, 272, 400])
@pytest.mark.parametrize("block_n", [64, 128, 192, 256])
def test_pairs_of_chunks_take_the_columns_that_rows_of_a_k_major_b_hold(block_n, n):
    rng = np.random.default_rng(n)
    # Sums of these are exact, in whatever order.
    a = (rng.integers(-3, 4, (140, 80)) / 4).astype(np.float16)
    b = (rng.integers(-3, 4, (3, 80, n)) / 4).astype(np.float16)
    steps = {
        "offs": [75, 75, 130],
        "bias": rng.standard_normal((3, n)).astype(np.float16),
        "epilogue": (SwiGLU("split"), RowScale(rng.standard_normal(140).astype(np.float32))),
        "config": Sm90WgmmaConfig(
            block_m=128, block_n=block_n, num_stages=2, pingpong=block_n < 256
        ),
    }
    k_major = b.transpose(0, 2, 1).copy().transpose(0, 2, 1)
    with emulating("eager", unwaited_stores="error", num_sms=2):
        got = gemmjit.grouped_mm(a, b, **steps)
        want = gemmjit.grouped_mm(a, k_major, **steps)
    assert np.count_nonzero(got[:130]) > 0.9 * 130 * n // 2  # gates far below zero give zeros
    assert np.array_equal(got, want)


@pytest.mark.parametrize("kernel", TILES)
def test_without_a_contraction_the_bias_is_left(kernel):
    bias = np.arange(16, dtype=np.float16).reshape(2, 8)
    a, b = np.zeros((5, 0), np.float16), np.zeros((2, 0, 8), np.float16)
    config = None if kernel in ("k2", "k3") else kernel  # TMA takes no array without elements
    got = gemmjit.grouped_mm(a, b, offs=[2, 4], bias=bias, config=config)
    assert np.array_equal(got, np.vstack([bias[[0, 0, 1, 1]], np.zeros((1, 8))]))
    out = np.ones((5, 8), np.float32)
    gemmjit.grouped_mm(a, b, offs=[2, 4], bias=bias, out=out, accumulate=True, config=config)
    assert np.array_equal(out, 1 + np.concatenate([bias[[0, 0, 1, 1]], np.zeros((1, 8))]))


@pytest.mark.parametrize("kernel", TILES)
def test_without_groups_nothing_is_read(kernel):
    empty = np.zeros((0, 16), np.float16)
    a, b = np.full((5, 16), np.nan, np.float16), np.zeros((0, 16, 8), np.float16)
    scale = np.full(5, np.nan, np.float32)
    config = None if kernel in ("k2", "k3") else kernel
    got = gemmjit.grouped_mm(
        a, b, offs=[], bias=empty[:, :8], epilogue=RowScale(scale), config=config
    )
    assert np.array_equal(got, np.zeros((5, 8)))
