"""Calls that repeat: what they cost in steps, what they pass on, and what is kept of them.

The driver is a fake one, and what passes for a GPU's arrays lies in host memory.
"""

from __future__ import annotations

import functools
import gc
import sys
import threading
import types

import numpy as np
import pytest
from fake_gpu import framework
from repeated import ENDS, operands, steps

import gemmjit
from gemmjit import templates
from gemmjit.arrays import frontend_of
from gemmjit.cuda import launch
from gemmjit.dtypes import U8
from gemmjit.errors import InvalidConfigError, InvalidProblemError, LaunchError
from gemmjit.templating import paths

CALLS = sys.modules[gemmjit.grouped_mm.__module__]
FORMS = ("fprop", "dgrad", "wgrad")


@pytest.fixture(params=["torch", "cupy"])
def gpu(request):
    """A fake driver and a framework."""
    pytest.importorskip(request.param)
    with framework(request.param) as made:
        yield made


@pytest.mark.parametrize(("form", "k"), [*((form, 2048) for form in FORMS), ("wgrad", 1024)])
def test_a_repeated_call_takes_few_steps(gpu, form, k, monkeypatch):
    monkeypatch.setattr(paths, "ever_overridden", False)  # whatever other tests did
    fake, maker = gpu
    # More tiles than multiprocessors, so that they are claimed.
    rows = 4096 if k == 2048 else 16384  # the second wgrad is made ready for pieces
    (a, b), offs = operands(maker, form, rows=rows, k=k, n=1024), maker.offsets(ENDS)
    out = gemmjit.grouped_mm(a, b, offs=offs)
    assert fake.launches[-1].claims
    (call,) = CALLS._calls.values()
    call._allocate = functools.partial(lambda: out)  # where a result was before, as in a pool
    frontend = frontend_of(a, "mat_a")
    scratch = frontend.empty((1 << 20,), U8, 0)
    monkeypatch.setattr(type(frontend), "empty", lambda *_: scratch)

    def repeat():
        assert gemmjit.grouped_mm(a, b, offs=offs) is out

    repeat()
    before = fake.encoded, fake.asked_for_context, len(launch._kept), len(fake.launches)
    found = steps(repeat)
    after = fake.encoded, fake.asked_for_context, len(launch._kept), len(fake.launches)
    assert after == (*before[:3], before[3] + 1)
    # grouped_mm, identify, GpuCall.run, what launches, and what reads CuPy's stream.
    # A step in C is a lookup, a method of an array, the launch. The allocation is not among them.
    # Counters take three: the stream's number, whether it is being captured, and their place.
    # What pieces of a small wgrad leave for each other is allocated too, and has an address.
    splits = "_split_" in fake.entry_of(fake.launches[-1])
    assert splits == (k == 1024)
    assert found["call"] == {"torch": 4, "cupy": 5}[maker.name]
    assert found["c_call"] <= {"torch": 12, "cupy": 8}[maker.name] + 3 + splits


@pytest.mark.parametrize("form", FORMS)
def test_an_address_that_changes_is_one_encoding(torch_gpu, form):
    fake, maker = torch_gpu
    offs = maker.offsets(ENDS)
    (a, b), (other_a, other_b) = operands(maker, form), operands(maker, form)
    alive = [gemmjit.grouped_mm(a, b, offs=offs, config="k3")]
    assert "_k3_" in fake.entry_of(fake.launches[-1])
    (call,) = CALLS._calls.values()
    call._allocate = alive[-1].clone

    def encodings(a, b) -> int:
        before = fake.encoded
        alive.append(gemmjit.grouped_mm(a, b, offs=offs, config="k3"))  # held: the next is new
        seen = fake.launches[-1]
        assert seen.maps[:2] == (a.data_ptr(), b.data_ptr())
        return fake.encoded - before

    assert encodings(a, b) == 1
    call._allocate = functools.partial(lambda out: out, alive[-1])
    assert encodings(a, b) == 0
    assert encodings(other_a, b) == 1
    assert encodings(other_a, other_b) == 1
    assert encodings(a, b) == encodings(other_a, b) == encodings(other_a, other_b) == 0


