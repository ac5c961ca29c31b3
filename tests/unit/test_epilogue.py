"""Chains of epilogue steps: names, identities, manifests, arguments."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from structs import struct_in

import gemmjit
from gemmjit import Problem, RowScale, SwiGLU
from gemmjit.arch import Arch
from gemmjit.build import key_of
from gemmjit.cuda.packing import pack
from gemmjit.epilogue import KINDS, Bias, chain_of
from gemmjit.errors import InvalidConfigError
from gemmjit.kernels import KERNELS
from gemmjit.manifest import load, parse, read_log, to_toml
from gemmjit.manifest.entries import KernelEntry
from gemmjit.ops.dispatch import build_all, plan_for, spec_for
from gemmjit.ops.fused import steps_of

FULL = "bias+swiglu_split+row_scale_f32"
NAMES = ("store", "bias", "bias_f32_strided", "swiglu_interleaved", FULL, FULL + "+accumulate")
WRONG = ("", "bias_f16", "row_scale+bias", "bias+bias_f32", "store+bias", 7)


@pytest.mark.parametrize("name", NAMES)
def test_names_are_read_back(name):
    assert chain_of(name).name == name


def test_what_a_chain_says():
    chain = chain_of(FULL)
    assert (chain.gate, chain.folds, chain.accumulates) == ("split", 2, False)
    assert [step.kind.keyword for step in chain.operands] == ["bias", "row_scale"]
    assert chain_of("store").folds == 1


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_chain(name):
    with pytest.raises(InvalidConfigError, match="epilogue must"):
        chain_of(name)


def test_steps_compare_without_their_arrays():
    assert RowScale(np.ones(3)) == RowScale(np.zeros(4))
    assert hash(Bias(np.ones(3))) == hash(Bias(None))
    assert SwiGLU("split") != SwiGLU("interleaved")
    assert "array" not in repr(RowScale(np.ones(3)))


def test_steps_of_a_call():
    bias, scale = np.ones((1, 2)), np.ones(3)
    steps = steps_of(bias, (SwiGLU(), RowScale(scale)), accumulate=True)
    assert [type(step) for step in steps] == list(KINDS)
    assert steps[0].array is bias
    assert steps[2].array is scale


def test_every_epilogue_is_another_kernel():
    problems = [
        Problem.contiguous(num_groups=2, rows=64, n=128, k=64, epilogue=name)
        for name in ("store", "bias", "bias_f32", "row_scale", "swiglu_interleaved", FULL)
    ]
    for kernel, config in (("k0", "k0"), ("k1", "k1"), ("k2", "k2"), ("k3", None)):
        specs = [spec_for(p, Arch.parse("sm_90a"), config) for p in problems]
        assert {spec.name for spec in specs} == {kernel}
        assert len({key_of(s) for s in specs}) == len({s.entry for s in specs}) == len(problems)
    assert set(KERNELS) == {"k0", "k1", "k2", "k3"}


def test_a_manifest_asks_for_the_kernel_of_a_call(tmp_path):
    file = tmp_path / "m.toml"
    head = 'targets = ["sm_90a"]\n[[problems]]\nn = 256\nk = 64\n'
    file.write_text(f'{head}epilogue = "{FULL}"\n')
    wanted = {one.key for one in load(file).wanted()}
    problem = Problem.contiguous(num_groups=4, rows=4096, n=256, k=64, epilogue=FULL)
    assert key_of(spec_for(problem, Arch.parse("sm_90a"))) in wanted


def test_exact_kernels_round_trip():
    problem = Problem.contiguous(num_groups=4, rows=4096, n=256, k=64, epilogue=FULL)
    spec = spec_for(problem, Arch.parse("sm_90a"))
    from_toml = parse(to_toml([KernelEntry.of(spec)])).wanted()
    from_log, unreadable = read_log(spec.prewarm_command)
    assert not unreadable
    assert [one.key for one in from_toml] == [key_of(spec)]
    assert [one.key for one in from_log.wanted()] == [key_of(spec)]


def test_gates_and_factors_take_the_tile_of_the_plain_store():
    def tile(epilogue, b_k_major):
        problem = Problem.contiguous(
            num_groups=2, rows=40960, n=384, k=64, epilogue=epilogue, b_k_major=b_k_major
        )
        spec = spec_for(problem, Arch.parse("sm_90a"))
        return spec.name, spec.config.block_n

    assert tile("store", False) == tile("swiglu_interleaved", False) == ("k3", 192)
    assert tile("swiglu_split", True) == tile("swiglu_split", False) == ("k3", 192)


def test_operands_are_typed_arguments_before_all_others():
    problem = Problem.contiguous(num_groups=3, rows=70, n=48, k=40, epilogue=FULL)
    spec = spec_for(problem, Arch.parse("sm_80"), "k1")
    plan = plan_for(problem, spec, num_sms=2, offs_is_int64=False, group_sizes=None)
    packed = pack(plan.launches[-1].arguments)
    kind = struct_in("Arguments", build_all(spec)[0].source)
    got = kind.from_buffer_copy(packed.image[packed.starts[-1] :])
    assert (got.base.bias.stride_g, got.base.bias.stride_n) == (48, 1)
    assert got.base.row_scale.stride_m == 1
    assert (got.stride_dm, got.dim_n) == (24, 48)
    named = {slot.name: slot.offset - packed.starts[-1] for slot in packed.slots}
    assert named["bias"] == 0
    assert named["row_scale"] == 24
    assert named["mat_a"] == kind.a.offset
    assert ctypes.sizeof(kind) == len(packed.image) - packed.starts[-1]


def test_a_kernel_for_an_epilogue_is_launched_with_it(monkeypatch):
    monkeypatch.setenv("GEMMJIT_EXECUTOR", "emulator")
    kernel = gemmjit.compile("k1", epilogue="bias", out_dtype="float32")
    dtype = kernel.variant.in_dtype.numpy
    a, b = np.ones((4, 8), dtype), np.ones((1, 8, 8), dtype)
    bias = np.full((1, 8), 3, dtype)
    assert np.array_equal(kernel.launch(a, b, offs=[4], bias=bias), np.full((4, 8), 11))
    with pytest.raises(InvalidConfigError, match="epilogue bias, the arrays need store"):
        kernel.launch(a, b, offs=[4])
