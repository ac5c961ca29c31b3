"""Problems and explanations of what cannot be: refused by the argument's name."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import gemmjit
from gemmjit import Problem, Sm80MmaConfig, Sm90TmaMmaConfig, Sm90WgmmaConfig, cli
from gemmjit.arch import Arch, targets_for
from gemmjit.constraints import violations
from gemmjit.errors import (
    GemmjitError,
    InvalidConfigError,
    InvalidDtypeError,
    InvalidProblemError,
)
from gemmjit.kernels import KERNELS, Variant

SIZES = {"num_groups": 4, "rows": 64, "n": 64, "k": 64}


@pytest.mark.parametrize(
    ("argument", "value", "error"),
    [
        ("num_groups", "4", InvalidProblemError),
        ("num_groups", True, InvalidProblemError),
        ("rows", 64.5, InvalidProblemError),
        ("rows", 2**31, InvalidProblemError),
        ("n", -1, InvalidProblemError),
        ("k", np.ones(1, int), InvalidProblemError),
        ("schedule", "bogus", InvalidProblemError),
        ("schedule", None, InvalidProblemError),
        ("form", "ragged", InvalidProblemError),
        ("a_k_major", 3, InvalidProblemError),
        ("a_k_major", "no", InvalidProblemError),
        ("b_k_major", "no", InvalidProblemError),
        ("b_k_major", 0, InvalidProblemError),
        ("b_k_major", None, InvalidProblemError),
        ("epilogue", ["bias"], InvalidConfigError),
        ("dtype", "float8", InvalidDtypeError),
        ("out_dtype", "float8", InvalidDtypeError),
    ],
)
def test_arguments_of_a_problem(argument, value, error):
    with pytest.raises(error, match=f"^{argument}: expected"):
        Problem.contiguous(**SIZES | {argument: value})


@pytest.mark.parametrize("command", [["inspect"], ["emulate", "k1"]], ids=lambda c: c[0])
def test_a_memory_order_on_the_command_line(command, capsys):
    argv = [*command, "--problem", "rows=8,groups=2,n=64,k=64,b_k_major=no"]
    assert cli.main(argv) == 2
    told = capsys.readouterr().err
    assert "b_k_major: expected True or False; got 'no'" in told
    assert "b_k_major=true" in told


@pytest.mark.parametrize("order", [True, np.True_])
def test_memory_orders_may_be_of_numpy(order):
    assert Problem.contiguous(**SIZES, b_k_major=order).strides.bk == 1


@pytest.mark.parametrize("epilogue", ["accumulate", "bias+accumulate"])
@pytest.mark.parametrize("out_dtype", [None, "bfloat16", "float16"])
def test_sums_are_of_float32(epilogue, out_dtype):
    with pytest.raises(InvalidDtypeError, match=r"^out_dtype: expected float32"):
        Problem.contiguous(**SIZES, epilogue=epilogue, out_dtype=out_dtype)
    assert Problem.contiguous(**SIZES, epilogue=epilogue, out_dtype="float32").chain.accumulates


def test_sizes_may_be_of_numpy():
    assert Problem.contiguous(**{k: np.int32(v) for k, v in SIZES.items()}).rows == 64


@pytest.mark.parametrize(
    "sizes",
    [
        [16, 16, 16],
        [16.0, 16, 16, 16],
        ["16", 16, 16, 16],
        [True, 16, 16, 16],
        [-1, 33, 16, 16],
        [2**63, 2**63, 0, 0],
        [2**64 - 64, 64, 64, 0],
        [17, 16, 16, 16],
        16,
        np.full((2, 2), 16),
    ],
    ids=str,
)
def test_sizes_that_do_not_fit(sizes):
    with pytest.raises(InvalidProblemError, match=r"^group_sizes: expected 4 whole numbers"):
        gemmjit.explain(Problem.contiguous(**SIZES), "sm_90a", group_sizes=sizes)


def test_sizes_that_fit():
    problem = Problem.contiguous(**SIZES)
    for sizes in ([64, 0, 0, 0], np.array([1, 2, 3, 4], np.int32), (16,) * 4):
        assert gemmjit.explain(problem, "sm_90a", group_sizes=sizes).predictions


@pytest.mark.parametrize("configs", ["k3", ["k3"], [None], 3, Sm90WgmmaConfig(), None])
def test_configs_that_are_none(configs):
    with pytest.raises(InvalidConfigError, match=r"^configs: expected a sequence"):
        gemmjit.explain(Problem.contiguous(**SIZES), "sm_90a", configs=configs)


@pytest.mark.parametrize("problem", [None, "ragged_m", SIZES])
def test_what_is_no_problem(problem):
    with pytest.raises(GemmjitError, match=r"^problem: expected a gemmjit.Problem"):
        gemmjit.explain(problem, "sm_90a")


WRONG_FLAGS = ["no", "", 2, 1.0, None, np.ones(2, bool), np.bool_(True), np.zeros(0)]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("accumulate", WRONG_FLAGS, ids=repr)
def test_accumulate_is_a_bool(accumulate, bias):
    a, b, out = np.ones((4, 8), "f4"), np.ones((2, 8, 8), "f4"), np.zeros((4, 8), "f4")
    added = np.ones((2, 8), "f4") if bias else None
    with pytest.raises(InvalidProblemError, match=r"^accumulate: expected True or False"):
        gemmjit.grouped_mm(a, b, offs=[1, 4], out=out, bias=added, accumulate=accumulate)
    assert not out.any()


@pytest.mark.parametrize("several", [False, True])
def test_an_epilogue_of_no_kind(several):
    a, b = np.ones((4, 8), "f4"), np.ones((2, 8, 8), "f4")
    bare = gemmjit.Epilogue()
    with pytest.raises(InvalidProblemError, match=r"^epilogue: expected gemmjit.SwiGLU.*Epilogue"):
        gemmjit.grouped_mm(a, b, offs=[1, 4], epilogue=(bare,) if several else bare)


@pytest.mark.parametrize(
    "argv",
    [
        ("cache", "ls"),
        ("cache", "verify"),
        ("cache", "clear", "--yes"),
        ("prewarm", "--kernel", "k1"),
    ],
)
@pytest.mark.parametrize("text", ["", "  "])
def test_an_empty_cache_dir_is_not_the_current_one(argv, text, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    kept = tmp_path / "kept"
    kept.touch()
    with pytest.raises(SystemExit) as end:
        cli.main([*argv, f"--cache-dir={text}"])
    assert end.value.code == 2
    assert "argument --cache-dir: expected a directory" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [kept]


@pytest.mark.parametrize(
    ("config", "arch", "room"),
    [
        (Sm90TmaMmaConfig(block_m=64, block_n=64, block_k=128, num_stages=4), "sm_90a", 1),
        (Sm80MmaConfig(block_m=64, block_n=64, num_stages=8, min_blocks_per_sm=3), "sm_90", 2),
        (Sm80MmaConfig(block_m=128, block_n=64, block_k=64, num_stages=3), "sm_86", 1),
    ],
)
def test_blocks_that_shared_memory_cannot_hold(config, arch, room):
    kernel = KERNELS[config.kernel]
    told = violations(kernel, config, Variant(), Arch.parse(arch))
    assert [reason.startswith("min_blocks_per_sm: ") for reason in told] == [True]
    assert f"leave room for {room} on {arch}" in told[0]
    fewer = replace(config, min_blocks_per_sm=room)
    assert violations(kernel, fewer, Variant(), Arch.parse(arch)) == []


@pytest.mark.parametrize("number", [80, 86, 89, 90, 100, 120])
def test_shared_memory_never_refuses_a_shipped_tile(number):
    for kernel in KERNELS.values():
        for target in targets_for(Arch(number), kernel.accelerated):
            for config in (*kernel.shipped_configs(), kernel.default_config):
                told = violations(kernel, config, Variant(), target)
                assert not [reason for reason in told if "leave room" in reason]
