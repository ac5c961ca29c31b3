"""``gemmjit bench profile``: products one after the other, a few calls each, for a profiler.

One process serves many products, because a profiler's start takes longer than what it looks at.
Only the calls between the driver's ``cuProfilerStart`` and ``cuProfilerStop`` are to be profiled;
what was launched there, and in which order, is written down for whoever reads the profile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gemmjit
from gemmjit.arch import Arch
from gemmjit.bench.backend import Backend
from gemmjit.bench.cases import Workload
from gemmjit.bench.inputs import Inputs, copies_for
from gemmjit.bench.peers.own import describe
from gemmjit.bench.verify import check_result
from gemmjit.config import Config
from gemmjit.errors import InvalidProblemError, LaunchError
from gemmjit.ops.dispatch import plan_for, spec_for

__all__ = ["Calls", "launches_of", "run_profile"]


@dataclass(frozen=True)
class Calls:
    """How often each product is called.

    Attributes
    ----------
    warmup : int
        Calls that come first and are not profiled.
    profiled : int
    """

    warmup: int
    profiled: int

    def __post_init__(self) -> None:
        if self.warmup < 0 or self.profiled < 1:
            raise InvalidProblemError(
                f"calls: expected more than --skip, and none less than 0; got "
                f"{self.warmup + self.profiled} calls, {self.warmup} of them skipped"
            )


def run_profile(
    backend: Backend,
    workloads: Sequence[Workload],
    calls: Calls,
    finished: Callable[[dict[str, Any]], None],
    *,
    config: Config | str | None = None,
    layout: str = "nn",
    seconds: float | None = None,
) -> list[str]:
    """Call gemmjit on each product, on random operands.

    Parameters
    ----------
    backend : Backend
    workloads : sequence of Workload
        In the order in which they are called.
    calls : Calls
    finished : callable
        Given what was done for each product, once it is done: JSON-compatible.
    config : Config or str, optional
        As for `gemmjit.grouped_mm`.
    layout : {"nn", "nt"}
        Of the weights; wgrad has none and is ``nn``.
    seconds : float, optional
        No product is begun later than this.

    Returns
    -------
    list of str
        Labels of the products that the time did not reach.

    Raises
    ------
    LaunchError
        If a result is wrong, after `finished` was told: there is no point in profiling it.
    """
    end = None if seconds is None else backend.now() + seconds
    for number, workload in enumerate(workloads):
        if end is not None and backend.now() >= end:
            return [one.label for one in workloads[number:]]
        found = _profile(backend, workload, calls, config, layout)
        finished(found)
        if not found["check"]["ok"]:
            raise LaunchError(
                f"profile: expected a right result of {workload.label}; "
                f"{found['check']['reason']}. Its counters say nothing"
            )
    return []


def launches_of(
    workload: Workload, backend: Backend, config: Config | str | None, layout: str
) -> list[dict[str, Any]]:
    """Return kernel and grid of each launch of one call, in order."""
    problem = workload.problem(layout)
    spec = spec_for(problem, Arch.parse(backend.facts.arch), config, gpu=backend.facts.name)
    plan = plan_for(
        problem,
        spec,
        num_sms=backend.facts.num_sms,
        offs_is_int64=False,
        group_sizes=None,
    )
    return [{"kernel": one.kernel.entry, "grid": list(one.grid)} for one in plan.launches]


def _profile(
    backend: Backend,
    workload: Workload,
    calls: Calls,
    config: Config | str | None,
    layout: str,
) -> dict[str, Any]:
    layout = "nn" if workload.form == "wgrad" else layout
    # The profiler empties the caches before it counts: more copies than calls serve nobody.
    number = min(
        copies_for(workload.buffer_bytes, backend.facts.l2_bytes), calls.warmup + calls.profiled
    )
    inputs = Inputs(backend, workload, copies=number)
    for operands in inputs.copies:
        operands.mat_b(layout)
    inputs.require_random()

    def call(turn: int) -> Any:
        operands = inputs.copies[turn % number]
        result = gemmjit.grouped_mm(
            operands.mat_a, operands.mat_b(layout), offs=operands.ends, config=config
        )
        backend.synchronize()
        return result

    with backend.active():
        for turn in range(calls.warmup):
            call(turn)
        with backend.profiled():
            for turn in range(calls.warmup, calls.warmup + calls.profiled):
                result = call(turn)
        check = check_result(inputs.copies[turn % number], result, layout)
    del result
    inputs.copies = ()
    backend.release()
    return {
        "case": workload.case.name,
        "form": workload.form,
        "workload": workload.label,
        "dtype": str(workload.dtype),
        "layout": layout,
        "calls": calls.profiled,
        "launches": launches_of(workload, backend, config, layout),
        "check": check.to_dict(),
        "details": describe(workload, backend, config, layout),
    }
