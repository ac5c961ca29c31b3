"""How good the picks of the cost model and of the rules are, and what a fixed tile costs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import geometric_mean

from figures.records import FILES, Record, Results, markdown, missing

__all__ = ["fixed_table", "origin_block", "table"]


def origin_block(results: Results) -> str:
    """Return device, driver, commit and date."""
    record = results.get("tune")
    if record is None:
        return missing("tune")
    device = record["device"]
    heads = [result.get("run", record) for result in record["results"]] or [record]
    commits, days = [], []
    for head in heads:
        source = head["source"]
        commit = (source["commit"] or "an unknown commit")[:10]
        commits.append(commit + " with changes" * source["dirty"])
        days.append(head["date"][:10])
    rounds = {n for result in record["results"] for n in result["rounds"].values()}
    span = " to ".join(map(str, sorted({min(rounds), max(rounds)}))) if rounds else "no"
    return (
        f"One {device['name']}, driver {device['driver'] or 'unknown'}, gemmjit "
        f"{', '.join(dict.fromkeys(commits))}, {', '.join(dict.fromkeys(days))}; {span} "
        f"rounds. All numbers: `docs/benchmarks/{FILES['tune'][0]}`."
    )


def table(results: Results) -> str:
    """Return the picks of model and rules over the fastest tile, case by case."""
    record = results.get("tune")
    if record is None:
        return missing("tune")
    checks = [result["check"] for result in record["results"]]
    head = ("case", "form", "fastest", "model's pick", "/fastest", "rules' pick", "/fastest")
    rows = [
        [
            f"`{check['case']}`",
            check["form"],
            f"`{check['best']}`",
            *_pick(check["model"]),
            *_pick(check["heuristic"]),
        ]
        for check in checks
    ]
    parts = [markdown(head, rows)]
    for drawn, what in ((False, "named cases"), (True, "sizes drawn at random")):
        mine = [check for check in checks if check["drawn"] is drawn]
        if mine:
            parts.append(f"On the {len(mine)} products of {what}: {_worst(mine)}.")
    return "\n\n".join(parts)


def fixed_table(results: Results) -> str:
    """Return what each tile costs if it is fixed for all cases, by form."""
    record = results.get("tune")
    if record is None:
        return missing("tune")
    forms: dict[str, list[Record]] = {}
    for result in record["results"]:
        if not result["check"]["drawn"]:
            forms.setdefault(result["workload"]["form"], []).append(result)
    rows = []
    for form, measured in forms.items():
        for tile, ratios in sorted(_of_all(measured).items(), key=lambda item: max(item[1])):
            mean = geometric_mean(ratios)
            rows.append([form, f"`{tile}`", f"{mean:.3f}", f"{max(ratios):.3f}"])
    return markdown(("form", "tile, fixed", "/fastest, mean", "/fastest, worst"), rows)


def _of_all(measured: Iterable[Record]) -> dict[str, list[float]]:
    """Return for each tile that was timed on every case its times over the fastest."""
    found: dict[str, list[float]] = {}
    number = 0
    for result in measured:
        number += 1
        best = min(one["mean_us"] for one in result["candidates"])
        for one in result["candidates"]:
            name = f"{one['kernel']} {one['tile']}"
            found.setdefault(name, []).append(one["mean_us"] / best)
    return {name: ratios for name, ratios in found.items() if len(ratios) == number}


def _pick(pick: Mapping[str, object] | None) -> list[str]:
    return ["-", "-"] if pick is None else [f"`{pick['tile']}`", f"{pick['ratio']:.3f}"]


def _worst(checks: list[Record]) -> str:
    parts = []
    for pick, name in (("model", "the model's pick"), ("heuristic", "the rules' pick")):
        ratios = [check[pick]["ratio"] for check in checks if check[pick] is not None]
        kept = sum(r <= check["limit"] for r, check in zip(ratios, checks, strict=False))
        if ratios:
            parts.append(
                f"{name} is at most {100 * (max(ratios) - 1):.1f} % above the fastest, within "
                f"{100 * (checks[0]['limit'] - 1):.0f} % on {kept}"
            )
    return "; ".join(parts)
