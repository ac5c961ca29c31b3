"""Locks of kernels that are being compiled."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time

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


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks_costs_one_warning(store, monkeypatch, caplog, number):
    def flock(descriptor, how):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    for source in ("a", "b"):
        with store.lock(make(source).key) as locked:
            assert not locked
    assert len(warnings(caplog)) == 1


def test_an_error_under_the_lock_is_not_hidden(store):
    with pytest.raises(ZeroDivisionError), store.lock(make().key):
        raise ZeroDivisionError
    with store.lock(make().key, timeout_seconds=0.05) as locked:
        assert locked


def test_a_process_that_was_forked_under_the_lock_does_not_keep_it(store):
    key = make().key
    with store.lock(key):
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
    try:
        with store.lock(key, timeout_seconds=0.05) as locked:
            assert locked
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_lock_file_that_is_a_link_is_not_followed(store, tmp_path, caplog):
    key = make().key
    with store.lock(key):
        pass
    (path,) = (store.root / "v1" / ".locks").iterdir()
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    with store.lock(key) as locked:
        assert not locked
    assert not (tmp_path / "elsewhere").exists()
    assert len(warnings(caplog)) == 1


def test_waiting_takes_no_longer_than_the_holder(store):
    key = make().key
    holder = store.lock(key)
    holder.__enter__()
    threading.Timer(0.2, holder.__exit__, (None, None, None)).start()
    started = time.monotonic()
    with store.lock(key) as locked:
        assert locked
    assert 0.15 < time.monotonic() - started < 5


def test_a_lock_that_cannot_be_released_is_no_error(store, monkeypatch):
    real = fcntl.flock

    def flock(descriptor, how):
        if how == fcntl.LOCK_UN:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    key = make().key
    for _ in range(2):
        with store.lock(key, timeout_seconds=0.05) as locked:
            assert locked
