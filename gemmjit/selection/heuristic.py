"""The default choice of kernel and tile, from what the host knows.

The host knows rows, groups, N and K, never the rows of one group; the choice assumes that they are
near the mean.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from gemmjit.arch import Arch
from gemmjit.config import Config, SimtConfig, Sm80MmaConfig, Sm90TmaMmaConfig, Sm90WgmmaConfig
from gemmjit.dtypes import F32
from gemmjit.kernels import KERNELS, Kernel
from gemmjit.problem import Problem
from gemmjit.selection.admission import reasons_against

__all__ = ["MEAN_ROWS_BOUNDS", "choose", "rivals"]

_log = logging.getLogger("gemmjit.selection")

_FIRST_WITH_TMA = 90

# Mean rows of a group up to which a lower tile than the tallest, 128, is taken.
_TILE_HEIGHTS = (32, 64)
# Mean rows of a group up to which k3 takes the lowest tiles.
_FEW_ROWS = 16
# Mean rows of a group up to which wgrad counts as short, and from which on as long.
_SHORT_GROUP = 64
_LONG_GROUP = 2047
# The same where its results are of FP32, and where it adds to them.
_SHORT_FP32_GROUP = 256
_LONG_SUM_GROUP = 1023

#: Mean rows of a group past which the choice can be another one.
MEAN_ROWS_BOUNDS = (
    _FEW_ROWS,
    *_TILE_HEIGHTS,
    _SHORT_GROUP,
    _SHORT_FP32_GROUP,
    _LONG_SUM_GROUP,
    _LONG_GROUP,
)

# Best of k1's tiles on an H200 (2026-11-29; E=64, K=1024, N=2688): at 256 rows a group 398 us for
# block_m 128 with four stages, against 412 us with two; at 32 rows a group 117 us for block_m 32
# with block_k 64, against 130 us with 32.
_K1_BY_BLOCK_M = {
    32: Sm80MmaConfig(block_m=32, min_blocks_per_sm=3, block_k=64),
    64: Sm80MmaConfig(block_m=64, min_blocks_per_sm=2, block_k=64),
    128: Sm80MmaConfig(block_m=128, min_blocks_per_sm=2, num_stages=4),
}


# k2 likewise: at 256 rows a group 245 us for four stages and one resident block, 251 us for three
# stages and two blocks; at 32 rows a group 92 us for block_m 32, 97 us for 64, 118 us for 128.
_K2_BY_BLOCK_M = {
    32: Sm90TmaMmaConfig(block_m=32, num_stages=3, min_blocks_per_sm=3),
    64: Sm90TmaMmaConfig(block_m=64, num_stages=4, min_blocks_per_sm=2),
    128: Sm90TmaMmaConfig(block_m=128, num_stages=3, min_blocks_per_sm=1),
}


# k3 (H200, 2026-11-29 and 30). Up to 64 rows a group it streams the weights, and all tiles are
# within 5 % of each other where there are many of them. At 2 rows 64 x 256 tiles take 184 us,
# 64 x 128 189, 128 x 128 192. Where tiles make few waves, those decide: of 12 rows in 4 groups (N =
# 6912) 108 tiles of 64 x 256 take 54 us, 216 of 64 x 128 61; of 256 in 32 (N = 2112) 352 tiles of
# 128 x 192 76, 288 of 64 x 256 85. (All with operands that rotate, as layers do. Where the same
# ones come every time, tiles whose B leaves L2 first are 1 to 3 % faster than others.)
_K3_FEW_ROWS = Sm90WgmmaConfig(
    block_m=64, block_n=256, num_stages=4, store_boxes=2, raster_m=2, b_evict_first=True
)
_K3_FEW_TILES = Sm90WgmmaConfig(
    block_m=64, block_n=128, num_stages=8, store_boxes=2, raster_m=2, b_evict_first=True
)
_H200_SMS = 132
_K3_ROWS = 64  # of a block that a tile can leave out
_K3_WIDE = Sm90WgmmaConfig(block_m=128, block_n=192, num_stages=5, store_boxes=1, order="claimed")
_K3_SQUARE = Sm90WgmmaConfig(block_m=128, block_n=128, num_stages=6, store_boxes=2, order="claimed")
_K3_TALL = Sm90WgmmaConfig(
    block_m=256, block_n=128, num_stages=3, store_boxes=4, pingpong=False, order="claimed"
)
# Rates of those three over that of the wide one, as a choice by the time of whole waves needs them.
# Hot / cool, wide and square: N = 832, where square tiles compute 7 % less, 1117 / 902 and 1114 /
# 969 us; N = 1024, 11 % less, 205 / 158 and 185 / 159. Four groups of 188 rows: wide tiles need a
# second wave for the last 4 of 136, square ones one of half that time, tall ones none: 115 / 98,
# 70 / 70 and 65 / 61. 16 groups of 172 rows on average (N = 3200): 400 tall tiles are 15 % slower
# than 544 wide ones.
_K3_RATES = {_K3_WIDE: 1.0, _K3_SQUARE: 0.92, _K3_TALL: 0.78}
# The same where they stream the weights of up to 16 rows.
_K3_FEW_RATES = {_K3_FEW_ROWS: 1.0, _K3_FEW_TILES: 0.95, _K3_WIDE: 0.95}
_FEW_WAVES = 8  # up to here a last wave counts as a whole one, from here on as half of one

# Share of its wave's time that a last wave takes at least where loads decide: one multiprocessor
# reads twice as fast as its share. 144 tiles of 128 columns take 76 us, 96 tiles of 192 take 60.
_LAST_WAVE = 0.5

# k3's ragged-K form: us, mean of both states, in one run (H200, 2026-11-30), for 128 x 192,
# 128 x 128 and 256 x 128 tiles. 256 rows a group, N = 2688: 164, 185, 199. Short groups, bound by
# memory: 109, 106, 107 (32 rows), 152, 160, 150 (64 rows, N = 4096), 215, 246, 211 (2 rows). Long
# groups (4,096 rows), where 256 x 128 tiles read less for each product: 3177, 3357, 3145 and 2774,
# 2842, 2740.
#
# FP32 results, us cool / hot, the same tiles: 64 rows 300 / 291, 297 / 287, 310 / 301; 256 rows
# 262 / 257, 240 / 227, 245 / 251; 512 rows 463 / 486, 479 / 508, 511 / 596; 4,096 rows 2592 /
# 2913, 3006 / 3245, 2531 / 3070. Added to what is there, 128 x 192 tiles with a fourth store box:
# 64 rows 570 / 561, 564 / 552, 567 / 556; 256 rows 432 / 423, 429 / 418, 418 / 453; 512 rows 696 /
# 776, 687 / 773, 741 / 933; 4,096 rows 2845 / 3104, 3199 / 3489, 2683 / 3203, where the TMA unit
# adds in time on 128 x 192 tiles, 2720 / 2997. Of 1,024 rows (16 groups, K = N = 4096) 128 x 128
# tiles that read take 999 / 1058, the TMA unit 979 / 1014; of 2,048 (K = 2048) 906 / 957 and 792 /
# 866; of 512 1064 / 1123 and 1420 / 1444.
_K3_MAX_WASTE = 0.04
_K3_WGRAD_WIDE = Sm90WgmmaConfig(
    block_m=128, block_n=192, num_stages=4, store_boxes=3, order="claimed"
)
_K3_WGRAD_SQUARE = Sm90WgmmaConfig(
    block_m=128, block_n=128, num_stages=5, store_boxes=4, order="claimed"
)

# Rows of a piece of wgrad's groups, where it pays to share those with most rows. Pieces come first
# and keep all multiprocessors busy, and what memory limits comes after them: so that a call takes
# its operations and its bytes one after the other, where a group that is not split lets others
# move bytes beside it. H200, 2026-11-30, hot, us: 8 experts, one with 90 % of 16,384 rows, 1024 x
# 1024, 144 to 61; a single one 153 to 96 in pieces of 1,024, and of FP32 155 to 73 in pieces of
# 2,048, 61 of 4,096, 88 of 8,192; but 64 experts, 1024 x 1536, 135 to 135, and 256 experts, one
# with half of the rows, 229 to 248.
_SPLIT_ROWS = (1024, 2048, 4096, 8192, 16384, 32768, 65536)
_LONGEST_PIECE = 1.05  # of the time of the call, if it is balanced
# Operations that one multiprocessor does in 100 us: in less, even the worst routing costs less than
# many layers' launches, while each call would pay 1.5 to 2.5 us for a workspace.
_WORTH_FLOPS = 6.1e8
_BALANCED = 0.7  # of the time of one group with all rows, not split
_EVEN = 2  # times the mean rows: routing that is nearly even is not split ...
_FILLED = 2 * _H200_SMS // 3  # ... if even groups make so many tiles
_MAX_PARTIAL_BYTES = 256 << 20
# Of the H200: useful operations of a multiprocessor for each byte that DRAM moves meanwhile, 6.1e12
# a second (805 TFLOP/s of 132) over 4.2 TB/s.
_FLOPS_A_BYTE = 1.45


def choose(problem: Problem, arch: Arch) -> tuple[Kernel, Config]:
    """Return the kernel and tile for a problem on an architecture.

    The fastest kernel that can take the operands: k3, then k2, then k1; k0 for FP32 operands and
    for architectures without bf16 tensor cores.

    Parameters
    ----------
    problem : Problem
    arch : Arch
        The device's architecture.
    """
    k0, k1 = KERNELS["k0"], KERNELS["k1"]
    if problem.in_dtype == F32 or arch.number < k1.min_arch.number:
        if problem.in_dtype != F32:
            _log.info("k0, FP32 FMA, serves this call: %s lacks the tensor cores of k1", arch)
        return k0, SimtConfig()
    block_m = _block_m(problem)
    tile = _k3_config(problem, block_m)
    candidates: list[tuple[Kernel, Config]] = [(KERNELS["k3"], tile)]
    if problem.form == "ragged_k":
        split_rows = _split_rows(problem, tile)
        if split_rows:  # first; some results are stored from registers that splitting needs
            candidates.insert(0, (KERNELS["k3"], replace(tile, split_rows=split_rows)))
    else:
        candidates.append((KERNELS["k2"], _K2_BY_BLOCK_M[block_m]))
    for kernel, config in candidates:
        reasons = reasons_against(kernel, config, problem, arch)
        if not reasons:
            return kernel, config
        _log.debug("not %s: %s", kernel.name, "; ".join(reasons))
    if arch.number >= _FIRST_WITH_TMA and problem.form == "ragged_m":
        _log.info("k1, which loads without TMA, serves this call: %s", "; ".join(reasons))
    return k1, _K1_BY_BLOCK_M[block_m]


def rivals(problem: Problem) -> tuple[Config, ...]:
    """Return k3's tiles for problems that differ in how many waves or pieces their tiles make.

    `choose` takes one of them, or none, for any number of groups with about as many rows each; what
    covers a range of problems covers all of them.

    Parameters
    ----------
    problem : Problem
    """
    if problem.in_dtype == F32:
        return ()
    if problem.form == "ragged_k":
        tile = _k3_wgrad_config(problem)
        return (tile, *(replace(tile, split_rows=rows) for rows in _SPLIT_ROWS))
    mean = _mean_rows(problem)
    if mean > _TILE_HEIGHTS[-1]:
        return tuple(_K3_RATES)
    return (_K3_SQUARE, _K3_WIDE) if mean > _FEW_ROWS else tuple(_K3_FEW_RATES)


def _k3_config(problem: Problem, block_m: int) -> Sm90WgmmaConfig:
    if problem.form == "ragged_k":
        return _k3_wgrad_config(problem)
    groups = min(problem.num_groups, problem.rows)
    mean = _mean_rows(problem)
    if problem.chain.accumulates and mean > _FEW_ROWS and not _adds_by_tma(problem):
        return _K3_SQUARE  # it reads D ahead, for which wide tiles have no registers
    if block_m > _TILE_HEIGHTS[-1]:
        return min(_K3_RATES, key=partial(_computing_time, groups, mean, problem.n))
    if mean > _FEW_ROWS:
        return min((_K3_SQUARE, _K3_WIDE), key=partial(_streaming_time, groups, problem.n, {}))
    rates = _K3_FEW_RATES
    return min(rates, key=partial(_streaming_time, groups, problem.n, rates))


def _adds_by_tma(problem: Problem) -> bool:
    """Return whether what is added to D goes there by TMA, without D being read."""
    return KERNELS["k3"].traits(problem, _K3_SQUARE)["d_by_tma"]


def _streaming_time(
    groups: int, n: int, rates: Mapping[Sm90WgmmaConfig, float], tile: Sm90WgmmaConfig
) -> float:
    """Return a figure that rises with the time to read all weights once, by tiles in waves."""
    waves, rest = divmod(groups * -(-n // tile.block_n), _H200_SMS)
    last = max(rest / _H200_SMS, _LAST_WAVE) if rest else 0.0
    return tile.block_n * (waves + last) / rates.get(tile, 1.0)


def _computing_time(groups: int, mean: int, n: int, tile: Sm90WgmmaConfig) -> float:
    """Return a figure that rises with the time of the busiest multiprocessor."""
    waves = groups * -(-mean // tile.block_m) * -(-n // tile.block_n) / _H200_SMS
    turns = math.ceil(waves) if waves < _FEW_WAVES else waves + 0.5
    rows = min(tile.block_m, -(-mean // _K3_ROWS) * _K3_ROWS)
    return turns * rows * tile.block_n / _K3_RATES[tile]


def _k3_wgrad_config(problem: Problem) -> Sm90WgmmaConfig:
    waste = -problem.n % _K3_WGRAD_WIDE.block_n / max(problem.n, 1)
    mean = _mean_rows(problem)
    if problem.chain.accumulates:
        adds = mean > _LONG_SUM_GROUP and waste <= _K3_MAX_WASTE and _adds_by_tma(problem)
        return _K3_WIDE if adds else _K3_WGRAD_SQUARE
    if problem.out_dtype == F32:
        short = mean <= _SHORT_FP32_GROUP or waste > _K3_MAX_WASTE
        return _K3_WGRAD_SQUARE if short else _K3_WGRAD_WIDE
    fills = -problem.m % _K3_TALL.block_m <= _K3_MAX_WASTE * problem.m
    if fills and not _SHORT_GROUP < mean <= _LONG_GROUP:
        return _K3_TALL
    return _K3_WGRAD_SQUARE if waste > _K3_MAX_WASTE else _K3_WGRAD_WIDE


def _split_rows(problem: Problem, tile: Sm90WgmmaConfig) -> int:
    """Return the rows of a piece of wgrad's groups, or 0 where none are to be split.

    The host does not know which group has many rows, if any. A call is made ready for the worst
    where one group with all rows would take longer than the whole call in balance.
    """
    rows, tiles = problem.rows, -(-problem.m // tile.block_m) * -(-problem.n // tile.block_n)
    operands = rows * (problem.m + problem.n) * problem.in_dtype.itemsize
    results = problem.num_groups * problem.m * problem.n * problem.out_dtype.itemsize
    results *= 2 if problem.chain.accumulates else 1
    moving = (operands + results) * _FLOPS_A_BYTE / (2 * tile.block_m * tile.block_n)
    computing = rows * tiles / _H200_SMS
    whole = -(-tiles // _H200_SMS) * rows  # the same of one group with all rows, not split
    if tiles >= 2 * _H200_SMS or computing + moving >= _BALANCED * whole:
        return 0
    if whole * 2 * tile.block_m * tile.block_n < _WORTH_FLOPS:
        return 0
    most = min(_LONGEST_PIECE * max(computing, moving), rows)
    filled = problem.num_groups * tiles >= _FILLED
    least = _EVEN * _mean_rows(problem) if filled else 0
    sizes = [size for size in _SPLIT_ROWS if size >= least]
    chosen = max((size for size in sizes if size <= most), default=min(sizes, default=0))
    if not 0 < chosen <= rows // 2:
        return 0
    split = KERNELS["k3"].split_of(problem, replace(tile, split_rows=chosen))
    fits = split is not None and split.partial_bytes <= _MAX_PARTIAL_BYTES
    return chosen if fits else 0


def _mean_rows(problem: Problem) -> int:
    return -(-problem.rows // max(problem.num_groups, 1))


def _block_m(problem: Problem) -> int:
    """Return the smallest tile height that a group of mean size fills, 128 at most."""
    if problem.form == "ragged_k":
        rows = problem.m
    else:
        rows = _mean_rows(problem)
    return next((block for block in _TILE_HEIGHTS if rows <= block), 128)
