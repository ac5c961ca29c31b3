"""Tables of the tuner's check: numbers that are known, and what is missing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from doc_figures import block

from gemmjit.arch import Arch
from gemmjit.bench.cases import CASES, Workload, case_of
from gemmjit.kernels import KERNELS
from gemmjit.selection.hardware import GPUS
from gemmjit.selection.heuristic import choose
from gemmjit.selection.model import predict
from gemmjit.tuning import checked
from gemmjit.tuning.check import is_within
from gemmjit.workloads import power_law

BENCHMARKS = Path(__file__).parents[2] / "docs" / "benchmarks"


def result(case, form, times, predicted, drawn=False):
    timed = [
        {"kernel": "k3", "tile": tile, "config": {}, "us": {"hot": us, "cool": us},
         "mean_us": us, "predicted_us": predicted[tile]}
        for tile, us in times.items()
    ]  # fmt: skip
    record = {
        "candidates": timed,
        "heuristic": {"kernel": "k3", "tile": "a"},
        "workload": {"case": case, "form": form},
        "layout": "nn",
        "drawn": drawn,
        "rounds": {"hot": 15, "cool": 15},
    }
    return {**record, "check": checked(record)}


def record(*results):
    head = {
        "device": {"name": "NVIDIA H200", "driver": "580"},
        "source": {"commit": "0123456789abcdef", "dirty": False},
        "date": "2026-12-01T00:00:00",
    }
    return {"tune": {**head, "results": list(results)}}


ONE = result("one", "fprop", {"a": 100.0, "b": 102.0, "c": 150.0}, {"a": 2, "b": 1, "c": 3})
TWO = result("two", "fprop", {"a": 110.0, "b": 100.0}, {"a": 2, "b": 1})
DRAWN = result("rows=8", "wgrad", {"a": 100.0, "b": 120.0}, {"a": 2, "b": 1}, drawn=True)


def test_the_table_has_every_case_and_the_worst_of_each_kind():
    text = block("tune-table", record(ONE, TWO, DRAWN))
    assert "| `one` | fprop | `k3 a` | `k3 b` | 1.020 | `k3 a` | 1.000 |" in text
    assert "| `two` | fprop | `k3 b` | `k3 b` | 1.000 | `k3 a` | 1.100 |" in text
    assert (
        "On the 2 products of named cases: the model's pick is at most 2.0 % above the fastest, "
        "within 5 % on 2; the rules' pick is at most 10.0 % above the fastest, within 5 % on 1."
    ) in text
    assert "the model's pick is at most 20.0 % above the fastest, within 10 % on 0" in text
    assert "NVIDIA H200, driver 580, gemmjit 0123456789, 2026-12-01; 15 rounds" in block(
        "tune-origin", record(ONE)
    )


def test_a_fixed_tile_is_compared_where_it_was_timed_on_every_case():
    text = block("invariance-table", record(ONE, TWO, DRAWN))
    assert "| fprop | `k3 b` | 1.010 | 1.020 |" in text
    assert "| fprop | `k3 a` | 1.049 | 1.100 |" in text
    assert "`k3 c`" not in text
    assert "wgrad" not in text


def test_without_the_file_the_blocks_say_so():
    for name in ("tune-origin", "tune-table", "invariance-table"):
        assert block(name, {}) == ("Not measured yet: `docs/benchmarks/tune_h200.json` is missing.")


def test_the_published_picks_are_those_of_today():
    """Of the model and the rules, on what was measured; the model's are within its limit."""
    published = json.loads((BENCHMARKS / "tune_h200.json").read_text(encoding="utf-8"))
    named = [result for result in published["results"] if not result["drawn"]]
    assert len(named) == 3 * (len(CASES) - 1)  # one of the cases shares a bucket
    assert len(published["results"]) - len(named) >= 16
    for result in published["results"]:
        work = result["workload"]
        case = case_of(work["case"])
        problem = Workload(case, work["form"]).problem(result["layout"])
        sizes = power_law(case.rows, case.num_groups, 0.0)
        times = {
            one["tile"]: predict(problem, config_of(one), GPUS[90], sizes).us
            for one in result["candidates"]
        }
        check = result["check"]
        assert check["model"]["tile"] == f"k3 {min(times, key=times.__getitem__)}"
        kernel, config = choose(problem, Arch(90))
        if problem.form == "ragged_k":  # measured before groups could be split
            config = replace(config, split_rows=0)
        assert check["heuristic"]["tile"] == f"{kernel.name} {config}"
        # What the rules reach today, 6.5 and 1.9 %: they shall not get worse.
        assert check["heuristic"]["ratio"] < (1.066 if result["drawn"] else 1.03)
    assert is_within([result["check"] for result in published["results"]], "model")


def config_of(one):
    return KERNELS[one["kernel"]].config_type.from_dict(one["config"])
