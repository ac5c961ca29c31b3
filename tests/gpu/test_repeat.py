"""The same call again and again: same bits, whatever the memory held and whoever calls."""

from __future__ import annotations

import numpy as np
import pytest
import references
from cases import REAL_EXPERTS, ends_of, integers
from references import assert_same, rounded

import gemmjit
from gemmjit import Sm80MmaConfig, Sm90WgmmaConfig
from gemmjit.cache.stats import stats

CONFIGS = [
    None,
    "k0",
    "k1",
    "k2",
    "k3",
    Sm80MmaConfig(block_m=64, num_stages=3, min_blocks_per_sm=2),
]

#: As the default choice makes them where one group may have most rows.
PIECES = [
    Sm90WgmmaConfig(block_m=128, block_n=128, num_stages=5, order="claimed", split_rows=64),
    Sm90WgmmaConfig(block_m=256, block_n=128, num_stages=3, pingpong=False, split_rows=128),
]


def on_gpu(torch, values, dtype="bfloat16"):
    return torch.as_tensor(values, device="cuda").to(getattr(torch, dtype))


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_a_thousand_calls_give_the_same_bits(torch, config):
    sizes = [s // 8 for s in REAL_EXPERTS]
    a = torch.randn(sum(sizes) + 9, 256, device="cuda").bfloat16()
    b = torch.randn(len(sizes), 256, 320, device="cuda").bfloat16()
    offs = on_gpu(torch, ends_of(sizes), "int32")
    first = gemmjit.grouped_mm(a, b, offs=offs, config=config).view(torch.int16).clone()
    different = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(1000):
        got = gemmjit.grouped_mm(a, b, offs=offs, config=config)
        different += (got.view(torch.int16) != first).sum()
    assert different.item() == 0


@pytest.mark.parametrize("config", [None, "k0", "k1", "k3", *PIECES], ids=str)
def test_a_thousand_weight_gradients_give_the_same_bits(torch, config):
    sizes = [s // 8 for s in REAL_EXPERTS]
    x = torch.randn(sum(sizes), 96, device="cuda").bfloat16()
    dy = torch.randn(sum(sizes), 160, device="cuda").bfloat16()
    offs = on_gpu(torch, ends_of(sizes), "int32")
    first = gemmjit.grouped_mm(x.T, dy, offs=offs, config=config).view(torch.int16).clone()
    different = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(1000):
        got = gemmjit.grouped_mm(x.T, dy, offs=offs, config=config)
        different += (got.view(torch.int16) != first).sum()
    assert different.item() == 0


@pytest.mark.parametrize("config", [None, "k0", "k1", "k2", "k3"])
def test_br006_nothing_stale_is_published(torch, config):
    a = on_gpu(torch, integers((2, 64), seed=1))
    b = on_gpu(torch, integers((4, 64, 64), seed=2))
    offs = on_gpu(torch, [0, 1, 1, 2], "int32")
    want = torch.stack([a[0].double() @ b[1].double(), a[1].double() @ b[3].double()])
    want = want.bfloat16().view(torch.int16)
    out = torch.empty(2, 64, dtype=torch.bfloat16, device="cuda")
    different = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(1000):
        out.fill_(float("nan"))
        gemmjit.grouped_mm(a, b, offs=offs, out=out, config=config)
        different += (out.view(torch.int16) != want).sum()
    assert different.item() == 0


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_br060_long_contraction_is_deterministic(torch, config):
    a = torch.randn(4, 8192, device="cuda").bfloat16()
    b = torch.randn(3, 8192, 64, device="cuda").bfloat16()
    offs = on_gpu(torch, [1, 3, 4], "int32")
    results = [gemmjit.grouped_mm(a, b, offs=offs, config=config) for _ in range(50)]
    assert all(torch.equal(got, results[0]) for got in results)


@pytest.mark.parametrize("config", ["k0", "k1", Sm80MmaConfig(block_m=64, min_blocks_per_sm=3)])
def test_br060_a_row_does_not_depend_on_other_rows(torch, config):
    row = torch.randn(1, 512, device="cuda").bfloat16()
    b = torch.randn(3, 512, 96, device="cuda").bfloat16()
    alone = gemmjit.grouped_mm(row, b, offs=on_gpu(torch, [0, 1, 1], "int32"), config=config)
    for before, inside, after in ((0, 5, 9), (70, 0, 3), (1, 200, 0), (33, 31, 64)):
        total = before + inside + 1 + after
        a = torch.randn(total, 512, device="cuda").bfloat16()
        a[before + inside] = row[0]
        ends = on_gpu(torch, [before, before + inside + 1, total], "int32")
        got = gemmjit.grouped_mm(a, b, offs=ends, config=config)
        assert torch.equal(got[before + inside], alone[0])


@pytest.mark.parametrize("config", [None, "k0", "k1", "k2", "k3"])
def test_br077_two_sets_of_addresses_in_turn(torch, config):
    sets = []
    for seed in (1, 11):
        a = on_gpu(torch, integers((40, 64), seed=seed))
        b = on_gpu(torch, integers((2, 64, 48), seed=seed + 1))
        offs = on_gpu(torch, [15 + seed, 40], "int32")
        first = gemmjit.grouped_mm(a, b, offs=offs, config=config).clone()
        sets.append((a, b, offs, first))
    different = torch.zeros((), dtype=torch.int64, device="cuda")
    for turn in range(2000):
        a, b, offs, first = sets[turn % 2]
        different += (gemmjit.grouped_mm(a, b, offs=offs, config=config) != first).sum()
    assert different.item() == 0
    for a, b, offs, first in sets:
        got = references.fprop(a.double().cpu().numpy(), b.double().cpu().numpy(), offs.tolist())
        assert_same(first.double().cpu().numpy(), rounded(got, "bfloat16"))


def test_br079_an_address_with_another_shape(torch):
    reused = 0
    b_of = {64: on_gpu(torch, integers((2, 64, 48), seed=2)),
            32: on_gpu(torch, integers((2, 32, 48), seed=3))}  # fmt: skip
    previous = 0
    for turn in range(20):
        rows, k = ((64, 64), (128, 32))[turn % 2]
        values = integers((rows, k), seed=turn)
        a = on_gpu(torch, values.astype(np.float32))
        reused += a.data_ptr() == previous
        previous = a.data_ptr()
        ends = [rows // 3, rows]
        got = gemmjit.grouped_mm(a, b_of[k], offs=on_gpu(torch, ends, "int32"))
        want = references.fprop(values, b_of[k].double().cpu().numpy(), ends)
        assert_same(got.double().cpu().numpy(), rounded(want, "bfloat16"))
        del a, got
    assert reused, "no address was used twice: the test tested nothing"


def test_br118_few_kernels_for_many_row_counts(torch):
    rng = np.random.default_rng(0)
    b = on_gpu(torch, integers((4, 64, 80), seed=1))

    def call(rows: int) -> None:
        a = torch.ones(rows, 64, dtype=torch.bfloat16, device="cuda")
        offs = on_gpu(torch, sorted(rng.integers(0, rows + 1, 4).tolist()), "int32")
        gemmjit.grouped_mm(a, b, offs=offs)

    for rows in (1, 2, 100, 200, 1000):
        call(rows)
    before = stats().compiles
    for rows in rng.integers(2, 4097, 200).tolist():
        call(rows)
    assert stats().compiles == before


def test_addresses_in_every_combination(maker):
    """What is kept of addresses is that of the call: operands, results and forms mixed."""
    ends = [15, 15, 40]
    offs = maker.array(np.asarray(ends), "int32")
    xs = [integers((40, 64), seed=seed) for seed in (1, 2)]
    ws = [integers((3, 64, 64), seed=seed) for seed in (3, 4)]
    left = [maker.array(x, "bfloat16") for x in xs]
    right = [maker.array(w, "bfloat16") for w in ws]
    outs = [maker.full((40, 64), float("nan"), "bfloat16") for _ in range(2)]
    rng = np.random.default_rng(0)
    for turn in range(200):
        i, j = rng.integers(2, size=2)
        kind = turn % 4
        if kind == 0:
            got = gemmjit.grouped_mm(left[i], right[j], offs=offs)
            want = references.fprop(xs[i], ws[j], ends)
        elif kind == 1:
            got = gemmjit.grouped_mm(left[i], right[j], offs=offs, out=outs[rng.integers(2)])
            want = references.fprop(xs[i], ws[j], ends)
        elif kind == 2:
            got = gemmjit.grouped_mm(left[i], right[j].swapaxes(1, 2), offs=offs)
            want = references.fprop(xs[i], ws[j].swapaxes(1, 2), ends)
        else:
            got = gemmjit.grouped_mm(left[i].T, left[j], offs=offs)
            want = references.wgrad(xs[i].T, xs[j], ends)
        assert_same(maker.read(got), rounded(want, "bfloat16"))


def test_more_addresses_than_are_kept(torch, monkeypatch):
    from gemmjit.cuda import launch

    monkeypatch.setattr(launch, "MAX_PREPARED", 7)
    offs = on_gpu(torch, [15, 15, 40], "int32")
    b = on_gpu(torch, integers((3, 64, 48), seed=3))
    pool = on_gpu(torch, integers((20, 40, 64), seed=1))
    alone = [gemmjit.grouped_mm(a.clone(), b, offs=offs) for a in pool]
    different = torch.zeros((), dtype=torch.int64, device="cuda")
    for turn in range(400):
        index = turn * 7 % 20
        different += (gemmjit.grouped_mm(pool[index], b, offs=offs) != alone[index]).sum()
    assert different.item() == 0


def test_many_row_counts_keep_a_bounded_number_of_calls(torch):
    import sys

    from gemmjit.cuda import launch

    module = sys.modules[gemmjit.grouped_mm.__module__]
    b = on_gpu(torch, integers((4, 64, 80), seed=1))
    memory = on_gpu(torch, integers((4096, 64), seed=2))
    offs = on_gpu(torch, [3, 3, 20, 64], "int32")
    want = None
    for rows in range(64, 2000):
        got = gemmjit.grouped_mm(memory[:rows], b, offs=offs)
        if rows % 300 == 64:
            want = got[:64].clone() if want is None else want
            assert torch.equal(got[:64], want)
            assert not got[64:].any()
    assert len(module._calls) <= module._MAX_CALLS
    assert len(launch._kept) <= launch.MAX_PREPARED
