"""One process of `fuzz.py`: runs its share of the problems and writes what it saw."""

from __future__ import annotations

import json
import os
import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
from fuzz_drawing import draw_cells, problem_at
from fuzz_problems import Cell, Problem
from fuzz_property import check
from fuzz_seen import Seen
from fuzz_shrinking import shrunk
from makers import CupyMaker, Maker, NumpyMaker

__all__ = ["DEVICE_LOST", "problem_of", "replay", "work"]

#: Exit status of a process whose failure is written, but whose device is of no use any more.
DEVICE_LOST = 3

_WRITE_EVERY = 5.0  # seconds
_SHRUNK = 3  # failures of one kind that a process shrinks
_ON_HOST = 2e7  # multiplications, above which a float64 product pays off on the GPU

_cells: dict[tuple[int, int], list[Cell]] = {}


def problem_of(arguments: Namespace, index: int) -> Problem:
    """Return the problem of a number."""
    key = (arguments.cells, arguments.seed)
    if key not in _cells:
        _cells[key] = draw_cells(*key)
    small, on_gpu = arguments.size == "small", arguments.executor == "gpu"
    return problem_at(index, _cells[key], arguments.seed, small, on_gpu)


def work(arguments: Namespace) -> int:
    """Run the problems of a process; return its exit status."""
    maker, matmul = _executor(arguments.executor)
    folder = Path(arguments.folder)
    part: dict[str, Any] = {"problems": 0, "failures": [], "device": _device(maker)}
    seen = Seen()
    written = time.monotonic()
    progress = os.open(folder / f"progress-{arguments.worker}", os.O_RDWR | os.O_CREAT)
    path = folder / f"part-{arguments.worker}-{arguments.part}.json"
    last = arguments.first + arguments.problems
    # A process takes whole cells, so that each kernel is compiled and loaded by one alone.
    share = (
        i for i in range(arguments.first, last)
        if i % arguments.cells % arguments.processes == arguments.worker
    )  # fmt: skip
    for index in share:
        if index <= arguments.after:
            continue
        if time.time() > arguments.until:
            break
        os.pwrite(progress, f"{index:<12}".encode(), 0)
        problem = problem_of(arguments, index)
        part["problems"] += 1
        failure = _failure(maker, matmul, problem, seen)
        if failure is not None:
            part["failures"].append({"index": index, "error": failure, "problem": problem.to_dict(),
                                     "shrunk": None})  # fmt: skip
            if _is_lost(maker):
                _write(path, part, seen)
                return DEVICE_LOST
            _shrink(maker, matmul, problem, part, arguments)
        if time.monotonic() - written > _WRITE_EVERY:
            _write(path, part, seen)
            written = time.monotonic()
    _write(path, part, seen)
    return 0


def replay(given: str, executor: str) -> int:
    """Run one problem; return 1 if it fails."""
    text = given if given.lstrip().startswith("{") else Path(given).read_text()
    problem = Problem.from_dict(json.loads(text))
    maker, matmul = _executor(executor)
    print(problem)
    failure = _failure(maker, matmul, problem, Seen())
    print(failure or "right")
    return 1 if failure else 0


def _executor(name: str) -> tuple[Maker, Any]:
    if name != "gpu":
        os.environ["GEMMJIT_EXECUTOR"] = name
        return NumpyMaker(), np.matmul
    maker = CupyMaker()
    return maker, _Matmul(maker.cupy)


class _Matmul:
    """A float64 product of host arrays, on the GPU where that is quicker."""

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy

    def __call__(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        if a.shape[0] * a.shape[1] * b.shape[1] < _ON_HOST:
            return np.matmul(a, b)
        xp = self._cupy
        return xp.matmul(xp.asarray(a), xp.asarray(b)).get()


def _device(maker: Maker) -> dict[str, str]:
    if not maker.on_gpu:
        return {}
    from conftest import describe_gpu

    return {"gpu": describe_gpu()}


def _failure(maker: Maker, matmul: Any, problem: Problem, seen: Seen) -> str | None:
    """Run a problem; return what is wrong, if anything."""
    try:
        check(maker, problem, seen, matmul)
    except Exception as error:  # a device fault is an exception of the array framework
        return f"{type(error).__name__}: {error}"[:600]
    return None


def _is_lost(maker: Maker) -> bool:
    """Return whether a fault has made the device useless for this process."""
    if not maker.on_gpu:
        return False
    try:
        maker.download(maker.full((8,), 1.0, "float32"))
    except Exception:
        return True
    return False


def _shrink(
    maker: Maker, matmul: Any, problem: Problem, part: dict[str, Any], arguments: Namespace
) -> None:
    """Add a small case to the last failure, unless there are several of its kind."""
    kind = (problem.cell.kernel, problem.cell.form)
    alike = [f for f in part["failures"][:-1] if f.get("shrunk") and f.get("kind") == list(kind)]
    if len(alike) >= _SHRUNK:
        return

    def fails(candidate: Problem) -> bool:
        return _failure(maker, matmul, candidate, Seen()) is not None and not _is_lost(maker)

    small = shrunk(problem, fails, arguments.shrink_seconds)
    part["failures"][-1].update(
        kind=list(kind), shrunk=small.to_dict(), text=str(small),
        small_error=_failure(maker, matmul, small, Seen()),
    )  # fmt: skip


def _write(path: Path, part: dict[str, Any], seen: Seen) -> None:
    data = {
        **part,
        "counts": {name: dict(counts) for name, counts in seen.counts.items()},
        "worst": seen.worst,
        "kernels": sorted(seen.kernels),
    }
    aside = path.with_suffix(".new")
    aside.write_text(json.dumps(data))
    os.replace(aside, path)


if __name__ == "__main__":
    sys.exit("run fuzz.py")
