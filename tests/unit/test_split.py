"""Split K: room for pieces, what a call takes, and when the default choice makes ready for it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

import gemmjit
from gemmjit import Problem, Sm90WgmmaConfig
from gemmjit.arch import Arch
from gemmjit.build import key_of
from gemmjit.constraints import variant_for, violations
from gemmjit.cuda import counters
from gemmjit.errors import InvalidConfigError
from gemmjit.kernels import KERNELS
from gemmjit.kernels.split import Split
from gemmjit.ops.dispatch import plan_for, spec_for
from gemmjit.plan import Scalar, Struct, Workspace
from gemmjit.selection import choose
from gemmjit.selection.hardware import gpu_for
from gemmjit.selection.heuristic import rivals
from gemmjit.selection.model import predict

SM90 = Arch.parse("sm_90")
K3 = KERNELS["k3"]
TILE = Sm90WgmmaConfig(block_m=128, block_n=128, order="claimed", split_rows=64)


def wgrad(groups, rows, k=1024, n=1024, **keywords):
    return Problem.contiguous("ragged_k", num_groups=groups, rows=rows, n=n, k=k, **keywords)


def pieces_of(sizes, rows):
    return [-(-size // rows) if size > rows else 1 for size in sizes]


@pytest.mark.parametrize("seed", range(200))
def test_there_is_room_for_every_piece_and_none_is_shared(seed):
    """The places that ``core/split.cuh`` gives to groups, wherever they begin."""
    rng = np.random.default_rng(seed)
    rows = int(rng.choice([64, 128, 192]))
    sizes = rng.choice([0, 1, rows - 1, rows, rows + 1, 2 * rows, 2 * rows + 1, 700], 12).tolist()
    total = sum(sizes)
    if total <= rows:
        return
    split = Split(rows=rows, total_rows=total, tiles=1, tile_elements=1, sharers=1)
    taken = [
        2 * begin // rows + piece
        for begin, size in zip(np.cumsum([0, *sizes]), sizes, strict=False)
        for piece in range(-(-size // rows) if size > rows else 0)
    ]
    assert len(set(taken)) == len(taken)
    assert max(taken, default=0) < split.places
    assert sum(pieces_of(sizes, rows)) <= len(sizes) + split.more_pieces


def test_the_bounds_are_reached():
    split = Split(rows=64, total_rows=6 * 65, tiles=3, tile_elements=100, sharers=2)
    assert split.more_pieces == 6 == sum(pieces_of([65] * 6, 64)) - 6
    assert split.places == 3 * 12 == 3 * sum(pieces_of([65] * 6, 64))
    assert split.partial_bytes == 4 * 100 * split.places
    assert split.counter_bytes == 4 * 2 * split.places


def planned(problem, config, num_sms=132):
    spec = spec_for(problem, SM90, config)
    return plan_for(problem, spec, num_sms=num_sms, offs_is_int64=False, group_sizes=None)


def last_fields(plan):
    (launch,) = plan.launches
    arguments = launch.arguments[-1]
    assert isinstance(arguments, Struct)
    return arguments.fields[-2:]


def test_what_a_call_takes():
    plan = planned(wgrad(3, 200, k=200, n=136), TILE)
    partials, claims = plan.workspaces
    assert partials == Workspace("partials", nbytes=2 * 2 * 6 * 128 * 128 * 4)
    assert claims == Workspace("claims", nbytes=8 + 2 * 2 * 6 * 4, lasting=True)
    assert plan.launches[0].grid == ((3 + 3) * 4, 1, 1)
    rows, address = last_fields(plan)
    assert rows.value == 64
    assert address.workspace == "partials"
    shared = replace(TILE, block_m=256, num_stages=3, pingpong=False)
    claims = planned(wgrad(3, 200, k=200, n=136), shared).workspaces[1]
    assert claims.nbytes == 8 + 1 * 2 * 6 * 4 * 2  # each consumer by itself


@pytest.mark.parametrize(
    ("problem", "config"),
    [
        (wgrad(3, 64), TILE),  # no group can have more
        (wgrad(3, 500), replace(TILE, split_rows=0)),
        (Problem.contiguous(num_groups=3, rows=500, n=1024, k=64), TILE),
    ],
    ids=["few rows", "whole", "fprop"],
)
def test_calls_that_take_nothing(problem, config):
    plan = planned(problem, config, num_sms=10)
    assert [(w.name, w.nbytes) for w in plan.workspaces] == [("claims", 8)]
    rows, address = last_fields(plan)
    assert rows.value > problem.rows
    assert address == Scalar(address.dtype, 0)


@pytest.mark.parametrize("rows", [-64, 1, 100, 2**31])
def test_pieces_are_whole_slices(rows):
    config = replace(TILE, split_rows=rows)
    with pytest.raises(InvalidConfigError, match=f"split_rows: .* multiple of 64 .* got {rows}"):
        spec_for(wgrad(3, 500), SM90, config)


def test_wide_tiles_that_are_stored_from_registers_do_not_split():
    wide = replace(TILE, block_n=192, num_stages=4, store_boxes=3)
    assert spec_for(wgrad(3, 500), SM90, wide).variant.d_by_tma
    spec_for(wgrad(3, 500, out_dtype="float32"), SM90, wide)
    unpaired = wgrad(3, 500, out_dtype="float32")
    unpaired = replace(unpaired, d_alignment=4)  # TMA takes the grid of 16 bytes
    with pytest.raises(InvalidConfigError, match="split_rows: k3 takes 0 for more than 128"):
        spec_for(unpaired, SM90, wide)
    spec_for(unpaired, SM90, replace(wide, split_rows=0))


def test_a_tile_is_told_by_the_rows_of_its_pieces_and_its_code_is_not():
    one, other = (spec_for(wgrad(3, 500), SM90, replace(TILE, split_rows=r)) for r in (64, 128))
    assert str(one.config).endswith("_claimed_split64")
    assert str(other.config).endswith("_claimed_split128")
    assert one.entry == other.entry
    assert key_of(one) == key_of(other)
    assert key_of(spec_for(wgrad(3, 500), SM90, replace(TILE, split_rows=0))) != key_of(one)


# Which calls are made ready -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("groups", "rows", "k", "n", "expected"),
    [
        (256, 32768, 1024, 1024, 0),  # memory, then pieces, as long as both at a time
        (64, 16384, 1024, 2688, 0),  # 112 tiles a group: all rows in one take 1.18 times as long
        (64, 16384, 1024, 1536, 0),
        (9, 16384, 1024, 1536, 8192),
        (8, 16384, 1024, 1024, 4096),
        (1, 16384, 1024, 1024, 4096),  # one group alone
        (8, 131072, 1024, 1024, 32768),
        (64, 65536, 4096, 14336, 0),  # a group alone has tiles enough
        (64, 16384, 1024, 3072, 0),  # 128 tiles are one wave nearly
        (256, 4096, 1024, 1024, 0),  # even all rows in one group take less than the rest
        (64, 2048, 1024, 2688, 0),
    ],
)
def test_rows_of_a_piece(groups, rows, k, n, expected):
    _, config = choose(wgrad(groups, rows, k, n), SM90)
    assert config.split_rows == expected


def test_even_routing_is_not_split_and_memory_is_bounded():
    rng = np.random.default_rng(0)
    some = set()
    for _ in range(400):
        groups, rows = (int(2 ** rng.uniform(*limits)) for limits in ((0, 9), (8, 19)))
        k, n = (64 * int(rng.integers(1, 60)) for _ in range(2))
        problem = wgrad(groups, rows, k, n)
        kernel, config = choose(problem, SM90)
        tiles = -(-k // config.block_m) * -(-n // config.block_n)
        split = kernel.split_of(problem, config)
        some.add(config.split_rows)
        if split is None:
            assert config.split_rows == 0
            continue
        assert config in rivals(problem)
        assert split.partial_bytes <= 256 << 20
        assert 2 * config.split_rows <= rows
        if groups * tiles >= 132:
            assert config.split_rows >= 2 * rows / groups
    assert len(some) > 4


def test_a_choice_that_would_spill_is_made_without():
    for alignment, splits in ((16, True), (4, False)):
        problem = replace(wgrad(9, 16384, 1024, 1536), d_alignment=alignment)
        kernel, config = choose(problem, SM90)
        assert (config.block_n, config.split_rows > 0) == (192, splits)
        variant = variant_for(problem, kernel, config)
        assert violations(kernel, config, variant, Arch.parse("sm_90a")) == []


def test_the_model_counts_pieces_and_what_they_leave():
    problem = wgrad(8, 16384)
    sizes = np.array([14746] + [234] * 7)
    split = Sm90WgmmaConfig(
        block_m=256, block_n=128, num_stages=3, store_boxes=4, pingpong=False, order="claimed",
        split_rows=4096,
    )  # fmt: skip
    whole = replace(split, split_rows=0)
    with_, without = (predict(problem, c, gpu_for(SM90), sizes) for c in (split, whole))
    assert (with_.num_tiles, without.num_tiles) == (32 * (4 + 7), 32 * 8)
    assert (with_.split_groups, without.split_groups) == (1, 0)
    assert with_.l2_bytes - without.l2_bytes == 2 * 3 * 32 * 256 * 128 * 4
    assert with_.us < without.us / 2
    assert "1 group in pieces of 4096 rows" in with_.reason
    assert without.measured
    assert not with_.measured
    even = np.full(8, 2048)
    with_, without = (predict(problem, c, gpu_for(SM90), even) for c in (split, whole))
    assert (with_.us, with_.reason) == (without.us, without.reason)


def test_explain_tells_what_is_taken():
    found = gemmjit.explain(wgrad(8, 16384), "sm_90a", group_sizes=[14746] + [234] * 7)
    assert found.chosen == ("k3", "co256x128x64_s3c4r8_claimed_split4096")
    assert found.best.tile == found.chosen[1]
    (row,) = [row for row in found.rows() if row[0]]
    assert "1 group in pieces of 4096 rows" in row[-1]


# Counters ----------------------------------------------------------------------------------


def test_places_of_each_size_are_apart(torch_gpu):
    fake, _ = torch_gpu
    sizes = (8, 64, 65, 2056, 3000, 100_000)
    places = {nbytes: counters.place_of(5, False, nbytes) for nbytes in sizes}
    assert places == {nbytes: counters.place_of(5, False, nbytes) for nbytes in sizes}
    assert places[8] == places[64]
    assert places[2056] == places[3000]  # 4 KiB: calls of a stream follow one another
    ends = {}
    for nbytes in (64, 65, 3000, 100_000):
        ends[places[nbytes]] = places[nbytes] + nbytes
    ranges = sorted(ends.items())
    assert all(end <= start for (_, end), (start, _) in pairwise(ranges))
    held = [(m.ctypes.data, m.ctypes.data + m.nbytes) for m in fake.allocated]
    assert all(any(low <= a and b <= high for low, high in held) for a, b in ranges)
    assert not any(memory.any() for memory in fake.allocated)
    assert counters.place_of(6, False, 3000) != places[3000]
    captured = {counters.place_of(5, True, 3000) for _ in range(40)}
    assert len(captured) == 40
    assert places[3000] not in captured


def test_a_repeated_call_takes_scratch_of_the_framework_and_counters_of_the_stream(torch_gpu):
    fake, maker = torch_gpu
    a, b = maker.swapped(maker.empty(16384, 1024)), maker.empty(16384, 1024)
    offs = maker.offsets([8, 8, 40, 64])
    for _ in range(3):
        gemmjit.grouped_mm(a, b, offs=offs)
    assert "_split_" in fake.entry_of(fake.launches[-1])
    claims = {seen.claims for seen in fake.launches}
    (place,) = claims
    problem = wgrad(4, 16384)
    split = K3.split_of(problem, choose(problem, SM90)[1])
    assert place in counters.places_for(8 + split.counter_bytes).values()
    assert place not in counters.PLACES.values()
