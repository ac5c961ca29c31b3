"""Streams and threads: the caller's current stream, a stream of one's own, many at once."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import references
from cases import ends_of, integers
from references import assert_same, rounded

import gemmjit
from gemmjit import Sm80MmaConfig
from gemmjit.errors import InvalidProblemError

SIZES = (30, 0, 20)
ENDS = ends_of(SIZES)
CYCLES = 60_000_000  # about 30 ms: long enough for a kernel on the wrong stream to be early


class Work:
    """Operands that become right late on a stream, and what the product must be."""

    def __init__(self, maker, seed: int = 1, rows: int = 50) -> None:
        self.values = integers((rows, 64), seed=seed)
        self.a = maker.full((rows, 64), float("nan"), "bfloat16")
        self.late = maker.array(self.values, "bfloat16")
        self.b = maker.array(integers((3, 64, 48), seed=seed + 1), "bfloat16")
        self.offs = maker.array(np.asarray(ENDS), "int32")
        self.want = rounded(references.fprop(self.values, maker.read(self.b), ENDS), "bfloat16")


def test_br071_current_side_stream_of_torch(torch, torch_maker):
    for config in (None, "k0", "k1"):
        work = Work(torch_maker)
        gemmjit.grouped_mm(work.a, work.b, offs=work.offs, config=config)
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()) as _:
            torch.cuda._sleep(CYCLES)
            work.a.copy_(work.late)
            copy = gemmjit.grouped_mm(work.a, work.b, offs=work.offs, config=config).clone()
        torch.cuda.synchronize()
        assert_same(torch_maker.read(copy), work.want)


def test_br071_current_side_stream_with_host_offsets(torch, torch_maker):
    work = Work(torch_maker)
    gemmjit.grouped_mm(work.a, work.b, offs=ENDS)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(CYCLES)
        work.a.copy_(work.late)
        copy = gemmjit.grouped_mm(work.a, work.b, offs=ENDS).clone()
    torch.cuda.synchronize()
    assert_same(torch_maker.read(copy), work.want)


def test_br071_current_side_stream_of_cupy(torch, cupy, cupy_maker):
    work = Work(cupy_maker)
    gemmjit.grouped_mm(work.a, work.b, offs=work.offs)
    cupy.cuda.Device().synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    with torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr)):
        torch.cuda._sleep(CYCLES)
    with stream:
        work.a.data.copy_from_device_async(work.late.data, work.a.nbytes, stream)
        got = gemmjit.grouped_mm(work.a, work.b, offs=work.offs)
    stream.synchronize()
    assert_same(cupy_maker.read(got), work.want)


@pytest.mark.parametrize("spelling", ["object", "handle"])
@pytest.mark.parametrize("offs", ["device", "host"])
def test_another_stream_waits_and_is_waited_for(torch, torch_maker, spelling, offs):
    work = Work(torch_maker)
    given = work.offs if offs == "device" else ENDS
    out = torch_maker.full((50, 48), float("nan"), "bfloat16")
    gemmjit.grouped_mm(work.a, work.b, offs=given, out=out)
    out.fill_(float("nan"))
    first, other = torch.cuda.Stream(), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(first):
        torch.cuda._sleep(CYCLES)
        work.a.copy_(work.late)  # `other` has to wait for this
        stream = other if spelling == "object" else other.cuda_stream
        gemmjit.grouped_mm(work.a, work.b, offs=given, out=out, stream=stream)
        copy = out.clone()  # and this for `other`
    torch.cuda.synchronize()
    assert_same(torch_maker.read(copy), work.want)


def test_the_current_stream_waits_for_a_busy_other(torch, torch_maker):
    work = Work(torch_maker)
    work.a.copy_(work.late)
    first, other = torch.cuda.Stream(), torch.cuda.Stream()
    gemmjit.grouped_mm(work.a, work.b, offs=work.offs)
    torch.cuda.synchronize()
    with torch.cuda.stream(other):
        torch.cuda._sleep(CYCLES)
    with torch.cuda.stream(first):
        copy = gemmjit.grouped_mm(work.a, work.b, offs=work.offs, stream=other).clone()
    torch.cuda.synchronize()
    assert_same(torch_maker.read(copy), work.want)


def test_another_stream_of_cupy(torch, cupy, cupy_maker):
    work = Work(cupy_maker)
    out = cupy_maker.full((50, 48), float("nan"), "bfloat16")
    copy = cupy_maker.full((50, 48), float("nan"), "bfloat16")
    gemmjit.grouped_mm(work.a, work.b, offs=work.offs)
    first, other = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    cupy.cuda.Device().synchronize()
    with torch.cuda.stream(torch.cuda.ExternalStream(first.ptr)):
        torch.cuda._sleep(CYCLES)
    with first:
        work.a.data.copy_from_device_async(work.late.data, work.a.nbytes, first)
        gemmjit.grouped_mm(work.a, work.b, offs=work.offs, out=out, stream=other)
        copy.data.copy_from_device_async(out.data, out.nbytes, first)
    first.synchronize()
    assert_same(cupy_maker.read(copy), work.want)


def test_a_stream_that_is_none(torch, torch_maker):
    work = Work(torch_maker)
    with pytest.raises(InvalidProblemError, match=r"stream: expected a handle.*got str"):
        gemmjit.grouped_mm(work.a, work.b, offs=work.offs, stream="fast")


def test_br047_a_producer_on_the_same_stream(torch):
    # x is made anew before every call, and nothing waits in between.
    h = torch.randn(64, 64, device="cuda")
    scale = torch.rand(64, device="cuda") + 0.5
    w = torch.randn(4, 64, 64, device="cuda").bfloat16()
    offs = torch.tensor([10, 10, 40, 64], dtype=torch.int32, device="cuda")
    first = gemmjit.grouped_mm((h / scale[:, None]).bfloat16(), w, offs=offs).clone()
    different = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(100):
        got = gemmjit.grouped_mm((h / scale[:, None]).bfloat16(), w, offs=offs)
        different += (got != first).sum()
    assert different.item() == 0


@pytest.mark.parametrize("framework", ["torch", "cupy"])
def test_threads_with_streams_of_their_own(request, torch, framework):
    maker = request.getfixturevalue(f"{framework}_maker")
    config = Sm80MmaConfig(block_m=64, num_stages=5, min_blocks_per_sm=1)  # cold for all of them
    count, rounds = 8, 40
    barrier = threading.Barrier(count)
    failures: list[str] = []
    works = [Work(maker, seed=2 * i, rows=50 + i % 3) for i in range(count)]
    torch.cuda.synchronize()

    def body(index: int) -> None:
        work = works[index]
        try:
            if framework == "torch":
                scope = torch.cuda.stream(torch.cuda.Stream())
            else:
                scope = maker.cupy.cuda.Stream(non_blocking=True)
            barrier.wait(60)
            with scope:
                for turn in range(rounds):
                    tile = config if turn % 2 else None
                    got = gemmjit.grouped_mm(work.late, work.b, offs=work.offs, config=tile)
                    assert_same(maker.read(got)[: ENDS[-1]], work.want[: ENDS[-1]])
        except BaseException as error:  # reported by the test, whatever it is
            failures.append(f"thread {index}: {error!r}")

    threads = [threading.Thread(target=body, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize("framework", ["torch", "cupy"])
def test_a_thread_that_has_not_used_the_gpu(request, torch, framework):
    # Its first touch of the device is the launch: nothing is allocated there before.
    maker = request.getfixturevalue(f"{framework}_maker")
    work = Work(maker)
    out = maker.full((50, 48), float("nan"), "bfloat16")
    gemmjit.grouped_mm(work.late, work.b, offs=work.offs, out=out)
    torch.cuda.synchronize()
    fresh = maker.full((50, 48), float("nan"), "bfloat16")
    torch.cuda.synchronize()
    failures: list[BaseException] = []

    def body() -> None:
        try:
            gemmjit.grouped_mm(work.late, work.b, offs=work.offs, out=fresh)
        except BaseException as error:  # reported by the test, whatever it is
            failures.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join(60)
    torch.cuda.synchronize()
    assert failures == []
    got = maker.read(fresh)
    assert_same(got[: ENDS[-1]], work.want[: ENDS[-1]])


def test_two_streams_in_turn_with_results_of_one_kind(torch, torch_maker):
    works = [Work(torch_maker, seed=seed) for seed in (1, 5)]
    streams = [torch.cuda.Stream() for _ in works]
    torch.cuda.synchronize()
    kept = []
    for turn in range(100):
        work, stream = works[turn % 2], streams[turn % 2]
        with torch.cuda.stream(stream):
            kept.append((work, gemmjit.grouped_mm(work.late, work.b, offs=work.offs)))
    torch.cuda.synchronize()
    for work, got in kept:
        assert_same(torch_maker.read(got), work.want)


def test_threads_share_one_kind_of_call(torch, torch_maker):
    """All of one shape, so that they share what is kept; each result is checked on the device."""
    count, rounds = 8, 300
    works = [Work(torch_maker, seed=2 * i) for i in range(count)]
    wants = [torch.as_tensor(work.want).bfloat16().cuda() for work in works]
    failures: list[str] = []
    barrier = threading.Barrier(count)
    torch.cuda.synchronize()

    def body(index: int) -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                different = torch.zeros((), dtype=torch.int64, device="cuda")
                barrier.wait(60)
                for turn in range(rounds):
                    i = (index + turn) % count
                    work = works[i]
                    got = gemmjit.grouped_mm(work.late, work.b, offs=work.offs)
                    different += (got != wants[i]).sum()
                if different.item():
                    failures.append(f"thread {index}: {different.item()} elements differ")
        except BaseException as error:  # reported by the test, whatever it is
            failures.append(f"thread {index}: {error!r}")

    threads = [threading.Thread(target=body, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failures, "\n".join(failures)
