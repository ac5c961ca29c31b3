"""The page on scheduling: ways to find tiles on the device, and rows that are only reserved."""

from __future__ import annotations

from collections.abc import Iterator

from figures.records import (
    FILES,
    Record,
    Results,
    markdown,
    missing,
    origin,
    picture,
    ratio,
    shown,
    states_of,
)

__all__ = ["capacity", "origin_block", "table", "tiles", "verdict"]

_WAYS = ("persistent", "bounded", "compact")
_ROOMY = "capacity "

#: What a schedule may be slower than the best one and still be as good.
_AS_GOOD = 0.01


def origin_block(results: Results) -> str:
    """Return where the numbers on scheduling come from."""
    record = results.get("scheduling")
    if record is None:
        return missing("scheduling")
    return origin(record, record["results"], FILES["scheduling"][0])


def table(results: Results) -> str:
    """Return the time of every way on every case, over that of the persistent walk."""
    record = results.get("scheduling")
    if record is None:
        return missing("scheduling")
    parts = []
    for state in _states(record):
        rows = []
        for result, found in _cells(record, state):
            times = {name: found[name]["us"]["median"] for name in _WAYS if name in found}
            least = min(times.values(), default=0.0)
            best = [name for name, time in times.items() if time <= least * (1 + _AS_GOOD)]
            rows.append(
                [
                    str(result["groups"]),
                    f"{result['rows']:,}",
                    _tile(found),
                    f"{times['persistent']:.1f}" if "persistent" in times else "-",
                    *(shown(ratio(found, name, "persistent")) for name in ("bounded", "compact")),
                    shown(ratio(found, "default", "persistent")),
                    ", ".join(best) or "-",
                ]
            )
        head = (
            "E",
            "rows",
            "kernel",
            "persistent, us",
            "bounded",
            "compact",
            "control",
            "within 1 % of the best",
        )
        parts.append(f"**{state.capitalize()}**\n\n{markdown(head, rows)}")
        parts.append(picture(f"Schedules, {state}", f"scheduling_{state}.png"))
    return "\n\n".join([*parts, *_gaps(record)])


def capacity(results: Results) -> str:
    """Return what rows cost that are reserved and not used."""
    record = results.get("scheduling")
    if record is None:
        return missing("scheduling")
    parts = []
    for state in _states(record):
        rows = []
        for result, found in _cells(record, state):
            cells = []
            for name in _WAYS:
                over = ratio(found, _ROOMY + name, name)
                if over is None:
                    cells.append("-")
                    continue
                added = found[_ROOMY + name]["us"]["median"] - found[name]["us"]["median"]
                cells.append(f"{shown(over, 2)} · {added:+.1f} us")
            times = f"x {result['capacity']}"
            rows.append([str(result["groups"]), f"{result['rows']:,}", times, *cells])
        head = ("E", "rows", "buffer", *_WAYS)
        parts.append(f"**{state.capitalize()}**\n\n{markdown(head, rows)}")
    return "\n\n".join(parts)


def verdict(results: Results) -> str:
    """Return how the default fares, in words."""
    record = results.get("scheduling")
    if record is None:
        return missing("scheduling")
    lines = []
    for state in _states(record):
        lines += [f"- {state}, {line}" for line in _verdicts(record, state)]
    return f"{_ranges(record)}\n\n" + "\n".join(lines)


def tiles(results: Results) -> str:
    """Return the tiles and swizzles that were timed beside a default, each over that default."""
    record = results.get("tiles")
    if record is None:
        return missing("tiles")
    parts = [origin(record, record["results"], FILES["tiles"][0])]
    for result in record["results"]:
        states = states_of(result)
        found = {state: _by_name(result["states"][state]) for state in states}
        names = [
            n for n in result["configs"] if n not in _WAYS and any(n in found[s] for s in states)
        ]
        rows = []
        for name in names:
            details = next(found[s][name]["details"] for s in states if name in found[s])
            cells = [_time(found[state].get(name)) for state in states]
            over = [shown(ratio(found[state], name, "default")) for state in states]
            rows.append(
                [
                    f"`{details.get('tile', name)}`",
                    str(details.get("registers", "-")),
                    str(details.get("resident_blocks", "-")),
                    *cells,
                    *over,
                ]
            )
        head = (
            *("tile", "registers", "blocks/SM"),
            *(f"us, {state}" for state in states),
            *(f"over the first, {state}" for state in states),
        )
        parts.append(
            f"{result['rows']:,} rows in {result['groups']} groups, K = {result['k']}, "
            f"N = {result['n']}:\n\n{markdown(head, rows)}"
        )
        parts += [f"{one['name']}: not timed: {one['reason']}" for one in result["rejected"]]
    return "\n\n".join(parts)


