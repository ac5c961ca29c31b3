"""`grouped_mm` on host memory from several threads, and in forked processes."""

from __future__ import annotations

import multiprocessing
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import references
from cases import EXECUTORS, integers
from references import assert_same, rounded

import gemmjit
from gemmjit.kernels import KERNELS

ENDS = [5, 5, 40]


@pytest.fixture(params=EXECUTORS, autouse=True)
def executor(request, monkeypatch):
    monkeypatch.setenv("GEMMJIT_EXECUTOR", request.param)


def product(seed: int, config: str | None = None):
    """Return a result and what it should be."""
    a, b = integers((41, 40), seed=seed), integers((3, 40, 24), seed=seed + 1)
    a[ENDS[-1] :] = np.nan
    got = gemmjit.grouped_mm(
        a.astype(np.float16), b.astype(np.float16), offs=np.array(ENDS), config=config
    )
    return got.astype(np.float64), rounded(references.fprop(a, b, ENDS), "float16")


def test_threads_keep_apart():
    """Different problems and kernels at once; each thread compares every result of its own."""
    names = [None, *KERNELS]
    barrier = threading.Barrier(4)

    def body(index: int) -> int:
        barrier.wait(60)
        for turn in range(5):
            assert_same(*product(10 * index + turn, names[(index + turn) % len(names)]))
        return index

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(body, range(4))) == [0, 1, 2, 3]


def _child(connection, config) -> None:
    try:
        assert_same(*product(7, config))
        connection.send("right")
    except BaseException as error:  # reported by the test, whatever it is
        connection.send(repr(error))


def forked(config: str | None) -> str:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_child, args=(theirs, config))
    process.start()
    process.join(60)
    if process.is_alive():
        process.kill()
        return "hangs"
    return ours.recv() if ours.poll() else f"died with {process.exitcode}"


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning", "ignore:.*fork:RuntimeWarning")
@pytest.mark.parametrize("config", [None, "k1"])
def test_br089_a_forked_child_computes(config):
    """A parent that has computed, and then one whose other thread is computing meanwhile."""
    assert_same(*product(1, config))
    assert forked(config) == "right"
    stop = threading.Event()
    turns = []

    def busy() -> None:
        while not stop.is_set():
            assert_same(*product(3, config))
            turns.append(1)

    thread = threading.Thread(target=busy)
    thread.start()
    try:
        assert [forked(config) for _ in range(3)] == ["right"] * 3
    finally:
        stop.set()
        thread.join(60)
    assert turns
