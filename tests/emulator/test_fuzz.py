"""Drawn problems on NumPy arrays: a fixed budget of them, and what they must find.

At length, on a GPU or in the emulator: `tests/fuzz.py`.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from fuzz_drawing import TURNS, DrawChooser, draw_cells, draw_problem, problem_at
from fuzz_faults import FAULTS, refusal
from fuzz_problems import Cell, Problem
from fuzz_property import check
from fuzz_seen import Seen
from fuzz_shrinking import shrunk
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from makers import NumpyMaker
from planted import plant

import gemmjit
from gemmjit.kernels import KERNELS

KEPT = json.loads((Path(__file__).parents[1] / "data" / "fuzz_regressions.json").read_text())

#: Three ways to compile for each kernel and form.
CELLS = draw_cells(3 * len(TURNS), seed=2)
EXAMPLES = 14


@pytest.fixture(autouse=True)
def emulator(monkeypatch):
    monkeypatch.setenv("GEMMJIT_EXECUTOR", "emulator")


@st.composite
def problems(draw, cells: list[Cell]) -> Problem:
    return draw_problem(DrawChooser(draw, st), draw(st.sampled_from(cells)), small=True)


@pytest.mark.parametrize(("kernel", "form"), TURNS)
def test_drawn_problems(kernel, form):
    cells = [cell for cell in CELLS if (cell.kernel, cell.form) == (kernel, form)]
    seen = Seen()

    @settings(
        max_examples=EXAMPLES,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(problems(cells))
    def run(problem):
        note(f"to keep in tests/data/fuzz_regressions.json: {json.dumps(problem.to_dict())}")
        check(NumpyMaker(), problem, seen)

    run()
    ran = seen.counts["asked"] if kernel == "default" else seen.counts["kernel_form"]
    assert ran[f"{kernel} {form}"] >= EXAMPLES // 2, dict(seen.counts)


@pytest.mark.parametrize("kept", KEPT, ids=lambda kept: kept["name"])
def test_kept_problems(request, kept):
    if kept["known"]:
        request.applymarker(pytest.mark.xfail(reason=kept["known"], strict=True))
    check(NumpyMaker(), Problem.from_dict(kept["problem"]))


def test_every_kernel_form_and_fault_is_drawn():
    cells = draw_cells(90, seed=1)
    drawn = [problem_at(i, cells, 1, small=True, on_gpu=False) for i in range(6000)]
    assert {(k.name, form) for k in KERNELS.values() for form in k.forms} <= set(TURNS)
    valid = [p for p in drawn if refusal(p) is None]
    assert 0.8 < len(valid) / len(drawn) < 0.95
    assert {(p.cell.kernel, p.cell.form) for p in valid} == set(TURNS)
    for kernel in KERNELS.values():
        tiles = {c.config.tile_name for c in cells if c.kernel == kernel.name}
        assert tiles == {config.tile_name for config in kernel.shipped_configs()}
    on_gpu = {problem_at(i, cells, 1, small=True, on_gpu=True).fault for i in range(6000)}
    assert on_gpu - {""} == set(FAULTS)
    assert {len(p.sizes) for p in valid} >= {0, 1, 2, 3}
    assert max(len(p.sizes) for p in valid) > 200
    assert any(p.wrong_ends for p in valid)


def test_a_problem_is_plain_data():
    cells = draw_cells(9, seed=1)
    for i in range(200):
        problem = problem_at(i, cells, 1, small=False, on_gpu=True)
        assert problem == problem_at(i, cells, 1, small=False, on_gpu=True)
        assert Problem.from_dict(json.loads(json.dumps(problem.to_dict()))) == problem


#: Files, text, what takes its place, cell, and what else must be drawn for it to show.
PLANTED = {
    "offsets are not clamped to the rows": (
        ("core/grouping.cuh",),
        "return end > grouping.rows ? grouping.rows : int(end);",
        "return int(end);",
        Cell(kernel="k0", tile={}, out="plain"),
    ),
    "negative offsets are not clamped": (
        ("core/grouping.cuh",),
        "end = end < 0 ? 0 : end;",
        ";",
        Cell(kernel="k1", tile=KERNELS["k1"].shipped_configs()[2].to_dict(), out="plain"),
    ),
    "a column too many in the last tile": (
        ("kernels/simt_grouped_mm.cu.j2",),
        "x[j + 1], n_valid / FOLD - n);",
        "x[j + 1], n_valid / FOLD - n + 1);",
        Cell(kernel="k0", tile={}, n_kind="any", out="odd_pad"),
    ),
    "rows behind the contraction count": (
        ("kernels/simt_grouped_mm.cu.j2",),
        "const bool line_exists = K_MAJOR ? mn < mn_valid : k < k_valid;",
        "const bool line_exists = K_MAJOR ? mn < mn_valid : true;",
        Cell(kernel="k0", tile={}, form="ragged_k", a="swapped", n_kind="any", k_kind="any"),
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found_and_shrinks(tmp_path, name):
    files, old, new, cell = PLANTED[name]
    plant(files, old, new, tmp_path)

    def fails(problem: Problem) -> bool:
        try:
            check(NumpyMaker(), problem)
        except (AssertionError, gemmjit.errors.EmulatorError):
            return True
        return False

    with gemmjit.templates.override(tmp_path):
        found = next(
            (p for i in range(EXAMPLES * len(TURNS))
             if fails(p := problem_at(i, [cell], 5, small=True, on_gpu=False))),
            None,
        )  # fmt: skip
        assert found is not None, "not one problem of the budget shows it"
        small = shrunk(found, fails, seconds=4)
        assert fails(small)
    assert sum(small.sizes) + small.tail <= sum(found.sizes) + found.tail
    assert not fails(small), "it fails without the fault too"


def test_shrinking_keeps_what_matters():
    cell = Cell(kernel="k0", tile={}, chain="bias", n_kind="any", k_kind="any")
    start = Problem(
        cell=cell, sizes=(9, 0, 30, 4), n=50, k=33, tail=70, repeat=True, values="normal"
    )

    def fails(p: Problem) -> bool:
        return p.n >= 17 and max(p.sizes, default=0) >= 5

    small = shrunk(start, fails, seconds=5)
    assert small == replace(
        start, cell=replace(start.cell, chain="store"), sizes=(5,), n=17, k=1, tail=0,
        repeat=False, values="integers",
    )  # fmt: skip


def test_a_call_that_must_be_refused_and_runs_is_seen(monkeypatch):
    problem = Problem(cell=Cell(kernel="k0", tile={}), sizes=(3, 4), fault="other k")
    check(NumpyMaker(), problem)
    monkeypatch.setattr(gemmjit, "grouped_mm", lambda **call: None)
    with pytest.raises(AssertionError, match=re.escape("the call was run")):
        check(NumpyMaker(), problem)
