"""Counters that last: a place for each stream and for each captured call."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from repeated import ENDS, operands

import gemmjit
from gemmjit.cuda import counters
from gemmjit.errors import LaunchError


def test_streams_have_places_of_their_own(torch_gpu):
    fake, _ = torch_gpu
    places = [counters.place_of(stream, False) for stream in (0, 2, 55, 1, 2, 55)]
    assert places[:3] == places[3:]
    assert len(set(places)) == 3
    assert sorted(counters.PLACES.values()) == sorted(places[:3])
    assert len(fake.allocated) == 1
    assert not fake.allocated[0].any()
    fake.contexts.append(1)
    assert counters.place_of(0, False) not in places  # the same handle, another stream
    assert len(fake.allocated) == 2  # one a context


def test_captured_calls_share_with_nobody(torch_gpu):
    fake, _ = torch_gpu
    eager = counters.place_of(7, False)
    number = 2 * (1 << 16) // counters.PLACE_BYTES
    places = {counters.place_of(7, True) for _ in range(number)}
    assert len(places) == number
    assert eager not in places
    assert counters.place_of(7, False) == eager
    assert len(fake.allocated) == 3
    low = [memory.ctypes.data for memory in fake.allocated]
    assert all(any(0 <= place - start < 1 << 16 for start in low) for place in places)


def test_the_stream_that_every_thread_has_is_one_for_each(torch_gpu):
    """Threads one after the other, whose numbers Python gives out again."""
    places = []

    def note():
        places.append(counters.place_of(2, False))

    note()
    for _ in range(4):
        thread = threading.Thread(target=note)
        thread.start()
        thread.join()
    assert len(set(places)) == 5


def test_new_counters_under_a_capture_restore_its_mode(torch_gpu, monkeypatch):
    fake, _ = torch_gpu
    modes = [1]

    def exchange(mode):
        before, modes[0] = modes[0], mode
        return fake.cuInit(0)[0], before

    allocated = []

    def allocate(nbytes):
        allocated.append(modes[0])
        return type(fake).cuMemAlloc(fake, nbytes)

    monkeypatch.setattr(fake, "cuThreadExchangeStreamCaptureMode", exchange, raising=False)
    monkeypatch.setattr(fake, "cuMemAlloc", allocate, raising=False)
    counters.place_of(7, True)
    assert allocated == [2]  # relaxed: else the driver forbids it
    assert modes == [1]


def test_memory_that_cannot_be_cleared_is_not_used(torch_gpu, monkeypatch):
    fake, _ = torch_gpu
    with monkeypatch.context() as broken:
        broken.setattr(fake, "cuMemsetD8Async", lambda *_: (type(fake.cuInit(0)[0])(2),), False)
        with pytest.raises(LaunchError, match="clearing of counters"):
            counters.place_of(7, False)
        assert not counters.PLACES
    place = counters.place_of(7, False)
    assert place - fake.allocated[-1].ctypes.data in range(1 << 16)


def claims_of(fake):
    """Return the places that the launches were given, in order."""
    return [seen.claims for seen in fake.launches]


def test_calls_take_the_place_of_their_stream(torch_gpu):
    fake, maker = torch_gpu
    (a, b), offs = operands(maker, "wgrad", k=2048, n=1024), maker.offsets(ENDS)
    for stream in (0, 9, 0, 9, None):
        gemmjit.grouped_mm(a, b, offs=offs, stream=stream)
    places = claims_of(fake)
    assert places[0] == places[2] == places[4] != 0
    assert places[1] == places[3] != places[0]
    fprop, w = operands(maker, "fprop")
    gemmjit.grouped_mm(fprop, w, offs=offs)
    assert claims_of(fake)[-1] == 0  # a tile a block
    maker.stream = 9
    fake.capturing.add(9)
    for _ in range(2):
        gemmjit.grouped_mm(a, b, offs=offs)
    captured = claims_of(fake)[-2:]
    assert len({*captured, *places}) == 4


def test_host_offsets_beside_counters(torch_gpu):
    fake, maker = torch_gpu
    a, b = operands(maker, "wgrad", k=2048, n=1024)
    gemmjit.grouped_mm(a, b, offs=np.asarray(ENDS))
    gemmjit.grouped_mm(a, b, offs=maker.offsets(ENDS))
    places = claims_of(fake)
    assert places[0] == places[1] != 0
