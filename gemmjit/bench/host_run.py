"""``gemmjit bench host``: the host cost of calls, for every form and framework that is there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gemmjit
from gemmjit.bench import cupy_backend
from gemmjit.bench.backend import Backend
from gemmjit.bench.cases import Case, Pass, Workload
from gemmjit.bench.grouped import workload_to_dict
from gemmjit.bench.host import first_calls, host_costs
from gemmjit.bench.inputs import Inputs
from gemmjit.bench.peers import PEERS
from gemmjit.bench.report import text_table

__all__ = ["host_table", "run_host"]


def run_host(
    backend: Backend,
    case: Case,
    forms: Sequence[Pass],
    *,
    calls: int,
    batch: int,
    first: bool,
    device: int,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Measure repeated and first calls.

    Parameters
    ----------
    backend : Backend
    case : Case
        Small, so that the device is done long before the host.
    forms : sequence of str
    calls, batch : int
        As for `gemmjit.bench.host.host_costs`.
    first : bool
        Whether to measure first calls, in processes of their own.
    device : int
    say : callable
        Told about progress.

    Returns
    -------
    dict
        JSON-compatible.
    """
    results = []
    failed = []
    other = _second_framework(backend, device, say)
    backends = [backend] if other is None else [backend, other]

    def wait() -> None:
        for where in backends:
            where.synchronize()

    for form in forms:
        work = Workload(case, form)
        say(f"{work.label}: repeated calls")
        contenders: dict[str, Callable[[], Any]] = {}
        with backend.active():
            for where in backends:
                try:
                    contenders[f"gemmjit, {where.framework}"] = _own_call(where, work)
                except Exception as error:  # the other contenders are still measured
                    failed.append({"name": f"gemmjit, {where.framework}", "reason": str(error)})
            torch = PEERS["torch"]
            if torch.available(backend) is None:
                operands = Inputs(backend, work, copies=1).copies[0]
                chosen = torch.contenders(work, backend)[0]
                contenders[chosen.name] = chosen.prepare(operands).call
            costs = host_costs(
                contenders, now=backend.now, synchronize=wait, total=calls, batch=batch
            )
        results.append({**workload_to_dict(work), "costs": costs})
    record: dict[str, Any] = {"results": results, "failed": failed, "first_calls": {}}
    if first and not backend.facts.simulated:
        say("first calls, in processes of their own")
        record["first_calls"] = first_calls(backend.framework, device, case.name)
    return record


def host_table(record: dict[str, Any]) -> str:
    """Return the table of ``gemmjit bench host``."""
    rows = []
    for result in record["results"]:
        for name, cost in result["costs"].items():
            us = cost["us"]
            span = "none" if us["low"] is None else f"{us['low']:.2f} to {us['high']:.2f}"
            rows.append([f"{result['form']}: {name}", f"{us['median']:.2f}", span])
    head = ("repeated call", "us on the host", "95 % interval")
    lines = list(text_table(head, rows))
    for name, first in record["first_calls"].items():
        if "error" in first:
            lines.append(f"first call, {name}: {first['error']}")
        else:
            low, *_, high = first["all_first_ms"]
            lines.append(
                f"first call, {name}: {first['first_ms']:.1f} ms ({low:.1f} to {high:.1f} in "
                f"{len(first['all_first_ms'])} processes), then {first['second_ms']:.3f} ms"
            )
    lines += [f"{row['name']}: not timed: {row['reason']}" for row in record["failed"]]
    return "\n".join(lines)


def _own_call(backend: Backend, work: Workload) -> Callable[[], Any]:
    operands = Inputs(backend, work, copies=1).copies[0]
    a, b, ends = operands.mat_a, operands.mat_b(), operands.ends
    with backend.active():
        gemmjit.grouped_mm(a, b, offs=ends)
        backend.synchronize()
    return lambda: gemmjit.grouped_mm(a, b, offs=ends)


def _second_framework(backend: Backend, device: int, say: Callable[[str], None]) -> Backend | None:
    """Return CuPy's backend beside torch's, if it can be used."""
    if backend.framework != "torch":
        return None
    reason = cupy_backend.missing()
    if reason is not None:
        say(reason)
        return None
    return cupy_backend.CupyBackend(device)
