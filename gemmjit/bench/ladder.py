"""``gemmjit bench ladder``: every rung of the ladder of kernels, on even and skewed routings.

All rungs on all cases are timed in one cell, interleaved, so that the loss by skew is a ratio of
the same rounds. Beside it stands what the tiles alone predict: a tile that is partly filled costs
as much as a full one, so that throughput under skew should be the even throughput times
``eta(skewed) / eta(even)``, with eta the share of scheduled rows that belong to a group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gemmjit.bench.backend import Backend
from gemmjit.bench.cases import Case, Workload
from gemmjit.bench.cell import Bench, Cell, Entry, measure_cell
from gemmjit.bench.grouped import workload_to_dict
from gemmjit.bench.peers import Contender, Peer
from gemmjit.bench.peers.own import own_contender
from gemmjit.bench.protocol import State
from gemmjit.bench.report import entrant_to_dict, ratio_of, text_table
from gemmjit.bench.statistics import Interval
from gemmjit.config import Config, Sm80MmaConfig, Sm90TmaMmaConfig
from gemmjit.dtypes import BF16, DType
from gemmjit.kernels import KERNELS
from gemmjit.schedule import row_utilization

__all__ = ["LADDER_CASES", "ladder_table", "run_ladder", "rungs"]

#: Even and skewed routing of many rows, and even routing of few.
LADDER_CASES = ("seed1-16k-s0", "seed1-16k-s1.2", "seed1-2k-s0")

#: How far the model may be off, as a share; reported, not enforced.
MODEL_TOLERANCE = 0.04


def rungs() -> dict[str, Config]:
    """Return the configs of the ladder by a short name.

    k1 is taken with the two stages and the tiles that its study had; later kernels with every
    shipped config of their highest tile.
    """
    found: dict[str, Config] = {"k0": KERNELS["k0"].default_config}
    for block_m, blocks in ((128, 2), (64, 3), (32, 4)):
        found[f"k1/{block_m}"] = Sm80MmaConfig(block_m=block_m, min_blocks_per_sm=blocks)
    found["k1/64 fdb"] = Sm80MmaConfig(
        block_m=64, min_blocks_per_sm=3, double_buffer_fragments=True
    )
    for name, kernel in KERNELS.items():
        if name in ("k0", "k1"):
            continue
        highest = max(config.block_m for config in kernel.shipped_configs())
        for config in kernel.shipped_configs():
            if config.block_m == highest:
                found[_rung_name(name, config)] = config
    return found


def run_ladder(
    bench: Bench,
    cases: Sequence[Case],
    torch: Peer,
    dtype: DType = BF16,
    kernels: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Measure the ladder.

    Parameters
    ----------
    bench : Bench
    cases : sequence of Case
        The first of equal sizes is the even one that the others are compared with.
    torch : Peer
        Timed beside the rungs, if it is there.
    dtype : DType
    kernels : sequence of str, optional
        Kernels to climb; by default all.

    Returns
    -------
    dict
        JSON-compatible.
    """
    entries = []
    for case in cases:
        work = Workload(case, "fprop", dtype)
        contenders = _contenders(work, bench.backend, torch, kernels)
        entries.append(Entry(work, tuple(contenders), prefix=f"{case.name}: "))
    cell = measure_cell(bench, "ladder", entries)
    names = list(dict.fromkeys(c.name for entry in entries for c in entry.contenders))
    return {
        "rungs": names,
        "cases": [case.name for case in cases],
        "workloads": [workload_to_dict(entry.workload) for entry in entries],
        "eta": _etas(cases),
        "missing_torch": torch.available(bench.backend),
        "inputs": cell.inputs,
        "rejected": [rejected.to_dict() for rejected in cell.rejected],
        "skipped": cell.skipped,
        "states": {state: _state(cell, state, cases, names) for state in cell.timings},
    }


def ladder_table(record: dict[str, Any]) -> str:
    """Return the tables of ``gemmjit bench ladder``."""
    lines = []
    for state, found in record["states"].items():
        for case in record["cases"]:
            rows = [
                _row(found["rows"][f"{case}: {rung}"], rung, record["eta"][case].get(rung))
                for rung in record["rungs"]
                if f"{case}: {rung}" in found["rows"]
            ]
            lines += [f"{case}, {state}: {found['rounds']} rounds", *text_table(_HEAD, rows), ""]
        losses = [_skew_row(row) for row in found["skew"]]
        if losses:
            lines += [f"throughput lost to skew, {state}", *text_table(_SKEW_HEAD, losses), ""]
    lines += [f"{r['name']}: not timed: {r['reason']}" for r in record["rejected"]]
    if record["skipped"]:
        lines.append(f"ladder: not measured, {record['skipped']}")
    if record["missing_torch"]:
        lines.append(f"missing: torch: {record['missing_torch']}")
    return "\n".join(lines).rstrip("\n")


