"""Offsets on the device: never waited for, clamped whatever they hold, checked on demand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import references
from cases import ends_of, integers
from makers import SWAPPED
from references import assert_same, rounded

import gemmjit
from gemmjit import SimtConfig, Sm80MmaConfig, offsets
from gemmjit.errors import InvalidProblemError
from gemmjit.kernels import KERNELS

CONFIGS = {
    "auto": None,
    "k0": "k0",
    "k1": "k1",
    "k2": "k2",
    "k3": "k3",
    "k0-compact": SimtConfig(schedule="compact"),
    "k1-compact": Sm80MmaConfig(block_m=32, min_blocks_per_sm=4, schedule="compact"),
    "k1-bounded": Sm80MmaConfig(block_m=64, min_blocks_per_sm=3, schedule="bounded"),
    "k3-compact": replace(KERNELS["k3"].default_config, schedule="compact"),
    "k3-bounded": replace(KERNELS["k3"].default_config, schedule="bounded"),
}

ROWS = 150

BAD = {
    "falls": [100, 40, 120],
    "falls to nothing": [150, 0, 0],
    "negative": [-1, 50, 70],
    "all negative": [-5, -6, -7],
    "beyond the rows": [50, 400, 100],
    "all beyond the rows": [151, 152, 153],
    "up and down": [150, 8, 150],
    "largest int32": [2**31 - 1, -(2**31), 2**31 - 1],
}
WIDE = {
    "beyond int32": [2**40, 5, 2**62],
    "below int32": [-(2**40), 60, -(2**63)],
    "low word looks right": [2**32 + 40, -(2**32) + 60, 2**34 + 70],
    "negative, low word looks right": [-(2**32) + 60, 70, -(2**33) + 90],
}


@pytest.mark.parametrize("fresh", [False, True], ids=["out", "fresh"])
@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("name", [*BAD, *WIDE])
def test_br016_bad_offsets_touch_nothing_outside(maker, name, config, fresh):
    ends = {**BAD, **WIDE}[name]
    for dtype in ("int32", "int64") if name in BAD else ("int64",):
        a = maker.place(integers((ROWS, 40), seed=1), "bfloat16")
        b = maker.place(integers((3, 40, 24), seed=2), "bfloat16")
        offs = maker.array(np.asarray(ends, dtype), dtype)
        before = maker.download(offs)
        start = integers((ROWS, 24), seed=3)
        clamped = references.clamp(ends, ROWS)
        if fresh:
            maker.poison_pool((ROWS, 24), "bfloat16")
            result = gemmjit.grouped_mm(a.array, b.array, offs=offs, config=CONFIGS[config])
            want = references.fprop(a.read(), b.read(), clamped)
            assert_same(maker.read(result), rounded(want, "bfloat16"))
        else:
            out = maker.place(start, "bfloat16", poison=7.0)
            gemmjit.grouped_mm(a.array, b.array, offs=offs, out=out.array, config=CONFIGS[config])
            want = references.fprop(a.read(), b.read(), clamped, start)
            assert_same(out.read(), rounded(want, "bfloat16"))
            out.assert_only_elements_changed()
        a.assert_unchanged()
        b.assert_unchanged()
        np.testing.assert_array_equal(maker.download(offs), before)


@pytest.mark.parametrize("config", [None, "k0", "k1", "k3"])
@pytest.mark.parametrize("name", [*BAD, *WIDE])
def test_br016_bad_offsets_of_wgrad(maker, name, config):
    ends = {**BAD, **WIDE}[name]
    a = maker.place(integers((24, ROWS), seed=1), "bfloat16", SWAPPED)
    b = maker.place(integers((ROWS, 40), seed=2), "bfloat16")
    out = maker.place(np.full((3, 24, 40), np.nan), "bfloat16", poison=7.0)
    offs = maker.array(np.asarray(ends, "int64"), "int64")
    gemmjit.grouped_mm(a.array, b.array, offs=offs, out=out.array, config=config)
    want = references.wgrad(a.read(), b.read(), references.clamp(ends, ROWS))
    assert_same(out.read(), rounded(want, "bfloat16"))
    out.assert_only_elements_changed()
    a.assert_unchanged()
    b.assert_unchanged()


def test_br016_check_mode_raises(maker, monkeypatch):
    # Calls are remembered by shape: this one is used nowhere else.
    monkeypatch.setenv("GEMMJIT_CHECK", "1")
    a, b = maker.full((16, 56), 1, "bfloat16"), maker.full((2, 56, 72), 1, "bfloat16")
    for ends, message in (
        ([8, 4], r"offs\[1\] = 4 after 8"),
        ([-1, 8], r"offs\[0\] = -1"),
        ([8, 32], r"offs\[1\] = 32"),
    ):
        with pytest.raises(InvalidProblemError, match=message):
            gemmjit.grouped_mm(a, b, offs=maker.array(np.asarray(ends), "int32"))
    got = gemmjit.grouped_mm(a, b, offs=maker.array(np.asarray([8, 16]), "int32"))
    assert (maker.read(got) == 56).all()


def test_offsets_can_be_checked_where_they_are(maker):
    gemmjit.check_offsets(maker.array(np.asarray([3, 8]), "int64"), 8)
    with pytest.raises(InvalidProblemError, match=r"offs\[1\] = 9"):
        gemmjit.check_offsets(maker.array(np.asarray([3, 9]), "int32"), 8)


@pytest.mark.parametrize("config", [None, "k0", "k1", "k2", "k3"])
def test_nothing_waits_for_the_device(torch, torch_maker, config):
    a = torch_maker.array(integers((50, 48), seed=1), "bfloat16")
    b = torch_maker.array(integers((3, 48, 56), seed=2), "bfloat16")
    offs = torch_maker.array(np.asarray([0, 0, 0]), "int32")
    gemmjit.grouped_mm(a, b, offs=offs, config=config)
    torch.cuda.synchronize()
    torch.cuda._sleep(1_000_000_000)  # half a second at 2 GHz
    offs.copy_(torch.tensor([20, 20, 50], dtype=torch.int32).pin_memory(), non_blocking=True)
    event = torch.cuda.Event()
    event.record()
    got = gemmjit.grouped_mm(a, b, offs=offs, config=config)
    assert not event.query(), "the call waited for the stream"
    want = references.fprop(torch_maker.read(a), torch_maker.read(b), [20, 20, 50])
    assert_same(torch_maker.read(got), rounded(want, "bfloat16"))


def test_converters_stay_on_the_device(maker):
    sizes = [3, 0, 5, 2]
    ends = ends_of(sizes)

    def given(values):
        return maker.array(np.asarray(values), "int64")

    made = {
        "sizes": offsets.from_group_sizes(given(sizes)),
        "indptr": offsets.from_indptr(given([0, *ends])),
        "row_ids": offsets.from_row_ids(given([0, 0, 0, 2, 2, 2, 2, 2, 3, 3, 9]), 4),
    }
    for result in made.values():
        assert maker.owns(result)
        assert maker.dtype_name(result) == "int32"
        assert maker.download(result).tolist() == ends
    assert maker.download(offsets.to_group_sizes(made["sizes"])).tolist() == sizes


def test_converters_of_torch_do_not_synchronise(torch):
    sizes = torch.tensor([3, 0, 5], device="cuda")
    ids = torch.tensor([0, 0, 0, 2, 2, 2, 2, 2], device="cuda")
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        ends = offsets.from_group_sizes(sizes)
        offsets.to_group_sizes(ends)
        same = offsets.from_row_ids(ids, 3)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert ends.tolist() == same.tolist() == [3, 3, 8]
