"""``gemmjit bench grouped``: gemmjit beside its peers, case by case."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gemmjit.bench.cases import Workload
from gemmjit.bench.cell import Bench, Entry, measure_cell
from gemmjit.bench.peers import Contender, Peer
from gemmjit.bench.report import cell_to_dict

__all__ = ["missing_peers", "run_grouped", "workload_to_dict"]


def run_grouped(
    bench: Bench,
    workloads: Sequence[Workload],
    peers: Sequence[Peer],
    baseline: str,
    finished: Callable[[dict[str, Any]], None],
    layouts: Sequence[str] = ("nn", "nt"),
) -> list[dict[str, Any]]:
    """Measure peers on workloads.

    Parameters
    ----------
    bench : Bench
    workloads : sequence of Workload
    peers : sequence of Peer
        Those that are not available are left out; see `missing_peers`.
    baseline : str
        Peer that ratios are formed with.
    finished : callable
        Given each result as soon as it is there, so that an interrupted run keeps what it has.
    layouts : sequence of str
        Layouts of the weights to measure, where a contender has that choice.

    Returns
    -------
    list of dict
        One JSON-compatible mapping per workload.
    """
    present = [peer for peer in peers if peer.available(bench.backend) is None]
    results = []
    for workload in workloads:
        contenders: list[Contender] = []
        without: list[dict[str, str]] = []
        for peer in present:
            try:
                found = list(peer.contenders(workload, bench.backend))
            except Exception as error:  # a peer may raise anything; the others are measured
                without.append({"peer": peer.name, "reason": f"{type(error).__name__}: {error}"})
                continue
            if not found:
                without.append({"peer": peer.name, "reason": "does not compute this workload"})
            contenders += _in_layouts(found, layouts)
        cell = measure_cell(bench, workload.label, [Entry(workload, tuple(contenders))])
        result = {
            **workload_to_dict(workload),
            **cell_to_dict(cell, baseline),
            "without": without,
        }
        results.append(result)
        finished(result)
    return results


def missing_peers(bench: Bench, peers: Sequence[Peer]) -> list[dict[str, str]]:
    """Return the peers that cannot be measured, each with the reason."""
    found = []
    for peer in peers:
        reason = peer.available(bench.backend)
        if reason is not None:
            found.append({"peer": peer.name, "title": peer.title, "reason": reason})
    return found


def workload_to_dict(workload: Workload) -> dict[str, Any]:
    """Return what a workload is, as a JSON-compatible mapping."""
    case = workload.case
    return {
        "case": case.name,
        "form": workload.form,
        "dtype": workload.dtype.name,
        "rows": case.rows,
        "spare_rows": case.spare_rows,
        "groups": case.num_groups,
        "k": case.k,
        "n": case.n,
        "group_sizes": list(case.group_sizes),
        "flops": workload.flops,
        "min_bytes": workload.min_bytes,
    }


def _in_layouts(contenders: Sequence[Contender], layouts: Sequence[str]) -> list[Contender]:
    """Keep the layouts asked for; a peer that has none of them keeps what it has."""
    kept = [c for c in contenders if c.layout in layouts]
    return kept or list(contenders)
