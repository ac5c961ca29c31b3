"""The calls that run under compute-sanitizer, here: a few of each part, and what they execute."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from cases import integers
from makers import ODD_PAD, PADDED, SWAPPED, NumpyMaker
from sanitizer_cases import Cell, epilogues_of_k3, parts

from gemmjit.emulator import emulating
from gemmjit.templates import override, read_template

SCRIPT = Path(__file__).parents[1] / "gpu" / "sanitizer_matrix.py"

STORE = "cp.async.bulk.tensor.3d.global"
ADD = "cp.reduce.async.bulk.tensor.3d.global"
CLAIM = "atom.global.add"
SUM = "atom.acq_rel.gpu.global.add"  # pieces of a tile that meet
READ = "ld.global.f32"

#: Of the first call of each kind: what it executes, and what it does not.
WAYS = {
    ("results", "FP32 by TMA"): ({STORE}, {ADD, CLAIM, SUM, READ}),
    ("results", "from registers"): (set(), {STORE, ADD, CLAIM, SUM, READ}),
    ("sums", "added by TMA"): ({ADD}, {STORE, READ}),
    ("sums", "boxes loaded"): ({STORE}, {ADD, READ}),
    ("sums", "read from registers"): ({READ}, {STORE, ADD}),
    ("split", "stored"): ({SUM, STORE}, {ADD, READ}),
    ("split", "added"): ({SUM, STORE}, {ADD, READ}),
    ("split", "from registers"): ({SUM}, {STORE, ADD, READ}),
    ("claims", "fprop, 200 groups"): ({CLAIM, STORE}, {SUM}),
    ("claims", "wgrad, 200 groups"): ({CLAIM, STORE}, {SUM}),
    ("claims", "wgrad, 533 groups"): ({CLAIM, STORE}, {SUM}),
}


@pytest.fixture(autouse=True)
def _target(monkeypatch):
    for name, value in (("EXECUTOR", "emulator"), ("ARCH", "sm_90a")):
        monkeypatch.setenv(f"GEMMJIT_{name}", value)


@pytest.fixture(scope="module")
def script():
    """The script, as a module."""
    spec = importlib.util.spec_from_file_location("sanitizer_matrix", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def exact_maker():
    """Arrays that end where their last element does."""
    maker = NumpyMaker()
    maker.guard = 0
    return maker


def first_of(part: str, kind: str) -> Cell:
    """Return the first cell of a kind."""
    return next(cell for cell in parts()[part] if cell.kind == kind)


@pytest.mark.parametrize("part", ["plain", "epilogues", "sums"])
def test_a_few_calls_are_right(script, part, capsys):
    kernel = ["--kernel", "k3"] if part == "plain" else []
    assert script.main(["--numpy", "--cells", "1", "--only", part, *kernel]) == 0
    assert ", 0 wrong," in capsys.readouterr().out


@pytest.mark.parametrize("way", WAYS, ids=", ".join)
def test_each_kind_executes_what_it_is_named_for(way, exact_maker):
    with emulating("lazy", num_sms=2, unwaited_stores="error") as reports:
        first_of(*way).run(exact_maker)
    names = {name for report in reports for name in report.instructions}
    there, absent = WAYS[way]
    assert {one for one in there | absent if any(n.startswith(one) for n in names)} == there


def test_every_kind_is_looked_at():
    kinds = {(part, cell.kind) for part, cells in parts().items() for cell in cells}
    assert {way for way in kinds if way[0] != "epilogues"} == set(WAYS)
    found = {kind: [] for kind, _ in epilogues_of_k3()}
    for kind, case in epilogues_of_k3():
        found[kind].append(case)
    split = {f"{what}, {major}-major B" for what in ("split gates", "chain") for major in "KN"}
    assert set(found) == {"bias", "row scale", "interleaved gates", *split}
    for major in "KN":
        chains = {case.epilogue for case in found[f"chain, {major}-major B"]}
        assert "bias+swiglu_split+row_scale_f32" in chains
        assert {case.b is SWAPPED for case in found[f"chain, {major}-major B"]} == {major == "K"}
    off_grid = [case for cases in found.values() for case in cases if case.into]
    assert {case.out.name for case in off_grid} == {"padded", "odd_pad"}


def test_a_wrong_sum_is_seen(script, capsys, tmp_path):
    text = read_template("core/split.cuh")
    assert text.count("y[0] += x[i].x") == 1
    (tmp_path / "core").mkdir()
    (tmp_path / "core/split.cuh").write_text(text.replace("y[0] += x[i].x", "y[0] = x[i].x"))
    with override(tmp_path):
        assert script.main(["--numpy", "--cells", "1", "--only", "split"]) == 1
    assert capsys.readouterr().out.count("WRONG") == 3


@pytest.mark.parametrize(("layout", "pad"), [(ODD_PAD, 3), (PADDED, 8)], ids=["odd", "padded"])
def test_allocations_end_with_their_last_element(layout, pad, exact_maker):
    values = integers((5, 8), seed=0)
    placed = exact_maker.place(values, "float32", layout)
    assert placed.raw().nbytes == 4 * (4 * (8 + pad) + 8)
    np.testing.assert_array_equal(placed.read(), values)
