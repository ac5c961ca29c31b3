"""``gemmjit doctor --startup``: where the time goes from process start to a first result."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gemmjit
from gemmjit.cli.output import print_json, print_table
from gemmjit.cuda.driver import is_available
from gemmjit.errors import GemmjitError
from gemmjit.ops.dispatch import build_all, default_arch, spec_for
from gemmjit.problem import Problem

__all__ = ["measure", "run"]

_CHILD = Path(__file__).with_name("startup_run.py")


def run(runs: int, as_json: bool) -> int:
    """Measure and print."""
    told = measure(runs)
    if as_json:
        print_json(told)
        return 0
    rows = [[step["name"], step["ms"], step["ms_min"], step["ms_max"]] for step in told["steps"]]
    print_table(("step", "ms", "least", "most"), rows)
    end = "the second result" if told["on_gpu"] else "the cubin is in memory (there is no GPU)"
    print(
        f"{told['total_ms']:.0f} ms from the start of the process until {end}: medians of "
        f"{told['runs']} processes, {told['kernel']} for {told['arch']} from a warm cache."
    )
    if told["rendered"]:
        print(
            "The template had to be rendered, since no directory keeps a memo of the kernel; "
            "gemmjit prewarm writes one."
        )
    return 0


def measure(runs: int) -> dict[str, Any]:
    """Start processes one after the other, with a cache that has their kernel.

    Parameters
    ----------
    runs : int
        Measured processes; one more goes first, so that files are in the system's cache.

    Returns
    -------
    dict
        ``steps``, each with ``name`` and the median, least and most ``ms``; ``total_ms``;
        ``arch``, ``kernel``, ``on_gpu``, ``runs``; ``rendered``, whether a process had to render
        the template.
    """
    problem = Problem.contiguous(num_groups=8, rows=1024, n=1024, k=1024)
    arch = default_arch()
    if is_available():
        from gemmjit.cuda.device import device

        arch = device(0).arch
    build_all(spec_for(problem, arch))
    told = [_one() for _ in range(runs + 1)][1:]
    steps = []
    for number, (name, _) in enumerate(told[0]["steps"]):
        values = [one["steps"][number][1] for one in told]
        median = statistics.median(values)
        steps.append({"name": name, "ms": median, "ms_min": min(values), "ms_max": max(values)})
    return {
        "arch": told[0]["arch"],
        "kernel": told[0]["kernel"],
        "on_gpu": told[0]["on_gpu"],
        "rendered": any(one["rendered"] for one in told),
        "runs": runs,
        "steps": steps,
        "total_ms": statistics.median(sum(ms for _, ms in one["steps"]) for one in told),
    }


def _one() -> dict[str, Any]:
    environment = dict(os.environ)
    place = str(Path(gemmjit.__file__).parents[1])  # a checkout need not be installed
    environment["PYTHONPATH"] = os.pathsep.join(
        part for part in (place, environment.get("PYTHONPATH", "")) if part
    )
    argv = [sys.executable, "-P", str(_CHILD), str(time.monotonic_ns())]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise GemmjitError(
            "startup: expected a process that makes one call; it failed with\n"
            f"{done.stderr.strip()}\nRun gemmjit doctor"
        )
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if not told["from_cache"] or told["compiles"]:
        raise GemmjitError(
            "startup: expected a cache that keeps the kernel; got one that does not, so that it "
            "was compiled. Choose a directory with GEMMJIT_CACHE_DIR"
        )
    return told
