"""Counts of tiles, of problems with more of them than memory could hold."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from command_line import run_json

import gemmjit
from gemmjit import Problem
from gemmjit.arch import Arch
from gemmjit.cli.candidates import candidates
from gemmjit.schedule import row_utilization, tile_list
from gemmjit.workloads import power_law

SM90 = Arch.parse("sm_90a")
LARGEST = 2**31 - 1


@pytest.mark.parametrize(
    ("form", "groups", "rows", "n", "k"),
    [
        ("ragged_k", 2**20, 2**20, 64, LARGEST),
        ("ragged_k", 1, LARGEST, LARGEST, LARGEST),
        ("ragged_m", 2**20, LARGEST, 64, 64),
        ("ragged_m", 3, LARGEST, LARGEST, 64),
    ],
)
def test_an_explanation_takes_memory_for_groups_and_not_for_tiles(form, groups, rows, n, k):
    problem = Problem.contiguous(form, num_groups=groups, rows=rows, n=n, k=k)
    tracemalloc.start()
    try:
        found = gemmjit.explain(problem, "sm_90a")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2**24 + 128 * groups  # bytes
    height = k if form == "ragged_k" else 0
    one = next(p for p in found.predictions if p.config["block_m"] == p.config["block_n"] == 128)
    across = -(-n // 128)
    if form == "ragged_k":
        assert one.num_tiles == groups * -(-height // 128) * across
    else:
        sizes = power_law(rows, groups, 0.0)
        assert one.num_tiles == int((-(-sizes // 128)).sum()) * across
    assert 0 < one.us < float("inf")


def test_inspect_counts_without_a_list(capsys):
    facts = run_json(capsys, "inspect", "--problem", "rows=2000000000,groups=1,n=100000,k=64")
    assert facts["candidates"][0]["num_tiles"] == 2000000000 // 64 * 1563
    problem = Problem.contiguous(num_groups=LARGEST, rows=LARGEST, n=64, k=64)
    for one in candidates(problem, SM90):
        assert one.num_tiles == LARGEST
        assert one.utilization == 1 / int(one.config.lstrip("cop").split("x")[0])


@pytest.mark.parametrize("seed", range(4))
def test_what_inspect_counts_is_the_list(seed):
    rng = np.random.default_rng(seed)
    for _ in range(10):
        groups, rows, n = int(rng.integers(40)), int(rng.integers(3000)), int(rng.integers(700))
        sizes = power_law(rows, max(groups, 1), 0.0)
        problem = Problem.contiguous(num_groups=groups, rows=rows, n=n, k=64)
        found = candidates(problem, SM90)
        assert len({one.num_tiles for one in found}) > 1 or not rows or not n
        for one in found:
            block_m, block_n = map(int, one.config.lstrip("cop").split("_")[0].split("x")[:2])
            assert one.num_tiles == len(tile_list(sizes, n, block_m, block_n))
            assert one.utilization == row_utilization(sizes, block_m)
