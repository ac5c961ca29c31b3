"""One launch made ready: the function, its shape, and its arguments packed for the addresses seen.

Packed arguments never change once they are there: a launch with addresses that were seen before
looks them up and passes them on, and threads share them without a lock. Addresses that are new get
a copy of the last ones, in which only what differs is written anew, so that a TensorMap is encoded
for a changed address alone.
"""

from __future__ import annotations

import ctypes
import struct
from collections import deque
from collections.abc import Callable
from typing import Any

from gemmjit.arrays import Frontend
from gemmjit.cuda.counters import PLACE_BYTES, place_of, places_for
from gemmjit.cuda.device import current, is_current
from gemmjit.cuda.driver import check, driver
from gemmjit.cuda.library import load
from gemmjit.cuda.packing import PACKING_ALIGNMENT, PackedArguments, pack
from gemmjit.cuda.starter import starter
from gemmjit.cuda.tensormap import TENSOR_MAP_BYTES, TensorMapEncoder
from gemmjit.dtypes import U8
from gemmjit.errors import LaunchError
from gemmjit.plan import Launch, Workspace

__all__ = ["MAX_PREPARED", "BoundLaunch", "Runner", "counters_of", "is_capturing"]

#: Packed arguments kept, of all launches together, the newest ones; each takes about a kilobyte.
MAX_PREPARED = 4096

#: Stream objects kept; a handle may be a new stream's, which is as good.
_MAX_STREAMS = 64

Pointers = tuple[int, ...]
#: Takes addresses that are read, the address of the result, stream and frontend.
Runner = Callable[[Pointers, int, int, Frontend], None]

_kept: deque[tuple[dict[Pointers, _Prepared], Pointers]] = deque()
_streams: dict[int, Any] = {}


