"""The default choice: what was recorded for the GPU, else the heuristic."""

from __future__ import annotations

from gemmjit.arch import Arch
from gemmjit.config import Config
from gemmjit.kernels import KERNELS, Kernel
from gemmjit.logs import logger
from gemmjit.problem import Problem
from gemmjit.selection import heuristic, records
from gemmjit.selection.admission import reasons_against
from gemmjit.selection.buckets import bucket_of

__all__ = ["choose"]


def choose(problem: Problem, arch: Arch, gpu: str = "") -> tuple[Kernel, Config]:
    """Return the kernel and tile for a problem.

    A tile that `gemmjit tune` recorded for this GPU and bucket of problems wins, if it can serve
    the operands. Otherwise the heuristic decides.

    Parameters
    ----------
    problem : Problem
    arch : Arch
        The device's architecture.
    gpu : str
        Name of the device, as the driver tells it; empty where there is none. A record holds for
        the GPU that it was measured on.
    """
    tuned = records.current() if gpu else None
    record = tuned.find(gpu, bucket_of(problem)) if tuned is not None else None
    if record is not None and record.arch == f"sm_{arch.number}":
        kernel = KERNELS[record.config.kernel]
        reasons = reasons_against(kernel, record.config, problem, arch)
        if not reasons:
            return kernel, record.config
        logger("selection").debug(
            "not the tuned %s %s: %s", kernel.name, record.config, "; ".join(reasons)
        )
    return heuristic.choose(problem, arch)
