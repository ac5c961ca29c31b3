"""From a contender to graphs that are verified and can be timed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gemmjit.bench.backend import Backend, Graph
from gemmjit.bench.cases import Workload
from gemmjit.bench.inputs import Inputs, Operands
from gemmjit.bench.peers.peer import Contender, Prepared
from gemmjit.bench.verify import Check, agrees, check_result, poison
from gemmjit.errors import LaunchError

__all__ = ["Entrant", "Rejected", "enter", "verify_all"]

#: Calls of one graph at most; each keeps its result, all together this share of the memory at most.
_MAX_CALLS = 32
_OUTPUT_SHARE = 32

#: Graphs of one contender at most: capturing one takes about a tenth of a second.
_MAX_GRAPHS = 8


@dataclass(frozen=True)
class Rejected:
    """A contender that is not timed, and why."""

    name: str
    peer: str
    reason: str

    def to_dict(self) -> dict[str, str]:
        """Return the fields as a JSON-compatible mapping."""
        return {"name": self.name, "peer": self.peer, "reason": self.reason}


@dataclass
class Entrant:
    """A contender captured for every copy of its operands.

    Attributes
    ----------
    name : str
        Unique among the entrants of a cell.
    contender : Contender
    inputs : Inputs
    prepared : tuple of Prepared
        One per copy.
    graphs : tuple of Graph
        Together they visit every copy.
    copies : tuple of tuple of int
        For each graph, which copy each of its calls works on.
    graph_seconds : float
        What one replay of a graph takes, measured once.
    check : Check or None
        What verification said.
    """

    name: str
    contender: Contender
    inputs: Inputs
    prepared: tuple[Prepared, ...]
    graphs: tuple[Graph, ...]
    copies: tuple[tuple[int, ...], ...]
    graph_seconds: float
    check: Check | None = None
    _next: int = 0

    @property
    def workload(self) -> Workload:
        """What it computes."""
        return self.inputs.workload

    def next_graph(self) -> Graph:
        """Return the graphs in rotation."""
        graph = self.graphs[self._next % len(self.graphs)]
        self._next += 1
        return graph


def enter(
    backend: Backend,
    inputs: Inputs,
    contenders: Sequence[Contender],
    graph_seconds: float,
    *,
    prefix: str = "",
    progress: Callable[[str], None] | None = None,
) -> tuple[list[Entrant], list[Rejected]]:
    """Prepare and capture contenders; one that fails is rejected with the reason.

    Parameters
    ----------
    backend : Backend
    inputs : Inputs
    contenders : sequence of Contender
    graph_seconds : float
        What a graph should last.
    prefix : str
        Put before each name, where a cell has several workloads.
    progress : callable, optional
        Told the name of each contender.

    Raises
    ------
    LaunchError
        If the device is lost: a fault in one contender ends the run.
    """
    entrants: list[Entrant] = []
    rejected: list[Rejected] = []
    for contender in contenders:
        name = prefix + contender.name
        if progress is not None:
            progress(f"preparing {name}")
        try:
            entrants.append(_capture(backend, inputs, contender, name, graph_seconds))
        except Exception as error:  # a peer may raise anything; the others are still measured
            rejected.append(Rejected(name, contender.peer, _reason(error)))
            _require_device(backend, name, error)
    return entrants, rejected


def verify_all(
    backend: Backend, entrants: Sequence[Entrant], seed: int
) -> tuple[list[Entrant], list[Rejected]]:
    """Redraw the operands of captured contenders, and check that they compute them.

    The operands change between capture and check, so that a result which was computed before, or
    for another copy, is wrong; outputs are poisoned, so that one which is not written shows.

    Parameters
    ----------
    backend : Backend
    entrants : sequence of Entrant
    seed : int
        Of the new operands.
    """
    for inputs in {id(e.inputs): e.inputs for e in entrants}.values():
        inputs.redraw(seed)
        inputs.require_random()
    good: list[Entrant] = []
    bad: list[Rejected] = []
    for entrant in entrants:
        try:
            for prepared in entrant.prepared:
                if prepared.refresh is not None:
                    prepared.refresh()
            backend.synchronize()
            entrant.check = check = _verify(backend, entrant)
        except Exception as error:
            bad.append(Rejected(entrant.name, entrant.contender.peer, _reason(error)))
            _require_device(backend, entrant.name, error)
            continue
        if check.ok:
            good.append(entrant)
        else:
            bad.append(Rejected(entrant.name, entrant.contender.peer, f"wrong: {check.reason}"))
    return good, bad


def _capture(
    backend: Backend, inputs: Inputs, contender: Contender, name: str, graph_seconds: float
) -> Entrant:
    with backend.active():
        prepared = tuple([contender.prepare(operands) for operands in inputs.copies])
    backend.synchronize()
    number = len(prepared)
    once = backend.capture([p.call for p in prepared])
    backend.measure([once], lead_in=True)
    a_call = min(backend.measure([once, once], lead_in=True)) / number
    room = backend.facts.memory_bytes // _OUTPUT_SHARE
    calls = _calls_per_graph(graph_seconds / a_call, number, inputs.workload, room)
    if calls >= number:
        plans = [tuple(range(number)) * (calls // number)]
    else:
        plans = [tuple(range(i, min(i + calls, number))) for i in range(0, number, calls)]
    if plans == [tuple(range(number))]:
        graphs = [once]
    else:
        del once
        graphs = [backend.capture([prepared[i].call for i in plan]) for plan in plans]
    lasts = min(backend.measure([graphs[0], graphs[0]], lead_in=True))
    return Entrant(name, contender, inputs, prepared, tuple(graphs), tuple(plans), lasts)


def _calls_per_graph(wanted: float, copies: int, workload: Workload, room: int) -> int:
    """Return calls of a graph: near what is wanted, and whole rotations where it has several."""
    output = max(math.prod(workload.result_shape) * workload.dtype.itemsize, 1)
    most = max(1, min(_MAX_CALLS, room // output))
    calls = max(min(math.ceil(wanted), most), 1, -(-copies // _MAX_GRAPHS))
    if calls <= copies:
        return calls
    return max(1, min(-(-calls // copies), most // copies)) * copies


def _verify(backend: Backend, entrant: Entrant) -> Check:
    total = Check(0.0, 0.0, True)
    first: dict[int, Any] = {}
    for graph, plan in zip(entrant.graphs, entrant.copies, strict=True):
        accumulates = any(p.accumulates for p in entrant.prepared)
        for output in graph.outputs:
            poison(backend, output, accumulates)
        backend.synchronize()
        # A sum is replayed once more: the first time it is no more than what a store leaves.
        replays = 2 if accumulates else 1
        for _ in range(replays):
            backend.replay(graph)
        with backend.active():
            for index, output in zip(plan, graph.outputs, strict=True):
                total = total.worse(
                    _verify_output(
                        backend, entrant, index, output, replays * plan.count(index), first
                    )
                )
                if not total.ok:
                    return total
    return total


def _verify_output(
    backend: Backend, entrant: Entrant, index: int, output: Any, times: int, first: dict[int, Any]
) -> Check:
    prepared, operands = entrant.prepared[index], entrant.inputs.copies[index]
    if index in first and first[index][0] is output:
        return Check(0.0, 0.0, True)
    result = prepared.result(output) if prepared.result is not None else output
    rows = _true_rows(result, operands)
    if index in first:
        # Another call on the same copy: its result must be the one that was checked.
        return agrees(backend, rows, first[index][1])
    first[index] = (output, rows)
    return check_result(
        operands,
        result,
        entrant.contender.layout,
        prepared.dtype,
        times if prepared.accumulates else 1,
        prepared.finish,
    )


def _true_rows(result: Any, operands: Operands) -> Any:
    if operands.workload.form == "wgrad":
        return result
    return result[: operands.workload.case.rows]


def _reason(error: BaseException) -> str:
    text = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}: {text}"[:500]


def _require_device(backend: Backend, name: str, cause: Exception) -> None:
    """Raise if a contender's failure took the device with it; nothing can be measured then."""
    try:
        backend.synchronize()
    except Exception as error:
        raise LaunchError(
            f"{name}: it left the device unusable ({_reason(cause)}). "
            "Run again without this contender"
        ) from error
