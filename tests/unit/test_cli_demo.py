"""``gemmjit demo``."""

from __future__ import annotations

import re

import pytest
from command_line import run_json

import gemmjit
from gemmjit import cli
from gemmjit.cli import problem_data
from gemmjit.cuda.driver import is_available
from gemmjit.kernels import KERNELS


def test_demo_is_right_and_complete(capsys):
    facts = run_json(capsys, "demo")
    assert facts["passed"]
    assert facts["arch"] == "sm_90a"
    assert {row["kernel"] for row in facts["kernels"]} == set(KERNELS)
    for row in facts["kernels"]:
        assert row["spill_bytes"] == 0
        assert 16 <= row["registers"] <= 255
        assert row["resident_blocks"] >= 1
        assert row["smem_bytes"] > 0
        assert row["compile_ms"] > 0
    assert [(check["product"], check["kernel"]) for check in facts["checks"]] == [
        *(("fprop", name) for name in (*KERNELS, "default")),
        ("dgrad", "default"),
        ("wgrad", "default"),
    ]
    for check in facts["checks"]:
        assert check["passed"]
        assert 0 < check["error_over_bound"] <= 1
    assert (len(facts["times"]) > 0) == is_available()


def test_demo_prints_what_it_did(capsys, monkeypatch):
    monkeypatch.setenv("GEMMJIT_EXECUTOR", "reference")
    assert cli.main(["demo", "--arch", "sm_80"]) == 0
    out = capsys.readouterr().out
    assert "Compiled for sm_80 by NVRTC" in out
    assert "32 experts, 8048 rows, 7 experts empty" in out
    assert len(re.findall(r"right$", out, re.M)) == 5  # k0, k1 and the default choice; dgrad; wgrad
    assert "WRONG" not in out
    assert "error/bound: the largest share" in out


def test_demo_skips_kernels_that_the_architecture_lacks(capsys, monkeypatch):
    monkeypatch.setenv("GEMMJIT_EXECUTOR", "reference")
    facts = run_json(capsys, "demo", "--arch", "sm_75")
    assert {row["kernel"] for row in facts["kernels"]} == {"k0"}


def test_demo_fails_on_a_wrong_result(capsys, monkeypatch):
    monkeypatch.setenv("GEMMJIT_EXECUTOR", "reference")
    from gemmjit.cli import demo

    true = demo.grouped_mm

    def wrong(mat_a, mat_b, **rest):
        result = true(mat_a, mat_b, **rest)
        result[..., -1, -1] = result[..., -1, -1] * 2 + 1
        return result

    monkeypatch.setattr(demo, "grouped_mm", wrong)
    facts = run_json(capsys, "demo", status=1)
    assert not facts["passed"]
    assert not any(check["passed"] for check in facts["checks"])


def test_the_bound_of_the_demonstration_is_tight():
    fprop, _, wgrad = problem_data.cases(64, 32)
    rows = [(int(end - size), int(end)) for end, size in _groups() if size]
    result = _reference(fprop)
    ((error, ratio),) = fprop.compare(result)
    assert 0.9 < ratio <= 1
    assert error > 0
    for damage in (float("nan"), float("inf")):
        wrong = result.copy()
        wrong[rows[0][0], 0] = damage
        assert fprop.compare(wrong)[0][1] > 1
    wrong = result.copy()
    wrong[5, 5] = wrong[5, 5] * 1.016  # two steps of bfloat16
    assert fprop.compare(wrong)[0][1] > 1
    wrong = _reference(wgrad)
    assert wgrad.compare(wrong)[0][1] <= 1
    empty = problem_data.GROUP_SIZES.index(0)
    wrong[empty, 0, 0] = 1e-30
    assert wgrad.compare(wrong)[0][1] > 1


def _groups():
    return zip(problem_data.ends().tolist(), problem_data.GROUP_SIZES, strict=True)


def _reference(case):
    b = case.view(case.mat_b)
    return gemmjit.grouped_mm(case.mat_a, b, offs=problem_data.ends())


@pytest.mark.gpu
@pytest.mark.skipif(not is_available(), reason="no usable CUDA driver and GPU")
def test_demo_times_every_tile_on_a_gpu(capsys):
    facts = run_json(capsys, "demo")
    assert facts["executor"] == "cuda"
    assert facts["passed"]
    assert all(t["milliseconds"] > 0 and t["useful_tflops"] > 0 for t in facts["times"])
