"""With a fixed config a row has the same bits whatever else is in the batch, instruction by
instruction, with sums truncated as tensor cores do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from invariance import BATCHES, gradient_bits, row_bits
from makers import NumpyMaker

from gemmjit.emulator import emulating
from gemmjit.kernels import KERNELS

TILES = [
    pytest.param(config, id=f"{kernel.name}-{config}")
    for kernel in KERNELS.values()
    for config in kernel.shipped_configs()
]
FIRST = [p for p in TILES if p.values[0] == KERNELS[p.values[0].kernel].default_config]
MAKER = NumpyMaker()


def others_are_slow(tiles):
    """Mark all tiles but each kernel's first."""
    return [
        p if p in FIRST else pytest.param(*p.values, id=p.id, marks=pytest.mark.slow) for p in tiles
    ]


ALL = others_are_slow(TILES)
WGRAD = others_are_slow([p for p in TILES if "ragged_k" in KERNELS[p.values[0].kernel].forms])


@pytest.fixture(autouse=True)
def _on_the_emulator(monkeypatch):
    monkeypatch.setenv("GEMMJIT_ARCH", "sm_90a")
    monkeypatch.setenv("GEMMJIT_EXECUTOR", "emulator")


def emulated(policy="eager", seed=0):
    return emulating(policy, seed, numerics="tensor_core", num_sms=2)


@pytest.mark.parametrize("config", ALL)
def test_a_row_has_the_same_bits_in_every_batch(config):
    with emulated():
        alone = row_bits(MAKER, config, BATCHES[0])
        assert len(set(alone.tolist())) > 50
        for batch in BATCHES[3:6:2]:
            np.testing.assert_array_equal(row_bits(MAKER, config, batch), alone)


@pytest.mark.slow
@pytest.mark.parametrize("config", FIRST)
def test_a_row_has_the_same_bits_in_every_other_batch(config):
    with emulated():
        alone = row_bits(MAKER, config, BATCHES[0])
        for batch in BATCHES[1:]:
            np.testing.assert_array_equal(row_bits(MAKER, config, batch), alone)


@pytest.mark.slow
@pytest.mark.parametrize("config", FIRST)
@pytest.mark.parametrize("b_k_major", [False, True], ids=["nn", "nt"])
def test_neighbours_offsets_and_schedules_change_no_bit(config, b_k_major):
    batch = BATCHES[4]
    with emulated():
        alone = row_bits(MAKER, config, BATCHES[0], b_k_major=b_k_major)
        for keywords in ({"offs": "list"}, {"foreign": float("nan")}, {"foreign": 1e30}):
            found = row_bits(MAKER, config, batch, b_k_major=b_k_major, **keywords)
            np.testing.assert_array_equal(found, alone)
        for schedule in ("compact", "bounded", "persistent"):
            tile = replace(config, schedule=schedule)
            found = row_bits(MAKER, tile, batch, b_k_major=b_k_major)
            np.testing.assert_array_equal(found, alone)


@pytest.mark.parametrize("config", WGRAD)
@pytest.mark.parametrize("rows", [70])
def test_a_groups_gradient_has_the_same_bits_among_all_others(config, rows):
    with emulated():
        alone = gradient_bits(MAKER, config, (0, 0), rows)
        assert len(np.unique(alone)) > 50
        for others in ((1, 0), (63, 2), (64, 0), (5, 130)):
            np.testing.assert_array_equal(gradient_bits(MAKER, config, others, rows), alone)


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_the_order_in_which_warps_run_changes_no_bit(name):
    config = KERNELS[name].default_config
    with emulated():
        expected = row_bits(MAKER, config, BATCHES[5])
    for policy, seed in (("lazy", 0), ("random", 1)):
        with emulated(policy, seed):
            np.testing.assert_array_equal(row_bits(MAKER, config, BATCHES[5]), expected)


def test_another_order_of_summation_would_show():
    with emulated():
        first, second = (
            row_bits(MAKER, KERNELS[name].default_config, BATCHES[0])[:64] for name in ("k0", "k1")
        )
    assert (first != second).any()
