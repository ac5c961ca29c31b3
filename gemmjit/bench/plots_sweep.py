"""Pictures of sweeps: throughput over rows of a group and over skew, and against the roofline."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gemmjit.bench.plots import COLOURS, legend, pyplot, save

__all__ = ["plot_roofline", "plot_sweep"]

_SKEW = re.compile(r"skew=([0-9.]+)")


def plot_sweep(record: Mapping[str, Any], directory: Path) -> list[Path]:
    """Draw useful throughput over the rows of a group, and over the skew of the routing.

    Parameters
    ----------
    record : mapping
        As ``gemmjit bench grouped --json`` writes it, of cases that differ in rows or in skew.
    directory : Path
        Where the pictures go.

    Returns
    -------
    list of Path
    """
    even = [r for r in record["results"] if not _skew_of(r)]
    most = max((r["rows"] for r in record["results"] if _skew_of(r)), default=0)
    skewed = [r for r in record["results"] if r["rows"] == most]
    drawn = []
    if len(even) > 1:
        rows = sorted(even, key=lambda r: int(r["rows"]))
        points = [(r["rows"] / r["groups"], r) for r in rows]
        path = directory / "sweep_rows.png"
        drawn.append(_curves(record, points, "rows of a group", path, logarithmic=True))
    if len(skewed) > 1:
        points = sorted(((_skew_of(r), r) for r in skewed), key=lambda p: p[0])
        path = directory / "sweep_skew.png"
        drawn.append(_curves(record, points, "skew of the routing", path, logarithmic=False))
    return drawn


def plot_roofline(record: Mapping[str, Any], directory: Path) -> list[Path]:
    """Draw useful throughput over operations per byte, under the ceilings of the same run.

    Parameters
    ----------
    record : mapping
        As ``gemmjit bench grouped --json`` writes it.
    directory : Path
        Where the pictures go.
    """
    return [
        _roofline(record, state, directory / f"roofline_{state}.png")
        for state in sorted({state for r in record["results"] for state in r["states"]})
    ]


def _skew_of(result: Mapping[str, Any]) -> float:
    found = _SKEW.search(result["case"])
    return float(found[1]) if found else 0.0


def _rate(found: Mapping[str, Any], peer: str) -> float | None:
    name = found["best"].get(peer)
    rates = [e["tflop_per_s"] for e in found["entrants"] if e["name"] == name]
    return float(rates[0]) if rates else None


def _curves(
    record: Mapping[str, Any],
    points: Sequence[tuple[float, Mapping[str, Any]]],
    axis: str,
    path: Path,
    *,
    logarithmic: bool,
) -> Path:
    figure, axes = pyplot().subplots(figsize=(7.0, 4.2))
    states = sorted({state for _, r in points for state in r["states"]})
    peers = list(
        dict.fromkeys(p for _, r in points for s in r["states"].values() for p in s["best"])
    )
    for i, peer in enumerate(peers):
        for state in states:
            drawn = [
                (x, rate)
                for x, result in points
                if state in result["states"]
                and (rate := _rate(result["states"][state], peer)) is not None
            ]
            axes.plot(
                *zip(*drawn, strict=True),
                color=COLOURS[i],
                linestyle="-" if state == "hot" else "--",
                marker="o",
                label=f"{peer}, {state}",
            )
    if logarithmic:
        axes.set_xscale("log", base=2)
    first = points[0][1]
    axes.set_xlabel(axis)
    axes.set_ylabel("useful TFLOP/s")
    axes.set_title(f"{first['form']}, {first['groups']} groups, K = {first['k']}, N = {first['n']}")
    axes.set_ylim(bottom=0)
    legend(axes)
    return save(figure, axes, record, path)


def _roofline(record: Mapping[str, Any], state: str, path: Path) -> Path:
    figure, axes = pyplot().subplots(figsize=(7.0, 4.6))
    results = [r for r in record["results"] if state in r["states"]]
    forms = list(dict.fromkeys(r["form"] for r in results))
    intensities = [r["flops"] / r["min_bytes"] for r in results]
    anchors = [r["states"][state]["anchors"] for r in results]
    copy = max(a["copy_tb_per_s"] for a in anchors)
    dense = max(a["dense_tflop_per_s"] or 0.0 for a in anchors)
    span = [min(intensities) / 2, max(intensities) * 2]
    axes.plot(
        [span[0], dense / copy, span[1]],
        [span[0] * copy, dense, dense],
        color="black",
        linewidth=1,
        label=f"best copy {copy:.1f} TB/s, best dense product {dense:.0f} TFLOP/s",
    )
    for i, form in enumerate(forms):
        chosen = [(x, r) for x, r in zip(intensities, results, strict=True) if r["form"] == form]
        drawn = [(x, _rate(r["states"][state], "gemmjit") or 0.0) for x, r in chosen]
        axes.scatter(
            *zip(*drawn, strict=True), color=COLOURS[i], label=f"gemmjit, {form}", zorder=3
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("useful operations per byte of the fewest that must move")
    axes.set_ylabel("useful TFLOP/s")
    axes.set_title(f"Roofline, {state}")
    legend(axes)
    return save(figure, axes, record, path)
