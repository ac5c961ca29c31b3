"""Drawn problems on a GPU: a fixed number of them, the kept ones, and at length behind a mark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import commit
from fuzz_drawing import TURNS, draw_cells, problem_at
from fuzz_problems import Problem
from fuzz_property import check
from fuzz_seen import Seen

TESTS = Path(__file__).parents[1]
KEPT = json.loads((TESTS / "data" / "fuzz_regressions.json").read_text())

#: One way to compile a tile after the other; so many problems of each.
CELLS = draw_cells(8 * len(TURNS), seed=4)
EACH = 6


@pytest.mark.parametrize(("kernel", "form"), TURNS)
def test_drawn_problems(cupy_maker, kernel, form):
    seen = Seen()
    for i in range(EACH * len(CELLS)):
        if TURNS[i % len(TURNS)] == (kernel, form):
            problem = problem_at(i, CELLS, 4, small=False, on_gpu=True)
            try:
                check(cupy_maker, problem, seen)
            except Exception as error:
                error.add_note(f"problem {i}: {json.dumps(problem.to_dict())}")
                raise
    # The others of the 48 are refused, as they must be.
    assert seen.counts["asked"][f"{kernel} {form}"] >= 2 * 8, dict(seen.counts)


@pytest.mark.parametrize("kept", KEPT, ids=lambda kept: kept["name"])
def test_kept_problems(request, cupy_maker, kept):
    if kept["known"]:
        request.applymarker(pytest.mark.xfail(reason=kept["known"], strict=True))
    check(cupy_maker, Problem.from_dict(kept["problem"]))


@pytest.mark.fuzz
def test_a_hundred_thousand_problems(tmp_path):
    record = tmp_path / "fuzz.json"
    processes = max((os.cpu_count() or 4) - 3, 1)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [
            sys.executable, str(TESTS / "fuzz.py"), "--problems", "100000", "--seconds", "1800",
            "--processes", str(processes), "--json", str(record), "--commit", commit(),
        ],
        capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert json.loads(record.read_text())["problems"] == 100_000
