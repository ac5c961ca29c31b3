"""On hardware: the bits of a row with a fixed config, and of a call that is repeated."""

from __future__ import annotations

import numpy as np
import pytest
from invariance import BATCHES, draw, gradient_bits, row_bits

import gemmjit
from gemmjit.arch import targets_for
from gemmjit.constraints import violations
from gemmjit.kernels import KERNELS, Variant

TILES = [
    pytest.param(kernel, config, id=f"{kernel.name}-{config}")
    for kernel in KERNELS.values()
    for config in kernel.shipped_configs()
]


@pytest.fixture
def serves():
    """Return what skips tiles that this GPU cannot run."""
    from gemmjit.cuda.device import device

    def check(kernel, config):
        targets = targets_for(device(0).arch, kernel.accelerated)
        if not targets or violations(kernel, config, Variant(), targets[0]):
            pytest.skip(f"{kernel.name} {config} does not run on {device(0).arch}")

    return check


@pytest.mark.parametrize(("kernel", "config"), TILES)
def test_a_row_has_the_same_bits_in_every_batch(torch_maker, serves, kernel, config):
    serves(kernel, config)
    for b_k_major in (False, True):
        alone = row_bits(torch_maker, config, BATCHES[0], b_k_major=b_k_major)
        for batch in BATCHES[1:]:
            for keywords in ({}, {"offs": "list"}, {"foreign": float("nan")}):
                found = row_bits(torch_maker, config, batch, b_k_major=b_k_major, **keywords)
                np.testing.assert_array_equal(found, alone)


@pytest.mark.parametrize(("kernel", "config"), TILES)
@pytest.mark.parametrize("rows", [1, 70, 500])
def test_a_groups_gradient_has_the_same_bits(torch_maker, serves, kernel, config, rows):
    if "ragged_k" not in kernel.forms:
        pytest.skip(f"{kernel.name} has no ragged-K form")
    serves(kernel, config)
    alone = gradient_bits(torch_maker, config, (0, 0), rows)
    for others in ((1, 0), (63, 2), (64, 0), (5, 1300)):
        np.testing.assert_array_equal(gradient_bits(torch_maker, config, others, rows), alone)


@pytest.mark.parametrize("form", ["fprop", "dgrad", "wgrad"])
@pytest.mark.parametrize("rows", [64, 20_000])
def test_the_default_has_the_same_bits_from_run_to_run(torch_maker, form, rows):
    sizes = gemmjit.workloads.power_law(rows, 16, 1.2)
    ends = torch_maker.array(np.cumsum(sizes), "int32")
    x = torch_maker.array(draw(1, rows, 512), "bfloat16")
    if form == "wgrad":
        a, b = x.T, torch_maker.array(draw(2, rows, 768), "bfloat16")
    else:
        w = torch_maker.array(draw(3, 16, 768, 512), "bfloat16")
        a, b = x, w.swapaxes(1, 2)
        if form == "dgrad":
            b = torch_maker.array(draw(3, 16, 512, 768), "bfloat16")
    first = torch_maker.download(gemmjit.grouped_mm(a, b, offs=ends)).view(np.uint16)
    for _ in range(20):
        again = torch_maker.download(gemmjit.grouped_mm(a, b, offs=ends)).view(np.uint16)
        np.testing.assert_array_equal(again, first)
