"""Bugs planted in the project's own kernels are found; the kernels as they are stay silent.

A bug counts as found when a result is wrong or the emulator reports a fault, under one of the
policies and seeds below; the test prints which. A kernel is silent when all of them are right.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import ml_dtypes
import numpy as np
import pytest
from planted import BUGS as KERNEL_BUGS
from planted import RACE, TILES, VALUES, plant
from planted_stores import STORE_BUGS

import gemmjit
from gemmjit.config import Config
from gemmjit.emulator import emulating
from gemmjit.errors import CompileError, EmulatorError

BUGS = KERNEL_BUGS | STORE_BUGS
RUNS = [("eager", 0), ("lazy", 0), *(("random", seed) for seed in range(8))]
FEW, MANY = range(2), range(20)

#: For bugs that make a loop endless: a kernel as it is issues less than a tenth of this.
MAX_STEPS = 400_000


@dataclass(frozen=True)
class Case:
    """Groups end inside a tile, one is empty, K and N have tails, and rows belong to nobody."""

    dim_k: int
    dim_n: int
    sizes: tuple[int, ...]
    tail: int

    @cached_property
    def operands(self):
        """A, B, end offsets, and the product rounded once."""
        rng = np.random.default_rng(0)
        rows, groups = sum(self.sizes) + self.tail, len(self.sizes)
        a = rng.integers(-3, 4, (rows, self.dim_k)).astype(np.float64)
        b = rng.integers(-3, 4, (groups, self.dim_k, self.dim_n)).astype(np.float64)
        ends = np.cumsum(self.sizes).astype(np.int32)
        want = np.zeros((rows, self.dim_n))
        for group, end in enumerate(ends):
            part = slice(end - self.sizes[group], end)
            want[part] = a[part] @ b[group]
        return (
            *(x.astype(ml_dtypes.bfloat16) for x in (a, b)),
            ends,
            want.astype(ml_dtypes.bfloat16),
        )


@dataclass(frozen=True)
class Sum:
    """A wgrad that is added to what is there: tails of M and N, an empty group, short ones."""

    dim_m: int
    dim_n: int
    sizes: tuple[int, ...]

    @cached_property
    def operands(self):
        """A, B, end offsets, and the result for a start of ones."""
        rng = np.random.default_rng(0)
        rows, groups = sum(self.sizes), len(self.sizes)
        a = rng.integers(-3, 4, (rows, self.dim_m)).astype(np.float64)
        b = rng.integers(-3, 4, (rows, self.dim_n)).astype(np.float64)
        ends = np.cumsum(self.sizes).astype(np.int32)
        want = np.ones((groups, self.dim_m, self.dim_n), np.float32)
        for group, end in enumerate(ends):
            part = slice(end - self.sizes[group], end)
            want[group] += a[part].T @ b[part]
        a, b = (x.astype(ml_dtypes.bfloat16) for x in (a, b))
        return a.T, b, ends, want


CASES = {
    "deep": Case(200, 72, (130, 0, 3, 33), 0),  # rings of stages go round
    "flat": Case(40, 72, (130, 0, 3, 33), 300),  # so do those of tiles, which are short
    "sum": Sum(136, 328, (70, 0, 3)),  # and those of store boxes
}


def verdict(
    config: Config, policy: str, seed: int, case: str = "deep", unfenced_reads: str = "error"
) -> str:
    """Run a kernel; what is wrong with it, beginning with the kind of error, or nothing."""
    a, b, ends, want = CASES[case].operands
    # One multiprocessor, so that a block has several tiles.
    strict = {"unwaited_stores": "error", "max_steps": MAX_STEPS, "num_sms": 1}
    with emulating(policy, seed, unfenced_reads=unfenced_reads, **strict):
        try:
            if case == "sum":
                got = np.ones_like(want)
                gemmjit.grouped_mm(a, b, offs=ends, config=config, out=got, accumulate=True)
            else:
                got = gemmjit.grouped_mm(a, b, offs=ends, config=config)
        except (CompileError, EmulatorError) as error:
            return f"{type(error).__name__}: {error}"
    wrong = int((got != want).sum())
    return f"{VALUES}: {wrong} of {want.size} elements" if wrong else ""


@pytest.fixture(autouse=True)
def _target(monkeypatch):
    monkeypatch.setenv("GEMMJIT_ARCH", "sm_90a")


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(tmp_path, name):
    bug = BUGS[name]
    plant(bug.files, bug.old, bug.new, tmp_path)
    with gemmjit.templates.override(tmp_path):
        for policy, seed in RUNS:
            found = verdict(TILES[bug.tile], policy, seed, bug.case)
            if found:
                print(f"{name}: found by {policy}, seed {seed}: {found[:400]}")
                assert found.split(":")[0] in bug.shows_as, found
                return
    pytest.fail(f"{name}: not found by {RUNS}")


@pytest.mark.parametrize("policy", ["eager", "lazy", "random"])
@pytest.mark.parametrize("name", [name for name in BUGS if "the reads of a stage" in name])
def test_reads_without_a_fence_are_found_by_every_policy(tmp_path, name, policy):
    """No order of events need show them: on hardware they were lost, here values stay right."""
    bug = BUGS[name]
    plant(bug.files, bug.old, bug.new, tmp_path)
    with gemmjit.templates.override(tmp_path):
        found = verdict(TILES[bug.tile], policy, 0)
        assert found.startswith(f"{RACE}: an asynchronous write is issued to shared offset")
        assert "cp.async.bulk.tensor" in found
        assert verdict(TILES[bug.tile], policy, 0, unfenced_reads="warn") == ""


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize(
    "seeds", [FEW, pytest.param(MANY, marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_a_kernel_as_it_is_stays_silent(tile, seeds):
    for policy, seed in [("eager", 0), ("lazy", 0), *(("random", seed) for seed in seeds)]:
        cases = {"k0": ("flat",), "k3": CASES}.get(tile.split()[0], ("deep", "flat"))
        for case in cases:
            assert verdict(TILES[tile], policy, seed, case) == "", f"{case}, {policy}, seed {seed}"


def test_every_tile_has_a_bug():
    assert {bug.tile for bug in BUGS.values()} == set(TILES)
    assert {bug.case for bug in BUGS.values()} == set(CASES)