def _ranges(record: Record) -> str:
    """Return for each case the default, and its time over the fastest other way's."""
    states = _states(record)
    rows = []
    for result in record["results"]:
        found = {state: _by_name(result["states"][state]) for state in states_of(result)}
        cells = []
        for state in states:
            others = [
                (over.median, name, over)
                for name in _WAYS[1:]
                if (over := ratio(found.get(state, {}), "default", name)) is not None
            ]
            if others:
                _, name, over = max(others, key=lambda one: one[0])
                cells.append(f"{shown(over)} {name}")
            else:
                cells.append("not measured")
        chosen = result["configs"]["default"].get("schedule") or _WAYS[0]
        average = f"{result['rows'] / result['groups']:g}"
        rows.append([str(result["groups"]), average, chosen, *cells])
    head = ("E", "rows a group", "default", *(f"over the best other, {state}" for state in states))
    return markdown(head, rows)


def _verdicts(record: Record, state: str) -> Iterator[str]:
    total, good, losses, control, overheads = 0, 0, [], [], []
    for result, found in _cells(record, state):
        if "persistent" not in found:
            continue
        total += 1
        where = f"E = {result['groups']} and {result['rows']:,} rows"
        over = {name: ratio(found, "persistent", name) for name in _WAYS[1:]}
        slowest = max(
            ((one.median, name) for name, one in over.items() if one is not None), default=None
        )
        if slowest is None or slowest[0] <= 1 + _AS_GOOD:
            good += 1
        else:
            losses.append((slowest[0], f"{slowest[1]} at {where}"))
        noise = ratio(found, "default", "persistent")
        if noise is not None:
            control.append(abs(noise.median - 1))
        roomy = ratio(found, f"{_ROOMY}persistent", "persistent")
        if roomy is not None:
            overheads.append((roomy.median, where))
    if not total:
        yield "the persistent walk was not timed."
        return
    yield f"the persistent walk is the fastest, or within 1 % of it, in {good} of {total} cases."
    if losses:
        most, where = max(losses)
        yield f"it loses most, {100 * (most - 1):.1f} %, to {where}."
    if control:
        yield f"two contenders that are the same differ by up to {100 * max(control):.1f} %."
    if overheads:
        most, where = max(overheads)
        yield f"reserved rows cost it {max(100 * (most - 1), 0.0):.1f} % at most ({where})."


def _states(record: Record) -> list[str]:
    found = {state for result in record["results"] for state in states_of(result)}
    return [state for state in ("hot", "cool") if state in found]


def _cells(record: Record, state: str) -> Iterator[tuple[Record, dict[str, Record]]]:
    for result in record["results"]:
        if state in result["states"]:
            yield result, _by_name(result["states"][state])


def _by_name(found: Record) -> dict[str, Record]:
    return {entrant["name"]: entrant for entrant in found["entrants"]}


def _tile(found: dict[str, Record]) -> str:
    details = next((found[n]["details"] or {} for n in ("default", "persistent") if n in found), {})
    return f"{details.get('kernel', '-')} `{details.get('tile', '-')}`"


def _time(row: Record | None) -> str:
    return "-" if row is None else f"{row['us']['median']:.1f}"


def _gaps(record: Record) -> list[str]:
    lines = []
    for result in record["results"]:
        if result["skipped"]:
            lines.append(f"{result['case']}: not measured, {result['skipped']}.")
        lines += [f"{result['case']}, {r['name']}: {r['reason']}" for r in result["rejected"]]
    return lines
