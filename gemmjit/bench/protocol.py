"""The timing protocol: prepare, verify, then time contenders interleaved, hot and cool.

Hot: the device is loaded for a second with the very mix that is measured, then replays follow each
other without a pause. Cool: it idles 10 to 20 ms before each replay. In both, every contender has
its turn in every round, in an order that is random in one round and reversed in the next: what
drifts evenly cancels in the ratios, and no contender always follows the same other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np

from gemmjit.bench.backend import Backend, Graph
from gemmjit.bench.entrant import Entrant
from gemmjit.bench.statistics import MIN_ROUNDS
from gemmjit.bench.telemetry import Telemetry
from gemmjit.errors import InvalidProblemError

__all__ = ["Protocol", "State", "Timings", "states_of", "time_cell"]

#: Power states; the card's clocks, and with them the ratios, differ between them.
State = Literal["hot", "cool"]

_MAX_REPLAYS = 50  # of one contender in one round


@dataclass(frozen=True)
class Protocol:
    """How cells are timed.

    Attributes
    ----------
    rounds : int
        Rounds of a cell; under 15 it has no valid interval.
    warmup_seconds : float
        Load before the first hot round.
    slot_seconds : float
        How long a contender's turn lasts in a hot round; its first replay is not counted.
    settle_seconds : float
        Idling before the first cool round.
    idle_seconds : tuple of float
        Shortest and longest idling before a cool replay.
    graph_seconds : float
        What a graph should last, so that its launch does not count.
    seed : int
        Of orders, idle times and operands.
    """

    rounds: int = MIN_ROUNDS
    warmup_seconds: float = 1.0
    slot_seconds: float = 0.010
    settle_seconds: float = 0.5
    idle_seconds: tuple[float, float] = (0.010, 0.020)
    graph_seconds: float = 0.001
    seed: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a JSON-compatible mapping."""
        return asdict(self)

    def with_rounds(self, rounds: int) -> Protocol:
        """Return the same protocol with another number of rounds."""
        return replace(self, rounds=rounds)


@dataclass
class Timings:
    """What the rounds of one cell in one state gave.

    Attributes
    ----------
    state : {"hot", "cool"}
    seconds : mapping
        Seconds a call for each contender, one per round.
    orders : list of tuple of str
        Contenders in the order of each round.
    telemetry : mapping
        See `Telemetry.summary`.
    duration : float
        Seconds that the cell took, on the host.
    """

    state: State
    seconds: dict[str, list[float]]
    orders: list[tuple[str, ...]] = field(default_factory=list)
    telemetry: dict[str, Any] = field(default_factory=dict)
    duration: float = 0.0

    @property
    def rounds(self) -> int:
        """Number of rounds."""
        return len(self.orders)


def time_cell(
    backend: Backend,
    entrants: Sequence[Entrant],
    protocol: Protocol,
    state: State,
    telemetry: Telemetry,
    *,
    rounds_for: Callable[[float], int] | None = None,
) -> Timings:
    """Time entrants against each other in one power state.

    Parameters
    ----------
    backend : Backend
    entrants : sequence of Entrant
        Verified, with distinct names.
    protocol : Protocol
    state : {"hot", "cool"}
    telemetry : Telemetry
    rounds_for : callable, optional
        Given the seconds of one round, the number of rounds to do instead of the protocol's.
    """
    start = backend.now()
    random = np.random.default_rng(protocol.seed)
    turn = _HotTurns(backend, protocol) if state == "hot" else _CoolTurns(backend, protocol, random)
    names = [entrant.name for entrant in entrants]
    if len(set(names)) != len(names):
        raise InvalidProblemError(f"entrants: expected distinct names; got {names}")
    turn.settle(entrants, telemetry)
    # A round of its own that does not count: first replays of a state, and what a round costs.
    begun = backend.now()
    turn.round(entrants, telemetry)
    rounds = protocol.rounds
    if rounds_for is not None:
        rounds = rounds_for(backend.now() - begun)
    timings = Timings(state, {name: [] for name in names})
    telemetry.take()
    chosen = list(entrants)
    for number in range(rounds):
        if number % 2:
            chosen = chosen[::-1]
        else:
            chosen = [entrants[int(i)] for i in random.permutation(len(entrants))]
        for entrant, seconds in zip(chosen, turn.round(chosen, telemetry), strict=True):
            timings.seconds[entrant.name].append(seconds)
        timings.orders.append(tuple(entrant.name for entrant in chosen))
    telemetry.take()
    timings.telemetry = telemetry.summary()
    timings.duration = backend.now() - start
    return timings


def states_of(names: Sequence[str]) -> tuple[State, ...]:
    """Return the states that names stand for.

    Raises
    ------
    InvalidProblemError
        If one is unknown.
    """
    known = {str(state): state for state in get_args(State)}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise InvalidProblemError(f"state: expected hot, cool or both; got {unknown[0]!r}")
    return tuple(known[name] for name in names)


class _HotTurns:
    """Rounds without a pause."""

    def __init__(self, backend: Backend, protocol: Protocol) -> None:
        self._backend = backend
        self._protocol = protocol

    def settle(self, entrants: Sequence[Entrant], telemetry: Telemetry) -> None:
        """Load the device with the mix of all contenders."""
        loaded = 0.0
        while loaded < self._protocol.warmup_seconds:
            loaded += sum(self._backend.measure(self._schedule(entrants)[0]))

    def round(self, entrants: Sequence[Entrant], telemetry: Telemetry) -> list[float]:
        """Return the mean time of a call for each contender; its first replay is not counted."""
        graphs, replays = self._schedule(entrants)
        times = self._backend.measure(graphs, while_running=telemetry.sample)
        result = []
        at = 0
        for number in replays:
            counted = slice(at + 1, at + number)
            calls = sum(graph.calls for graph in graphs[counted])
            result.append(sum(times[counted]) / calls)
            at += number
        return result

    def _schedule(self, entrants: Sequence[Entrant]) -> tuple[list[Graph], list[int]]:
        graphs: list[Graph] = []
        replays = []
        for entrant in entrants:
            wanted = round(self._protocol.slot_seconds / entrant.graph_seconds)
            number = 1 + min(max(wanted, 2), _MAX_REPLAYS)
            graphs += [entrant.next_graph() for _ in range(number)]
            replays.append(number)
        return graphs, replays


class _CoolTurns:
    """Rounds with a pause before each replay."""

    def __init__(self, backend: Backend, protocol: Protocol, random: np.random.Generator) -> None:
        self._backend = backend
        self._protocol = protocol
        self._random = random

    def settle(self, entrants: Sequence[Entrant], telemetry: Telemetry) -> None:
        """Let the device cool."""
        self._backend.idle(self._protocol.settle_seconds)

    def round(self, entrants: Sequence[Entrant], telemetry: Telemetry) -> list[float]:
        """Return the time of a call for each contender, from a single replay."""
        result = []
        for entrant in entrants:
            self._backend.idle(float(self._random.uniform(*self._protocol.idle_seconds)))
            graph = entrant.next_graph()
            (seconds,) = self._backend.measure(
                [graph], lead_in=True, while_running=telemetry.sample
            )
            result.append(seconds / graph.calls)
        return result
