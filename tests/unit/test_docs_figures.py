"""Figures of the documentation: from result files, on a simulated device whose times are known."""

from __future__ import annotations

import json
import re
import shutil
from importlib import import_module

import pytest
from doc_figures import (
    BENCHMARKS,
    CHECKOUT,
    DOCS,
    block,
    figures,
    generate,
    records,
)

from gemmjit.bench.cases import CASES


def test_host_costs_of_few_rounds_are_marked(results):
    for valid in (False, True):
        cost = {"median": 16.25, "low": 12.5, "high": 19.9, "valid": valid}
        host = results["host"] | {"results": [{"form": "fprop", "costs": {"own": {"us": cost}}}]}
        text = block("figures", {"host": host})
        assert "16.2 (12.5 to 19.9)" in text
        assert ("19.9) !" in text) is not valid
        assert ("`!`: fewer rounds" in text) is not valid
        assert ", driver " in text


def test_every_case_is_said_with_its_sizes(results):
    lines = block("cases", {}).splitlines()
    assert lines == block("cases", results).splitlines()
    assert len(lines) == 2 + len(CASES)
    for line, case in zip(lines[2:], CASES.values(), strict=True):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert cells[:3] == [case.name, f"{case.rows:,}", str(case.num_groups)]
        assert cells[4:] == [str(case.k), str(case.n)]
    assert "| 32 to 4,793 |" in lines[3]


def test_the_readme_says_whether_other_peers_are_published(results):
    grouped = results["grouped"]
    assert "Intervals and other peers: [k3]" not in block("figures", {"grouped": grouped})
    peers = grouped["peers"] | {"cublas": {"title": "another"}}
    text = block("figures", {"grouped": grouped | {"peers": peers}})
    assert "Intervals and other peers: [k3]" in text
    assert "no results are published" not in text


def test_the_readme_says_what_its_two_tables_share(results):
    """Half the time in the ladder's run is twice the throughput, at other clocks."""
    ladder, grouped = (json.loads(json.dumps(results[name])) for name in ("ladder", "grouped"))
    assert "cannot be compared" not in block("figures", {"grouped": grouped})
    for state, clock in (("hot", 1500.0), ("cool", 1980.0)):
        there = ladder["states"][state]
        there["telemetry"]["sm_clock_mhz"] = {"median": clock}
        for result in grouped["results"]:
            here = result["states"][state]
            here["telemetry"]["sm_clock_mhz"] = {"median": clock - 100}
            rows = [r for n, r in there["rows"].items() if n.startswith(f"{result['case']}: torch")]
            for row in rows:
                own = [one["tflop_per_s"] for one in here["entrants"] if one["peer"] == "torch"]
                if result["form"] == "fprop":
                    row["tflop_per_s"] = 2 * max(own)
    text = block("figures", {"ladder": ladder, "grouped": grouped})
    assert "cannot be compared" in text
    assert "hot by +100.0 to +100.0 %, at 1500 MHz against 1400 MHz" in text
    assert "cool by +100.0 to +100.0 %, at 1980 MHz against 1880 MHz" in text


# The pages as they are


def test_pages_are_up_to_date():
    pages = generate.pages_with_figures()
    assert {path.name for path in pages} >= {"README.md", "ladder.md", "scheduling.md", "k3.md"}
    for path, text in pages.items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run make docs"


def test_every_block_stands_in_exactly_one_page():
    names = []
    for path in (CHECKOUT / "README.md", *DOCS.rglob("*.md")):
        text = path.read_text(encoding="utf-8")
        names += [match["name"] for match in generate._BLOCK.finditer(text)]
        begun = re.findall(r"^<!-- ([\w-]+): begin\b", text, re.MULTILINE)
        assert begun == [match["name"] for match in generate._BLOCK.finditer(text)], path
    assert sorted(names) == sorted(figures.BLOCKS)


def test_pictures_belong_to_the_published_results():
    """If there are results: each picture names the date of the file that it is drawn from."""
    published = figures.read(BENCHMARKS)
    shown = set()
    for path, text in generate.pages_with_figures().items():
        found = re.findall(r"!\[[^\]]*\]\(([^)]+\.png)\)", text)
        shown |= {(path.parent / target).resolve() for target in found}
    drawn = {
        "ladder_": "ladder",
        "scheduling_": "scheduling",
        "grouped_": "grouped",
        "roofline_": "grouped",
        "sweep_": "sweep",
        "train_moe": "training",
    }
    assert bool(shown) == bool({"ladder", "scheduling"} & set(published))
    for picture in shown:
        name = next(name for prefix, name in drawn.items() if picture.name.startswith(prefix))
        record = published[name]
        runs = [record, *(one["run"] for one in record.get("results", ()) if "run" in one)]
        for run in runs:
            assert run["date"].encode() in picture.read_bytes(), f"{picture.name}: make docs"


# Files


def test_a_missing_file_is_named_in_every_block():
    for name in set(figures.BLOCKS) - {"cases"}:  # which are no result
        text = block(name, {})
        assert "Not measured yet" in text or text == "No measurement is published yet.", name


