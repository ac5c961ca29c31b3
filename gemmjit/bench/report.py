"""From cells to JSON, and from JSON to tables in plain text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gemmjit.bench.cell import Cell
from gemmjit.bench.entrant import Entrant
from gemmjit.bench.protocol import State
from gemmjit.bench.statistics import Interval, median_interval, ratio_interval

__all__ = ["best_of_peers", "cell_to_dict", "grouped_table", "ratio_of", "text_table", "write_json"]


def cell_to_dict(
    cell: Cell, baseline: str, over: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return a cell of one workload as a JSON-compatible mapping.

    Parameters
    ----------
    cell : Cell
    baseline : str
        Peer that ratios are formed with; the first peer that was timed where it was not.
    over : mapping of str to str, optional
        Contenders whose ratio is over another contender than that, by name. They have none where
        that one was not timed.
    """
    result: dict[str, Any] = {
        "label": cell.label,
        "inputs": cell.inputs,
        "rejected": [rejected.to_dict() for rejected in cell.rejected],
        "skipped": cell.skipped,
        "states": {},
    }
    for state in cell.timings:
        result["states"][state] = _state_to_dict(cell, state, baseline, over or {})
    return result


def entrant_to_dict(cell: Cell, entrant: Entrant, state: State) -> dict[str, Any]:
    """Return one contender's result in one power state."""
    seconds = cell.timings[state].seconds[entrant.name]
    work = entrant.workload
    interval = median_interval(seconds)
    floor, _ = cell.anchors[state].floor_seconds(work)
    return {
        "name": entrant.name,
        "peer": entrant.contender.peer,
        "layout": entrant.contender.layout,
        "note": entrant.contender.note,
        "us": _scaled(interval, 1e6),
        "tflop_per_s": work.flops / interval.median / 1e12,
        "tb_per_s": work.min_bytes / interval.median / 1e12,
        "over_floor": interval.median / floor,
        "samples_us": [round(value * 1e6, 3) for value in seconds],
        "calls_per_graph": entrant.copies and [len(plan) for plan in entrant.copies],
        "check": entrant.check.to_dict() if entrant.check else None,
        "details": entrant.contender.details,
    }


def best_of_peers(cell: Cell, state: State) -> dict[str, str]:
    """Return for each peer the contender with the smallest median."""
    best: dict[str, tuple[float, str]] = {}
    for entrant in cell.entrants:
        found = median_interval(cell.timings[state].seconds[entrant.name]).median
        peer = entrant.contender.peer
        if peer not in best or found < best[peer][0]:
            best[peer] = (found, entrant.name)
    return {peer: name for peer, (_, name) in best.items()}


def ratio_of(cell: Cell, state: State, name: str, baseline: str) -> Interval:
    """Return the ratio of two contenders' times, round by round."""
    seconds = cell.timings[state].seconds
    return ratio_interval(seconds[name], seconds[baseline])


def _state_to_dict(
    cell: Cell, state: State, baseline: str, over: Mapping[str, str]
) -> dict[str, Any]:
    timings, anchors = cell.timings[state], cell.anchors[state]
    best = best_of_peers(cell, state)
    against = best.get(baseline) or next(iter(best.values()))
    floor, set_by = anchors.floor_seconds(cell.entrants[0].workload)
    pairs = [(e.name, over.get(e.name, against)) for e in cell.entrants]
    return {
        "rounds": timings.rounds,
        "seconds": timings.duration,
        "anchors": anchors.to_dict(),
        "floor": {"us": floor * 1e6, "set_by": set_by},
        "entrants": [entrant_to_dict(cell, e, state) for e in cell.entrants],
        "best": best,
        "ratios": [
            {"name": name, "baseline": other, **ratio_of(cell, state, name, other).to_dict()}
            for name, other in pairs
            if name != other and other in timings.seconds
        ],
        "telemetry": timings.telemetry,
        "orders": [list(order) for order in timings.orders],
    }


