"""One lock a kernel, so that processes that start together compile it once.

The lock only saves work. Where the file system has no locks, where the directory cannot be
written, or where the holder takes too long, one goes on without it and the kernel is compiled
twice. The kernel releases the lock of a process that dies. Lock files are never deleted: a file
that someone waits on must not be replaced by another of the same name.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gemmjit.logs import logger, warn_once

if TYPE_CHECKING:
    from filelock import BaseFileLock

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
    lock = _acquired(path, timeout_seconds)
    try:
        yield lock is not None
    finally:
        if lock is not None:
            try:
                lock.release()
            except OSError as error:
                _report(path, error)


def _acquired(path: Path, timeout_seconds: float) -> BaseFileLock | None:
    from filelock import FileLock, Timeout  # only who compiles needs it

    try:
        lock = FileLock(path, mode=0o600, thread_local=False)
        lock.acquire(timeout=timeout_seconds, poll_interval=_POLL_SECONDS)
    except Timeout:
        logger("cache").warning(
            "%s: another process has held the lock for %.0f s; going on without it",
            path,
            timeout_seconds,
        )
    except (OSError, NotImplementedError) as error:
        _report(path, error)
    else:
        return lock
    return None


def _report(path: Path, error: Exception) -> None:
    warn_once(
        "cache",
        ("lock", str(path.parent)),
        "%s: files cannot be locked here (%s); kernels may be compiled more than once",
        path.parent,
        error,
    )
