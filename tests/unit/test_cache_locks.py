"""Locks of kernels that are being compiled."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
import time

import filelock
import pytest
from cache_makers import make, warnings

pytestmark = pytest.mark.usefixtures("each_warning_again")


def test_lock_excludes_and_is_released(store):
    key = make().key
    with store.lock(key) as mine:
        assert mine
        with store.lock(key, timeout_seconds=0.05) as second:
            assert not second
        with store.lock(make("int other;").key, timeout_seconds=0.05) as other:
            assert other
    with store.lock(key, timeout_seconds=0.05) as again:
        assert again


def test_br117_the_lock_of_a_killed_process_is_free(store):
    key = make().key
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom gemmjit.cache import Key, Store\n"
        "with Store(Path(sys.argv[1])).lock(Key(*sys.argv[2:])) as held:\n"
        "    print(held, flush=True)\n    time.sleep(60)\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program, str(store.root), key.target, key.entry, key.identity],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout.readline().strip() == "True"
        with store.lock(key, timeout_seconds=0.05) as locked:
            assert not locked
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        holder.stdout.close()
    started = time.monotonic()
    with store.lock(key, timeout_seconds=20) as locked:
        assert locked
    assert time.monotonic() - started < 5


def test_br117_a_lock_that_is_held_for_too_long_is_told(store, caplog):
    key = make().key
    with store.lock(key), store.lock(key, timeout_seconds=0.05) as second:
        assert not second
    assert "another process has held the lock" in warnings(caplog)[0]


@pytest.mark.parametrize("error", [OSError(errno.ENOLCK, "none"), NotImplementedError("none")])
def test_a_file_system_without_locks_costs_one_warning(store, monkeypatch, caplog, error):
    def acquire(*arguments, **more):
        raise error

    monkeypatch.setattr(filelock.FileLock, "acquire", acquire)
    for source in ("a", "b"):
        with store.lock(make(source).key) as locked:
            assert not locked
    assert len(warnings(caplog)) == 1


def test_an_error_under_the_lock_is_not_hidden(store):
    with pytest.raises(ZeroDivisionError), store.lock(make().key):
        raise ZeroDivisionError
    with store.lock(make().key, timeout_seconds=0.05) as locked:
        assert locked