def grouped_table(results: Iterable[Mapping[str, Any]]) -> str:
    """Return the table of ``gemmjit bench grouped``.

    One line per contender: time, useful rate, share of the floor, ratio to the baseline with its
    interval. A ``*`` marks the contender that stands for its peer, a ``!`` a result that does not
    count because it has too few rounds.
    """
    lines = []
    for cell in results:
        if cell["skipped"]:
            lines += [f"{cell['label']}: not measured, {cell['skipped']}", ""]
        for state, found in cell["states"].items():
            lines += [*_state_lines(cell["label"], state, found), ""]
        lines += [f"  {r['name']}: not timed: {r['reason']}" for r in cell["rejected"]]
        if cell["rejected"]:
            lines.append("")
    return "\n".join(lines).rstrip("\n")


def _state_lines(label: str, state: str, found: Mapping[str, Any]) -> list[str]:
    ratios = {ratio["name"]: ratio for ratio in found["ratios"]}
    standing = set(found["best"].values())
    common = _common(found["ratios"])
    rows = []
    for entrant in sorted(found["entrants"], key=lambda e: e["us"]["median"]):
        ratio = ratios.get(entrant["name"])
        rows.append(
            [
                ("* " if entrant["name"] in standing else "  ") + entrant["name"],
                f"{entrant['us']['median']:.1f}",
                f"{entrant['tflop_per_s']:.1f}",
                f"{entrant['tb_per_s']:.2f}",
                f"{entrant['over_floor']:.2f}",
                *_ratio_cells(ratio, entrant["name"], common),
            ]
        )
    floor, anchors, clocks = found["floor"], found["anchors"], found["telemetry"]
    dense = anchors["dense_tflop_per_s"]
    head = (
        f"{label}, {state}: {found['rounds']} rounds; floor {floor['us']:.1f} us ({floor['set_by']}"
        f"; copy {anchors['copy_tb_per_s']:.2f} TB/s, dense "
        f"{'-' if dense is None else format(dense, '.0f')} TFLOP/s)"
    )
    return [head, *_clock_line(clocks), *text_table(_HEAD, rows)]


_HEAD = ("contender", "us", "TFLOP/s", "TB/s", "/floor", "ratio", "95 % interval")


def _common(ratios: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the baseline that has no ratio itself; ratios over another one say so."""
    named = {ratio["name"] for ratio in ratios}
    return next((one["baseline"] for one in ratios if one["baseline"] not in named), None)


def _ratio_cells(ratio: Mapping[str, Any] | None, name: str, common: str | None) -> list[str]:
    if ratio is None:
        return ["1", "baseline"] if name == common or common is None else ["-", "no baseline"]
    mark = "" if ratio["valid"] else " !"
    if ratio["baseline"] != common:
        mark += f" over {ratio['baseline']}"
    if ratio["low"] is None:
        return [f"{ratio['median']:.3f}", "none" + mark]
    return [f"{ratio['median']:.3f}", f"{ratio['low']:.3f} to {ratio['high']:.3f}{mark}"]


def _clock_line(clocks: Mapping[str, Any]) -> list[str]:
    parts = []
    for name, unit in (("sm_clock_mhz", "MHz"), ("power_w", "W"), ("temperature_c", "°C")):
        value = clocks.get(name)
        if value:
            parts.append(f"{value['median']:.0f} {unit} ({value['min']:.0f} to {value['max']:.0f})")
    limited = [f"{why} {share:.0%}" for why, share in clocks["clock_limited_by"].items()]
    if limited:
        parts.append("limited by " + ", ".join(limited))
    return ["  " + ", ".join(parts)] if parts else []


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return lines of a table; the first column is left-aligned, the others right."""
    widths = [max(len(str(row[i])) for row in (head, *rows)) for i in range(len(head))]
    return [
        "  ".join(
            str(cell).ljust(width) if i == 0 else str(cell).rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (head, *rows)
    ]


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a result file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(path.name + ".part")
    aside.write_text(json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    aside.replace(path)


def _scaled(interval: Interval, factor: float) -> dict[str, Any]:
    found = interval.to_dict()
    for name in ("median", "low", "high"):
        value = found[name]
        found[name] = None if value is None else value * factor
    return found
