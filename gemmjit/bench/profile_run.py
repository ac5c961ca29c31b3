"""``gemmjit bench profile``: the same call a few times, for a profiler to look at."""

from __future__ import annotations

from typing import Any

import gemmjit
from gemmjit.bench.cases import Case, Pass, Workload
from gemmjit.bench.inputs import Inputs
from gemmjit.bench.peers.own import describe
from gemmjit.bench.setup import choose_backend
from gemmjit.bench.verify import check_result
from gemmjit.config import Config
from gemmjit.errors import LaunchError

__all__ = ["run_calls"]


def run_calls(
    framework: str,
    device: int,
    case: Case,
    form: Pass,
    config: Config | str | None,
    layout: str,
    calls: int,
) -> dict[str, Any]:
    """Call gemmjit on random operands, rotating over copies that exceed the L2 cache.

    Parameters
    ----------
    framework : str
        A backend; see `gemmjit.bench.setup.choose_backend`.
    device : int
    case : Case
    form : {"fprop", "dgrad", "wgrad"}
    config : Config or str, optional
        As for `gemmjit.grouped_mm`.
    layout : {"nn", "nt"}
    calls : int
        Each launches the same kernels.

    Returns
    -------
    dict
        JSON-compatible: calls, and what kernel was called.

    Raises
    ------
    LaunchError
        If the last result is wrong: there is no point in profiling it.
    """
    backend = choose_backend(framework, device)
    workload = Workload(case, form)
    layout = "nn" if form == "wgrad" else layout
    inputs = Inputs(backend, workload)
    inputs.require_random()
    for operands in inputs.copies:
        operands.mat_b(layout)
    result = None
    with backend.active():
        for number in range(calls):
            operands = inputs.copies[number % len(inputs.copies)]
            result = gemmjit.grouped_mm(
                operands.mat_a, operands.mat_b(layout), offs=operands.ends, config=config
            )
            backend.synchronize()
        check = check_result(operands, result, layout)
    if not check.ok:
        raise LaunchError(f"profile: expected a right result; {check.reason}")
    return {
        "kind": "profile",
        "workload": workload.label,
        "layout": layout,
        "calls": calls,
        "check": check.to_dict(),
        "details": describe(workload, backend, config, layout),
    }
