"""What the cost model and the heuristic pick, compared with what was measured to be fastest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import geometric_mean
from typing import Any

__all__ = ["LIMIT", "LIMIT_DRAWN", "checked", "is_within"]

#: How far a pick may be above the fastest: on the named cases, and on sizes drawn at random.
LIMIT = 1.05
LIMIT_DRAWN = 1.10


def checked(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return how good the picks for one measured product are.

    Parameters
    ----------
    record : mapping
        As `gemmjit.tuning.Tuner` records it. The model's pick is the candidate with the smallest
        predicted time, from what the host knows of a call: groups of equal size.

    Returns
    -------
    dict
        Case, form, the fastest tile, and for ``model`` and ``heuristic`` the tile with its time
        over that of the fastest: of both states (geometric mean) and of each, where it stands
        against the fastest of that state. None where the pick was not timed.
    """
    timed = list(record["candidates"])
    best = min(timed, key=lambda one: one["mean_us"])
    model = min(timed, key=lambda one: one["predicted_us"])
    chosen = record["heuristic"]
    heuristic = next(
        (
            one
            for one in timed
            if (one["kernel"], one["tile"]) == (chosen["kernel"], chosen["tile"])
        ),
        None,
    )
    work = record["workload"]
    return {
        "case": work["case"],
        "form": work["form"],
        "layout": record["layout"],
        "drawn": record["drawn"],
        "candidates": len(timed),
        "best": _named(best),
        "best_us": best["us"],
        "model": _against(model, timed),
        "heuristic": _against(heuristic, timed),
        "limit": LIMIT_DRAWN if record["drawn"] else LIMIT,
        "predicted_over_measured": model["predicted_us"] / model["mean_us"],
    }


def is_within(rows: Iterable[Mapping[str, Any]], pick: str) -> bool:
    """Return whether the picks, of the ``model`` or the ``heuristic``, all keep their limits."""
    return all(row[pick] is not None and row[pick]["ratio"] <= row["limit"] for row in rows)


def _against(
    pick: Mapping[str, Any] | None, timed: list[Mapping[str, Any]]
) -> dict[str, Any] | None:
    if pick is None:
        return None
    ratios = {
        state: pick["us"][state] / min(one["us"][state] for one in timed) for state in pick["us"]
    }
    least = min(geometric_mean(one["us"].values()) for one in timed)
    return {
        "tile": _named(pick),
        "ratio": geometric_mean(pick["us"].values()) / least,
        "ratios": ratios,
    }


def _named(one: Mapping[str, Any]) -> str:
    return f"{one['kernel']} {one['tile']}"
