"""Figures of the documentation: from result files, on a simulated device whose times are known."""

from __future__ import annotations

import copy
import importlib.util
import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from gemmjit.bench.cases import Case, Workload
from gemmjit.bench.grouped import run_grouped
from gemmjit.bench.host_run import run_host
from gemmjit.bench.ladder import LADDER_CASES, run_ladder
from gemmjit.bench.peers import PEERS
from gemmjit.bench.peers.own import own_contender
from gemmjit.bench.peers.peer import Peer
from gemmjit.bench.protocol import Protocol
from gemmjit.bench.provenance import provenance
from gemmjit.bench.scheduling import Sizes, run_scheduling, scheduling_cases
from gemmjit.bench.setup import open_bench
from gemmjit.bench.simulated import ClockModel, SimulatedBackend
from gemmjit.config import Sm90TmaMmaConfig
from gemmjit.workloads import power_law

CHECKOUT = Path(__file__).resolve().parents[2]
DOCS = CHECKOUT / "docs"
BENCHMARKS = DOCS / "benchmarks"


def load_generate():
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


generate = load_generate()
figures = generate._figures()
findings = sys.modules["figures.findings"]
records = sys.modules["figures.records"]


class Slow(Peer):
    """The baseline: gemmjit, said to take twice as long."""

    name = "torch"
    title = "a baseline"

    def available(self, backend):
        return None

    def contenders(self, workload, backend):
        from dataclasses import replace

        own = own_contender("torch nn", workload, backend, config="k0")

        def prepare(operands):
            prepared = own.prepare(operands)

            def call():
                return prepared.call()

            call.simulated_seconds = 2 * backend.model.default_seconds
            return replace(prepared, call=call)

        return [replace(own, name="torch nn", peer="torch", prepare=prepare, details={})]


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    """Result files of every kind, on small problems under the names of the published ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GEMMJIT_EXECUTOR", "reference")
        patch.setenv("GEMMJIT_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        backend = SimulatedBackend(ClockModel(noise=0.001), l2_bytes=1 << 12)
        protocol = Protocol(warmup_seconds=0.01, slot_seconds=0.0002, graph_seconds=0.0001)
        bench = open_bench(backend, protocol, ("cool", "hot"), 4, None, lambda text: None)
        head = provenance(backend, None, ["gemmjit", "bench"])
        head["source"] |= {"commit": "0123456789abcdef", "dirty": False}
        shapes = {"even": power_law(256, 4, 0.0), "skewed": power_law(256, 4, 1.2)}
        few = power_law(32, 4, 0.0)
        cases = [
            Case(name, tuple(sizes.tolist()), 64, 64)
            for name, sizes in zip(LADDER_CASES, (*shapes.values(), few), strict=True)
        ]
        sizes = Sizes(groups=(4, 8), few=2, many=8, k=64, n=64)
        extra = (Sm90TmaMmaConfig(swizzle=64),)
        works = [Workload(case, form) for case in cases[:2] for form in ("fprop", "wgrad")]
        torch = Slow()
        found = {
            "ladder": run_ladder(bench, cases, torch, kernels=("k0", "k1", "k2")),
            "scheduling": {
                "results": run_scheduling(
                    bench, scheduling_cases(sizes), lambda r: None, capacity=4, kernel="k1"
                )
            },
            "tiles": {
                "results": run_scheduling(
                    bench, cases[:1], lambda r: None, kernel="k2", extra=extra
                )
            },
            "grouped": {
                "baseline": "torch",
                "missing": [],
                "peers": {n: {"title": n, "version": None} for n in ("gemmjit", "torch")},
                "results": run_grouped(
                    bench, works, [PEERS["gemmjit"], torch], "torch", lambda r: None
                ),
            },
            "host": run_host(
                backend,
                cases[2],
                ("fprop",),
                calls=20,
                batch=10,
                first=False,
                device=0,
                say=lambda text: None,
            ),
        }
        kinds = {name: kind for name, (_, kind) in records.FILES.items()}
        results = {name: {**head, "kind": kinds[name], **found[name]} for name in found}
        entry = results["ladder"]["states"]["hot"]["rows"][f"{LADDER_CASES[0]}: k1/64"]
        results["counters"] = {
            "kind": "counters",
            "launches": [
                {"kernel": entry["details"]["entry"], "issue_rate": 0.4567, "instructions": 2.5e6}
                | {"stalls": {"barrier": 3.21, "wait": 1.0}},
                {"kernel": "Kernel Name", "stalls": {}},  # the head of a second table
            ],
        }
        return json.loads(json.dumps(results))


@pytest.fixture
def results(simulated):
    """A copy that a test may change."""
    return copy.deepcopy(simulated)


def block(name, results):
    return figures.BLOCKS[name](results)


def slow_down(record, rung, factor, cases=LADDER_CASES, states=("hot", "cool")):
    """Make a rung of the ladder slower than it was."""
    for state in states:
        for case in cases:
            row = record["states"][state]["rows"][f"{case}: {rung}"]
            row["samples_us"] = [factor * value for value in row["samples_us"]]
            row["us"]["median"] *= factor
            row["tflop_per_s"] /= factor


def verdicts(results):
    lines = block("ladder-findings", results).splitlines()[2:]
    return {cells[1].strip(): cells[4].strip() for cells in (line.split("|") for line in lines)}


def test_host_costs_of_few_rounds_are_marked(results):
    for valid in (False, True):
        cost = {"median": 16.25, "low": 12.5, "high": 19.9, "valid": valid}
        host = results["host"] | {"results": [{"form": "fprop", "costs": {"own": {"us": cost}}}]}
        text = block("figures", {"host": host})
        assert "16.2 (12.5 to 19.9)" in text
        assert ("19.9) !" in text) is not valid
        assert ("`!`: fewer rounds" in text) is not valid
        assert ", driver " in text


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
    drawn = {"ladder": "ladder_", "scheduling": "scheduling_", "grouped": "grouped_"}
    assert bool(shown) == bool({"ladder", "scheduling"} & set(published))
    for picture in shown:
        name = next(n for n, prefix in drawn.items() if picture.name.startswith(prefix))
        assert published[name]["date"].encode() in picture.read_bytes(), (
            f"{picture.name}: make docs"
        )


# Files


def test_a_missing_file_is_named_in_every_block():
    for name in figures.BLOCKS:
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
    pages = generate.pages_with_figures()
    assert len(pages) >= 4
    for path, text in pages.items():
        assert "Not measured yet" not in text, path
        assert "No measurement is published yet" not in text
        for target in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text):
            picture = path.parent / target
            assert results["ladder"]["date"].encode() in picture.read_bytes()


# What the tables say


def test_the_origin_names_device_commit_and_date(results):
    text = block("ladder-origin", results)
    for part in ("simulated device", "0123456789", results["ladder"]["date"][:10], "15 rounds"):
        assert part in text, part
    assert "ladder_h200.json" in text
    state = results["ladder"]["states"]["hot"]
    state["telemetry"]["sm_clock_mhz"] = {"median": 1301.4, "min": 1200, "max": 1400}
    state["telemetry"]["power_w"] = {"median": 699.6, "min": 600, "max": 701}
    assert "; hot: 1301 MHz, 700 W" in block("ladder-origin", results)


def test_times_and_shares_are_those_of_the_file(results):
    record = results["ladder"]
    row = record["states"]["hot"]["rows"][f"{LADDER_CASES[0]}: k1/128"]
    row["us"]["median"], row["tflop_per_s"], row["over_torch"]["median"] = 412.34, 218.71, 2.5
    text = block("ladder-times", results)
    assert "| k1/128 | 412.3 · 218.7 · 0.40 |" in text
    assert text.index("**Hot**") < text.index("**Cool**")
    resources = block("ladder-resources", results)
    registers = row["details"]["registers"]
    assert re.search(rf"\| k1/128 \| `128x128x32_s2` \| {registers} \| \d+ \| 2 \|", resources)
    assert "torch" not in resources


def test_a_step_is_a_ratio_of_the_same_rounds(results):
    slow_down(results["ladder"], "k0", 8.0)
    slow_down(results["ladder"], "k1/64", 1.25, states=("hot",))
    cells = block("ladder-tensor-cores", results).splitlines()[2].split("|")
    assert cells[1].strip() == "k1/128 over k0, hot"
    assert float(cells[2].split()[0]) == pytest.approx(8.0, abs=0.02)
    lines = block("ladder-height", results).splitlines()[2:]
    found = {line.split("|")[1].strip(): float(line.split("|")[2].split()[0]) for line in lines}
    assert found["k1/64 over k1/128, hot"] == pytest.approx(0.8, abs=0.005)
    assert found["k1/64 over k1/128, cool"] == pytest.approx(1.0, abs=0.005)


def test_the_goal_of_k2_is_judged(results):
    rows = results["ladder"]["states"]["hot"]["rows"]
    k2 = [rung for rung in results["ladder"]["rungs"] if rung.startswith("k2")]
    assert "2.00 of torch's throughput: reached" in block("ladder-goal", results)
    for rung in k2:
        rows[f"{LADDER_CASES[0]}: {rung}"]["over_torch"]["median"] = 1 / 0.59
    assert "- hot: " in block("ladder-goal", results)
    assert "0.59 of torch's throughput: not reached" in block("ladder-goal", results)


def test_verdicts_follow_the_measurement(results):
    """All rungs take the same time on the simulated device; then known ones are slowed down."""
    found = verdicts(results)
    assert len(found) == len(findings.FINDINGS) + 1
    *compared, eta = found.values()
    assert set(compared) == {"no difference"}
    assert eta != "holds"  # tiles cost nothing there
    record = results["ladder"]
    two = sys.modules["figures.ladder"].rung_with(record, "k2", 2, 2)
    slow_down(record, two, 1.1)
    slow_down(record, "k1/64 fdb", 1.1)
    slow_down(record, "k1/128", 1.5, states=("hot",))
    found = verdicts(results)
    assert found[_claim("residency beats stages")] == "does not hold"
    assert found[_claim("double-buffered fragments")] == "holds"
    assert found[_claim("a lower tile wins by residency")] == "differs by state"
    reasons = block("ladder-reasons", results)
    finding = next(f for f in findings.FINDINGS if f.claim.startswith("residency beats"))
    assert finding.fails in reasons
    assert finding.holds not in reasons


def test_a_small_or_uncertain_difference_is_none():
    from gemmjit.bench.statistics import Interval

    def interval(median, low, high):
        return Interval(median, low, high, 0.96, 15)

    assert findings.judge([interval(1.005, 1.004, 1.006)]) == "no difference"
    assert findings.judge([interval(1.2, 0.9, 1.3)]) == "no difference"
    assert findings.judge([interval(1.2, 1.1, 1.3)]) == "holds"
    assert findings.judge([interval(0.9, 0.85, 0.98)]) == "does not hold"
    assert findings.judge([interval(1.2, 1.1, 1.3), interval(0.9, 0.8, 0.95)]) == "differs by state"
    assert findings.judge([]) == "not measured"


def _claim(start):
    return next(f.claim for f in findings.FINDINGS if f.claim.startswith(start))


def test_the_loss_by_skew_marks_what_is_off(results):
    text = block("ladder-skew", results)
    off = [row for row in results["ladder"]["states"]["hot"]["skew"] if row["predicted_loss"]]
    assert off
    assert all(not row["within_four_points"] for row in off if row["predicted_loss"] > 0.05)
    assert "**" in text
    for row in results["ladder"]["states"]["hot"]["skew"]:
        row["within_four_points"] = True
    for row in results["ladder"]["states"]["cool"]["skew"]:
        row["within_four_points"] = True
    assert "**" not in block("ladder-skew", results)
    assert verdicts(results)[findings._ETA] == "holds"


def test_counters_are_shown_by_rung(results):
    text = block("ladder-counters", results)
    assert "| k1/64 | 0.46 | - | - | - | - | 2.5 | barrier 3.2, wait 1.0 |" in text
    assert "the workload is not recorded" in text
    assert "Kernel Name" not in text


def test_schedules_are_compared_with_the_walk(results):
    for result in results["scheduling"]["results"]:
        for entrant in result["states"]["hot"]["entrants"]:
            factor = {"bounded": 1.5, "capacity bounded": 3.0}.get(entrant["name"], 1.0)
            entrant["samples_us"] = [factor * value for value in entrant["samples_us"]]
            entrant["us"]["median"] *= factor
    rows = [r.split("|") for r in block("scheduling-table", results).splitlines() if "k1 `" in r]
    assert len(rows) == 8  # four cases, two states
    assert all(float(row[5].split()[0]) == pytest.approx(1.5, abs=0.01) for row in rows[:4])
    assert all(row[8].strip() == "persistent, compact" for row in rows[:4])
    roomy = block("scheduling-capacity", results).splitlines()
    cells = next(line for line in roomy if line.startswith("| 4 |")).split("|")
    assert float(cells[5].split()[0]) == pytest.approx(2.0, abs=0.02)
    text = block("scheduling-verdict", results)
    assert "within 1 % of it, in 4 of 4 cases" in text
    for result in results["scheduling"]["results"]:
        (one,) = [e for e in result["states"]["cool"]["entrants"] if e["name"] == "persistent"]
        one["samples_us"] = [1.25 * value for value in one["samples_us"]]
    text = block("scheduling-verdict", results)
    assert "- cool, the persistent walk is the fastest, or within 1 % of it, in 0 of 4" in text
    assert re.search(r"- cool, it loses most, 2[4-6]\.\d %, to (bounded|compact) at E = ", text)


def test_further_tiles_are_shown_over_the_default(results):
    text = block("ladder-tiles", results)
    assert re.search(r"\| `128x128x64_s3_sw64` \| \d+ \| 2 \|", text)
    assert "persistent" not in text


def test_peers_and_their_mean(results):
    text = block("k3-table", results)
    assert text.count("Geometric mean over torch: 0.50") == 4  # two forms, two states
    summary = block("figures", results)
    assert "| geometric mean | 0.50 | 0.50 | 0.50 | 0.50 |" in summary
    assert "fprop, gemmjit, numpy" in summary
    assert "docs/benchmarks/ladder_throughput_hot.png" in summary
