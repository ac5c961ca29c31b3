"""Pictures of results. The only module of the harness that needs matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from gemmjit.bench.statistics import ratio_interval
from gemmjit.errors import GemmjitError

__all__ = ["COLOURS", "legend", "plot_grouped", "plot_ladder", "plot_scheduling", "pyplot", "save"]

#: Contenders of ``gemmjit bench scheduling``; the first is what the others are compared with.
_SCHEDULES = ("persistent", "bounded", "compact")

#: Of things that are compared, in their order.
COLOURS = ("#3b6ea8", "#c8553d", "#6a994e", "#8e6c8a", "#d9a441", "#7f8c8d", "#2a9d8f", "#b56576")
_MARKERS = "os^D"  # for more things than colours


def plot_grouped(record: Mapping[str, Any], directory: Path) -> list[Path]:
    """Draw time over the baseline's for every case: one picture per form and power state.

    Parameters
    ----------
    record : mapping
        As ``gemmjit bench grouped --json`` writes it.
    directory : Path
        Where the pictures go.

    Returns
    -------
    list of Path
    """
    drawn = []
    pairs = {(r["form"], state) for r in record["results"] for state in r["states"]}
    for form, state in sorted(pairs):
        chosen = [r for r in record["results"] if r["form"] == form and state in r["states"]]
        drawn.append(_ratios(record, chosen, form, state, directory))
    return drawn


def plot_ladder(record: Mapping[str, Any], directory: Path) -> list[Path]:
    """Draw useful throughput of every rung, and predicted against measured loss by skew.

    Parameters
    ----------
    record : mapping
        As ``gemmjit bench ladder --json`` writes it.
    directory : Path
        Where the pictures go.
    """
    drawn = []
    for state, found in record["states"].items():
        drawn.append(_throughput(record, found, state, directory))
        drawn.append(_skew_loss(record, found, state, directory))
    return drawn


def plot_scheduling(record: Mapping[str, Any], directory: Path) -> list[Path]:
    """Draw the time of every schedule over the persistent walk's, one picture per power state.

    Parameters
    ----------
    record : mapping
        As ``gemmjit bench scheduling --json`` writes it.
    directory : Path
        Where the pictures go.
    """
    states = sorted({state for result in record["results"] for state in result["states"]})
    return [_schedules(record, state, directory) for state in states]


def _schedules(record: Mapping[str, Any], state: str, directory: Path) -> Path:
    plt = pyplot()
    results = [result for result in record["results"] if state in result["states"]]
    names = [f"{roomy}{way}" for way in _SCHEDULES for roomy in ("", "capacity ")]
    figure, axes = plt.subplots(figsize=(2.0 + 1.1 * len(results), 4.2))
    width = 0.8 / len(names)
    for j, result in enumerate(results):
        samples = {e["name"]: e["samples_us"] for e in result["states"][state]["entrants"]}
        for i, name in enumerate(names):
            if name not in samples or _SCHEDULES[0] not in samples:
                continue
            ratio = ratio_interval(samples[name], samples[_SCHEDULES[0]])
            x = j + (i - (len(names) - 1) / 2) * width
            style = {"hatch": "////", "alpha": 0.6} if i % 2 else {}
            label = name.replace("capacity ", "roomy buffer, ") if j == 0 else None
            axes.bar(x, ratio.median, width * 0.9, color=COLOURS[i // 2], label=label, **style)
            if ratio.low is not None:
                axes.vlines(x, ratio.low, ratio.high, color="black", linewidth=1)
    axes.axhline(1.0, color="black", linewidth=0.8)
    labels = [f"E = {r['groups']}\n{r['rows']:,} rows" for r in results]
    axes.set_xticks(range(len(results)), labels, fontsize=8)
    axes.set_ylabel(f"time / time of {_SCHEDULES[0]}")
    axes.set_title(f"Ways to find tiles on the device, {state}: lower is faster")
    legend(axes)
    return save(figure, axes, record, directory / f"scheduling_{state}.png")


def _ratios(
    record: Mapping[str, Any],
    results: Sequence[Mapping[str, Any]],
    form: str,
    state: str,
    directory: Path,
) -> Path:
    plt = pyplot()
    baseline = record["baseline"]
    peers = list(dict.fromkeys(p for r in results for p in r["states"][state]["best"]))
    peers = [peer for peer in peers if peer != baseline] or peers
    figure, axes = plt.subplots(figsize=(1.6 + 1.25 * len(results), 4.2))
    width = 0.8 / len(peers)
    for i, peer in enumerate(peers):
        for j, result in enumerate(results):
            found = result["states"][state]
            ratio = _ratio(found, peer)
            if ratio is None:
                continue
            x = j + (i - (len(peers) - 1) / 2) * width
            colour = COLOURS[i % len(COLOURS)]
            axes.bar(x, ratio["median"], width * 0.9, color=colour, label=peer if j == 0 else None)
            if ratio["low"] is not None:
                axes.vlines(x, ratio["low"], ratio["high"], color="black", linewidth=1)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(results)), [r["case"] for r in results], rotation=25, ha="right")
    axes.set_ylabel(f"time / time of {baseline}")
    axes.set_title(f"{form}, {state}: lower is faster; bars are medians, lines 95 % intervals")
    legend(axes)
    return save(figure, axes, record, directory / f"grouped_{form}_{state}.png")


def _ratio(found: Mapping[str, Any], peer: str) -> Mapping[str, Any] | None:
    name = found["best"].get(peer)
    matches = [ratio for ratio in found["ratios"] if ratio["name"] == name]
    return matches[0] if matches else None


def _throughput(
    record: Mapping[str, Any], found: Mapping[str, Any], state: str, directory: Path
) -> Path:
    plt = pyplot()
    rungs, cases = record["rungs"], record["cases"]
    figure, axes = plt.subplots(figsize=(7.5, 1.2 + 0.42 * len(rungs)))
    height = 0.8 / len(cases)
    for i, case in enumerate(cases):
        places = [
            (j + (i - (len(cases) - 1) / 2) * height, found["rows"][f"{case}: {rung}"])
            for j, rung in enumerate(rungs)
            if f"{case}: {rung}" in found["rows"]
        ]
        widths = [row["tflop_per_s"] for _, row in places]
        colour = COLOURS[i % len(COLOURS)]
        axes.barh([y for y, _ in places], widths, height * 0.9, color=colour, label=case)
    axes.set_yticks(range(len(rungs)), rungs, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("useful TFLOP/s")
    axes.set_title(f"The ladder, {state}")
    axes.legend(frameon=False, fontsize=8, loc="upper right")
    return save(figure, axes, record, directory / f"ladder_throughput_{state}.png")


def _skew_loss(
    record: Mapping[str, Any], found: Mapping[str, Any], state: str, directory: Path
) -> Path:
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(6.6, 4.6))
    losses = [row for row in found["skew"] if row["predicted_loss"] is not None]
    highest = 5.0
    for i, row in enumerate(losses):
        x, y = 100 * row["predicted_loss"], 100 * row["measured_loss"]["median"]
        highest = max(highest, x, y)
        marker = _MARKERS[i // len(COLOURS) % len(_MARKERS)]
        axes.plot(x, y, marker, color=COLOURS[i % len(COLOURS)], label=row["rung"])
    axes.plot([0, highest], [0, highest], color="black", linewidth=0.8)
    for shift in (-4, 4):
        axes.plot([0, highest], [shift, highest + shift], color="grey", linewidth=0.6, ls=":")
    axes.set_xlabel("loss predicted from eta, %")
    axes.set_ylabel("loss measured, %")
    axes.set_title(f"Throughput lost to skew, {state}; dotted: four points")
    if losses:
        axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return save(figure, axes, record, directory / f"ladder_skew_{state}.png")


def legend(axes: Any) -> None:
    """Put a legend above the data, if there is anything to name."""
    if axes.get_legend_handles_labels()[0]:
        low, high = axes.get_ylim()
        axes.set_ylim(low, high + 0.15 * (high - low))  # room for the legend above the data
        axes.legend(frameon=False, fontsize=8, loc="upper left", ncols=3)


def save(figure: Any, axes: Any, record: Mapping[str, Any], path: Path) -> Path:
    """Write a figure with its origin at the lower edge, and close it; returns the path."""
    runs = [result.get("run", record) for result in record.get("results", ())] or [record]
    origin = "; ".join(dict.fromkeys(map(_origin, runs)))
    figure.text(0.995, 0.005, origin, ha="right", va="bottom", fontsize=6, color="grey")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.tight_layout(rect=(0, 0.02, 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    dates = ", ".join(dict.fromkeys([record["date"], *(run["date"] for run in runs)]))
    # Whoever has the picture and the result file can see that they belong together.
    figure.savefig(path, dpi=110, metadata={"Creation Time": dates, "Source": origin})
    pyplot().close(figure)
    return path


def _origin(run: Mapping[str, Any]) -> str:
    """Return device, driver, commit and day of a run."""
    device, source = run["device"], run["source"]
    commit = (source["commit"] or "unknown commit")[:10] + (" (dirty)" if source["dirty"] else "")
    return f"{device['name']}, driver {device['driver'] or '?'}, {commit}, {run['date'][:10]}"


def pyplot() -> Any:
    """Return matplotlib's pyplot, drawing to files; GemmjitError if it is missing."""
    try:
        matplotlib = import_module("matplotlib")
    except ImportError as error:
        raise GemmjitError(
            'plot: matplotlib is missing. pip install "gemmjit[notebook]", or leave out --plot'
        ) from error
    matplotlib.use("Agg")
    return import_module("matplotlib.pyplot")
