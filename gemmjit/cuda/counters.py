"""Counters in device memory that last from call to call, by which blocks claim tiles.

A call finds its counters zero and leaves them zero. So calls that run one after the other share
them, and calls that may run side by side must not: each stream has a place of its own, and so has
each call that was captured into a graph, which may be replayed on any stream. A captured call keeps
its 64 bytes for good, since nothing tells when its graph is gone; the graph's own node is larger.
Calls that split K need more, for the arrivals at each sum: places come in powers of two, and a
stream has one of each size that it has needed.

A stream is known by the driver's number for it, not by its handle: that may be used again for
another stream, and the handles of the default streams mean another one in each context, or thread.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

from gemmjit.cuda.driver import check, driver

__all__ = ["PLACES", "PLACE_BYTES", "place_of", "places_for"]

#: Bytes of a place; a line of the cache each, so that streams do not slow each other down.
PLACE_BYTES = 64

_SLAB_BYTES = 1 << 16

#: The address of the counters of each stream that has some, by the stream's number.
PLACES: dict[int, int] = {}

_lock = threading.Lock()
_larger: dict[int, dict[int, int]] = {}  # likewise, by the size of a place
_unused: dict[tuple[int, int], Iterator[int]] = {}  # by the context's number and the size


def places_for(nbytes: int) -> dict[int, int]:
    """Return the addresses of the places of each stream for counters of a size."""
    size = _size(nbytes)
    return PLACES if size == PLACE_BYTES else _larger.setdefault(size, {})


def place_of(stream: int, capturing: bool, nbytes: int = PLACE_BYTES) -> int:
    """Return the address of the counters of a call.

    Parameters
    ----------
    stream : int
        Stream handle, of the context that is current.
    capturing : bool
        Whether the call is being captured; then the place is a new one.
    nbytes : int
        Size of its counters.
    """
    size, places = _size(nbytes), places_for(nbytes)
    api = driver()
    number = None
    if not capturing:
        number = int(check(api.cuStreamGetId(stream), "cuStreamGetId"))
    with _lock:
        if number is not None and number in places:
            return places[number]
        context = int(check(api.cuCtxGetId(0), "cuCtxGetId")), size
        place = next(_unused.get(context, iter(())), None)
        if place is None:
            slab_bytes = max(_SLAB_BYTES, size)
            slab = _new_slab(slab_bytes)
            _unused[context] = iter(range(slab, slab + slab_bytes, size))
            place = next(_unused[context])
        if number is not None:
            places[number] = place
        return place


def _size(nbytes: int) -> int:
    return max(PLACE_BYTES, 1 << (nbytes - 1).bit_length())


def _new_slab(nbytes: int) -> int:
    """Return the address of new memory, zeroed; under a capture too, which it takes no part in."""
    api = driver()
    relaxed = api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    what = "cuThreadExchangeStreamCaptureMode"
    before = check(api.cuThreadExchangeStreamCaptureMode(relaxed), what)
    try:
        slab = int(check(api.cuMemAlloc(nbytes), "cuMemAlloc of counters"))
        flags = api.CUstream_flags.CU_STREAM_NON_BLOCKING
        stream = check(api.cuStreamCreate(flags), "cuStreamCreate")
        try:
            check(api.cuMemsetD8Async(slab, 0, nbytes, stream), "clearing of counters")
            check(api.cuStreamSynchronize(stream), "cuStreamSynchronize")
        finally:
            check(api.cuStreamDestroy(stream), "cuStreamDestroy")
    finally:
        check(api.cuThreadExchangeStreamCaptureMode(before), what)
    return slab
