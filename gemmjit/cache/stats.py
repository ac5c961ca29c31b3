"""What the cache did in this process."""

from __future__ import annotations

import os
import threading
from dataclasses import asdict, dataclass

__all__ = ["CacheStats", "count", "stats"]


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Counts since the process started; lookups in memory are not among them.

    Attributes
    ----------
    hits : int
        Kernels that a directory had.
    misses : int
        Kernels that no directory had.
    compiles : int
        Kernels that NVRTC compiled.
    damaged : int
        Entries that were refused because their bytes were wrong.
    """

    hits: int = 0
    misses: int = 0
    compiles: int = 0
    damaged: int = 0


_now = CacheStats()
_lock = threading.Lock()


def count(name: str) -> None:
    """Add one to a count."""
    global _now
    with _lock:
        counts = asdict(_now)
        counts[name] += 1
        _now = CacheStats(**counts)


def stats() -> CacheStats:
    """Return the counts of this process."""
    return _now


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()  # a thread that is not in this process may hold the old one


os.register_at_fork(after_in_child=_after_fork)
