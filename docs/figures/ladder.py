"""The page on the ladder: resources, times, loss by skew, and each step's gain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from figures.records import (
    EVEN,
    FEW,
    FILES,
    SKEWED,
    Record,
    Results,
    markdown,
    missing,
    origin,
    picture,
    ratio,
    shown,
    states_of,
    title_of,
)
from gemmjit.bench.statistics import Interval

__all__ = [
    "best_rung",
    "gain",
    "goal",
    "origin_block",
    "resources",
    "rung_with",
    "skew",
    "step_fragments",
    "step_height",
    "step_stages",
    "step_tensor_cores",
    "step_tma",
    "step_wgmma",
    "times",
]

#: Share of torch's throughput that k2 was expected to reach on many even rows.
_GOAL = 0.6


def origin_block(results: Results) -> str:
    """Return where the ladder's numbers come from."""
    record = results.get("ladder")
    return missing("ladder") if record is None else origin(record, [record], FILES["ladder"][0])


def resources(results: Results) -> str:
    """Return registers, shared memory, resident blocks and eta of each rung."""
    record = results.get("ladder")
    if record is None:
        return missing("ladder")
    rows = []
    for rung in _own_rungs(record):
        details = _details(record, rung)
        etas = [record["eta"][case].get(rung) for case in record["cases"]]
        rows.append(
            [
                rung,
                f"`{details.get('tile', '-')}`",
                str(details.get("registers", "-")),
                f"{details['smem_bytes'] / 1024:.0f}" if "smem_bytes" in details else "-",
                str(details.get("resident_blocks", "-")),
                *("-" if eta is None else f"{eta:.3f}" for eta in etas),
            ]
        )
    cases = [f"eta, {case}" for case in record["cases"]]
    head = ("rung", "tile", "registers", "smem KiB", "blocks/SM", *cases)
    lines = [markdown(head, rows), ""]
    for case, work in zip(record["cases"], record["workloads"], strict=True):
        lines.append(f"- `{case}`: {title_of(work)}, K = {work['k']}, N = {work['n']}")
    return "\n".join(lines)


def times(results: Results) -> str:
    """Return time, useful rate and share of torch's throughput of each rung, by state."""
    record = results.get("ladder")
    if record is None:
        return missing("ladder")
    parts = []
    for state in states_of(record):
        found = record["states"][state]
        rows = []
        for rung in record["rungs"]:
            cells = [_time_cell(found["rows"].get(f"{case}: {rung}")) for case in record["cases"]]
            rows.append([rung, *cells])
        head = ("rung", *(f"{case}" for case in record["cases"]))
        parts.append(
            f"**{state.capitalize()}**: microseconds, useful TFLOP/s, share of torch's throughput "
            f"(its faster layout).\n\n{markdown(head, rows)}"
        )
        title = f"Useful throughput of every rung, {state}"
        parts.append(picture(title, f"ladder_throughput_{state}.png"))
    parts += [f"{one['name']}: not timed: {one['reason']}" for one in record["rejected"]]
    if record["missing_torch"]:
        parts.append(f"torch is missing: {record['missing_torch']}.")
    return "\n\n".join(parts)


def goal(results: Results) -> str:
    """Return whether k2 reaches the share of torch's throughput that was expected of it."""
    record = results.get("ladder")
    if record is None:
        return missing("ladder")
    lines = []
    for state in states_of(record):
        best = best_rung(record, state, EVEN, "k2")
        over = best and record["states"][state]["rows"][f"{EVEN}: {best}"].get("over_torch")
        if not best or not over:
            lines.append(f"- {state}: k2 and torch were not timed together on `{EVEN}`.")
            continue
        share = 1 / over["median"]
        verdict = "reached" if share >= _GOAL else "not reached"
        lines.append(f"- {state}: `{best}` has {share:.2f} of torch's throughput: {verdict}.")
    return (
        f"Expected of the best k2 on `{EVEN}`: at least {_GOAL} of torch's throughput in the same "
        "run.\n\n" + "\n".join(lines)
    )


def skew(results: Results) -> str:
    """Return predicted and measured loss by skew of each rung."""
    record = results.get("ladder")
    if record is None:
        return missing("ladder")
    states = states_of(record)
    tables: dict[tuple[str, str], dict[str, dict[str, Record]]] = {}
    for state in states:
        for row in record["states"][state]["skew"]:
            table = tables.setdefault((row["case"], row["even"]), {})
            table.setdefault(row["rung"], {})[state] = row
    parts = []
    for (case, even), by_rung in tables.items():
        rows = []
        for rung, by_state in by_rung.items():
            first = next(iter(by_state.values()))
            predicted = first["predicted_loss"]
            cells = [_loss_cell(by_state.get(state)) for state in states]
            rows.append([rung, "-" if predicted is None else f"{100 * predicted:.1f}", *cells])
        head = ("rung", "predicted %", *(f"measured %, {state}" for state in states))
        parts.append(f"`{case}` against `{even}`:\n\n{markdown(head, rows)}")
    if not parts:
        return "No two cases of equal size were measured, one even and one skewed."
    parts += [
        picture(f"Predicted and measured loss, {state}", f"ladder_skew_{state}.png")
        for state in states
    ]
    return "\n\n".join(parts)


