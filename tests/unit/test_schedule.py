"""The flat tile list: its counts, its order, and what it covers."""

from __future__ import annotations

import numpy as np
import pytest
from cases import REAL_EXPERTS
from hypothesis import given
from hypothesis import strategies as st

from gemmjit.errors import InvalidProblemError
from gemmjit.schedule import max_row_tiles, row_utilization, tail_tiles, tile_list
from gemmjit.workloads import power_law

N, GROUPS = 2688, 64

sizes_lists = st.lists(st.integers(0, 70), max_size=12)
blocks = st.integers(1, 40)


@pytest.mark.parametrize(
    ("rows", "skew", "block_m", "block_n", "tiles"),
    [
        (16384, 0, 64, 64, 10752),  # k0
        (16384, 1.2, 64, 64, 11970),
        (16384, 0, 32, 128, 10752),  # k1, BM=32
        (16384, 0, 128, 128, 2688),
        (16384, 1.2, 128, 128, 3444),
        (2048, 0, 128, 128, 1344),
        (2048, 0, 64, 128, 1344),
        (2048, 0, 32, 128, 1344),
        (2048, 0, 64, 64, 2688),
    ],
)
def test_counts_of_the_seed_workload(rows, skew, block_m, block_n, tiles):
    sizes = power_law(rows, GROUPS, skew)
    assert len(tile_list(sizes, N, block_m, block_n)) == tiles


@pytest.mark.parametrize(("block_m", "eta"), [(128, 0.780), (64, 0.898)])
def test_row_utilization_of_the_seed_workload(block_m, eta):
    assert round(row_utilization(power_law(16384, GROUPS, 1.2), block_m), 3) == eta
    assert row_utilization(power_law(16384, GROUPS, 0), block_m) == 1.0


def test_order_is_group_then_m_then_n():
    assert tile_list([3, 0, 1], n=100, block_m=2, block_n=64).tolist() == [
        [0, 0, 2, 0],
        [0, 0, 2, 64],
        [0, 2, 1, 0],
        [0, 2, 1, 64],
        [2, 3, 1, 0],
        [2, 3, 1, 64],
    ]


def test_type_and_shape():
    for sizes, n in (([], 8), ([0, 0], 8), ([4], 0), ([4], 8)):
        tiles = tile_list(sizes, n, 4, 4)
        assert tiles.dtype == np.int32
        assert tiles.ndim == 2
        assert tiles.shape[1] == 4
    assert len(tile_list([4], 0, 4, 4)) == 0
    assert len(tile_list([0, 0], 8, 4, 4)) == 0


@given(sizes_lists, st.integers(0, 90), blocks, blocks)
def test_every_element_of_every_group_is_covered_once(sizes, n, block_m, block_n):
    tiles = tile_list(sizes, n, block_m, block_n)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    covered = np.zeros((sum(sizes), n), np.int64)
    for group, row0, rows, col0 in tiles.tolist():
        assert 1 <= rows <= block_m
        assert 0 <= col0 < n
        assert col0 % block_n == 0
        assert row0 + rows <= sum(sizes)
        assert (owner[row0 : row0 + rows] == group).all()
        covered[row0 : row0 + rows, col0 : col0 + block_n] += 1
    assert (covered == 1).all()


@given(sizes_lists, st.integers(1, 90), blocks, blocks)
def test_number_and_order_of_tiles(sizes, n, block_m, block_n):
    tiles = tile_list(sizes, n, block_m, block_n)
    assert len(tiles) == sum(-(-m // block_m) for m in sizes) * -(-n // block_n)
    keys = [(group, row0, col0) for group, row0, _, col0 in tiles.tolist()]
    assert keys == sorted(set(keys))
    # Only the last tile of a group along M may be partial.
    ends = np.cumsum(sizes)
    for group, row0, rows, _ in tiles.tolist():
        assert rows == block_m or row0 + rows == ends[group]


@given(sizes_lists, st.integers(0, 200), st.integers(1, 90), blocks, blocks)
def test_tail_tiles_cover_the_rest(sizes, spare, n, block_m, block_n):
    rows = sum(sizes) + spare
    tiles = tail_tiles(sizes, rows, n, block_m, block_n)
    covered = np.zeros((rows, n), np.int64)
    for group, row0, height, col0 in tiles.tolist():
        assert group == len(sizes)
        assert 1 <= height <= block_m
        covered[row0 : row0 + height, col0 : col0 + block_n] += 1
    assert (covered[: sum(sizes)] == 0).all()
    assert (covered[sum(sizes) :] == 1).all()


@given(sizes_lists, blocks)
def test_row_utilization_counts_rows_of_the_tile_list(sizes, block_m):
    eta = row_utilization(sizes, block_m)
    tiles = tile_list(sizes, 1, block_m, 1)
    if len(tiles):
        assert eta == pytest.approx(tiles[:, 2].sum() / (len(tiles) * block_m), rel=1e-12)
        assert 0 < eta <= 1
    else:
        assert eta == 1.0


@given(sizes_lists)
def test_row_utilization_is_whole_for_single_rows(sizes):
    assert row_utilization(sizes, 1) == 1.0


@given(sizes_lists, blocks)
def test_max_row_tiles_bounds_every_grouping(sizes, block_m):
    needed = sum(-(-m // block_m) for m in sizes)
    assert needed <= max_row_tiles(sum(sizes), len(sizes), block_m)


@pytest.mark.parametrize(
    ("rows", "groups", "block_m", "tiles"),
    [(16384, 64, 128, 192), (5, 100, 128, 5), (0, 9, 32, 0), (7, 0, 4, 1)],
)
def test_max_row_tiles_by_hand(rows, groups, block_m, tiles):
    assert max_row_tiles(rows, groups, block_m) == tiles


def test_real_expert_counts():
    for block_m in (32, 64, 128):
        tiles = tile_list(REAL_EXPERTS, N, block_m, 128)
        assert tiles[::21, 2].sum() == sum(REAL_EXPERTS)
        assert set(tiles[:, 0].tolist()) == {g for g, m in enumerate(REAL_EXPERTS) if m}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([3, -1], 8, 4, 4), ("group_sizes", ">= 0", "-1 for group 1")),
        (([[3, 1]], 8, 4, 4), ("group_sizes", "one dimension", "(1, 2)")),
        (([1.5], 8, 4, 4), ("group_sizes", "whole numbers", "float64")),
        (([3], -1, 4, 4), ("n:", ">= 0", "-1")),
        (([3], 8, 0, 4), ("block_m", "positive", "0")),
        (([3], 8, 4, -2), ("block_n", "positive", "-2")),
        (([2**30, 2**30], 1, 2**20, 1), ("group_sizes", "2147483647", "2147483648")),
    ],
)
def test_refused(arguments, words):
    with pytest.raises(InvalidProblemError) as caught:
        tile_list(*arguments)
    for word in words:
        assert word in str(caught.value)


def test_refused_by_the_others():
    with pytest.raises(InvalidProblemError, match="block_m"):
        row_utilization([3], 0)
    with pytest.raises(InvalidProblemError, match="group_sizes"):
        row_utilization([-3], 8)
    with pytest.raises(InvalidProblemError, match=r"rows: expected at least the 8 rows.*got 7"):
        tail_tiles([3, 5], 7, 8, 4, 4)
