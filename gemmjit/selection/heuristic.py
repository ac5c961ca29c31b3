"""The default choice of kernel and tile, from what the host knows.

The host knows rows, groups, N and K, never the rows of one group; the choice assumes that they are
near the mean.
"""

from __future__ import annotations

from gemmjit.arch import Arch
from gemmjit.config import Config, SimtConfig, Sm80MmaConfig
from gemmjit.dtypes import F32
from gemmjit.kernels import KERNELS, Kernel
from gemmjit.problem import Problem

__all__ = ["choose"]

# Best of k1's tiles on an H200 (2026-11-29; E=64, K=1024, N=2688): at 256 rows a group 398 us for
# block_m 128 with four stages, against 412 us with two; at 32 rows a group 117 us for block_m 32
# with block_k 64, against 130 us with 32.
_K1_BY_BLOCK_M = {
    32: Sm80MmaConfig(block_m=32, min_blocks_per_sm=4, block_k=64),
    64: Sm80MmaConfig(block_m=64, min_blocks_per_sm=3, block_k=64),
    128: Sm80MmaConfig(block_m=128, min_blocks_per_sm=2, num_stages=4),
}


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
    return k1, _K1_BY_BLOCK_M[_block_m(problem)]


def _block_m(problem: Problem) -> int:
    """Return the smallest tile height that a group of mean size fills, 128 at most."""
    if problem.form == "ragged_k":
        rows = problem.m
    else:
        rows = -(-problem.rows // max(problem.num_groups, 1))
    return next((block for block in (32, 64) if rows <= block), 128)
