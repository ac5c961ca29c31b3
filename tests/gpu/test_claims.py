"""Counters by which blocks claim tiles and add pieces: streams side by side, graphs, many calls."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import references
from cases import integers
from references import assert_same, rounded

import gemmjit
from gemmjit import Sm90WgmmaConfig

ROWS, K, N = 3000, 512, 1152  # 180 tiles: more than an H200 has multiprocessors
ENDS = [5, 5, 1700, 1764, 2990]
TILE = Sm90WgmmaConfig(block_m=128, block_n=128, num_stages=4, store_boxes=2, order="claimed")
#: Groups whole, and in pieces; counters are those of the sums then too.
TILES = [
    TILE,
    replace(TILE, split_rows=64),
    replace(TILE, block_m=256, num_stages=3, pingpong=False, split_rows=192),
]


@pytest.fixture(params=TILES, ids=str)
def tile(request):
    """A tile that claims."""
    return request.param


@pytest.fixture
def product(maker):
    """Operands on the device, and their product."""
    x, y = integers((ROWS, K), seed=1), integers((ROWS, N), seed=2)
    offs = maker.array(np.asarray(ENDS), "int32")
    want = rounded(references.wgrad(x.T, y, ENDS), "bfloat16")
    return maker.array(x, "bfloat16").T, maker.array(y, "bfloat16"), offs, want


def test_calls_in_a_row(maker, product, tile):
    a, b, offs, want = product
    results = [gemmjit.grouped_mm(a, b, offs=offs, config=tile) for _ in range(50)]
    for result in (results[0], results[1], results[-1]):
        assert_same(maker.read(result), want)


def test_streams_side_by_side(torch, torch_maker, tile):
    """Each has a counter of its own: with a shared one, tiles would be left out."""
    x, y = integers((ROWS, K), seed=1), integers((ROWS, N), seed=2)
    a, b = torch_maker.array(x, "bfloat16").T, torch_maker.array(y, "bfloat16")
    offs = torch_maker.array(np.asarray(ENDS), "int32")
    want = rounded(references.wgrad(x.T, y, ENDS), "bfloat16")
    # A fraction of the multiprocessors a launch, so that launches do run at the same time.
    few = torch_maker.array(np.asarray([5, 70]), "int32")
    small = a[:128], b[:, :128]
    streams = [torch.cuda.Stream() for _ in range(4)]
    torch.cuda.synchronize()
    results, smalls = [], []
    for _ in range(20):
        for stream in streams:
            with torch.cuda.stream(stream):
                smalls.append(gemmjit.grouped_mm(*small, offs=few, config=tile))
                results.append(gemmjit.grouped_mm(a, b, offs=offs, config=tile))
    torch.cuda.synchronize()
    for result in results[::7]:
        assert_same(torch_maker.read(result), want)
    for result in smalls:
        assert torch.equal(result, smalls[0])


def test_graphs_of_one_stream_replayed_side_by_side(torch, torch_maker, tile):
    x, y = integers((ROWS, K), seed=1), integers((ROWS, N), seed=2)
    a, b = torch_maker.array(x, "bfloat16").T, torch_maker.array(y, "bfloat16")
    offs = torch_maker.array(np.asarray(ENDS), "int32")
    want = rounded(references.wgrad(x.T, y, ENDS), "bfloat16")
    gemmjit.grouped_mm(a, b, offs=offs, config=tile)
    graphs, results = [], []
    for _ in range(3):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            calls = [gemmjit.grouped_mm(a, b, offs=offs, config=tile) for _ in range(5)]
        graphs.append(graph)
        results.append(calls)
    streams = [torch.cuda.Stream() for _ in graphs]
    for _ in range(10):
        for calls in results:
            for result in calls:
                result.fill_(float("nan"))
        torch.cuda.synchronize()
        for graph, stream in zip(graphs, streams, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
        gemmjit.grouped_mm(a, b, offs=offs, config=tile)
        torch.cuda.synchronize()
        for calls in results:
            assert_same(torch_maker.read(calls[-1]), want)
    for calls in results:
        assert all(torch.equal(result, calls[0]) for result in calls)


def test_the_first_counters_under_a_capture(torch, torch_maker, monkeypatch, tile):
    """Memory for them is made under a capture too, of which it is no part."""
    from gemmjit.cuda import counters

    a = torch_maker.array(integers((ROWS, K), seed=1), "bfloat16").T
    b = torch_maker.array(integers((ROWS, N), seed=2), "bfloat16")
    offs = torch_maker.array(np.asarray(ENDS), "int32")
    want = gemmjit.grouped_mm(a, b, offs=offs, config=tile)
    torch.cuda.synchronize()
    monkeypatch.setattr(counters, "_unused", {})
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = gemmjit.grouped_mm(a, b, offs=offs, config=tile)
    for _ in range(3):
        result.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(result, want)
