"""build() in threads and forked processes."""

from __future__ import annotations

import importlib
import multiprocessing
import threading

import pytest
from tiny_kernel import TEMPLATE, Tiny

from gemmjit import build as build_module
from gemmjit import logs
from gemmjit.build import build
from gemmjit.compiler import nvrtc
from gemmjit.errors import (
    CompileError,
)

cache_stats = importlib.import_module("gemmjit.cache.stats")
pytestmark = pytest.mark.usefixtures("place")


@pytest.mark.parametrize("disk", [True, False])
def test_threads_that_ask_at_once_compile_once(place, compiles, monkeypatch, disk):
    if not disk:  # so that no lock on disk does the work of the one in memory
        (place / "file").write_text("")
        monkeypatch.setenv("GEMMJIT_CACHE_DIR", str(place / "file"))
    gate, kernels = threading.Barrier(12), []

    def ask() -> None:
        gate.wait()
        kernels.append(build(Tiny()))

    threads = [threading.Thread(target=ask) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(compiles) == 1
    assert len({kernel.cubin for kernel in kernels}) == 1
    assert len(kernels) == 12


def test_threads_that_wait_for_a_failure_get_the_failure_and_leave_nothing_behind(place):
    path = place / "templates" / "kernels" / "tiny.cu.j2"
    path.write_text(TEMPLATE.replace("*= ", "*= oops"))
    gate, errors = threading.Barrier(6), []

    def ask() -> None:
        gate.wait()
        try:
            build(Tiny())
        except CompileError as error:
            errors.append(error)

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == 6
    assert build_module._pending == {}


def test_a_thread_that_waits_for_an_interrupted_one_builds_by_itself(compiles, monkeypatch):
    real, waiting, results = build_module._obtain, threading.Event(), []

    def interrupted(*arguments):
        monkeypatch.setattr(build_module, "_obtain", real)
        (pending,) = build_module._pending.values()
        result = pending.exception
        monkeypatch.setattr(pending, "exception", lambda: (waiting.set(), result())[1])
        waiting.wait(10)
        raise KeyboardInterrupt

    def ask() -> None:
        try:
            results.append(build(Tiny()).from_cache)
        except BaseException as error:
            results.append(type(error))

    monkeypatch.setattr(build_module, "_obtain", interrupted)
    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 2
    assert set(results) == {KeyboardInterrupt, False}
    assert build_module._pending == {}


def child(queue) -> None:
    try:
        logs.warn_once("build", ("child",), "a warning takes a lock too")
        queue.put([build(Tiny(factor)).registers for factor in (2, 3)])
    except BaseException as error:
        queue.put(repr(error))


def test_a_forked_child_builds_even_if_a_thread_was_building(compiles):
    build(Tiny(2))
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    held = threading.Event(), threading.Event()

    def hold() -> None:  # the state in which a fork in the middle of a build finds the module
        with build_module._lock, logs._lock, cache_stats._lock, nvrtc._lock:
            held[0].set()
            held[1].wait(30)

    holder = threading.Thread(target=hold)
    holder.start()
    held[0].wait(30)
    process = context.Process(target=child, args=(queue,))
    process.start()
    held[1].set()
    holder.join()
    process.join(60)
    alive = process.is_alive()
    if alive:
        process.kill()
    assert not alive
    registers = queue.get()
    assert registers == [build(Tiny(factor)).registers for factor in (2, 3)]
