"""The default choice of kernel and tile."""

from __future__ import annotations

import pytest

from gemmjit import Problem
from gemmjit.arch import Arch, targets_for
from gemmjit.constraints import variant_for, violations
from gemmjit.ops.dispatch import resolve, spec_for
from gemmjit.selection import choose

ARCHES = [Arch.parse(a) for a in ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_103", "sm_120")]


def problem(form="ragged_m", rows=1024, groups=8, dtype="bfloat16", n=256, k=128, **keywords):
    return Problem.contiguous(form, num_groups=groups, rows=rows, n=n, k=k, dtype=dtype, **keywords)


@pytest.mark.parametrize("arch", ARCHES, ids=str)
@pytest.mark.parametrize("form", ["ragged_m", "ragged_k"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("rows", [0, 1, 100, 1024, 100_000])
def test_every_choice_obeys_every_rule(arch, form, dtype, rows):
    for orders in ({}, {"a_k_major": False}, {"b_k_major": True}, {"n": 33, "k": 7}):
        asked = problem(form, rows=rows, dtype=dtype, **orders)
        kernel, config = choose(asked, arch)
        target = targets_for(arch, kernel.accelerated)[0]
        assert violations(kernel, config, variant_for(asked, kernel, config), target) == []
        assert spec_for(asked, arch).target.runs_on(arch)


@pytest.mark.parametrize("arch", ARCHES, ids=str)
def test_float32_goes_to_the_fp32_cores(arch):
    assert choose(problem(dtype="float32"), arch)[0].name == "k0"


@pytest.mark.parametrize(("arch", "kernel"), [("sm_75", "k0"), ("sm_80", "k1"), ("sm_86", "k1")])
def test_sixteen_bits_go_to_the_best_kernel_there_is(arch, kernel):
    assert choose(problem(), Arch.parse(arch))[0].name == kernel


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize(
    ("rows", "groups", "block_m"),
    [(8, 8, 32), (256, 8, 32), (264, 8, 64), (512, 8, 64), (520, 8, 128), (10**6, 8, 128),
     (100, 0, 128), (0, 8, 32)],
)  # fmt: skip
def test_tile_height_follows_the_mean_group(arch, rows, groups, block_m):
    kernel, config = choose(problem(rows=rows, groups=groups), Arch.parse(arch))
    if kernel.name == "k3":  # of two heights, the lower one for very few rows
        block_m = 64 if rows <= 16 * groups else 128
    assert config.block_m == block_m


def test_tile_height_of_wgrad_follows_its_rows():
    for k, block_m in ((24, 32), (64, 64), (65, 128)):
        assert choose(problem("ragged_k", k=k), Arch.parse("sm_80"))[1].block_m == block_m


def test_a_fixed_config_is_not_second_guessed():
    kernel, config = resolve(problem(), Arch(80), "k0")
    assert kernel.name == "k0"
    assert config == kernel.default_config


def test_operands_that_no_tensor_map_describes_go_to_k1():
    for changes in ({"n": 33}, {"k": 7}, {"a_k_major": False}):
        assert choose(problem(**changes), Arch(90))[0].name == "k1"


@pytest.mark.parametrize(
    ("groups", "rows", "n", "tile"),
    [
        (128, 256, 1536, (64, 256)),  # 768 tiles, 5.8 waves
        (4, 12, 6912, (64, 256)),  # 108 tiles in one wave, not 216 in two
        (32, 256, 2112, (128, 192)),  # 352 tiles are 2.7 waves, 288 of 256 columns 2.2
        (64, 10, 2688, (64, 256)),
        (8, 64, 1024, (64, 128)),  # 64 tiles instead of 32
        (17, 17, 2816, (64, 128)),
    ],
)
def test_few_rows_take_tiles_by_how_waves_are_filled(groups, rows, n, tile):
    _, config = choose(problem(rows=rows, groups=groups, n=n, k=1024), Arch.parse("sm_90"))
    assert (config.block_m, config.block_n) == tile
    assert config.b_evict_first == (tile[0] == 64)


@pytest.mark.parametrize("mean", [17, 32, 64])
def test_short_groups_stream_their_weights(mean):
    _, config = choose(problem(rows=64 * mean, groups=64, n=2688, k=1024), Arch.parse("sm_90"))
    assert config.block_m == 128
    assert not config.b_evict_first
    _, config = choose(problem(rows=64 * 65, groups=64, n=2688, k=1024), Arch.parse("sm_90"))
    assert config.block_n == 192


@pytest.mark.parametrize(
    ("rows", "m", "n", "tile"),
    [(256, 1024, 2688, (128, 192)), (256, 1024, 1024, (128, 128)), (512, 4096, 4096, (128, 192)),
     (64, 4096, 4096, (256, 128)), (65, 4096, 4096, (128, 192)), (2, 320, 2688, (128, 192)),
     (4096, 4096, 4096, (256, 128)), (4096, 320, 4096, (128, 192)),
     (2047, 4096, 4096, (128, 192)), (2048, 4096, 4096, (256, 128))],
)  # fmt: skip
def test_wgrad_takes_its_tile_from_mean_rows_and_waste(rows, m, n, tile):
    asked = problem("ragged_k", rows=8 * rows, groups=8, n=n, k=m)
    kernel, config = choose(asked, Arch.parse("sm_90"))
    assert kernel.name == "k3"
    assert (config.block_m, config.block_n) == tile


@pytest.mark.parametrize(
    ("rows", "n", "boxes"), [(1023, 4096, 4), (1024, 4096, 1), (1024, 1024, 4)]
)
def test_long_sums_are_added_by_tma_where_the_wide_tile_fits(rows, n, boxes):
    asked = problem(
        "ragged_k", rows=8 * rows, groups=8, n=n, k=4096, out_dtype="float32", epilogue="accumulate"
    )
    _, config = choose(asked, Arch.parse("sm_90"))
    assert config.store_boxes == boxes  # with one, nothing of D is read
