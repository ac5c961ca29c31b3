"""render, compile, launch and prepare, on the CPU."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import gemmjit
from gemmjit import Problem, SimtConfig, Sm80MmaConfig, build
from gemmjit.errors import (
    InvalidConfigError,
    InvalidDtypeError,
    MissingKernelError,
    UnsupportedArchError,
)


def operands(dtype=ml_dtypes.bfloat16):
    rng = np.random.default_rng(0)
    a = rng.integers(-3, 4, (20, 32)).astype(dtype)
    b = rng.integers(-3, 4, (3, 32, 24)).astype(dtype)
    want = np.concatenate(
        [a[i:j].astype(float) @ b[g].astype(float) for g, i, j in ((0, 0, 5), (2, 5, 20))]
    )
    return a, b, [5, 5, 20], want


def test_render_says_what_was_asked():
    text = gemmjit.render("k1", Sm80MmaConfig(block_m=64), "sm_80", out_dtype="float32")
    assert "constexpr int BLOCK_M = 64;" in text
    assert "using out_t = float;" in text
    assert "#include" not in text
    assert "${" not in text


def test_render_by_either_name_is_the_same():
    assert gemmjit.render("k0") == gemmjit.render("simt_grouped_mm")
    assert gemmjit.render("k0") != gemmjit.render("k1")


def test_render_does_not_depend_on_the_architecture():
    assert gemmjit.render("k1", None, "sm_80") == gemmjit.render("k1", None, "sm_90a")


def test_compile_without_a_gpu():
    kernel = gemmjit.compile("k1", Sm80MmaConfig(block_m=64), "sm_80")
    assert kernel.name == "k1"
    assert kernel.target.name == "sm_80"
    assert kernel.cubin[:4] == b"\x7fELF"
    assert kernel.entry in kernel.ptx
    assert kernel.source == gemmjit.render("k1", Sm80MmaConfig(block_m=64), "sm_80")
    assert 32 <= kernel.registers <= 255
    assert kernel.spills == 0
    assert kernel.smem_bytes == 2 * (64 * 40 + 32 * 136) * 2
    assert kernel.threads == 256
    assert kernel.occupancy == gemmjit.occupancy(
        kernel.registers, 256, kernel.smem_bytes, kernel.target
    )


def test_default_architecture(monkeypatch):
    assert gemmjit.compile("k0").target.name == "sm_90a"
    monkeypatch.setenv("GEMMJIT_ARCH", "sm_80")
    assert gemmjit.compile("k0").target.name == "sm_80"


@pytest.mark.parametrize("executor", ["reference", "emulator"])
@pytest.mark.parametrize("schedule", ["list", "scan"])
@pytest.mark.parametrize("name", ["k0", "k1"])
def test_launch_on_numpy(monkeypatch, executor, schedule, name):
    monkeypatch.setenv("GEMMJIT_EXECUTOR", executor)
    a, b, ends, want = operands()
    kernel = gemmjit.compile(name, out_dtype="float32", schedule=schedule)
    offs = ends if schedule == "list" else np.asarray(ends, np.int32)
    got = kernel.launch(a, b, offs=offs)
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, want)
    out = np.full((20, 24), 7, np.float32)
    assert kernel.launch(a, b, offs=offs, out=out) is out
    np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize("executor", ["reference", "emulator"])
def test_launch_that_accumulates(monkeypatch, executor):
    monkeypatch.setenv("GEMMJIT_EXECUTOR", executor)
    a, b, ends, want = operands()
    kernel = gemmjit.compile("k1", out_dtype="float32", epilogue="accumulate")
    out = np.ones((20, 24), np.float32)
    kernel.launch(a, b, offs=np.asarray(ends, np.int32), out=out)
    np.testing.assert_array_equal(out, want + 1)


@pytest.mark.parametrize("executor", ["reference", "emulator"])
def test_launch_of_a_kernel_with_other_sizes_compiled_in(monkeypatch, executor):
    monkeypatch.setenv("GEMMJIT_EXECUTOR", executor)
    a, b, ends, want = operands()
    config = Sm80MmaConfig(specialize="nk")
    kernel = gemmjit.compile("k1", config, out_dtype="float32", shape_n=24, shape_k=32)
    np.testing.assert_array_equal(kernel.launch(a, b, offs=np.asarray(ends, np.int32)), want)
    other = gemmjit.compile("k1", config, out_dtype="float32", shape_n=32, shape_k=32)
    with pytest.raises(InvalidConfigError, match="shape_n 32, the arrays have 24"):
        other.launch(a, b, offs=np.asarray(ends, np.int32))


@pytest.mark.parametrize(
    ("variant", "words"),
    [
        ({"in_dtype": "float16"}, ("in_dtype float16", "bfloat16")),
        ({"form": "ragged_k", "a_k_major": False}, ("form ragged_k", "ragged_m")),
        ({"epilogue": "accumulate", "out_dtype": "float32"}, ("accumulate", "out=")),
        ({"a_k_major": False}, ("a_k_major False",)),
        ({"b_k_major": True}, ("b_k_major True",)),
    ],
)
def test_launch_refuses_arrays_of_another_variant(variant, words):
    a, b, ends, _ = operands()
    kernel = gemmjit.compile("k1", **variant)
    with pytest.raises((InvalidConfigError, gemmjit.errors.InvalidProblemError)) as caught:
        kernel.launch(a, b, offs=np.asarray(ends, np.int32))
    for word in words:
        assert word in str(caught.value)


def test_launch_refuses_arrays_off_the_vector_grid():
    a, b, ends, _ = operands()
    shifted = np.zeros(a.size + 1, a.dtype)[1:].reshape(a.shape)
    kernel = gemmjit.compile("k1")
    with pytest.raises(InvalidConfigError, match="a_vector True, mat_a is not aligned"):
        kernel.launch(shifted, b, offs=np.asarray(ends, np.int32))
    scalar = gemmjit.compile("k1", a_vector=False)
    assert scalar.launch(shifted, b, offs=np.asarray(ends, np.int32)).shape == (20, 24)


@pytest.mark.parametrize(
    ("arguments", "exception", "words"),
    [
        (("k7",), InvalidConfigError, ("kernel", "k0", "'k7'")),
        (("k1", SimtConfig()), InvalidConfigError, ("Sm80MmaConfig", "SimtConfig")),
        (("k1", None, "sm_75"), InvalidConfigError, ("sm_80 or newer", "sm_75")),
        (("k1", None, "sm_61"), UnsupportedArchError, ("sm_75", "'sm_61'")),
        (("k1", Sm80MmaConfig(block_m=17)), InvalidConfigError, ("block_m", "17")),
    ],
)
def test_render_and_compile_refuse_alike(arguments, exception, words):
    for function in (gemmjit.render, gemmjit.compile):
        with pytest.raises(exception) as caught:
            function(*arguments)
        for word in words:
            assert word in str(caught.value)


def test_variant_fields_are_checked():
    with pytest.raises(InvalidConfigError, match="unknown field colour"):
        gemmjit.render("k1", colour="blue")
    with pytest.raises(InvalidDtypeError):
        gemmjit.render("k1", in_dtype="float12")
    with pytest.raises(InvalidConfigError, match="in_dtype: k1 takes bfloat16, float16"):
        gemmjit.render("k1", in_dtype="float32")


@pytest.fixture
def cold(tmp_path, monkeypatch):
    """An empty cache, on disk and in memory."""
    monkeypatch.setenv("GEMMJIT_CACHE_DIR", str(tmp_path))
    build.clear_memory()
    yield
    build.clear_memory()


@pytest.mark.parametrize(
    "config", [None, "k0", Sm80MmaConfig(block_m=64), Sm80MmaConfig(schedule="compact")]
)
def test_br074_what_is_prepared_is_not_compiled_later(cold, monkeypatch, config):
    monkeypatch.setenv("GEMMJIT_EXECUTOR", "emulator")
    a, b, ends, want = operands()
    offs = np.asarray(ends, np.int32)
    problem = Problem.contiguous(num_groups=3, rows=20, n=24, k=32, out_dtype="float32")
    monkeypatch.setenv("GEMMJIT_DISABLE_JIT", "1")
    with pytest.raises(MissingKernelError, match="gemmjit prewarm"):
        gemmjit.grouped_mm(a, b, offs=offs, out_dtype="float32", config=config)
    monkeypatch.delenv("GEMMJIT_DISABLE_JIT")
    kernel = gemmjit.prepare(problem, config)
    assert kernel.cubin
    monkeypatch.setenv("GEMMJIT_DISABLE_JIT", "1")
    got = gemmjit.grouped_mm(a, b, offs=offs, out_dtype="float32", config=config)
    np.testing.assert_array_equal(got, want)


def test_prepare_refuses_what_a_call_would_refuse():
    problem = Problem.contiguous(num_groups=3, rows=20, n=24, k=32, dtype="float32")
    with pytest.raises(InvalidConfigError, match="in_dtype"):
        gemmjit.prepare(problem, "k1")


def test_a_kernel_is_not_launched_on_arrays_that_its_ways_to_load_do_not_suit():
    offs = [3, 8]
    a, b = np.zeros((8, 72), np.float16), np.zeros((2, 72, 72), np.float16)
    types = {"in_dtype": "float16", "out_dtype": "float16"}
    blocked = gemmjit.compile("k3", b_blocked=True, schedule="list", **types)
    with pytest.raises(InvalidConfigError, match="b_blocked True, which the arrays do not allow"):
        blocked.launch(a, b, offs=offs)
    stored = gemmjit.compile("k3", d_by_tma=True, schedule="list", **types)
    odd = np.zeros((8, 73), np.float16)[:, :72]
    with pytest.raises(InvalidConfigError, match="d_by_tma True, which the arrays do not allow"):
        stored.launch(a, b, offs=offs, out=odd)
    # Strides that the variant does not tell: rows in reverse order have no TensorMap.
    plain = gemmjit.compile("k2", schedule="list", **types)
    with pytest.raises(InvalidConfigError, match=r"mat_b: TensorMap .*strides"):
        plain.launch(a, b[:, ::-1], offs=offs)
