"""A transformer trained with torch's grouped product and with gemmjit's: tables and the picture."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

from figures.records import FILES, Record, Results, markdown, missing, origin, picture
from gemmjit.bench.plots import COLOURS, pyplot, save

__all__ = ["curves", "draw", "setup", "steps"]

_THEIRS, _OURS, _NOISE = "torch", "gemmjit", "torch, perturbed"

#: Steps that one row of the table of losses stands for.
_WINDOW = 20

_PICTURE = "train_moe.png"


def setup(results: Results) -> str:
    """Return what was trained, in words, and where it ran."""
    record = results.get("training")
    if record is None:
        return missing("training")
    sizes = record["settings"]
    parameters = record["runs"][_THEIRS]["parameters"] / 1e6
    return (
        f"{parameters:,.0f} million parameters in {sizes['layers']} layers: model width "
        f"{sizes['model']:,}, {sizes['heads']} heads, {sizes['experts']} experts of hidden width "
        f"{sizes['hidden']:,}, {sizes['top_k']} for each token. {sizes['steps']} steps of "
        f"{sizes['batch']} sequences of {sizes['length']} characters; operands of the products in "
        f"{sizes['dtype']}, weights and AdamW in float32.\n\n"
        f"{origin(record, (), FILES['training'][0])}"
    )


def steps(results: Results) -> str:
    """Return the picture, and step time, tokens per second and peak memory of each run."""
    record = results.get("training")
    if record is None:
        return missing("training")
    runs = record["runs"]
    theirs = runs[_THEIRS]["step_ms"]
    rows = [
        [
            name,
            f"{one['step_ms']:.2f}",
            f"{one['step_ms'] / theirs:.3f}",
            f"{one['tokens_per_s']:,.0f}",
            _memory(one["peak_memory_mib"]),
        ]
        for name, one in runs.items()
    ]
    head = ("run", "step, ms", "over torch", "tokens/s", "peak memory, MiB")
    return f"{picture('Loss and time of a step', _PICTURE)}\n\n{markdown(head, rows)}"


def curves(results: Results) -> str:
    """Return how far apart the curves are, and in how many windows it is no more than the noise."""
    record = results.get("training")
    if record is None:
        return missing("training")
    runs = record["runs"]
    noisy = _noisy(runs)
    rows, within = [], 0
    for first, last, means in _windows(runs):
        far = {name: value - means[_THEIRS] for name, value in means.items() if name != _THEIRS}
        inside = abs(far[_OURS]) <= max((abs(far[name]) for name in noisy), default=0.0)
        within += inside
        rows.append(
            [
                f"{first} to {last}",
                f"{means[_THEIRS]:.4f}",
                *(f"{far[name]:+.4f}" for name in (_OURS, *noisy)),
                "yes" if inside else "no",
            ]
        )
    head = (
        *("steps", "mean loss, torch"),
        *(f"{name}, off by" for name in (_OURS, *noisy)),
        "no more than noise",
    )
    return (
        f"{_furthest(record, noisy)}\n\n{markdown(head, rows)}\n\n{_verdict(rows, within, noisy)}"
    )


def draw(record: Record, directory: Path) -> list[Path]:
    """Draw the loss curves, and beside them the time of a step."""
    plt: Any = pyplot()
    runs = record["runs"]
    figure, (axes, bars) = plt.subplots(
        ncols=2, figsize=(9.0, 4.0), gridspec_kw={"width_ratios": (3, 1)}
    )
    styles = {_THEIRS: (COLOURS[0], "-"), _OURS: (COLOURS[1], "--")}
    noisy = _noisy(runs)
    for name, one in runs.items():
        colour, line = styles.get(name, (COLOURS[5], ":"))
        axes.plot(range(1, len(one["loss"]) + 1), one["loss"], line, color=colour, label=name)
    axes.set_xlabel("step")
    axes.set_ylabel("loss, nats a character")
    axes.set_title("The same weights and batches")
    axes.legend(frameon=False, fontsize=8)
    shown = [name for name in runs if name not in noisy]
    times = [runs[name]["step_ms"] for name in shown]
    bars.bar(shown, times, color=[styles[name][0] for name in shown], width=0.6)
    for x, time in enumerate(times):
        bars.text(x, time, f"{time:.1f}", ha="center", va="bottom", fontsize=8)
    bars.set_ylabel("ms a step, median")
    bars.set_title("Time of a step")
    for side in ("top", "right"):
        bars.spines[side].set_visible(False)
    return [save(figure, axes, record, directory / _PICTURE)]


def _noisy(runs: Record) -> list[str]:
    return [name for name in runs if name.startswith(_NOISE)]


def _windows(runs: Record) -> Iterator[tuple[int, int, dict[str, float]]]:
    """Yield first and last step, counted from 1, and the mean loss of each run between them."""
    total = len(runs[_THEIRS]["loss"])
    for start in range(0, total, _WINDOW):
        stop = min(start + _WINDOW, total)
        yield start + 1, stop, {name: mean(one["loss"][start:stop]) for name, one in runs.items()}


def _furthest(record: Record, noisy: list[str]) -> str:
    theirs = record["runs"][_THEIRS]["loss"]
    parts = []
    for name in (_OURS, *noisy):
        apart = [abs(a - b) for a, b in zip(record["runs"][name]["loss"], theirs, strict=True)]
        parts.append(f"{name} {max(apart):.3f} (step {apart.index(max(apart)) + 1})")
    return f"Largest difference of the loss of a step from torch's: {'; '.join(parts)}."


def _verdict(rows: list[list[str]], within: int, noisy: list[str]) -> str:
    if not noisy:
        return "No run was made from perturbed weights: nothing says how large the noise is."
    text = (
        f"In {within} of {len(rows)} spans of steps gemmjit's mean loss is no further from torch's "
        f"than {'the' if len(noisy) == 1 else 'one of the'} perturbed "
        f"{'run' if len(noisy) == 1 else f'{len(noisy)} runs'}."
    )
    if within < len(rows) and len(noisy) == 1:
        text += (
            " One perturbed run is one draw of the noise: where gemmjit's is further, this neither "
            "shows a difference nor rules one out."
        )
    return text


def _memory(mebibytes: float | None) -> str:
    return "-" if mebibytes is None else f"{mebibytes:,.0f}"
