"""Whole kernels for sm_100 and sm_120: exact and silent as they are, found out with a bug."""

from __future__ import annotations

import pytest
from blackwell_kernels import Gemm100, Gemm120, source_of
from planted_blackwell import SM100, SM120, VALUES

from gemmjit.errors import EmulatorError

GEMMS = [
    Gemm100(), Gemm100(pair=2), Gemm100(control=1), Gemm100(pair=2, control=1),
    Gemm120(dim_m=64, dim_n=32), Gemm120(packed=1, dim_m=64, dim_n=32),
]  # fmt: skip
SOURCES = {Gemm100: "gemm_sm100.cu", Gemm120: "gemm_sm120.cu"}
SEEDS = range(20)
RUNS = [("lazy", 0), ("eager", 0), *(("random", seed) for seed in range(8))]


def verdict(gemm, policy, seed, text=None):
    """What is wrong, beginning with the kind of fault, or nothing."""
    try:
        wrong, report = gemm.run(text, policy=policy, seed=seed)
    except EmulatorError as error:
        return f"{type(error).__name__}: {error}"
    assert not report.warnings
    return f"{VALUES}: {wrong} elements" if wrong else ""


@pytest.mark.parametrize("gemm", GEMMS, ids=str)
@pytest.mark.parametrize("policy", ["eager", "lazy", "random"])
def test_kernels_are_exact_and_silent(policy, gemm):
    for seed in SEEDS if policy == "random" else (0,):
        assert verdict(gemm, policy, seed) == ""


def test_the_seven_bugs_that_a_prototype_planted_are_among_them():
    for name in (
        "no wait for a full stage", "no wait for an empty stage", "no wait for the accumulator",
        "half of N in the instruction descriptor", "adds to fresh tensor memory",
        "another warp's quadrant", "no wait for loads",
    ):  # fmt: skip
        assert SM100[name].where == (Gemm100(), Gemm100(pair=2))


@pytest.mark.parametrize("target", ["sm_103a", "sm_100f"])
def test_kernels_of_the_family(target):
    for pair in (1, 2):
        assert verdict(Gemm100(pair=pair, target=target), "random", 0) == ""


def test_larger_problems():
    wrong, report = Gemm100(pair=2, block_n=128, tiles=6, dim_k=320).run(policy="lazy")
    assert wrong == 0
    assert report.async_operations > 0
    assert Gemm120(dim_m=128, dim_n=64).run(policy="lazy")[0] == 0


CASES = [
    pytest.param(gemm, bug, id=f"{SOURCES[type(gemm)]}-{name}-{i}")
    for table in (SM100, SM120)
    for name, bug in table.items()
    for i, gemm in enumerate(bug.where)
]


@pytest.mark.parametrize(("gemm", "bug"), CASES)
def test_a_planted_bug_is_found(gemm, bug):
    text = source_of(SOURCES[type(gemm)])
    assert text.count(bug.old) == 1, f"{bug.old!r} occurs {text.count(bug.old)} times"
    for policy, seed in RUNS:
        found = verdict(gemm, policy, seed, text.replace(bug.old, bug.new))
        if found:
            print(f"found by {policy}, seed {seed}: {found[:300]}")
            assert found.split(":")[0] in bug.shows_as, found
            return
    pytest.fail(f"not found by {RUNS}")
