"""What an instruction becomes: a step that can be bound to a set of lanes.

Binding slices the register rows once; running a bound step is one call. Arithmetic is a NumPy
ufunc over prepared views, so its cost hardly depends on the number of lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gemmjit.emulator.faults import ConvergenceFault
from gemmjit.emulator.lanes import WARP, LaneSet

__all__ = [
    "Barrier", "Control", "Copy", "Guard", "LaneOp", "Map", "MapMany", "Nothing", "Step",
    "Together", "Ufunc",
]  # fmt: skip

Array = npt.NDArray[Any]
Thunk = Callable[[], Any]
# NumPy wants their `out` by keyword; for the others a positional one is quicker.
_KEYWORD_OUT = frozenset((np.minimum, np.maximum))


@dataclass(slots=True)
class Guard:
    """The predicate before an instruction."""

    row: Array
    negated: bool


class Step:
    """Base. `sync` is the number of lanes that must execute it together (0, 32 or 128)."""

    sync = 0
    ends_segment = False

    def bind(self, lanes: LaneSet, guard: Guard | None) -> Thunk:
        """Return a callable that executes the step for `lanes`."""
        raise NotImplementedError


class Nothing(Step):
    """An instruction without an effect that the emulator models."""

    def bind(self, lanes: LaneSet, guard: Guard | None) -> Thunk:
        """Bind nothing."""
        return _nothing


def _nothing() -> None:
    return None


def _selection(lanes: LaneSet, guard: Guard) -> Callable[[], Array]:
    """Return a callable for the mask, within the rectangle, that the guard lets through."""
    view, inner, negated = guard.row[lanes.rect], lanes.inner, guard.negated
    if inner is None:
        return partial(np.logical_not, view) if negated else lambda: view
    if negated:
        return lambda: inner & ~view
    return lambda: inner & view


class Ufunc(Step):
    """`destination = ufunc(*sources)`."""

    def __init__(self, ufunc: np.ufunc, sources: Sequence[Array], destination: Array) -> None:
        self.ufunc = ufunc
        self.sources = sources
        self.destination = destination

    def bind(self, lanes: LaneSet, guard: Guard | None) -> Thunk:
        """Bind the ufunc to views of the rows."""
        sources = [row[lanes.rect] for row in self.sources]
        out, ufunc = self.destination[lanes.rect], self.ufunc
        if guard is None:
            if lanes.inner is None and ufunc not in _KEYWORD_OUT:
                return partial(ufunc, *sources, out)
            if lanes.inner is None:
                return partial(ufunc, *sources, out=out)
            return partial(ufunc, *sources, out=out, where=lanes.inner)
        chosen = _selection(lanes, guard)
        return lambda: ufunc(*sources, out=out, where=chosen())


class Copy(Step):
    """`destination = source`, converting integers by truncation or extension."""

    def __init__(self, source: Array, destination: Array) -> None:
        self.source = source
        self.destination = destination

    def bind(self, lanes: LaneSet, guard: Guard | None) -> Thunk:
        """Bind the copy to views of the rows."""
        source, out = self.source[lanes.rect], self.destination[lanes.rect]
        if guard is None:
            if lanes.inner is None:
                return partial(np.copyto, out, source, "unsafe")
            return partial(np.copyto, out, source, "unsafe", lanes.inner)
        chosen = _selection(lanes, guard)
        return lambda: np.copyto(out, source, "unsafe", chosen())


class Map(Step):
    """`destination = function(*sources)` for a function that returns a new array."""

    def __init__(
        self, function: Callable[..., Any], sources: Sequence[Array], destination: Array
    ) -> None:
        self.function = function
        self.sources = sources
        self.destination = destination

    def bind(self, lanes: LaneSet, guard: Guard | None) -> Thunk:
        """Bind the function to views of the rows."""
        sources = [row[lanes.rect] for row in self.sources]
        out, function, inner = self.destination[lanes.rect], self.function, lanes.inner
        if guard is None:
            if inner is None:

                def run() -> None:
                    out[...] = function(*sources)
            else:

                def run() -> None:
                    np.copyto(out, function(*sources), "unsafe", inner)

            return run
        chosen = _selection(lanes, guard)
        return lambda: np.copyto(out, function(*sources), "unsafe", chosen())


class MapMany(Step):
    """Several destinations from one function that returns as many arrays."""

    def __init__(
        self,
        function: Callable[..., Sequence[Any]],
        sources: Sequence[Array],
        destinations: Sequence[Array],
    ) -> None:
        self.function = function
        self.sources = sources
        self.destinations = destinations

    def bind(self, lanes: LaneSet, guard: Guard | None) -> Thunk:
        """Bind the function to views of the rows."""
        sources = [row[lanes.rect] for row in self.sources]
        outs = [row[lanes.rect] for row in self.destinations]
        function, inner = self.function, lanes.inner
        chosen = _selection(lanes, guard) if guard is not None else None

        def run() -> None:
            results = function(*sources)
            mask = inner if chosen is None else chosen()
            for out, value in zip(outs, results, strict=True):
                if mask is None:
                    out[...] = value
                else:
                    np.copyto(out, value, "unsafe", mask)

        return run


class Together(Step):
    """Several steps of one instruction, one after the other (no step reads another's result)."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = steps

    def bind(self, lanes: LaneSet, guard: Guard | None) -> Thunk:
        """Bind every step."""
        bound = [step.bind(lanes, guard) for step in self.steps]
        if len(bound) == 1:
            return bound[0]

        def run() -> None:
            for step in bound:
                step()

        return run


class LaneOp(Step):
    """An instruction with effects beyond registers: `run(lanes)`.

    `prepare(lanes)`, when given, returns a callable for the unguarded case with views prepared.
    `member_mask` is the row of the mask operand of `.sync` instructions that have one.
    """

    member_mask: Array | None = None

    def __init__(
        self,
        run: Callable[[LaneSet], None],
        sync: int = 0,
        prepare: Callable[[LaneSet], Thunk] | None = None,
    ) -> None:
        self.run = run
        self.sync = sync
        self.prepare = prepare

    def bind(self, lanes: LaneSet, guard: Guard | None) -> Thunk:
        """Bind; a guard selects the lanes each time."""
        run = self.run
        if guard is None:
            return self.prepare(lanes) if self.prepare is not None else partial(run, lanes)
        row, negated = guard.row, guard.negated
        aligned = self.sync and self.member_mask is None

        def guarded() -> None:
            chosen = lanes.where(row, negated)
            if chosen is None:
                return
            if aligned and chosen is not lanes and _cuts_warps(lanes, chosen):
                raise ConvergenceFault("the guard of an .aligned instruction differs within a warp")
            run(chosen)

        return guarded


def _cuts_warps(lanes: LaneSet, chosen: LaneSet) -> bool:
    """Whether `chosen` holds some but not all of the lanes of a warp of `lanes`."""
    before, after = (s.mask.reshape(-1, WARP)[chosen.warp_ids].sum(1) for s in (lanes, chosen))
    return bool((before != after).any())


class Barrier(Step):
    """An instruction that may block: `run(lanes)` returns the lanes that go on at once.

    The handler registers the others with what they wait for; when that happens they are made
    runnable at the instruction itself (`again`) or behind it.
    """

    ends_segment = True

    def __init__(self, run: Callable[[int, LaneSet], LaneSet | None], sync: int = 0) -> None:
        self.run = run
        self.sync = sync


class Control(Step):
    """Branches, calls and exits; the machine knows what they mean."""

    ends_segment = True

    def __init__(self, opcode: str, targets: Sequence[int] = (), payload: Any = None) -> None:
        self.opcode = opcode
        self.targets = targets
        self.payload = payload
