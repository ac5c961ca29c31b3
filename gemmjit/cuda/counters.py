"""Counters in device memory that last from call to call, by which blocks claim tiles.

A call finds its counters zero and leaves them zero. So calls that run one after the other share
them, and calls that may run side by side must not: each stream has a place of its own, and so has
each call that was captured into a graph, which may be replayed on any stream. A captured call keeps
its 64 bytes for good, since nothing tells when its graph is gone; the graph's own node is larger.

A stream is known by the driver's number for it, not by its handle: that may be used again for
another stream, and the handles of the default streams mean another one in each context, or thread.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

from gemmjit.cuda.driver import check, driver

__all__ = ["PLACES", "PLACE_BYTES", "place_of"]

#: Bytes of a place; a line of the cache each, so that streams do not slow each other down.
PLACE_BYTES = 64

_SLAB_BYTES = 1 << 16

#: The address of the counters of each stream that has some, by the stream's number.
PLACES: dict[int, int] = {}

_lock = threading.Lock()
_unused: dict[int, Iterator[int]] = {}  # by the context's number


def place_of(stream: int, capturing: bool) -> int:
    """Return the address of the counters of a call.

    Parameters
    ----------
    stream : int
        Stream handle, of the context that is current.
    capturing : bool
        Whether the call is being captured; then the place is a new one.
    """
    api = driver()
    number = None
    if not capturing:
        number = int(check(api.cuStreamGetId(stream), "cuStreamGetId"))
    with _lock:
        if number is not None and number in PLACES:
            return PLACES[number]
        context = int(check(api.cuCtxGetId(0), "cuCtxGetId"))
        place = next(_unused.get(context, iter(())), None)
        if place is None:
            slab = _new_slab()
            _unused[context] = iter(range(slab, slab + _SLAB_BYTES, PLACE_BYTES))
            place = next(_unused[context])
        if number is not None:
            PLACES[number] = place
        return place


def _new_slab() -> int:
    """Return the address of new memory, zeroed; under a capture too, which it takes no part in."""
    api = driver()
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
