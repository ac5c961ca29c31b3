"""Timelines as Chrome's trace-event JSON, for Perfetto and chrome://tracing.

A block is a process; its warps, copies, matrix products and barriers are threads. Spans that
overlap, as copies do, are laid out in as many rows as are needed, since the slices of one thread
must nest. One issued instruction is shown as one microsecond.

The format is "Trace Event Format" (Google, 2016): complete events (``X``) and metadata (``M``).
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from gemmjit.emulator.trace import Span, Trace

__all__ = ["events", "rows", "write"]

#: Order of the tracks in a block, and whether their spans may overlap.
_ORDER = {"run": 0, "wait": 0, "copy": 1, "mma": 2, "phase": 3}
_OVERLAPPING = ("copy", "mma")


def rows(spans: Iterable[Span]) -> list[list[Span]]:
    """Lay spans out in rows in which none overlaps another, as few as possible."""
    found: list[list[Span]] = []
    free: list[tuple[int, int]] = []  # (end of the last span, row)
    for span in sorted(spans, key=lambda s: (s.start, s.end)):
        if free and free[0][0] <= span.start:
            _, row = heapq.heappop(free)
        else:
            row = len(found)
            found.append([])
        found[row].append(span)
        heapq.heappush(free, (span.end, row))
    return found


def events(trace: Trace) -> Iterator[dict[str, Any]]:
    """Yield the trace events of a timeline."""
    blocks: dict[tuple[str, str], dict[tuple[int, str], list[Span]]] = {}
    for span in trace.spans:
        tracks = blocks.setdefault((span.kernel, span.block), {})
        tracks.setdefault((_ORDER[span.kind], span.track), []).append(span)
    for process, ((kernel, block), tracks) in enumerate(blocks.items(), 1):
        yield _named("process_name", process, 0, f"{block} of {kernel}")
        yield _metadata("process_sort_index", process, 0, {"sort_index": process})
        thread = 0
        for order, track in sorted(tracks, key=lambda t: (t[0], _natural(t[1]))):
            spans = tracks[order, track]
            overlapping = spans[0].kind in _OVERLAPPING
            for row in rows(spans) if overlapping else [spans]:
                thread += 1
                label = f"{track} {spans[0].kind}" if order == _ORDER["mma"] else track
                yield _named("thread_name", process, thread, label)
                yield _metadata("thread_sort_index", process, thread, {"sort_index": thread})
                for span in row:
                    yield {
                        "name": span.name,
                        "cat": span.kind,
                        "ph": "X",
                        "ts": span.start,
                        "dur": span.end - span.start,
                        "pid": process,
                        "tid": thread,
                        "args": dict(span.details),
                    }


def write(trace: Trace, path: str | Path) -> None:
    """Write a timeline to a file."""
    document = {
        "traceEvents": list(events(trace)),
        "displayTimeUnit": "ms",
        "otherData": {
            "unit": "1 us is 1 instruction issued by the emulator",
            "spans dropped": trace.dropped,
        },
    }
    Path(path).write_text(json.dumps(document, separators=(",", ":")), encoding="utf-8")


def _named(event: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return _metadata(event, process, thread, {"name": name})


def _metadata(event: str, process: int, thread: int, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"name": event, "ph": "M", "ts": 0, "pid": process, "tid": thread, "args": arguments}


def _natural(track: str) -> tuple[str, int]:
    """Sort ``warp 10`` behind ``warp 9``, and hexadecimal offsets by value."""
    words, _, number = track.rpartition(" ")
    try:
        return words, int(number, 0)
    except ValueError:
        return track, 0
