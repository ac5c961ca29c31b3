"""The figures of README.md: a picture of the ladder, and three short tables."""

from __future__ import annotations

from figures.grouped import OWN, forms_and_states, geometric_mean, own_ratio
from figures.ladder import best_rung
from figures.records import FILES, Record, Results, markdown, origin, shown, states_of

__all__ = ["summary"]

_LADDER = ("k0", "k1", "k2", "k3")


def summary(results: Results) -> str:
    """Return what README.md shows of all results."""
    parts = []
    if "ladder" in results:
        parts.append(_ladder(results["ladder"]))
    if "grouped" in results:
        parts.append(_grouped(results["grouped"]))
        parts += _across(results)
    if "host" in results:
        parts.append(_host(results["host"]))
    return "\n\n".join(parts) or "No measurement is published yet."


def _ladder(record: Record) -> str:
    """Return the best rung of each kernel on each case, in the first state."""
    states = states_of(record)
    if not states:
        return "The ladder was not measured."
    state = states[0]
    rows = record["states"][state]["rows"]
    lines = []
    for kernel in _LADDER:
        cells = []
        for case in record["cases"]:
            rung = best_rung(record, state, case, kernel)
            cells.append("-" if rung is None else _rate(rows[f"{case}: {rung}"], rung))
        if set(cells) != {"-"}:
            lines.append([kernel, *cells])
    torch = [
        max((rows[n] for n in rows if n.startswith(f"{case}: torch")), key=_useful, default=None)
        for case in record["cases"]
    ]
    if any(torch):
        lines.append(["torch", *("-" if row is None else f"{_useful(row):.0f}" for row in torch)])
    return (
        f"![Useful throughput of every rung](docs/benchmarks/ladder_throughput_{state}.png)"
        f"\n\nUseful TFLOP/s of each kernel's best rung, {state}:\n\n"
        f"{markdown(('kernel', *record['cases']), lines)}\n\n"
        f"{origin(record, [record], FILES['ladder'][0])} Every rung, and what was expected of it: "
        "[the ladder](docs/explanation/ladder.md)."
    )


def _grouped(record: Record) -> str:
    pairs = list(forms_and_states(record))
    cases = list(dict.fromkeys(result["case"] for result in record["results"]))
    rows = []
    for case in cases:
        cells = []
        for form, state in pairs:
            found = [r for r in record["results"] if (r["case"], r["form"]) == (case, form)]
            ratio = own_ratio(record, found[0], state) if found else None
            cells.append("-" if ratio is None else f"{ratio['median']:.2f}")
        rows.append([case, *cells])
    means = [geometric_mean(record, form, state) for form, state in pairs]
    rows.append(["geometric mean", *("-" if mean is None else f"{mean:.2f}" for mean in means)])
    head = ("case", *(f"{form}, {state}" for form, state in pairs))
    baseline = record["peers"].get(record["baseline"], {}).get("title", record["baseline"])
    others = set(record["peers"]) - {OWN, record["baseline"]}
    more = (
        "Intervals and other peers: [k3](docs/explanation/k3.md)"
        if others
        else "Intervals: [k3](docs/explanation/k3.md); `gemmjit bench grouped --list` names other "
        "peers, of which no results are published"
    )
    return (
        f"Time of `gemmjit.grouped_mm` over that of {baseline} in the same rounds (below 1 is "
        f"faster), each with the faster layout of the weights:\n\n{markdown(head, rows)}\n\n"
        f"{origin(record, record['results'], FILES['grouped'][0])} {more}; how it is "
        "measured: [measuring](docs/explanation/measuring.md)."
    )


def _across(results: Results) -> list[str]:
    """Return by how much the baseline differs between the two tables, and the clocks of both."""
    if "ladder" not in results or results["grouped"]["baseline"] != "torch":
        return []
    ladder, grouped = results["ladder"], results["grouped"]
    parts = []
    for state in states_of(ladder):
        there = ladder["states"][state]
        gains, clocks = [], []
        for result in grouped["results"]:
            here = result["states"].get(state)
            if here is None or result["form"] != "fprop" or result["case"] not in ladder["cases"]:
                continue
            own = [_useful(one) for one in here["entrants"] if one["peer"] == "torch"]
            others = [
                _useful(row)
                for name, row in there["rows"].items()
                if name.startswith(f"{result['case']}: torch")
            ]
            if own and others:
                gains.append(100 * (max(others) / max(own) - 1))
                clocks += _clocks(here)
        if gains:
            part = f"{state} by {min(gains):+.1f} to {max(gains):+.1f} %"
            if clocks and _clocks(there):
                part += f", at {_range(_clocks(there))} MHz against {_range(clocks)} MHz"
            parts.append(part)
    if not parts:
        return []
    return [
        "The two tables cannot be compared with each other. On the cases of both, the throughput "
        "of torch's fprop in the ladder's run differs from that in this one: "
        f"{'; '.join(parts)}. Under load the power limit sets the clock, which depends on what "
        "else takes turns: in the ladder, kernels that draw less power too."
    ]


def _clocks(state: Record) -> list[int]:
    """Return the median clock of a cell, if it was sampled."""
    found = state["telemetry"].get("sm_clock_mhz")
    return [round(found["median"])] if found else []


def _range(values: list[int]) -> str:
    return " to ".join(str(value) for value in sorted({min(values), max(values)}))


def _host(record: Record) -> str:
    rows = []
    for result in record["results"]:
        for name, cost in result["costs"].items():
            rows.append([f"{result['form']}, {name}", shown(cost["us"], 1)])
    table = markdown(("call", "us"), rows)
    text = f"Host cost of a repeated call, median and its interval:\n\n{table}"
    if any(row[-1].endswith("!") for row in rows):
        text += "\n\n`!`: fewer rounds than make a result; a first look."
    for name, first in record["first_calls"].items():
        if "error" not in first:
            text += (
                f"\n\nFirst call in a process, {name}: {first['first_ms']:.1f} ms{_span(first)}."
            )
    return f"{text}\n\n{origin(record, (), FILES['host'][0])}"


def _span(first: Record) -> str:
    times = first.get("all_first_ms")
    if not times:
        return ""
    return f" ({min(times):.1f} to {max(times):.1f} in {len(times)} processes)"


def _rate(row: Record, rung: str) -> str:
    return f"{_useful(row):.0f} (`{rung}`)"


def _useful(row: Record) -> float:
    return float(row["tflop_per_s"])
