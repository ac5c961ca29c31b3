"""The default choice of kernel and tile, from what the host knows.

The host knows rows, groups, N and K, never the rows of one group; the choice assumes that they are
near the mean.
"""

from __future__ import annotations

from gemmjit.arch import Arch
from gemmjit.config import Config, SimtConfig
from gemmjit.dtypes import F32
from gemmjit.kernels import KERNELS, Kernel
from gemmjit.problem import Problem

__all__ = ["choose"]


def choose(problem: Problem, arch: Arch) -> tuple[Kernel, Config]:
    """Return the kernel and tile for a problem on an architecture.

    Parameters
    ----------
    problem : Problem
    arch : Arch
        The device's architecture.
    """
    k0, k1 = KERNELS["k0"], KERNELS["k1"]
    if problem.in_dtype == F32 or arch.number < k1.min_arch.number:
        return k0, SimtConfig()
    by_block_m = {c.block_m: c for c in reversed(k1.shipped_configs())}
    return k1, by_block_m[_block_m(problem)]


def _block_m(problem: Problem) -> int:
    """Return the smallest tile height that a group of mean size fills, 128 at most."""
    if problem.form == "ragged_k":
        rows = problem.m
    else:
        rows = -(-problem.rows // max(problem.num_groups, 1))
    return next((block for block in (32, 64) if rows <= block), 128)
