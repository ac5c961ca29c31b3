"""CUDA graphs: capture, replay with other offsets, and what a capture forbids."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import references
from cases import integers
from references import assert_same, rounded

import gemmjit
from gemmjit import Problem, SimtConfig, Sm80MmaConfig
from gemmjit.errors import CaptureError
from gemmjit.kernels import KERNELS

ROWS, GROUPS, K, N = 64, 4, 64, 48

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

#: What offsets become between replays: other sizes, a tail, nothing at all, everything in one.
STEPS = ([8, 8, 30, 64], [2, 14, 14, 20], [0, 16, 16, 16], [0, 0, 0, 0], [64, 64, 64, 64],
         [0, 0, 0, 64])  # fmt: skip


def operands(maker, seed: int = 1):
    a = maker.array(integers((ROWS, K), seed=seed), "bfloat16")
    b = maker.array(integers((GROUPS, K, N), seed=seed + 1), "bfloat16")
    return a, b, maker.array(np.asarray(STEPS[0]), "int32")


def want(maker, a, b, ends):
    return rounded(references.fprop(maker.read(a), maker.read(b), ends), "bfloat16")


@pytest.mark.parametrize("config", CONFIGS)
def test_br073_replays_follow_the_offsets(torch, torch_maker, config):
    a, b, offs = operands(torch_maker)
    tile = CONFIGS[config]
    gemmjit.grouped_mm(a, b, offs=offs, config=tile)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = gemmjit.grouped_mm(a, b, offs=offs, config=tile)
    for seed, ends in enumerate(STEPS):
        offs.copy_(torch.tensor(ends, dtype=torch.int32))
        a.copy_(torch_maker.array(integers((ROWS, K), seed=90 + seed), "bfloat16"))
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert_same(torch_maker.read(out), want(torch_maker, a, b, ends))


@pytest.mark.parametrize("config", [None, "k0", "k1", "k3"])
def test_br073_replays_of_wgrad(torch, torch_maker, config):
    x = torch_maker.array(integers((ROWS, K), seed=1), "bfloat16")
    dy = torch_maker.array(integers((ROWS, N), seed=2), "bfloat16")
    offs = torch_maker.array(np.asarray(STEPS[0]), "int64")
    gemmjit.grouped_mm(x.T, dy, offs=offs, config=config)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = gemmjit.grouped_mm(x.T, dy, offs=offs, config=config)
    for ends in STEPS:
        offs.copy_(torch.tensor(ends))
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        product = references.wgrad(torch_maker.read(x).T, torch_maker.read(dy), ends)
        assert_same(torch_maker.read(out), rounded(product, "bfloat16"))


@pytest.mark.parametrize("config", [None, "k0", "k1", "k2", "k3"])
def test_br073_replays_of_dgrad_into_a_result_of_the_caller(torch, torch_maker, config):
    """Weights that lie K-major, and a tail that each replay leaves as it is."""
    dy = torch_maker.array(integers((ROWS, N), seed=1), "bfloat16")
    w = torch_maker.array(integers((GROUPS, K, N), seed=2), "bfloat16")
    offs = torch_maker.array(np.asarray(STEPS[0]), "int64")
    out = torch.empty(ROWS, K, dtype=torch.bfloat16, device="cuda")
    gemmjit.grouped_mm(dy, w.mT, offs=offs, out=out, config=config)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gemmjit.grouped_mm(dy, w.mT, offs=offs, out=out, config=config)
    for ends in STEPS:
        offs.copy_(torch.tensor(ends))
        out.fill_(7.0)
        graph.replay()
        torch.cuda.synchronize()
        sevens = np.full((ROWS, K), 7.0)
        weights = torch_maker.read(w).swapaxes(1, 2)
        product = references.fprop(torch_maker.read(dy), weights, ends, sevens)
        assert_same(torch_maker.read(out), rounded(product, "bfloat16"))


@pytest.mark.parametrize("form", ["fprop", "wgrad"])
@pytest.mark.parametrize("config", [None, "k0", "k1", "k3"])
def test_br073_replays_that_accumulate(torch, torch_maker, form, config):
    x = torch_maker.array(integers((ROWS, K), seed=1), "bfloat16")
    if form == "fprop":
        a, b = x, torch_maker.array(integers((GROUPS, K, N), seed=2), "bfloat16")
        reference, shape = references.fprop, (ROWS, N)
    else:
        a, b = x.T, torch_maker.array(integers((ROWS, N), seed=2), "bfloat16")
        reference, shape = references.wgrad, (GROUPS, K, N)
    offs = torch_maker.array(np.asarray(STEPS[0]), "int32")
    out = torch.zeros(shape, device="cuda")
    gemmjit.grouped_mm(a, b, offs=offs, out=out, accumulate=True, config=config)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gemmjit.grouped_mm(a, b, offs=offs, out=out, accumulate=True, config=config)
    out.zero_()
    left = torch_maker.read(x).T if form == "wgrad" else torch_maker.read(x)
    total = np.zeros(shape)
    for ends in STEPS:
        offs.copy_(torch.tensor(ends, dtype=torch.int32))
        graph.replay()
        torch.cuda.synchronize()
        total += reference(left, torch_maker.read(b), ends)
        assert_same(torch_maker.read(out), total)


def test_br007_all_groups_empty_under_capture(torch, torch_maker):
    a, b, offs = operands(torch_maker)
    offs.zero_()
    gemmjit.grouped_mm(a, b, offs=offs)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = gemmjit.grouped_mm(a, b, offs=offs)
    out.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    assert_same(torch_maker.read(out), np.zeros((ROWS, N)))


def test_br074_a_cold_kernel_under_capture(torch, torch_maker):
    a, b, offs = operands(torch_maker)
    cold = Sm80MmaConfig(block_m=32, num_stages=6, min_blocks_per_sm=1)  # used nowhere else
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        with pytest.raises(CaptureError, match=r"grouped_mm: .*gemmjit\.prepare"):
            gemmjit.grouped_mm(a, b, offs=offs, config=cold)
        doubled = a + a  # the capture goes on
    graph.replay()
    torch.cuda.synchronize()
    assert_same(torch_maker.read(doubled), 2 * torch_maker.read(a))
    # After a call outside, the same call is captured.
    got = gemmjit.grouped_mm(a, b, offs=offs, config=cold)
    assert_same(torch_maker.read(got), want(torch_maker, a, b, STEPS[0]))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = gemmjit.grouped_mm(a, b, offs=offs, config=cold)
    graph.replay()
    torch.cuda.synchronize()
    assert_same(torch_maker.read(out), want(torch_maker, a, b, STEPS[0]))


@pytest.mark.parametrize("schedule", ["", "compact"])
def test_br074_a_prepared_kernel_under_capture(torch, torch_maker, schedule):
    a, b, offs = operands(torch_maker)
    config = Sm80MmaConfig(block_m=32, num_stages=7, min_blocks_per_sm=1, schedule=schedule)
    gemmjit.prepare(Problem.contiguous(num_groups=GROUPS, rows=ROWS, n=N, k=K), config)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = gemmjit.grouped_mm(a, b, offs=offs, config=config)
    graph.replay()
    torch.cuda.synchronize()
    assert_same(torch_maker.read(out), want(torch_maker, a, b, STEPS[0]))


def test_br073_host_offsets_under_capture(torch, torch_maker):
    a, b, _ = operands(torch_maker)
    x = a[:, :N]
    for call in (
        lambda: gemmjit.grouped_mm(a, b, offs=STEPS[0]),
        lambda: gemmjit.grouped_mm(a.T, x, offs=STEPS[0]),
    ):
        call()  # so that the kernel is not what is missing
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            with pytest.raises(CaptureError, match="offs: offsets on the host cannot be captured"):
                call()
            doubled = a + a
        graph.replay()
        torch.cuda.synchronize()
        assert_same(torch_maker.read(doubled), 2 * torch_maker.read(a))


@pytest.mark.parametrize("config", ["auto", "k0", "k1"])
def test_capture_on_a_stream_of_cupy(cupy, cupy_maker, config):
    a, b, offs = operands(cupy_maker)
    out = cupy_maker.full((ROWS, N), float("nan"), "bfloat16")
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        gemmjit.grouped_mm(a, b, offs=offs, out=out, config=CONFIGS[config])
        stream.synchronize()
        stream.begin_capture()
        gemmjit.grouped_mm(a, b, offs=offs, out=out, config=CONFIGS[config])
        graph = stream.end_capture()
    for ends in STEPS[:3]:
        offs.set(np.asarray(ends, np.int32))
        out.view(np.uint16).set(np.full((ROWS, N), 0x7FFF, np.uint16))  # NaN
        cupy.cuda.Device().synchronize()
        graph.launch(stream)
        stream.synchronize()
        got, used = cupy_maker.read(out), ends[-1]
        assert_same(got[:used], want(cupy_maker, a, b, ends)[:used])
        assert np.isnan(got[used:]).all()  # of a caller's out=