def step_tensor_cores(results: Results) -> str:
    """Return what k1 gains over k0."""
    return _step(results, [("k1/128", "k0")])


def step_height(results: Results) -> str:
    """Return what lower tiles of k1 gain."""
    return _step(results, [("k1/64", "k1/128"), ("k1/32", "k1/128")])


def step_fragments(results: Results) -> str:
    """Return what double-buffered fragments gain."""
    return _step(results, [("k1/64 fdb", "k1/64")])


def step_tma(results: Results) -> str:
    """Return what k2 gains over k1 with the same tile."""
    record = results.get("ladder", {})
    return _step(results, [(rung_with(record, "k2", 3, 1), "k1/128")])


def step_stages(results: Results) -> str:
    """Return what stages and resident blocks gain in k2."""
    record = results.get("ladder", {})
    two, three = rung_with(record, "k2", 2, 2), rung_with(record, "k2", 3, 1)
    return _step(results, [(two, three), (rung_with(record, "k2", 3, 2), three)])


def step_wgmma(results: Results) -> str:
    """Return what the tiles of k3 gain over k2's."""
    record = results.get("ladder")
    if record is None:
        return missing("ladder")
    own = [rung for rung in _own_rungs(record) if _details(record, rung).get("kernel") == "k3"]
    if not own:
        return "k3 was not part of this run."
    base = rung_with(record, "k2", 3, 1)
    return _step(results, [(rung, base) for rung in own])


def gain(
    record: Record, state: str, case: str, rung: str | None, over: str | None
) -> Interval | None:
    """Return the throughput of one rung over another's; None if one was not timed."""
    rows = record["states"][state]["rows"]
    return ratio(rows, f"{case}: {over}", f"{case}: {rung}")


def rung_with(record: Record, kernel: str, num_stages: int, blocks: int) -> str | None:
    """Return the rung of a kernel with so many stages and resident blocks asked for."""
    for rung in record.get("rungs", ()):
        details = _details(record, rung)
        config = details.get("config", {})
        found = config.get("num_stages"), config.get("min_blocks_per_sm")
        if details.get("kernel") == kernel and found == (num_stages, blocks):
            return str(rung)
    return None


def best_rung(record: Record, state: str, case: str, kernel: str) -> str | None:
    """Return the rung of a kernel with the smallest median on a case."""
    rows = record["states"][state]["rows"]
    found = [
        (rows[f"{case}: {rung}"]["us"]["median"], rung)
        for rung in _own_rungs(record)
        if _details(record, rung).get("kernel") == kernel and f"{case}: {rung}" in rows
    ]
    return min(found)[1] if found else None


def _step(results: Results, pairs: Sequence[tuple[str | None, str | None]]) -> str:
    record = results.get("ladder")
    if record is None:
        return missing("ladder")
    cases = [case for case in (EVEN, SKEWED, FEW) if case in record["cases"]]
    rows = []
    for rung, over in pairs:
        if rung is None or over is None:
            continue
        for state in states_of(record):
            cells = [shown(gain(record, state, case, rung, over), 2) for case in cases]
            rows.append([f"{rung} over {over}, {state}", *cells])
    if not rows or not cases:
        return "The rungs of this step were not timed together."
    return markdown(("throughput", *cases), rows)


def _own_rungs(record: Record) -> Iterator[str]:
    for rung in record["rungs"]:
        if "kernel" in _details(record, rung):
            yield rung


def _details(record: Record, rung: str) -> dict[str, Any]:
    for state in states_of(record):
        for case in record["cases"]:
            row = record["states"][state]["rows"].get(f"{case}: {rung}")
            if row is not None:
                return dict(row["details"] or {})
    return {}


def _time_cell(row: Record | None) -> str:
    if row is None:
        return "-"
    text = f"{row['us']['median']:.1f} · {row['tflop_per_s']:.1f}"
    over = row.get("over_torch")
    return text if over is None else f"{text} · {1 / over['median']:.2f}"


def _loss_cell(row: Record | None) -> str:
    if row is None:
        return "-"
    loss = row["measured_loss"]
    text = f"{100 * loss['median']:.1f}"
    if loss["low"] is not None:
        text += f" ({100 * loss['low']:.1f} to {100 * loss['high']:.1f})"
    if row["within_four_points"] is False:
        text = f"**{text}**"
    return text if loss["valid"] else text + " !"
