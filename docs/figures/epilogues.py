"""What a fused epilogue costs over the plain store."""

from __future__ import annotations

from figures.records import (
    FILES,
    STATES,
    Record,
    Results,
    markdown,
    missing,
    origin,
    shown,
)

__all__ = ["table"]

_PLAIN = "store"


def table(results: Results) -> str:
    """Return the time of every chain of steps over the plain store's, in both power states."""
    record = results.get("epilogues")
    if record is None:
        return missing("epilogues")
    parts = []
    for result in record["results"]:
        states = [state for state in STATES if state in result["states"]]
        ratios = {
            state: {ratio["name"]: ratio for ratio in result["states"][state]["ratios"]}
            for state in states
        }
        times = {
            state: {one["name"]: one for one in result["states"][state]["entrants"]}
            for state in states
        }
        names = list(dict.fromkeys(name for state in states for name in times[state]))
        rows = []
        for name in names:
            cells = [f"`{name}`"]
            for state in states:
                cells.append(f"{times[state][name]['us']['median']:.1f}")
                ratio = ratios[state].get(name)
                cells.append(_over(ratio, name))
            rows.append(cells)
        head = ["steps"] + [t for state in states for t in (f"us, {state}", "over the plain store")]
        parts.append(f"{result['label']}:\n\n{markdown(head, rows)}")
    return "\n\n".join([origin(record, record["results"], FILES["epilogues"][0]), *parts])


def _over(ratio: Record | None, name: str) -> str:
    """Return a ratio as text, with its baseline where that is not the plain store."""
    if ratio is None:
        return "baseline" if name == _PLAIN else "-"
    told = "" if ratio["baseline"] == _PLAIN else f", over `{ratio['baseline']}`"
    return shown(ratio) + told