def _contenders(
    work: Workload, backend: Backend, torch: Peer, kernels: Sequence[str] | None
) -> list[Contender]:
    found = [
        own_contender(name, work, backend, config=config, peer=name)
        for name, config in rungs().items()
        if kernels is None or config.kernel in kernels
    ]
    if torch.available(backend) is None:
        found += torch.contenders(work, backend)
    return found


def _rung_name(kernel: str, config: Config) -> str:
    if isinstance(config, Sm90TmaMmaConfig):
        return f"{kernel} s{config.num_stages} b{config.min_blocks_per_sm}"
    return f"{kernel} {config}"


def _etas(cases: Sequence[Case]) -> dict[str, dict[str, float]]:
    return {
        case.name: {
            name: row_utilization(case.group_sizes, config.block_m)
            for name, config in rungs().items()
        }
        for case in cases
    }


def _state(cell: Cell, state: State, cases: Sequence[Case], names: Sequence[str]) -> dict[str, Any]:
    timings = cell.timings[state]
    rows = {entrant.name: entrant_to_dict(cell, entrant, state) for entrant in cell.entrants}
    for case in cases:
        theirs = [n for n in rows if n.startswith(f"{case.name}: torch")]
        best = min(theirs, key=lambda n: float(rows[n]["us"]["median"]), default=None)
        for name in (f"{case.name}: {rung}" for rung in names):
            if best is not None and name in rows:
                rows[name]["over_torch"] = ratio_of(cell, state, name, best).to_dict()
    return {
        "rounds": timings.rounds,
        "seconds": timings.duration,
        "anchors": cell.anchors[state].to_dict(),
        "rows": rows,
        "skew": _skew(cell, state, cases, names),
        "telemetry": timings.telemetry,
    }


def _skew(
    cell: Cell, state: State, cases: Sequence[Case], names: Sequence[str]
) -> list[dict[str, Any]]:
    """Return the loss of each rung on each case that an even case of equal sizes precedes."""
    etas = _etas(cases)
    seconds = cell.timings[state].seconds
    found: list[dict[str, Any]] = []
    for number, case in enumerate(cases):
        even = next((c for c in cases[:number] if _same_sizes(c, case)), None)
        if even is None:
            continue
        for rung in names:
            slow, quick = f"{case.name}: {rung}", f"{even.name}: {rung}"
            if slow not in seconds or quick not in seconds:
                continue
            ratio = ratio_of(cell, state, quick, slow)
            eta = etas[case.name].get(rung)
            predicted = None if eta is None else 1.0 - eta / etas[even.name][rung]
            within = None
            if predicted is not None:
                within = abs(1.0 - ratio.median - predicted) <= MODEL_TOLERANCE
            found.append(
                {
                    "rung": rung,
                    "case": case.name,
                    "even": even.name,
                    "predicted_loss": predicted,
                    "measured_loss": _loss(ratio),
                    "within_four_points": within,
                }
            )
    return found


def _loss(ratio: Interval) -> dict[str, Any]:
    """Return ``1 - ratio`` with its interval turned round."""
    return {
        **ratio.to_dict(),
        "median": 1.0 - ratio.median,
        "low": None if ratio.high is None else 1.0 - ratio.high,
        "high": None if ratio.low is None else 1.0 - ratio.low,
    }


def _same_sizes(one: Case, other: Case) -> bool:
    return (one.rows, one.num_groups, one.k, one.n) == (
        other.rows,
        other.num_groups,
        other.k,
        other.n,
    )


_HEAD = ("rung", "us", "TFLOP/s", "/floor", "/torch", "eta", "registers", "blocks/SM", "smem KiB")
_SKEW_HEAD = ("rung", "predicted %", "measured %", "95 % interval", "within 4 points")


def _row(row: dict[str, Any], rung: str, eta: float | None) -> list[str]:
    details = row["details"] or {}
    torch = row.get("over_torch")
    smem = details.get("smem_bytes")
    return [
        rung,
        f"{row['us']['median']:.1f}",
        f"{row['tflop_per_s']:.1f}",
        f"{row['over_floor']:.2f}",
        "-" if torch is None else f"{torch['median']:.3f}",
        "-" if eta is None else f"{eta:.3f}",
        str(details.get("registers", "-")),
        str(details.get("resident_blocks", "-")),
        "-" if smem is None else f"{smem / 1024:.0f}",
    ]


def _skew_row(row: dict[str, Any]) -> list[str]:
    loss, predicted = row["measured_loss"], row["predicted_loss"]
    interval = "none"
    if loss["low"] is not None:
        interval = f"{100 * loss['low']:.1f} to {100 * loss['high']:.1f}"
    within = {None: "-", True: "yes", False: "no"}[row["within_four_points"]]
    return [
        row["rung"],
        "-" if predicted is None else f"{100 * predicted:.1f}",
        f"{100 * loss['median']:.1f}",
        interval,
        within,
    ]