def test_every_launch_has_the_addresses_of_its_arrays(gpu, monkeypatch):
    """In any order, with what is kept dropped all the time."""
    fake, maker = gpu
    monkeypatch.setattr(launch, "MAX_PREPARED", 5)
    rng = np.random.default_rng(0)
    sets = []
    for rows in (64, 64, 96):
        sets += [(operands(maker, form, rows), maker.offsets(ENDS)) for form in FORMS]
    alive = []
    for turn in range(300):
        (a, b), offs = sets[rng.integers(len(sets))]
        out = gemmjit.grouped_mm(a, b, offs=offs)
        alive = [*alive[-3:], out]
        seen = fake.launches[-1]
        want = [maker.pointer(x) for x in (a, b, out, offs)]
        assert list(seen.operands.values()) == want, turn
        if seen.maps:
            assert list(seen.maps[:2]) == want[:2], turn
        assert len(launch._kept) <= 5
        assert sum(len(kept) for kept in {id(k): k for k, _ in launch._kept}.values()) <= 5


def test_an_address_with_another_shape_stride_or_type(torch_gpu):
    fake, maker = torch_gpu
    torch = maker.torch
    memory = torch.empty(1 << 16, dtype=torch.bfloat16)
    weights = {k: maker.empty(4, k, 128) for k in (32, 64)}
    offs = maker.offsets(ENDS)

    def entry_and_shape(a):
        out = gemmjit.grouped_mm(a, weights[a.shape[1]].to(a.dtype), offs=offs)
        assert fake.launches[-1].operands["mat_a"] == a.data_ptr()
        return fake.entry_of(fake.launches[-1]), tuple(out.shape), out.dtype

    views = [
        memory[: 64 * 64].view(64, 64),
        memory[: 128 * 32].view(128, 32),
        memory[: 64 * 72].view(64, 72)[:, :64],
        memory[: 64 * 64].view(64, 64).T,
        memory[1 : 64 * 64 + 1].view(64, 64),  # off the 16-byte grid
        memory[: 64 * 64].view(torch.float16).view(64, 64),
    ]
    alone = [entry_and_shape(view) for view in views]
    assert len(set(alone)) >= 4
    assert "_k3_" in alone[0][0]
    assert "_k3_" not in alone[4][0]
    assert [entry_and_shape(view) for view in views] == alone
    assert len(CALLS._calls) == len(views)


def test_many_row_counts_are_not_all_kept(torch_gpu, monkeypatch):
    fake, maker = torch_gpu
    monkeypatch.setattr(CALLS, "_MAX_CALLS", 128)
    monkeypatch.setattr(launch, "MAX_PREPARED", 200)
    b, offs = maker.empty(4, 64, 128), maker.offsets(ENDS)
    memory = maker.empty(1200, 64)

    def objects() -> int:
        gc.collect()
        return len(gc.get_objects())

    counts = []
    for _turn in range(2):
        for rows in range(64, 1064):
            gemmjit.grouped_mm(memory[:rows], b, offs=offs)
            assert len(CALLS._calls) <= 128
            assert len(launch._kept) <= 200
        counts.append(objects())
    assert len(fake.launches) == 2000
    assert counts[1] - counts[0] < 3000, "the second thousand left as much behind as the first"