class BoundLaunch:
    """One launch on one device.

    Parameters
    ----------
    launch : Launch
    names : tuple of str
        Operands and workspaces, in the order in which `run` is given their addresses.
    ordinal : int
        Device, which is current.

    Raises
    ------
    LaunchError
        If the kernel does not load, or needs what this executor does not serve.
    """

    __slots__ = (
        "_launch",
        "_layout",
        "_ordinal",
        "_prepared",
        "_recent",
        "_starter",
    )

    def __init__(self, launch: Launch, names: tuple[str, ...], ordinal: int) -> None:
        if launch.cluster != (1, 1, 1) or launch.attributes.cooperative:
            raise LaunchError("launch: clusters and cooperative launches are not served yet")
        self._launch = launch
        self._ordinal = ordinal
        self._layout = _Layout(pack(launch.arguments), names)
        self._prepared: dict[Pointers, _Prepared] = {}
        self._recent: _Prepared | None = None
        function = int(load(launch.kernel, ordinal))
        self._starter = starter(function, launch.grid, launch.block, launch.smem_bytes)

    def run(self, pointers: Pointers, stream: int) -> None:
        """Launch, asynchronously.

        Parameters
        ----------
        pointers : tuple of int
            Device addresses.
        stream : int
            Stream handle.
        """
        prepared = self._prepared.get(pointers) or self._prepare(pointers)
        start, takes_handles, refusals, _ = self._starter
        try:
            answer = start(stream if takes_handles else _stream(stream), prepared.table, 0)
        except refusals as error:
            self._refused(error.status, stream, prepared)  # type: ignore[attr-defined]
        else:
            if answer is not None and answer[0]:
                self._refused(answer[0], stream, prepared)

    def runner(self, counters: int, scratch: Workspace | None = None) -> Runner:
        """Return what does the same as `run` in fewer steps, for a plan of this launch alone.

        Parameters
        ----------
        counters : int
            Bytes of the stream's counters, whose address the launch takes behind all others, or 0;
            what is returned finds it.
        scratch : Workspace, optional
            With counters: neither filled nor cleared, its address comes before theirs.
        """
        # Names of a function's own cost less than attributes, and this runs in every call.
        start, takes_handles, refusals, never_captured = self._starter
        find, prepare, refused = self._prepared.get, self._prepare, self._refused
        find_stream = _streams.get

        def run(inputs: Pointers, out: int, stream: int, frontend: Frontend) -> None:
            handle = find_stream(stream)
            if handle is None:
                handle = _stream(stream)
            pointers = (*inputs, out)
            prepared = find(pointers)
            if prepared is None:
                prepared = prepare(pointers)
            try:
                answer = start(stream if takes_handles else handle, prepared.table, 0)
            except refusals as error:
                refused(error.status, stream, prepared)  # type: ignore[attr-defined]
            else:
                if answer is not None and answer[0]:
                    refused(answer[0], stream, prepared)

        if not counters:
            return run

        api = driver()
        is_capturing, number_of, ordinal = api.cuStreamIsCapturing, api.cuStreamGetId, self._ordinal
        find_place = places_for(counters).get
        nbytes, alignment = 0, 1
        if scratch is not None:
            nbytes, alignment = scratch.nbytes + scratch.alignment, scratch.alignment

        # As `run`, once more: a call of it would cost more than what is done here.
        def run_counting(inputs: Pointers, out: int, stream: int, frontend: Frontend) -> None:
            handle = find_stream(stream)
            if handle is None:
                handle = _stream(stream)
            # A context may be missing, so that a status is no error yet.
            status = state = place = None
            if stream != never_captured:
                status, state = is_capturing(handle)
            if not status and not state:
                status, number = number_of(handle)
                place = find_place(number)
            if place is None:
                place = counters_of(stream, ordinal, counters)
            if nbytes:
                # Held until the launch has been given to the stream.
                held = frontend.empty((nbytes,), U8, ordinal)
                address = frontend.pointer(held)
                pointers = (*inputs, out, address + -address % alignment, place)
            else:
                pointers = (*inputs, out, place)
            prepared = find(pointers)
            if prepared is None:
                prepared = prepare(pointers)
            try:
                answer = start(stream if takes_handles else handle, prepared.table, 0)
            except refusals as error:
                refused(error.status, stream, prepared)  # type: ignore[attr-defined]
            else:
                if answer is not None and answer[0]:
                    refused(answer[0], stream, prepared)

        return run_counting

    def _prepare(self, pointers: Pointers) -> _Prepared:
        if self._layout.has_maps and not is_current(self._ordinal):
            with current(self._ordinal):
                prepared = _Prepared(self._layout, pointers, self._recent)
        else:
            prepared = _Prepared(self._layout, pointers, self._recent)
        self._recent = self._prepared[pointers] = prepared
        _kept.append((self._prepared, pointers))
        if len(_kept) > MAX_PREPARED:
            prepared_then, oldest = _kept.popleft()
            prepared_then.pop(oldest, None)
        return prepared

    def _refused(self, status: Any, stream: int, prepared: _Prepared) -> None:
        """Launch once more where a thread without a context was the reason; else raise."""
        start, takes_handles, refusals, _ = self._starter
        if not is_current(self._ordinal):
            with current(self._ordinal):
                try:
                    answer = start(stream if takes_handles else _stream(stream), prepared.table, 0)
                    status = 0 if answer is None else answer[0]
                except refusals as error:
                    status = error.status  # type: ignore[attr-defined]
        launch = self._launch
        check(
            (driver().CUresult(int(status)),),
            f"launch of {launch.kernel.entry} with grid {launch.grid}, block {launch.block}, "
            f"{launch.smem_bytes} bytes of dynamic shared memory",
        )


def is_capturing(stream: int, ordinal: int) -> bool:
    """Return whether a stream of a device is being captured into a CUDA graph.

    A thread may have no context yet, as those that run torch's backward passes; the default
    streams belong to the one that is current.
    """
    api = driver()
    with current(ordinal):
        state = check(api.cuStreamIsCapturing(stream), "cuStreamIsCapturing")
    return bool(state != api.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE)


