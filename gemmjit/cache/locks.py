"""One lock a kernel, so that processes that start together compile it once.

The lock only saves work. Where the file system has no locks, where the directory cannot be
written, or where the holder takes too long, one goes on without it and the kernel is compiled
twice. The system releases the lock of a process that dies, once the children that it forked while
it held the lock are gone too. Lock files are never deleted: a file that someone waits on must not
be replaced by another of the same name.

They are locked by flock(2) itself: to import a library for it took 60 ms of a first call (a virtual
machine with an H200, 2026-11-30).
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gemmjit.logs import logger, warn_once

__all__ = ["TIMEOUT_SECONDS", "held"]

#: How long one waits for another process to compile one kernel.
TIMEOUT_SECONDS = 60.0
_POLL_SECONDS = 0.01


@contextmanager
def held(path: Path, timeout_seconds: float = TIMEOUT_SECONDS) -> Iterator[bool]:
    """Hold a lock file, or go on without; the value says which.

    Parameters
    ----------
    path : pathlib.Path
        The lock file; its folder exists.
    timeout_seconds : float
        How long to wait.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        _report(path, error)
        yield False
        return
    try:
        locked = _acquired(descriptor, path, timeout_seconds)
        try:
            yield locked
        finally:
            if locked:  # a process that was forked meanwhile holds the descriptor too
                with suppress(OSError):  # closing releases it as well
                    fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def _acquired(descriptor: int, path: Path, timeout_seconds: float) -> bool:
    end = time.monotonic() + timeout_seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= end:
                break
            time.sleep(_POLL_SECONDS)
        except OSError as error:
            _report(path, error)
            return False
    logger("cache").warning(
        "%s: another process has held the lock for %.0f s; going on without it",
        path,
        timeout_seconds,
    )
    return False


def _report(path: Path, error: Exception) -> None:
    warn_once(
        "cache",
        ("lock", str(path.parent)),
        "%s: files cannot be locked here (%s); kernels may be compiled more than once",
        path.parent,
        error,
    )