def test_threads_share_what_is_kept(torch_gpu):
    fake, maker = torch_gpu
    wrong: list[str] = []
    b = maker.empty(4, 64, 128)
    offs = maker.offsets(ENDS)
    own = [(maker.empty(64, 64), maker.empty(64, 128)) for _ in range(6)]
    barrier = threading.Barrier(len(own))

    def body(index: int) -> None:
        try:
            mine, out = own[index]
            barrier.wait(60)
            for turn in range(200):
                a = mine if turn % 3 else own[0][0]
                into = None if turn % 2 else out
                got = gemmjit.grouped_mm(a, b, offs=offs, out=into)
                seen = fake.launches[-1]
                want = [x.data_ptr() for x in (a, b, got, offs)]
                if list(seen.operands.values()) != want or list(seen.maps[:2]) != want[:2]:
                    wrong.append(f"thread {index}, turn {turn}: {seen} for {want}")
        except BaseException as error:  # reported by the test, whatever it is
            wrong.append(f"thread {index}: {error!r}")

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=body, args=(i,)) for i in range(len(own))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    finally:
        sys.setswitchinterval(interval)
    assert not wrong, "\n".join(wrong[:5])
    assert sum(map(len, fake.seen.values())) == 200 * len(own)


@pytest.mark.parametrize("form", FORMS)
def test_a_thread_without_a_context(gpu, form):
    fake, maker = gpu
    (a, b), offs = operands(maker, form), maker.offsets(ENDS)
    out = gemmjit.grouped_mm(a, b, offs=offs)
    fake.contexts.clear()
    for result in (out, None):
        gemmjit.grouped_mm(a, b, offs=offs, out=result)
        assert fake.contexts == []  # as it was
    assert len(fake.launches) == 3
    assert {seen.device for seen in fake.launches} == {0}


@pytest.mark.parametrize("on_host", [False, True])
def test_the_first_call_in_a_thread_without_a_context(torch_gpu, on_host):
    """As in torch's backward pass, whose threads nobody gave one."""
    fake, maker = torch_gpu
    (a, b), offs = operands(maker, "fprop"), maker.offsets(ENDS)
    fake.contexts.clear()
    gemmjit.grouped_mm(a, b, offs=ENDS if on_host else offs)
    assert fake.contexts == []
    assert [seen.device for seen in fake.launches] == [0]


@pytest.mark.parametrize("given", ["none", "out", "bias"])
def test_arguments_that_no_key_can_hold(torch_gpu, given):
    _, maker = torch_gpu
    (a, b), offs = operands(maker, "fprop"), maker.offsets(ENDS)
    more = {"none": {}, "out": {"out": maker.empty(64, 128)}, "bias": {"bias": maker.empty(4, 128)}}
    for wrong, error in (
        ({"accumulate": np.ones(2, bool)}, InvalidProblemError),
        ({"config": {"block_m": 64}}, InvalidConfigError),
    ):
        (argument,) = wrong
        with pytest.raises(error, match=f"^{argument}: expected"):
            gemmjit.grouped_mm(a, b, offs=offs, **more[given], **wrong)


def test_a_launch_that_the_driver_refuses(gpu, monkeypatch):
    """By the bindings for torch, by CuPy's function for CuPy."""
    fake, maker = gpu
    (a, b), offs = operands(maker, "fprop"), maker.offsets(ENDS)
    monkeypatch.setattr(fake, "cuLaunchKernel", lambda *_: (type(fake.cuInit(0)[0])(700),), False)
    for _turn in range(2):
        with pytest.raises(LaunchError, match=r"launch of gemmjit_k3_.* CUDA_ERROR_700"):
            gemmjit.grouped_mm(a, b, offs=offs)


def test_the_context_of_the_arrays_among_several_devices():
    pytest.importorskip("torch")
    with framework("torch", num_devices=2) as (fake, maker):
        (a, b), offs = operands(maker, "fprop"), maker.offsets(ENDS)
        for current in (0, 1, 0, 1):
            fake.contexts[:] = [current]
            before = fake.pushed
            gemmjit.grouped_mm(a, b, offs=offs)
            assert fake.launches[-1].device == 0
            assert fake.contexts == [current]
            assert (fake.pushed > before) == (current == 1)


def test_the_current_stream_of_each_call(gpu):
    fake, maker = gpu
    (a, b), offs = operands(maker, "fprop"), maker.offsets(ENDS)
    handles = [0, 7, 7, 0, *range(100, 300), 7]
    for maker.stream in handles:
        gemmjit.grouped_mm(a, b, offs=offs)
    assert [seen.stream for seen in fake.launches] == handles
    assert len(launch._streams) <= 64


