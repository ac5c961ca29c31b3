"""What a call costs the host, and what the first one costs.

A repeated call is timed with nothing waited for and its result allocated, as in a program that
keeps the device busy. The driver's launch queue holds about a thousand launches: a call that waits
for it would measure the device, so that calls come in short batches with a wait between them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gemmjit.bench.statistics import median_interval
from gemmjit.errors import InvalidProblemError

__all__ = ["MAX_BATCH", "first_calls", "host_costs"]

#: Calls between two waits at most: a fifth of the launch queue.
MAX_BATCH = 200

# Processes of which each kind of first call is the middle one.
_FIRST_CALLS = 5
_FIRST_CALL_SECONDS = 300.0
_WARM_UP = 50


def host_costs(
    calls: Mapping[str, Callable[[], Any]],
    *,
    now: Callable[[], float],
    synchronize: Callable[[], None],
    total: int = 1000,
    batch: int = 100,
    seed: int = 0,
) -> dict[str, dict[str, Any]]:
    """Return the host cost of repeated calls.

    Parameters
    ----------
    calls : mapping of str to callable
        Each enqueues its work and returns without waiting.
    now, synchronize : callable
        Clock in seconds, and what waits for the device.
    total : int
        Calls of each contender.
    batch : int
        Calls between two waits, `MAX_BATCH` at most.
    seed : int
        Of the order of contenders, which changes from batch to batch.

    Returns
    -------
    dict
        For each contender the mean cost of a call in every batch, as an interval around its median
        over batches, and the mean over all calls; microseconds.

    Raises
    ------
    InvalidProblemError
        If a batch could fill the launch queue.
    """
    if not 1 <= batch <= MAX_BATCH or total < batch:
        raise InvalidProblemError(
            f"batch: expected 1 to {MAX_BATCH} calls, of at least as many in total; "
            f"got {batch} of {total}"
        )
    for call in calls.values():
        for _ in range(min(_WARM_UP, batch)):
            call()
        synchronize()
    random = np.random.default_rng(seed)
    names = list(calls)
    means: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(total // batch):
        for index in random.permutation(len(names)):
            name = names[int(index)]
            call = calls[name]
            synchronize()
            start = now()
            for _ in range(batch):
                call()
            means[name].append((now() - start) / batch * 1e6)
    synchronize()
    return {
        name: {
            "us": median_interval(values).to_dict(),
            "mean_us": sum(values) / len(values),
            "calls": len(values) * batch,
            "batch": batch,
        }
        for name, values in means.items()
    }


def first_calls(framework: str, device: int, case: str) -> dict[str, dict[str, Any]]:
    """Return what the first call costs in a process of its own, cold and with a filled cache.

    Parameters
    ----------
    framework : str
        ``torch`` or ``cupy``.
    device : int
    case : str
        As `gemmjit.bench.cases.case_of` takes it.

    Returns
    -------
    dict
        ``compiled`` with an empty cache, ``cached`` with what that left, and ``torch`` for torch's
        own function; each as `gemmjit.bench.first_call` prints it, of the process in the middle of
        several, with the first calls of all as ``all_first_ms``; or an error, after the first that
        failed.
    """
    peers = {"compiled": "gemmjit", "cached": "gemmjit"}
    if framework == "torch":
        peers["torch"] = "torch"
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in peers}
    failed: dict[str, dict[str, Any]] = {}
    for _ in range(_FIRST_CALLS):
        with tempfile.TemporaryDirectory(prefix="gemmjit-bench-") as directory:
            environment = {**os.environ, "GEMMJIT_CACHE_DIR": directory, "GEMMJIT_CACHE_PATH": ""}
            for name, peer in peers.items():
                if name in failed:
                    continue
                run = _first_call(framework, peer, device, case, environment)
                if "error" in run:
                    failed[name] = run
                    if name == "compiled":  # the next call would find an empty cache, and compile
                        failed.setdefault("cached", run)
                runs[name].append(run)
    return {name: failed.get(name) or _middle(runs[name]) for name in peers}


def _middle(runs: list[dict[str, Any]]) -> dict[str, Any]:
    runs = sorted(runs, key=lambda run: float(run["first_ms"]))
    return {**runs[len(runs) // 2], "all_first_ms": [run["first_ms"] for run in runs]}


def _first_call(
    framework: str, peer: str, device: int, case: str, environment: Mapping[str, str]
) -> dict[str, Any]:
    command = [sys.executable, "-m", "gemmjit.bench.first_call", framework, peer, str(device), case]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_FIRST_CALL_SECONDS,
            env=dict(environment),
            check=True,
        )
        result: dict[str, Any] = json.loads(done.stdout.strip().split("\n")[-1])
    except subprocess.CalledProcessError as error:
        return {"error": (error.stderr or "").strip().split("\n")[-1][:500]}
    except (OSError, subprocess.SubprocessError, json.JSONDecodeError) as error:
        return {"error": f"{type(error).__name__}: {error}"[:500]}
    return result
