"""Occupancy, against figures from the field and from the occupancy calculator's rules."""

from __future__ import annotations

import numpy as np
import pytest

from gemmjit.arch import Arch
from gemmjit.errors import InvalidConfigError, UnsupportedArchError
from gemmjit.occupancy import occupancy, registers_at_entry


@pytest.mark.parametrize(
    ("registers", "threads", "smem_bytes", "arch", "blocks"),
    [
        (95, 256, 8 * 1024, "sm_90a", 2),
        (64, 256, 8 * 1024, "sm_90a", 4),
        (123, 288, 8 * 1024, "sm_90a", 1),
        (94, 288, 8 * 1024, "sm_90a", 2),
        (168, 384, 200 * 1024, "sm_90a", 1),
        (32, 1024, 0, "sm_90a", 2),  # warps: 64 of them
        (32, 1024, 0, "sm_86", 1),  # warps: 48 of them
        (16, 32, 0, "sm_90a", 32),  # blocks
        (16, 32, 0, "sm_86", 16),
        (16, 32, 0, "sm_75", 16),
        (32, 128, 113 * 1024, "sm_90a", 2),  # shared memory: 2 x (113 + 1) = 228 KiB
        (32, 128, 113 * 1024 + 1, "sm_90a", 1),
        (32, 128, 227 * 1024, "sm_90a", 1),
        (32, 128, 227 * 1024 + 1, "sm_90a", 0),  # more than a block may have
        (32, 128, 99 * 1024, "sm_120f", 1),
        (32, 128, 99 * 1024 + 1, "sm_120f", 0),
        (32, 128, 32 * 1024, "sm_75", 2),  # nothing is reserved on 7.5
        (32, 1, 0, "sm_75", 16),
    ],
)
def test_resident_blocks(registers, threads, smem_bytes, arch, blocks):
    assert occupancy(registers, threads, smem_bytes, arch) == blocks


def test_br067_too_many_registers_for_the_block_is_no_block():
    assert occupancy(156, 512, 0, "sm_90a") == 0  # 156 x 512 = 79872 > 65536


def test_numpy_integers_and_arch_objects_are_taken():
    assert occupancy(np.int64(95), np.int32(256), np.int64(0), Arch(90, "a")) == 2


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ((0, 256, 0), "registers"),
        ((256, 256, 0), "registers"),
        ((95.0, 256, 0), "registers"),
        ((True, 256, 0), "registers"),
        ((95, 0, 0), "threads"),
        ((95, 1025, 0), "threads"),
        ((95, 256, -1), "smem_bytes"),
        ((95, 256, "1"), "smem_bytes"),
    ],
)
def test_numbers_out_of_range_are_named(arguments, name):
    with pytest.raises(InvalidConfigError, match=f"^{name}: expected an integer .* got "):
        occupancy(*arguments, "sm_90a")


def test_unknown_architecture():
    with pytest.raises(UnsupportedArchError, match="banana"):
        occupancy(95, 256, 0, "banana")


@pytest.mark.parametrize(
    ("threads", "blocks", "registers"),
    [
        # What ptxas 13.0 and 13.5 report for a kernel whose setmaxnreg asks for more.
        (384, 1, 168), (288, 1, 168), (300, 1, 168), (512, 1, 128), (416, 1, 128), (544, 1, 96),
        (640, 1, 96), (1024, 1, 64), (96, 4, 168), (224, 2, 128), (128, 8, 64), (160, 2, 168),
        (250, 2, 128), (256, 1, 256), (128, 1, 256),
    ],
)  # fmt: skip
def test_registers_that_so_many_blocks_leave(threads, blocks, registers):
    assert registers_at_entry(threads, blocks, "sm_90a") == registers
    most = min(registers, 255)
    assert occupancy(most, threads, 0, "sm_90a") >= blocks
    if registers < 256:
        assert occupancy(registers + 1, threads, 0, "sm_90a") < blocks
