"""The default choice of kernel and tile, from what the host knows.

The host knows rows, groups, N and K, never the rows of one group; the choice assumes that they are
near the mean.
"""

from __future__ import annotations

import logging

from gemmjit.arch import Arch
from gemmjit.config import Config, SimtConfig, Sm80MmaConfig, Sm90TmaMmaConfig
from gemmjit.constraints import map_violations, variant_for, violations
from gemmjit.dtypes import F32
from gemmjit.kernels import KERNELS, Kernel
from gemmjit.problem import Problem

__all__ = ["choose"]

_log = logging.getLogger("gemmjit.selection")

# Best of k1's tiles on an H200 (2026-11-29; E=64, K=1024, N=2688): at 256 rows a group 398 us for
# block_m 128 with four stages, against 412 us with two; at 32 rows a group 117 us for block_m 32
# with block_k 64, against 130 us with 32.
_K1_BY_BLOCK_M = {
    32: Sm80MmaConfig(block_m=32, min_blocks_per_sm=4, block_k=64),
    64: Sm80MmaConfig(block_m=64, min_blocks_per_sm=3, block_k=64),
    128: Sm80MmaConfig(block_m=128, min_blocks_per_sm=2, num_stages=4),
}


# k2 likewise: at 256 rows a group 245 us for four stages and one resident block, 251 us for three
# stages and two blocks; at 32 rows a group 92 us for block_m 32, 97 us for 64, 118 us for 128.
_K2_BY_BLOCK_M = {
    32: Sm90TmaMmaConfig(block_m=32, num_stages=3, min_blocks_per_sm=3),
    64: Sm90TmaMmaConfig(block_m=64, num_stages=4, min_blocks_per_sm=2),
    128: Sm90TmaMmaConfig(block_m=128, num_stages=3, min_blocks_per_sm=1),
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
    block_m = _block_m(problem)
    k2, config = KERNELS["k2"], _K2_BY_BLOCK_M[block_m]
    if arch.number >= k2.min_arch.number and problem.form in k2.forms:
        reasons = violations(k2, config, variant_for(problem, k2, config), arch)
        reasons = reasons or map_violations(
            k2, config, variant_for(problem, k2, config), problem, arch
        )
        if not reasons:
            return k2, config
        _log.info("k1 instead of k2: %s", "; ".join(reasons))
    return k1, _K1_BY_BLOCK_M[block_m]


def _block_m(problem: Problem) -> int:
    """Return the smallest tile height that a group of mean size fills, 128 at most."""
    if problem.form == "ragged_k":
        rows = problem.m
    else:
        rows = -(-problem.rows // max(problem.num_groups, 1))
    return next((block for block in (32, 64) if rows <= block), 128)
