"""One cell of a report: contenders of one or several workloads, verified and timed together."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gemmjit.bench.anchors import Anchors, AnchorValues
from gemmjit.bench.backend import Backend
from gemmjit.bench.budget import Budget
from gemmjit.bench.cases import Workload
from gemmjit.bench.entrant import Entrant, Rejected, enter, verify_all
from gemmjit.bench.inputs import Inputs
from gemmjit.bench.peers import Contender
from gemmjit.bench.protocol import Protocol, State, Timings, time_cell
from gemmjit.bench.telemetry import Provider, Telemetry

__all__ = ["Bench", "Cell", "Entry", "measure_cell", "say"]


@dataclass(frozen=True)
class Entry:
    """A workload of a cell, and who computes it.

    Attributes
    ----------
    workload : Workload
    contenders : tuple of Contender
    prefix : str
        Put before the contenders' names, where a cell has several workloads.
    """

    workload: Workload
    contenders: tuple[Contender, ...]
    prefix: str = ""


@dataclass
class Bench:
    """What all cells of a run share.

    Attributes
    ----------
    backend : Backend
    provider : Provider or None
        Of the telemetry.
    protocol : Protocol
    states : tuple of str
        Power states, in the order in which they are measured.
    anchors : Anchors
    budget : Budget
    say : callable
        Told about progress.
    """

    backend: Backend
    provider: Provider | None
    protocol: Protocol
    states: tuple[State, ...]
    anchors: Anchors
    budget: Budget
    say: Callable[[str], None]


@dataclass
class Cell:
    """What was measured.

    Attributes
    ----------
    label : str
    entrants : list of Entrant
        Who was timed.
    rejected : list of Rejected
        Who was not, and why.
    inputs : list of mapping
        For each workload: copies, bytes, and whether they exceed the L2 cache.
    timings : mapping of state to Timings
    anchors : mapping of state to AnchorValues
    skipped : str
        Why nothing was timed, or empty.
    """

    label: str
    entrants: list[Entrant] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)
    inputs: list[dict[str, Any]] = field(default_factory=list)
    timings: dict[State, Timings] = field(default_factory=dict)
    anchors: dict[State, AnchorValues] = field(default_factory=dict)
    skipped: str = ""


def measure_cell(bench: Bench, label: str, entries: Sequence[Entry]) -> Cell:
    """Prepare, verify and time the contenders of a cell in every power state.

    Parameters
    ----------
    bench : Bench
    label : str
    entries : sequence of Entry
        Their contenders are timed against each other, interleaved.

    Returns
    -------
    Cell
        Without graphs and operands: their memory is free for the next cell.
    """
    cell = Cell(label)
    if bench.budget.is_spent():
        cell.skipped = "the budget is spent"
        bench.say(f"{label}: skipped, {cell.skipped}")
        bench.budget.skip(len(bench.states))
        return cell
    try:
        _fill(bench, cell, entries)
    finally:
        for entrant in cell.entrants:
            entrant.graphs, entrant.prepared = (), ()
            entrant.inputs.copies = ()
        bench.backend.release()
    return cell


def _fill(bench: Bench, cell: Cell, entries: Sequence[Entry]) -> None:
    backend, protocol = bench.backend, bench.protocol
    captured: list[Entrant] = []
    for entry in entries:
        inputs = Inputs(backend, entry.workload, seed=protocol.seed + 1)
        inputs.require_random()
        cell.inputs.append(
            {
                "workload": entry.workload.label,
                "copies": len(inputs.copies),
                "bytes": inputs.nbytes,
                "exceed_l2": inputs.exceed_l2,
            }
        )
        if not inputs.exceed_l2:
            bench.say(f"{cell.label}: inputs fit in the L2 cache, {inputs.nbytes} bytes")
        entered, rejected = enter(
            backend,
            inputs,
            entry.contenders,
            protocol.graph_seconds,
            prefix=entry.prefix,
            progress=lambda text: bench.say(f"{cell.label}: {text}"),
        )
        captured += entered
        cell.rejected += rejected
    bench.say(f"{cell.label}: verifying {len(captured)} contenders")
    cell.entrants, wrong = verify_all(backend, captured, seed=protocol.seed + 2)
    cell.rejected += wrong
    for rejected_one in cell.rejected:
        bench.say(f"{cell.label}: {rejected_one.name} is not timed: {rejected_one.reason}")
    if not cell.entrants:
        cell.skipped = "no contender is left"
        bench.budget.skip(len(bench.states))
        return
    for state in bench.states:
        _time(bench, cell, state)
    # Timing must not have changed what they compute.
    _, wrong = verify_all(backend, cell.entrants, seed=protocol.seed + 3)
    for rejected_one in wrong:
        cell.rejected.append(
            Rejected(rejected_one.name, rejected_one.peer, f"after timing: {rejected_one.reason}")
        )
        bench.say(f"{cell.label}: {rejected_one.name}: {cell.rejected[-1].reason}")
        cell.entrants = [e for e in cell.entrants if e.name != rejected_one.name]
    if not cell.entrants:
        cell.skipped = "no contender is right after timing"
        cell.timings.clear()


def _time(bench: Bench, cell: Cell, state: State) -> None:
    if bench.budget.is_spent():
        bench.say(f"{cell.label}: {state} is skipped, the budget is spent")
        bench.budget.skip()
        return
    label = f"{cell.label} {state}"
    bench.say(f"{label}: timing {len(cell.entrants)} contenders")
    cell.timings[state] = time_cell(
        bench.backend,
        cell.entrants,
        bench.protocol,
        state,
        Telemetry(bench.provider),
        rounds_for=bench.budget.begin(bench.protocol.rounds, label),
    )
    # The ceilings of the state that the contenders have just been measured in.
    cell.anchors[state] = bench.anchors.measure(state, bench.protocol)


def say(text: str) -> None:
    """Print progress to standard error."""
    print(text, file=sys.stderr, flush=True)
