"""The cases that a GPU is compared with, without the GPU: they run, everywhere the same."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from differential import emulate_micro, executed, kernel_cases, launchable, run_case
from makers import NumpyMaker
from micro_kernels import micros, model_micros
from micro_launch import GUARD

from gemmjit.arch import Arch
from gemmjit.emulator import emulating
from gemmjit.emulator.settings import Settings
from gemmjit.kernels import KERNELS

HOPPER = Arch.parse("sm_90a")
MICROS = list(micros(HOPPER))
CASES = list(kernel_cases(HOPPER))


@pytest.mark.parametrize("micro", MICROS, ids=lambda m: m.name)
def test_a_micro_kernel_gives_the_same_under_every_policy(micro):
    eager, _ = emulate_micro(micro)
    inputs = {name: array.reshape(-1).view(np.uint8) for name, array in micro.arrays.items()}
    assert any(not np.array_equal(eager[name], inputs[name]) for name in inputs)
    for settings in (Settings(policy="lazy"), Settings(policy="random", seed=1)):
        other, _ = emulate_micro(micro, settings)
        for name in inputs:
            np.testing.assert_array_equal(other[name], eager[name], err_msg=name)


@pytest.mark.parametrize("micro", list(model_micros(HOPPER)), ids=lambda m: m.name)
def test_the_model_of_the_tensor_cores_makes_a_difference(micro):
    plain, _ = emulate_micro(micro)
    model, _ = emulate_micro(micro, Settings(numerics="tensor_core"))
    name = "d" if "d" in plain else "out"
    a, b = (x[name].view(np.float32) for x in (plain, model))
    assert (a != b).any()
    np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-2)


def test_boxes_reach_past_every_end():
    """Loads fill with zeros, stores leave alone what lies outside, to 16 bytes of a row.

    What lies between rows that are narrower than the swizzle is not written.
    """
    loads = [m for m in MICROS if m.name.startswith("TMA load")]
    assert len(loads) == 20
    for micro in loads:
        places = micro.arrays["places"]
        tensor_map = micro.arguments[0].tensor_map
        dims = tensor_map.dims
        assert not (places[:, 0] * 2 % 16).any()  # others are an illegal instruction
        for axis in range(len(dims)):
            assert (places[:, axis] < 0).any()
            assert (places[:, axis] >= dims[axis]).any()
        out = emulate_micro(micro)[0]["out"].view(np.uint16).reshape(len(places), -1)
        assert out.shape[1] * 2 == tensor_map.smem_bytes
        written = (out != 0xABAB).any(0)
        assert written.sum() * 2 == tensor_map.box_bytes
        out = out[:, written]
        outside = (places[:, : len(dims)] >= np.array(dims)).any(1)
        assert not out[outside].any()
        several = np.array(tensor_map.box) > ([8] + [1] * (len(dims) - 1))
        corner = out[(places[:, : len(dims)] < 0)[:, several].all(1)]
        assert ((corner == 0).any(1) & (corner != 0).any(1)).any()  # partly outside
        assert (out[0] != 0).all()  # the tensor holds no zeros
    stores = [m for m in MICROS if m.name.startswith("TMA store")]
    assert len(stores) == 5
    for micro in stores:
        tensor = emulate_micro(micro)[0]["tensor"]
        assert (tensor[-128 + 15 :] == GUARD).all()
        assert (tensor != GUARD).any()


def test_cases_take_part_of_every_kernel_and_swizzle():
    tiles = {(c.config.kernel, c.config.tile_name) for c in CASES}
    for kernel in KERNELS.values():
        assert {(kernel.name, c.tile_name) for c in kernel.shipped_configs()} <= tiles
    assert {c.config.swizzle for c in CASES if c.config.kernel == "k2"} == {0, 32, 64, 128}
    assert len(CASES) == len(set(map(str, CASES)))


@pytest.mark.parametrize("case", [c for c in CASES if c.config.kernel != "k0"][::5], ids=str)
def test_a_case_gives_the_same_twice(case):
    kernel = launchable(case, HOPPER)
    once, again = (run_case(case, NumpyMaker(), kernel) for _ in range(2))
    with emulating("random", seed=2):
        other = run_case(case, NumpyMaker(), kernel)
    for name in once:
        np.testing.assert_array_equal(again[name], once[name], err_msg=name)
        np.testing.assert_array_equal(other[name], once[name], err_msg=name)


def documented():
    """Return the script that writes the table of the documentation."""
    path = Path(__file__).resolve().parents[2] / "docs" / "instructions.py"
    spec = importlib.util.spec_from_file_location("instructions", path)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


def test_the_documentation_lists_what_micro_kernels_execute():
    script = documented()
    listed = script.named(script.written())
    for micro in MICROS:
        _, report = emulate_micro(micro)
        assert set(report.instructions) <= listed, "run docs/instructions.py"


@pytest.mark.slow
def test_the_documentation_lists_what_the_cases_execute():
    script = documented()
    assert script.written() == script.table(executed(HOPPER, MICROS)), "run docs/instructions.py"
