"""Counters in device memory that last from call to call, by which blocks claim tiles.

A call finds its counters zero and leaves them zero. So calls that run one after the other share
them, and calls that may run side by side must not: each stream has a place of its own, and so has
each call that was captured into a graph, which may be replayed on any stream. A captured call keeps
its 64 bytes for good, since nothing tells when its graph is gone; the graph's own node is larger.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

from gemmjit.cuda.device import current
from gemmjit.cuda.driver import check, driver

__all__ = ["PLACE_BYTES", "is_shared", "place_of"]

#: Bytes of a place; a line of the cache each, so that streams do not slow each other down.
PLACE_BYTES = 64

_SLAB_BYTES = 1 << 16
_PER_THREAD_STREAM = 2  # CU_STREAM_PER_THREAD: one handle, a stream for each thread

_lock = threading.Lock()
_by_stream: dict[tuple[int, int, int], int] = {}
_unused: dict[int, Iterator[int]] = {}


def is_shared(stream: int) -> bool:
    """Return whether a stream handle means the same stream in every thread."""
    return stream != _PER_THREAD_STREAM


def place_of(ordinal: int, stream: int, capturing: bool) -> int:
    """Return the address of the counters of a call.

    Parameters
    ----------
    ordinal : int
        Device.
    stream : int
        Stream handle.
    capturing : bool
        Whether the call is being captured; then the place is a new one.
    """
    thread = 0 if is_shared(stream) else threading.get_ident()
    key = (ordinal, stream, thread)
    if not capturing:
        known = _by_stream.get(key)
        if known is not None:
            return known
    with _lock:
        if not capturing and key in _by_stream:
            return _by_stream[key]
        place = next(_unused.get(ordinal, iter(())), None)
        if place is None:
            slab = _new_slab(ordinal)
            _unused[ordinal] = iter(range(slab, slab + _SLAB_BYTES, PLACE_BYTES))
            place = next(_unused[ordinal])
        if not capturing:
            _by_stream[key] = place
        return place


def _new_slab(ordinal: int) -> int:
    """Return the address of new memory, zeroed; under a capture too, which it takes no part in."""
    api = driver()
    with current(ordinal):
        relaxed = api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        what = "cuThreadExchangeStreamCaptureMode"
        before = check(api.cuThreadExchangeStreamCaptureMode(relaxed), what)
        try:
            slab = int(check(api.cuMemAlloc(_SLAB_BYTES), "cuMemAlloc of counters"))
            flags = api.CUstream_flags.CU_STREAM_NON_BLOCKING
            stream = check(api.cuStreamCreate(flags), "cuStreamCreate")
            try:
                check(api.cuMemsetD8Async(slab, 0, _SLAB_BYTES, stream), "clearing of counters")
                check(api.cuStreamSynchronize(stream), "cuStreamSynchronize")
            finally:
                check(api.cuStreamDestroy(stream), "cuStreamDestroy")
        finally:
            check(api.cuThreadExchangeStreamCaptureMode(before), what)
    return slab
