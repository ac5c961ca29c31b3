"""What a kernel with a tile has to do for a problem: tiles, waves, operations, bytes."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gemmjit.config import Config, Sm90WgmmaConfig
from gemmjit.problem import Problem
from gemmjit.schedule import row_utilization

__all__ = ["Work", "work_of"]

_ROWS = 64  # of a block that k3 can leave out of a tile
# What a tile with one block of two costs over half of a whole one: its only product in each step
# hides less of the wait for the next.
_HALF_TILE = 1.4
_PARTIAL_SIZE = 4  # bytes of an accumulator
_MANY_TILES = 1 << 18  # beyond this, waves are so many that the mean says enough
_MANY_CLAIMS = 1 << 14  # likewise, where claims even out what is left

Sizes = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Work:
    """Counts; those named busiest are of the multiprocessor that has most to do.

    Attributes
    ----------
    num_tiles, waves : int
        Output tiles, and turns that the tiles take if each multiprocessor takes one at a time.
    last_wave_fill : float
        Share of the multiprocessors that have a tile in the last wave.
    eta : float
        Rows that exist over rows that are computed; for the ragged-K form, over whole tiles of the
        contraction.
    busiest_flops, busiest_tiles, busiest_boxes : float
        Operations, padding included, and what else a tile that is half empty costs; tiles; blocks
        of 64 x 64 elements that are stored.
    dram_bytes, l2_bytes : int
        Each operand once and the result; and what all tiles load.
    rereads : float
        Row tiles of a group beyond the first, on average, where tiles are listed though they are
        unlike, so that blocks drift apart: how often weights would be read again if nothing were
        left of them in cache. 0 elsewhere.
    split_groups : int
        Groups that are computed in pieces.
    """

    num_tiles: int
    waves: int
    last_wave_fill: float
    eta: float
    busiest_flops: float
    busiest_tiles: float
    busiest_boxes: float
    dram_bytes: int
    l2_bytes: int
    rereads: float
    split_groups: int = 0


def work_of(problem: Problem, config: Config, sizes: Sizes, num_sms: int) -> Work:
    """Return what a tile makes of a problem.

    Parameters
    ----------
    problem : Problem
    config : Config
    sizes : numpy.ndarray, shape (G,), int64
        Rows of each group.
    num_sms : int
        Multiprocessors, which take tiles in turn, in the order of the list.
    """
    in_size, out_size = problem.in_dtype.itemsize, problem.out_dtype.itemsize
    if problem.epilogue == "accumulate":
        out_size *= 2  # read and written
    columns = -(-problem.n // config.block_n)
    claimed = isinstance(config, Sm90WgmmaConfig) and config.order == "claimed"
    rereads, split_groups = 0.0, 0
    depth: int | Sizes
    if problem.form == "ragged_m":
        rereads = 0.0 if claimed else _rereads(sizes, config.block_m)
        rows, counts = _row_tiles(sizes, config)
        row_tiles = int(counts.sum())
        depth = -(-problem.k // config.block_k) * config.block_k
        eta = row_utilization(sizes, config.block_m)
        used = int(sizes.sum())
        dram = used * problem.k * in_size + used * problem.columns * out_size
        dram += int((sizes > 0).sum()) * problem.k * problem.n * in_size
        loaded = int((rows * counts).sum()) + row_tiles * config.block_n
        l2 = loaded * columns * problem.k * in_size
    else:
        tall = -(-problem.m // config.block_m)
        pieces = _pieces(sizes, config)
        if len(pieces) > len(sizes):
            split_groups = int((sizes > getattr(config, "split_rows", 0)).sum())
        rows, counts = np.full((2, len(pieces)), [[config.block_m], [tall]])
        row_tiles = len(pieces) * tall
        depth = -(-pieces // config.block_k) * config.block_k
        used = int(sizes.sum())
        eta = used / max(int(depth.sum()), 1)
        padded = columns * config.block_n / max(problem.n, 1)
        dram = used * (problem.m + problem.n) * in_size
        dram += len(sizes) * problem.m * problem.n * out_size
        dram = int(dram * padded)  # seen where 192 columns leave a part: 5 to 7 % at N = 4096
        l2 = used * tall * columns * (config.block_m + config.block_n) * in_size
        # Of two pieces that meet at a sum one leaves its part, and the other reads it.
        sums = (len(pieces) - len(sizes)) * tall * columns
        l2 += 2 * sums * config.block_m * config.block_n * _PARTIAL_SIZE
    tiles = row_tiles * columns
    flops = np.asarray(2.0 * rows * depth * config.block_n, np.float64)
    if problem.form == "ragged_m" and isinstance(config, Sm90WgmmaConfig) and config.pingpong:
        flops[rows < config.block_m] *= _HALF_TILE
    boxes = rows / 64 * (config.block_n / 64)
    waves = -(-tiles // num_sms)
    return Work(
        num_tiles=tiles,
        waves=waves,
        last_wave_fill=(tiles - (waves - 1) * num_sms) / num_sms if tiles else 1.0,
        eta=eta,
        busiest_flops=_busiest(flops, counts, columns, num_sms, claimed),
        busiest_tiles=float(waves),
        busiest_boxes=_busiest(boxes, counts, columns, num_sms, claimed),
        dram_bytes=dram,
        l2_bytes=l2,
        rereads=rereads,
        split_groups=split_groups,
    )


def _pieces(sizes: Sizes, config: Config) -> Sizes:
    """Return the rows of each piece of the groups of the ragged-K form, those with most first.

    So they come where tiles are claimed; in a list of up to as many tiles as multiprocessors, or of
    groups that are alike, it makes no difference.
    """
    if not isinstance(config, Sm90WgmmaConfig) or not config.split_rows:
        return sizes
    whole = sizes[sizes <= config.split_rows]
    full, rest = np.divmod(sizes[sizes > config.split_rows], config.split_rows)
    found = (np.full(int(full.sum()), config.split_rows), rest[rest > 0], np.sort(whole)[::-1])
    return np.concatenate(found)


def _row_tiles(sizes: Sizes, config: Config) -> tuple[Sizes, Sizes]:
    """Return the rows that are computed of each tile along M, and how many like it follow.

    An entry stands for all full tiles of a group, or for its partial one: there can be billions of
    tiles, but not of groups.
    """
    step = _ROWS if isinstance(config, Sm90WgmmaConfig) else config.block_m
    full, rest = np.divmod(sizes, config.block_m)
    rows = np.stack([np.full_like(sizes, config.block_m), -(-rest // step) * step], axis=1)
    counts = np.stack([full, rest > 0], axis=1)
    there = counts > 0
    return rows[there], counts[there]


def _rereads(sizes: Sizes, block_m: int) -> float:
    """Return `Work.rereads` of listed tiles. They are alike by the rule of ``core/turns.cuh``."""
    rows = sizes[sizes > 0]
    if len(rows) == 0:
        return 0.0
    tiles = -(-rows // block_m)
    alike = not (rows % block_m).any() or (tiles.min() == tiles.max() and tiles[0] > 1)
    return 0.0 if alike else float(tiles.mean()) - 1.0


def _busiest(
    of_row_tile: npt.NDArray[np.float64],
    counts: Sizes,
    columns: int,
    num_sms: int,
    claimed: bool,
) -> float:
    """Return the largest sum of one multiprocessor: tiles are dealt out in turn, or claimed.

    Parameters
    ----------
    of_row_tile : numpy.ndarray, shape (R,)
        What each tile takes of a run of equal ones along M.
    counts : numpy.ndarray, shape (R,), int64
        Row tiles of each run.
    columns : int
        Tiles of each row tile.
    num_sms : int
    claimed : bool
    """
    row_tiles = int(counts.sum())
    tiles = row_tiles * columns
    if tiles == 0:
        return 0.0
    waves = -(-tiles // num_sms)
    total = float((of_row_tile * counts).sum())
    if tiles > _MANY_TILES:
        return total / row_tiles * waves
    if claimed and (of_row_tile != of_row_tile[0]).any():
        if tiles > _MANY_CLAIMS:
            return total * columns / num_sms + float(of_row_tile.max()) / 2
        ends = [0.0] * num_sms
        for tile in np.repeat(of_row_tile, counts * columns).tolist():
            heapq.heapreplace(ends, ends[0] + tile)
        return max(ends)
    dealt = np.zeros(waves * num_sms)
    dealt[:tiles] = np.repeat(of_row_tile, counts * columns)
    return float(dealt.reshape(waves, num_sms).sum(axis=0).max())
