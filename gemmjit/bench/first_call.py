"""A process that makes one call and says what it cost: ``python -m gemmjit.bench.first_call``.

Imports, the context and the operands come before; the first call is everything from there to its
result: choosing, rendering, compiling or reading from the cache, loading, launching, waiting.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import gemmjit
from gemmjit.arrays import frontend_of
from gemmjit.bench.cases import Workload, case_of
from gemmjit.bench.inputs import Inputs
from gemmjit.bench.peers import PEERS
from gemmjit.bench.setup import choose_backend
from gemmjit.cache.stats import stats

__all__ = ["first_call", "main"]


def first_call(framework: str, peer: str, device: int, case: str) -> dict[str, Any]:
    """Make a peer's first call in this process.

    Parameters
    ----------
    framework : str
        A backend; see `gemmjit.bench.setup.choose_backend`.
    peer : str
        A name of `gemmjit.bench.peers.PEERS`.
    device : int
    case : str

    Returns
    -------
    dict
        ``first_ms`` and ``second_ms`` until the result is there, and how many kernels the first
        call compiled.
    """
    backend = choose_backend(framework, device)
    workload = Workload(case_of(case), "fprop")
    operands = Inputs(backend, workload, copies=1).copies[0]
    a, b, ends = operands.mat_a, operands.mat_b(), operands.ends
    if peer == "gemmjit":
        function = gemmjit.grouped_mm
        frontend_of(a, "mat_a")  # imports what serves these arrays

        def call() -> Any:
            return function(a, b, offs=ends)

    else:
        # Other peers compile nothing of gemmjit's when they are asked for their contenders.
        reason = PEERS[peer].available(backend)
        if reason is not None:
            raise SystemExit(reason)
        call = PEERS[peer].contenders(workload, backend)[0].prepare(operands).call
    times = []
    with backend.active():
        backend.synchronize()
        for _ in range(2):
            start = time.perf_counter()
            call()
            backend.synchronize()
            times.append((time.perf_counter() - start) * 1e3)
    return {"first_ms": times[0], "second_ms": times[1], "compiles": stats().compiles}


def main(arguments: Sequence[str]) -> int:
    """Print the result as one line of JSON."""
    framework, peer, device, case = arguments
    print(json.dumps(first_call(framework, peer, int(device), case)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
