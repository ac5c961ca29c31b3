"""What the tables of the documentation say."""

from __future__ import annotations

import json
import re
import sys

import pytest
from doc_figures import (
    block,
    findings,
    slow_down,
    trained,
    verdicts,
)

from gemmjit.bench.ladder import LADDER_CASES


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


def test_a_small_difference_is_none_and_an_uncertain_one_is_open():
    from gemmjit.bench.statistics import Interval

    def interval(median, low, high):
        return Interval(median, low, high, 0.96, 15)

    gain, loss = interval(1.2, 1.1, 1.3), interval(0.9, 0.85, 0.98)
    wide = interval(1.2, 0.9, 1.3)
    assert findings.judge({"hot": interval(1.005, 1.004, 1.006)}) == "no difference"
    assert findings.judge({"hot": wide}) == "inconclusive"
    assert findings.judge({"hot": gain}) == "holds"
    assert findings.judge({"hot": loss}) == "does not hold"
    assert findings.judge({"hot": gain, "cool": loss}) == "differs by state"
    assert findings.judge({"hot": wide, "cool": gain}) == "inconclusive hot, holds cool"
    assert findings.judge({}) == "not measured"


def test_states_whose_intervals_overlap_do_not_disagree(results):
    """A wide interval beside a clear one is no reason to speak of power."""
    from gemmjit.bench.statistics import Interval

    finding = findings.FINDINGS[0]
    gains = {"hot": Interval(1.02, 0.92, 1.11, 0.96, 15), "cool": Interval(1.04, 1.03, 1.05, 1, 15)}
    reason = findings._reason(finding, gains, findings.judge(gains))
    assert finding.holds in reason
    assert "interval measured hot says neither" in reason
    assert "power" not in reason


def test_the_span_of_few_rows_is_that_of_the_table(results):
    assert block("k3-few-rows", results) == "Not measured: none of the cases with few rows."
    found = results["grouped"]["results"][0]
    found["case"] = "olmo-1k"
    own = [
        entrant
        for state in found["states"].values()
        for entrant in state["entrants"]
        if entrant["name"] == state["best"]["gemmjit"]
    ]
    for entrant, ratio in zip(own, (1.234, 0.5), strict=True):
        entrant["over_floor"] = ratio
    assert f"{found['form']} 0.50 to 1.23." in block("k3-few-rows", results)


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


def test_training_says_where_gemmjit_is_further_off_than_the_noise(results):
    head = results["training"]
    text = block("training-curves", {"training": {**head, **trained()}})
    lines = [
        [c.strip() for c in line.split("|")[1:-1]] for line in text.splitlines() if "|" in line
    ]
    assert lines[2] == ["1 to 20", "1.7625", "+0.0100", "-0.0200", "yes"]
    assert lines[3] == ["21 to 40", "1.2625", "-0.0500", "+0.0300", "no"]
    assert "gemmjit 0.050 (step 21)" in text
    assert "In 1 of 2 spans" in text
    assert "one draw of the noise" in text
    two = block("training-curves", {"training": {**head, **trained(noise=2)}})
    assert "In 2 of 2 spans" in two
    assert "one draw" not in two
    assert "how large the noise is" in block("training-curves", {"training": trained(noise=0)})
    assert "| gemmjit | 9.00 | 0.900 |" in block("training-steps", {"training": trained()})


def test_an_epilogue_names_its_baseline_where_it_is_another(results):
    record = json.loads(json.dumps(results["epilogues"]))
    for state in record["results"][0]["states"].values():
        store = state["entrants"][0]
        state["entrants"] += [{**store, "name": name} for name in ("accumulate", "alone")]
        ratio = {**state["ratios"][0], "name": "accumulate", "baseline": "store_f32"}
        state["ratios"].append(ratio | {"median": 1.25, "low": 1.2, "high": 1.3})
    text = block("k3-epilogues", {"epilogues": record})
    (row,) = [line for line in text.splitlines() if line.startswith("| `accumulate`")]
    assert row.count("1.250 (1.200 to 1.300)") == row.count(", over `store_f32` |") == 2
    assert text.count("over `store_f32`") == 2
    assert text.count("| baseline |") == 2
    (row,) = [line for line in text.splitlines() if line.startswith("| `alone`")]
    assert row.count("| - |") == 2


def test_counters_of_many_products_are_a_table_for_each_form(results):
    one = {
        "kernel": "gemmjit_k3_a",
        "duration_us": 135.23,
        "sm_clock_mhz": 1514.5,
        "tensor_pipe_pct": 88.5,
        "dram_throughput_pct": 71.6,
        "l2_throughput_pct": None,
        "stalls": {"long_scoreboard": 4.64, "barrier": 1.96, "wait": 1.61, "dispatch": 0.39},
    }
    names = ("a case fprop", "a case wgrad", "b case fprop", "c fprop", "c fprop")
    record = {
        **results["k3_counters"],
        "launches": [{**one, "workload": name} for name in names],
        "skipped": ["d wgrad"],
    }
    record["launches"][-1]["kernel"] = "gemmjit_k3_b"
    text = block("k3-counters", {"k3_counters": record})
    first, second = text.split("\n| wgrad | us | MHz |")
    assert first.startswith("One simulated device")
    assert "counters_k3_h200.json" in first
    assert "\n| fprop | us | MHz | tensor pipe % | DRAM % | L2 % |" in first
    stalls = "long_scoreboard 4.6, barrier 2.0, wait 1.6 |"
    assert f"| a case | 135.2 | 1514 | 88 | 72 | - | {stalls}\n| b case |" in first
    assert "| c (`gemmjit_k3_a`) |" in first
    assert "| c (`gemmjit_k3_b`) |" in first
    assert second.count("| a case | 135.2 |") == 1
    assert "Not profiled, the time was over: d wgrad." in second
