"""A first impression of speed for ``gemmjit demo``; ``gemmjit.bench`` measures properly."""

from __future__ import annotations

from statistics import median
from typing import Any

import cupy
import numpy as np

from gemmjit.cli import problem_data
from gemmjit.config import Config
from gemmjit.dtypes import BF16
from gemmjit.ops.grouped_mm import grouped_mm

__all__ = ["milliseconds"]

_WARM_UP = 5
_ROUNDS = 15
_CALLS = 10  # between two events


def milliseconds(k: int, n: int, config: Config | None) -> float:
    """Return the time of one fprop of the demonstration's problem on the current GPU.

    The median over 15 rounds of 10 calls back to back, measured with CUDA events.
    """
    x, w, offs, out = _arrays(k, n)

    def call() -> None:
        grouped_mm(x, w, offs=offs, out=out, config=config)

    for _ in range(_WARM_UP):
        call()
    times = []
    for _ in range(_ROUNDS):
        first, last = cupy.cuda.Event(), cupy.cuda.Event()
        first.record()
        for _ in range(_CALLS):
            call()
        last.record()
        last.synchronize()
        times.append(cupy.cuda.get_elapsed_time(first, last) / _CALLS)
    return float(median(times))


_kept: dict[tuple[int, int], tuple[Any, ...]] = {}


def _arrays(k: int, n: int) -> tuple[Any, ...]:
    """Return operands on the GPU; every config is timed on the same ones."""
    if (k, n) not in _kept:
        upload, _ = problem_data.transfers(True)
        case = next(problem_data.cases(k, n))
        out = cupy.empty((case.mat_a.shape[0], n), np.uint16).view(BF16.numpy)
        ends = upload(problem_data.ends())
        _kept[k, n] = (upload(case.mat_a), upload(case.mat_b), ends, out)
    return _kept[k, n]
