"""Result files, and what all tables need of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gemmjit.bench.provenance import SCHEMA
from gemmjit.bench.statistics import Interval, ratio_interval

__all__ = [
    "EVEN",
    "FEW",
    "FILES",
    "SKEWED",
    "STATES",
    "Results",
    "markdown",
    "merge",
    "missing",
    "origin",
    "picture",
    "ratio",
    "read",
    "shown",
    "states_of",
    "title_of",
]

Record = Mapping[str, Any]
Results = Mapping[str, Record]

#: What is published: a name, its file, and the kind of result that the file must hold.
FILES = {
    "ladder": ("ladder_h200.json", "ladder"),
    "counters": ("counters_h200.json", "counters"),
    "tiles": ("tiles_h200.json", "scheduling"),
    "scheduling": ("scheduling_h200.json", "scheduling"),
    "grouped": ("grouped_h200.json", "grouped"),
    "sweep": ("sweep_h200.json", "grouped"),
    "host": ("host_h200.json", "host"),
    "tune": ("tune_h200.json", "tune"),
    "epilogues": ("epilogues_h200.json", "epilogues"),
    "k3_counters": ("counters_k3_h200.json", "counters"),
    "training": ("train_moe_h200.json", "training"),
}

#: Power states in the order of the tables.
STATES = ("hot", "cool")

#: The ladder's cases: many rows evenly, the same skewed, few rows.
EVEN, SKEWED, FEW = "seed1-16k-s0", "seed1-16k-s1.2", "seed1-2k-s0"


def read(directory: Path, *, simulated: bool = False) -> Results:
    """Return the result files of a directory by name; those that are missing are left out.

    Parameters
    ----------
    directory : Path
    simulated : bool
        Whether results of a simulated device are taken. They are never published.

    Raises
    ------
    ValueError
        If a file holds something else than its name says.
    """
    found = {}
    for name, (file, kind) in FILES.items():
        path = directory / file
        if not path.exists():
            continue
        record = json.loads(path.read_text(encoding="utf-8"))
        if record.get("kind") != kind:
            raise ValueError(f"{file}: expected kind {kind!r}; got {record.get('kind')!r}")
        if record.get("schema", SCHEMA) != SCHEMA:
            raise ValueError(f"{file}: expected schema {SCHEMA}; got {record['schema']}")
        if record.get("device", {}).get("simulated") and not simulated:
            raise ValueError(f"{file}: nothing was measured, the device is simulated")
        found[name] = record
    return found


#: What a result carries of its run, where that is another than the file's.
_RUN = ("date", "command", "device", "source", "versions", "protocol")


def merge(record: Record, later: Record) -> dict[str, Any]:
    """Return a record with the results of a later run of the same kind put into it.

    A result of the later run takes the place of the one with its label, or stands at the end. In
    ``run`` it says where it comes from.

    Raises
    ------
    ValueError
        If the two are of different kinds.
    """
    if record["kind"] != later["kind"]:
        raise ValueError(f"expected kind {record['kind']!r}; got {later['kind']!r}")
    run = {name: later[name] for name in _RUN if name in later}
    results = {result["label"]: result for result in record["results"]}
    results |= {result["label"]: {**result, "run": run} for result in later["results"]}
    return {**record, "results": list(results.values())}


def missing(name: str) -> str:
    """Return what stands where a result is missing."""
    return f"Not measured yet: `docs/benchmarks/{FILES[name][0]}` is missing."


def states_of(record: Record) -> list[str]:
    """Return the power states that a record, or one of its results, has, in the tables' order."""
    return [state for state in STATES if state in record["states"]]


def origin(record: Record, cells: Sequence[Record], file: str) -> str:
    """Return where numbers come from: device, driver, commit, date, rounds, clocks.

    Results of several runs are told apart by their labels.

    Parameters
    ----------
    record : mapping
    cells : sequence of mapping
        What has ``states``: the record itself, or its results.
    file : str
        Name of the file.
    """
    runs: list[tuple[Record, list[Record]]] = []
    for cell in cells:
        head = cell.get("run", record)
        group = next((found for known, found in runs if known == head), None)
        if group is None:
            runs.append((head, [cell]))
        else:
            group.append(cell)
    if len(runs) < 2:
        text = f"{_run(runs[0][0] if runs else record, cells)}."
    else:
        text = " ".join(
            f"{', '.join(cell['label'] for cell in found)}: {_run(head, found)}."
            for head, found in runs
        )
    return f"{text} All numbers: `docs/benchmarks/{file}`."


def ratio(rows: Mapping[str, Record], name: str, over: str) -> Interval | None:
    """Return the time of one contender over another's, round by round; None if one is missing.

    Parameters
    ----------
    rows : mapping of str to mapping
        Contenders of one cell and state by name.
    """
    if name not in rows or over not in rows:
        return None
    return ratio_interval(rows[name]["samples_us"], rows[over]["samples_us"])


def shown(interval: Interval | Record | None, digits: int = 3) -> str:
    """Return an interval as text; ``!`` marks one from too few rounds to be a result."""
    if interval is None:
        return "-"
    fields = interval.to_dict() if isinstance(interval, Interval) else interval
    text = f"{fields['median']:.{digits}f}"
    if fields["low"] is not None:
        text += f" ({fields['low']:.{digits}f} to {fields['high']:.{digits}f})"
    return text if fields["valid"] else text + " !"


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; the first column is left-aligned, the others right."""
    lines = ["| " + " | ".join(head) + " |", "|---|" + "--:|" * (len(head) - 1)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)


def picture(title: str, file: str) -> str:
    """Return a picture, as pages in ``docs/explanation`` refer to it."""
    return f"![{title}](../benchmarks/{file})"


def title_of(workload: Record) -> str:
    """Return what a workload is: rows, groups, and how even they are."""
    sizes = workload["group_sizes"]
    even = (
        "even" if max(sizes) == min(sizes) else f"largest {max(sizes):,}, smallest {min(sizes):,}"
    )
    return f"{workload['rows']:,} rows in {workload['groups']} groups, {even}"


def _run(record: Record, cells: Sequence[Record]) -> str:
    device, source = record["device"], record["source"]
    commit = (source["commit"] or "an unknown commit")[:10]
    if source["dirty"]:
        commit += " with changes"
    driver = f"driver {device['driver'] or 'unknown'} (CUDA {device['driver_cuda'] or 'unknown'})"
    text = f"One {device['name']}, {driver}, gemmjit {commit}, {record['date'][:10]}"
    torch = record["versions"].get("torch")
    if torch:
        text += f", torch {torch}"
    rounds = {cell["states"][s]["rounds"] for cell in cells for s in states_of(cell)}
    if rounds:
        text += f"; {_span(rounds)} rounds"
    for state in STATES:
        clocks = _clocks(cell["states"][state] for cell in cells if state in cell["states"])
        if clocks:
            text += f"; {state}: {clocks}"
    return text


def _clocks(states: Iterable[Record]) -> str:
    found = [state["telemetry"] for state in states]
    parts = []
    for name, unit in (("sm_clock_mhz", "MHz"), ("power_w", "W")):
        medians = {round(one[name]["median"]) for one in found if one.get(name)}
        if medians:
            parts.append(f"{_span(medians)} {unit}")
    return ", ".join(parts)


def _span(values: set[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} to {high}"