def test_results_that_overlap_an_operand_of_a_remembered_call(torch_gpu):
    _, maker = torch_gpu
    a, b, offs = maker.empty(64, 64), maker.empty(4, 64, 64), maker.offsets(ENDS)
    gemmjit.grouped_mm(a, b, offs=offs, out=maker.empty(64, 64))
    with pytest.raises(InvalidProblemError, match="out: expected memory that mat_a does not use"):
        gemmjit.grouped_mm(a, b, offs=offs, out=a)
    with pytest.raises(InvalidProblemError, match="out: expected memory that mat_b does not use"):
        gemmjit.grouped_mm(a, b, offs=offs, out=b[1])
    # Views that interleave span the same bytes and share none.
    wide = maker.empty(64, 128)
    left, right = wide[:, :64], wide[:, 64:]
    free = maker.empty(64, 128)
    gemmjit.grouped_mm(left, b, offs=offs, out=free[:, 64:])
    remembered = len(CALLS._calls)
    assert gemmjit.grouped_mm(left, b, offs=offs, out=right) is right
    assert len(CALLS._calls) == remembered
    with pytest.raises(InvalidProblemError, match="out: expected memory that mat_a does not use"):
        gemmjit.grouped_mm(left, b, offs=offs, out=wide[:, 32:96])


def test_an_override_is_not_served_from_memory(torch_gpu, tmp_path):
    _, maker = torch_gpu
    (a, b), offs = operands(maker, "fprop"), maker.offsets(ENDS)
    gemmjit.grouped_mm(a, b, offs=offs)
    (key,) = CALLS._calls
    served = []
    CALLS._calls[key] = types.SimpleNamespace(run=lambda *arguments: served.append(arguments))
    with templates.override(tmp_path):
        assert gemmjit.grouped_mm(a, b, offs=offs).shape == (64, 128)
    assert served == []
    assert gemmjit.grouped_mm(a, b, offs=offs) is None
    assert len(served) == 1


def test_what_an_epilogue_reads_is_passed_in_every_call(gpu):
    """Before all other fields; a call with other arrays of the same kind is found in memory."""
    fake, maker = gpu
    (a, b), offs = operands(maker, "fprop"), maker.offsets(ENDS)
    remembered = None
    for _ in range(4):
        bias, scale = maker.empty(len(ENDS), 128), maker.empty(64)
        epilogue = (gemmjit.SwiGLU("split"), gemmjit.RowScale(scale))
        out = gemmjit.grouped_mm(a, b, offs=offs, bias=bias, epilogue=epilogue)
        assert tuple(out.shape) == (64, 64)
        # bias: pointer and two strides; then the scale's pointer.
        assert list(fake.launches[-1].operands.values()) == [
            maker.pointer(bias), 128, 1, maker.pointer(scale),
        ]  # fmt: skip
        if fake.launches[-1].maps:
            assert list(fake.launches[-1].maps[:2]) == [maker.pointer(a), maker.pointer(b)]
        remembered = remembered or len(CALLS._calls)
        assert len(CALLS._calls) == remembered
    plain = gemmjit.grouped_mm(a, b, offs=offs)
    assert tuple(plain.shape) == (64, 128)
    assert len(CALLS._calls) == remembered + 1


def test_a_remembered_call_refuses_a_result_over_what_its_epilogue_reads(torch_gpu):
    _, maker = torch_gpu
    (a, b), offs = operands(maker, "fprop"), maker.offsets(ENDS)
    scale = maker.empty(64)
    gemmjit.grouped_mm(a, b, offs=offs, out=maker.empty(64, 128), epilogue=gemmjit.RowScale(scale))
    out = maker.empty(64, 128)
    with pytest.raises(InvalidProblemError, match="out: expected memory that scale does not use"):
        gemmjit.grouped_mm(
            a, b, offs=offs, out=out, epilogue=gemmjit.RowScale(out.reshape(-1)[:64])
        )