def counters_of(stream: int, ordinal: int, nbytes: int = PLACE_BYTES) -> int:
    """Return the address of the counters that a call on a stream of a device is to use."""
    with current(ordinal):
        return place_of(stream, is_capturing(stream, ordinal), nbytes)


class _Layout:
    """Where everything of a launch's arguments lies, behind an address on `PACKING_ALIGNMENT`."""

    __slots__ = ("addresses", "buffer_type", "image", "maps", "starts", "table", "table_offset")

    def __init__(self, packed: PackedArguments, names: tuple[str, ...]) -> None:
        self.image = packed.image + bytes(-len(packed.image) % 8)
        self.starts = packed.starts
        self.table_offset = len(self.image)
        self.table = struct.Struct(f"<{len(packed.starts)}Q")
        self.buffer_type = ctypes.c_char * (self.table_offset + self.table.size + PACKING_ALIGNMENT)
        self.addresses = _runs(
            [(s.offset, names.index(s.name), s.displacement) for s in packed.slots]
        )
        # Parameters with the same map of the same operand share its encoding.
        self.maps: list[tuple[TensorMapEncoder, int, int, list[int]]] = []
        shared: dict[Any, list[int]] = {}
        for slot in packed.map_slots:
            places = shared.get((slot.name, slot.displacement, slot.tensor_map))
            if places is not None:
                places.append(slot.offset)
                continue
            places = shared[slot.name, slot.displacement, slot.tensor_map] = [slot.offset]
            encoder = TensorMapEncoder(slot.tensor_map)
            self.maps.append((encoder, names.index(slot.name), slot.displacement, places))

    @property
    def has_maps(self) -> bool:
        """Whether there are TensorMaps to encode."""
        return bool(self.maps)


class _Prepared:
    """The arguments of one launch for one set of addresses; not written to once made.

    Attributes
    ----------
    table : int
        Host address of the table of parameters, what a launch takes.
    """

    __slots__ = ("_base", "_buffer", "_pointers", "table")

    def __init__(self, layout: _Layout, pointers: Pointers, like: _Prepared | None) -> None:
        self._pointers = pointers
        self._buffer = buffer = layout.buffer_type()
        start = ctypes.addressof(buffer)
        skip = -start % PACKING_ALIGNMENT
        base = self._base = start + skip
        ctypes.memmove(base, like._base if like else layout.image, len(layout.image))
        for offset, run, parts in layout.addresses:
            run.pack_into(buffer, skip + offset, *[pointers[index] + by for index, by in parts])
        for encoder, index, displacement, places in layout.maps:
            if like is None or like._pointers[index] != pointers[index]:
                encoder.write(base + places[0], pointers[index] + displacement)
                for place in places[1:]:
                    ctypes.memmove(base + place, base + places[0], TENSOR_MAP_BYTES)
        self.table = base + layout.table_offset
        parameters = [base + offset for offset in layout.starts]
        layout.table.pack_into(buffer, skip + layout.table_offset, *parameters)


def _runs(
    addresses: list[tuple[int, int, int]],
) -> list[tuple[int, struct.Struct, list[tuple[int, int]]]]:
    """Return addresses that lie side by side as one, so that they are written at a time."""
    runs: list[tuple[int, list[tuple[int, int]]]] = []
    for offset, index, displacement in addresses:
        if runs and offset == runs[-1][0] + 8 * len(runs[-1][1]):
            runs[-1][1].append((index, displacement))
        else:
            runs.append((offset, [(index, displacement)]))
    return [(offset, struct.Struct(f"<{len(parts)}Q"), parts) for offset, parts in runs]


def _stream(stream: int) -> Any:
    """Return the object that the bindings take for a stream without converting it; keep it."""
    if len(_streams) >= _MAX_STREAMS:
        _streams.clear()
    handle = _streams[stream] = driver().CUstream(stream)
    return handle
