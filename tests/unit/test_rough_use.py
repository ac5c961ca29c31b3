"""Arguments that nobody should pass: refused by name, never taken for something else."""

from __future__ import annotations

import os

import numpy as np
import pytest

import gemmjit
from gemmjit import offsets
from gemmjit.errors import (
    GemmjitError,
    InvalidConfigError,
    InvalidDtypeError,
    InvalidProblemError,
    UnsupportedArchError,
)

BIG = 2**63
A = np.ones((8, 16), np.float32)
W = np.ones((3, 16, 8), np.float32)
ENDS = [3, 3, 7]


@pytest.mark.parametrize(
    "ends",
    [
        np.array([BIG - 1, -BIG, -1, 7]),
        np.array([BIG - 1, BIG, 2 * BIG - 1, 7], np.uint64),
        np.array([-BIG, BIG - 1, 3, 7]),
    ],
)
def test_offsets_whose_differences_would_wrap(ends):
    with pytest.raises(InvalidProblemError, match="offs: expected"):
        gemmjit.check_offsets(ends, 8)
    with pytest.raises(InvalidProblemError, match="offs: expected"):
        gemmjit.grouped_mm(A, np.ones((len(ends), 16, 8), np.float32), offs=ends)


@pytest.mark.parametrize("offs", [{0: 1}, [[1], [2, 3]], np.ma.array([3, 3, 7], mask=[0, 1, 0])])
def test_offsets_that_are_none(offs):
    with pytest.raises(GemmjitError, match="offs"):
        gemmjit.grouped_mm(A, W, offs=offs)


def test_masked_operands():
    with pytest.raises(InvalidDtypeError, match=r"mat_a: .*mask"):
        gemmjit.grouped_mm(np.ma.array(A, mask=A > 0), W, offs=ENDS)
    with pytest.raises(InvalidDtypeError, match=r"mat_b: .*mask"):
        gemmjit.grouped_mm(A, np.ma.array(W, mask=W > 0), offs=ENDS)


def test_elements_off_their_own_size():
    odd = np.zeros(8 * 16 * 4 + 1, np.uint8)[1:].view(np.float32).reshape(8, 16)
    with pytest.raises(InvalidDtypeError, match="mat_a: expected its first element on a multiple"):
        gemmjit.grouped_mm(odd, W, offs=ENDS)


def test_a_result_over_the_offsets():
    memory = np.zeros(64, np.int32)
    memory[:3] = ENDS
    with pytest.raises(InvalidProblemError, match="out: expected memory that offs does not use"):
        gemmjit.grouped_mm(A, W, offs=memory[:3], out=memory.view(np.float32).reshape(8, 8))
    assert memory[:3].tolist() == ENDS


@pytest.mark.parametrize(
    "convert",
    [
        lambda: offsets.from_group_sizes([2.7, 3.3]),
        lambda: offsets.from_indptr([0, 1.5, 5]),
        lambda: offsets.from_row_ids([0.5, 1], 2),
        lambda: offsets.from_row_ids([0, 1], 2.5),
        lambda: offsets.to_group_sizes([1.5, 2.7]),
    ],
)
def test_converters_take_whole_numbers(convert):
    with pytest.raises(InvalidProblemError, match="expected"):
        convert()


def test_a_config_or_an_architecture_that_is_none():
    for config in ("k0", 0, {}):
        with pytest.raises(InvalidConfigError, match="config"):
            gemmjit.compile("k0", config)
    for arch in (90, (9, 0), b"sm_90"):
        with pytest.raises(UnsupportedArchError, match="arch"):
            gemmjit.render("k0", arch=arch)


def test_a_pipe_in_the_cache_is_not_waited_for(tmp_path, monkeypatch):
    from gemmjit.build import clear_memory

    monkeypatch.setenv("GEMMJIT_CACHE_DIR", str(tmp_path / "cache"))
    clear_memory()
    gemmjit.compile("k0")
    (meta,) = (tmp_path / "cache").rglob("meta.json")
    meta.unlink()
    os.mkfifo(meta, 0o600)
    clear_memory()
    assert gemmjit.compile("k0").registers > 0
    clear_memory()