def test_a_simulated_result_is_never_published(tmp_path, results):
    file, _ = records.FILES["ladder"]
    (tmp_path / file).write_text(json.dumps(results["ladder"]))
    with pytest.raises(ValueError, match="simulated"):
        figures.read(tmp_path)
    assert set(figures.read(tmp_path, simulated=True)) == {"ladder"}


@pytest.mark.parametrize(
    ("change", "text"),
    [({"kind": "grouped"}, "expected kind 'ladder'"), ({"schema": 99}, "expected schema")],
)
def test_a_file_that_holds_something_else_is_refused(tmp_path, results, change, text):
    file, _ = records.FILES["ladder"]
    (tmp_path / file).write_text(json.dumps({**results["ladder"], **change}))
    with pytest.raises(ValueError, match=text):
        figures.read(tmp_path, simulated=True)


def test_blocks_are_written_anew_and_nothing_else():
    text = "a\n<!-- one: begin. Why. -->\nold\n\nold\n<!-- one: end -->\nb\n"
    filled = generate.fill(text, {"one": lambda results: f"new {results}"}, 7)
    assert filled == "a\n<!-- one: begin. Why. -->\nnew 7\n<!-- one: end -->\nb\n"
    assert generate.fill(filled, {"one": lambda results: f"new {results}"}, 7) == filled
    with pytest.raises(KeyError):
        generate.fill(text, {}, 7)


def test_pages_and_pictures_of_a_full_set(tmp_path, results, monkeypatch):
    """What the pages become once every file is there: no block says that something is missing."""
    pytest.importorskip("matplotlib")
    docs = tmp_path / "docs"
    shutil.copytree(
        DOCS, docs, ignore=shutil.ignore_patterns("__pycache__", "*.png", "*_h200.json")
    )
    shutil.copy(CHECKOUT / "README.md", tmp_path)
    for name, record in results.items():
        real = {**record, "device": {**record.get("device", {}), "simulated": False}}
        (docs / "benchmarks" / records.FILES[name][0]).write_text(json.dumps(real))
    monkeypatch.setattr(generate, "HERE", docs)
    monkeypatch.setattr(generate, "BENCHMARKS", docs / "benchmarks")
    drawn = {path.name: path for path in generate.draw()}
    for kind in (
        "ladder_throughput",
        "ladder_skew",
        "scheduling",
        "grouped_fprop",
        "grouped_wgrad",
    ):
        for state in ("hot", "cool"):
            assert drawn[f"{kind}_{state}.png"].stat().st_size > 5000
    for name in ("roofline_hot", "roofline_cool", "sweep_rows", "sweep_skew", "train_moe"):
        assert drawn[f"{name}.png"].stat().st_size > 5000
    pages = generate.pages_with_figures()
    assert len(pages) >= 4
    for path, text in pages.items():
        assert "Not measured yet" not in text, path
        assert "No measurement is published yet" not in text
        for target in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text):
            picture = path.parent / target
            assert results["ladder"]["date"].encode() in picture.read_bytes()


def test_results_of_a_later_run_say_so(results, tmp_path):
    record = results["scheduling"]
    labels = [one["label"] for one in record["results"]]
    later = {
        **record,
        "date": "2031-05-06T07:08:09+00:00",
        "source": {**record["source"], "commit": "feedbeefcafe"},
        "results": [{**record["results"][1], "rows": 77}],
    }
    merged = records.merge(record, later)
    assert [one["label"] for one in merged["results"]] == labels
    assert [one["rows"] for one in merged["results"] if "run" in one] == [77]
    assert merged["source"]["commit"] == record["source"]["commit"]
    text = block("scheduling-origin", {"scheduling": merged})
    first, second = text.split(f" {labels[1]}: ")
    assert first.startswith(f"{labels[0]}, {labels[2]}, {labels[3]}: One simulated device")
    assert "gemmjit 0123456789" in first
    assert "gemmjit feedbeefca, 2031-05-06" in second
    assert "feedbeef" not in block("scheduling-origin", {"scheduling": record})
    with pytest.raises(ValueError, match="expected kind 'scheduling'"):
        records.merge(record, results["grouped"])

    pytest.importorskip("matplotlib")
    for path in import_module("gemmjit.bench.plots").plot_scheduling(merged, tmp_path):
        drawn = path.read_bytes()
        assert b"2031-05-06T07:08:09+00:00" in drawn
        assert record["date"].encode() in drawn


def test_the_default_is_compared_with_the_best_other_way(results):
    record = json.loads(json.dumps(results["scheduling"]))
    for entrant in record["results"][0]["states"]["hot"]["entrants"]:
        factor = {"bounded": 2.0, "compact": 4.0}.get(entrant["name"], 1.0)
        entrant["samples_us"] = [factor * 10.0] * 15
    del record["results"][1]["states"]["hot"]
    text = block("scheduling-verdict", {"scheduling": record})
    lines = [[c.strip() for c in line.split("|")[1:-1]] for line in text.splitlines()]
    assert lines[2][:4] == ["4", "2", "persistent", "0.500 (0.500 to 0.500) bounded"]
    assert lines[3][3] == "not measured"
