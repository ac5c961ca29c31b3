"""gemmjit beside its peers: the table of the page on k3."""

from __future__ import annotations

import math
from collections.abc import Iterator

from figures.records import (
    FILES,
    STATES,
    Record,
    Results,
    markdown,
    missing,
    origin,
    picture,
    shown,
    states_of,
)

__all__ = [
    "OWN",
    "few_rows",
    "geometric_mean",
    "origin_block",
    "own_ratio",
    "pictures",
    "table",
]

#: Cases of so few rows that a good kernel is bound by memory.
_FEW_ROWS = ("seed1-2k-s0", "olmo-1k", "decode-256")

#: Name of gemmjit among the peers.
OWN = "gemmjit"


def origin_block(results: Results) -> str:
    """Return where the numbers of all peers come from."""
    record = results.get("grouped")
    if record is None:
        return missing("grouped")
    return origin(record, record["results"], FILES["grouped"][0])


def table(results: Results) -> str:
    """Return time, rate and ratio to the baseline of every case, by form and state."""
    record = results.get("grouped")
    if record is None:
        return missing("grouped")
    parts = [_part(record, form, state) for form, state in forms_and_states(record)]
    parts += [f"{one['title']} is missing: {one['reason']}." for one in record["missing"]]
    for result in record["results"]:
        parts += [f"{result['label']}, {r['name']}: {r['reason']}" for r in result["rejected"]]
        if result["skipped"]:
            parts.append(f"{result['label']}: not measured, {result['skipped']}.")
    return "\n\n".join(parts)


def pictures(results: Results) -> str:
    """Return the pictures of rooflines, and of sweeps over rows and skew."""
    parts = []
    if "grouped" in results:
        parts += [picture(f"Roofline, {s}", f"roofline_{s}.png") for s in STATES]
    if "sweep" in results:
        parts.append(origin(results["sweep"], results["sweep"]["results"], FILES["sweep"][0]))
        parts.append(picture("Throughput over the rows of a group", "sweep_rows.png"))
        parts.append(picture("Throughput over the skew of the routing", "sweep_skew.png"))
    else:
        parts.append(missing("sweep"))
    return "\n\n".join(parts)


def few_rows(results: Results) -> str:
    """Return the span of time over the floor, by form, of the cases with few rows."""
    record = results.get("grouped")
    if record is None:
        return missing("grouped")
    spans: dict[str, list[float]] = {}
    for result in record["results"]:
        if result["case"] not in _FEW_ROWS:
            continue
        for found in result["states"].values():
            own = found["best"].get(OWN)
            spans.setdefault(result["form"], []).extend(
                entrant["over_floor"] for entrant in found["entrants"] if entrant["name"] == own
            )
    told = [
        f"{form} {min(ratios):.2f} to {max(ratios):.2f}" for form, ratios in spans.items() if ratios
    ]
    if not told:
        return "Not measured: none of the cases with few rows."
    return f"Times over the floor with few rows, hot and cool: {'; '.join(told)}."


def forms_and_states(record: Record) -> Iterator[tuple[str, str]]:
    """Yield every form with every state that it was measured in."""
    for form in dict.fromkeys(result["form"] for result in record["results"]):
        results = [result for result in record["results"] if result["form"] == form]
        for state in ("hot", "cool"):
            if any(state in states_of(result) for result in results):
                yield form, state


def own_ratio(record: Record, result: Record, state: str, peer: str = OWN) -> Record | None:
    """Return the time of a peer's best contender over the baseline's, as an interval."""
    found = result["states"].get(state)
    if found is None or peer not in found["best"] or peer == record["baseline"]:
        return None
    name = found["best"][peer]
    return next((ratio for ratio in found["ratios"] if ratio["name"] == name), None)


def geometric_mean(record: Record, form: str, state: str) -> float | None:
    """Return the geometric mean over cases of gemmjit's time over the baseline's."""
    ratios = [
        own_ratio(record, result, state) for result in record["results"] if result["form"] == form
    ]
    medians = [ratio["median"] for ratio in ratios if ratio is not None]
    if not medians:
        return None
    return math.exp(sum(math.log(median) for median in medians) / len(medians))


def _part(record: Record, form: str, state: str) -> str:
    baseline = record["baseline"]
    others = [peer for peer in record["peers"] if peer not in (OWN, baseline)]
    rows = []
    for result in record["results"]:
        if result["form"] != form or state not in result["states"]:
            continue
        found = result["states"][state]
        entrants = {entrant["name"]: entrant for entrant in found["entrants"]}
        own = entrants.get(found["best"].get(OWN, ""))
        if own is None:
            continue
        details = own["details"] or {}
        rows.append(
            [
                result["case"],
                f"{own['us']['median']:.1f}",
                f"{own['tflop_per_s']:.0f}",
                f"{own['tb_per_s']:.2f}",
                f"{own['over_floor']:.2f} ({found['floor']['set_by']})",
                f"{details.get('kernel', '-')} `{details.get('tile', '-')}`",
                shown(own_ratio(record, result, state)),
                *(shown(own_ratio(record, result, state, peer)) for peer in others),
            ]
        )
    head = (
        *("case", "us", "TFLOP/s", "TB/s", "over the floor", "kernel"),
        f"over {baseline}",
        *(f"{peer} over {baseline}" for peer in others),
    )
    text = f"**{form}, {state}**\n\n{markdown(head, rows)}"
    mean = geometric_mean(record, form, state)
    if mean is not None:
        text += f"\n\nGeometric mean over {baseline}: {mean:.3f}."
    return text
