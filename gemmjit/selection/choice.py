"""The default choice: what was recorded for the GPU, else the heuristic."""

from __future__ import annotations

from dataclasses import replace

from gemmjit.arch import Arch, targets_for
from gemmjit.config import Config
from gemmjit.constraints import require, variant_for
from gemmjit.kernels import KERNELS, Kernel
from gemmjit.logs import logger
from gemmjit.problem import Problem
from gemmjit.selection import heuristic, records
from gemmjit.selection.admission import reasons_against
from gemmjit.selection.buckets import bucket_of

__all__ = ["choose", "taken_for"]


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


def taken_for(asked: Kernel, tile: Config, problem: Problem, arch: Arch) -> tuple[Kernel, Config]:
    """Return the kernel and tile that run where a caller names a kernel.

    That is the one that was named, but where nothing is multiplied: a TensorMap has no empty
    dimension, so a kernel that loads by TMA cannot be launched then. What the default choice takes
    writes the zeros; that the tile is sound for other problems of this kind is checked all the
    same.

    Parameters
    ----------
    asked : Kernel
    tile : Config
    problem : Problem
        Settled, see `Problem.settled`.
    arch : Arch
        The device's architecture.

    Raises
    ------
    InvalidConfigError
        If nothing is multiplied, and the tile breaks a rule; with every reason.
    """
    if problem.has_products or not asked.loads_by_tma:
        return asked, tile
    variant = replace(
        variant_for(problem, asked, tile),
        a_k_major=problem.form == "ragged_m",
        b_k_major=problem.form == "ragged_m",
        a_vector=True,
        b_vector=True,
        a_blocked=False,
        b_blocked=False,
    )
    targets = targets_for(arch, asked.accelerated)
    require(asked, tile, variant, targets[0] if targets else arch)
    return choose(problem, arch)
