"""Runs plans on a GPU: binds addresses to packed arguments and launches, in order, on a stream."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import numpy as np

from gemmjit.arrays import Frontend
from gemmjit.cuda.device import current
from gemmjit.cuda.driver import check, driver
from gemmjit.cuda.library import is_loaded, load
from gemmjit.cuda.packing import PACKING_ALIGNMENT, MapSlot, PackedArguments, pack
from gemmjit.cuda.tensormap import TENSOR_MAP_BYTES, encode
from gemmjit.dtypes import U8
from gemmjit.errors import CaptureError, InvalidProblemError, LaunchError
from gemmjit.plan import Launch, Plan, Workspace

__all__ = ["BoundPlan", "is_capturing", "order_streams", "ready", "stream_handle"]


#: Stream objects remembered by a launch; a handle may be a new stream's, which is as good.
_MAX_STREAMS = 64


class BoundPlan:
    """A plan made ready for one device: kernels loaded, arguments packed but for addresses.

    Parameters
    ----------
    plan : Plan
    operands : tuple of str
        Names of the operands, in the order in which `run` is given their addresses.
    ordinal : int
        Device of the operands.
    """

    def __init__(self, plan: Plan, operands: tuple[str, ...], ordinal: int) -> None:
        self.plan = plan
        self.ordinal = ordinal
        self._api = driver()
        self._active_device = self._api.cuCtxGetDevice
        names = operands + tuple(w.name for w in plan.workspaces)
        with current(ordinal):
            self._launches = [_BoundLaunch(launch, names, ordinal) for launch in plan.launches]

    def run(self, pointers: tuple[int, ...], stream: int, frontend: Frontend) -> None:
        """Launch everything, asynchronously.

        Parameters
        ----------
        pointers : tuple of int
            Device address of each operand.
        stream : int
            Stream handle.
        frontend : Frontend
            Whose pool the workspaces come from; it may reuse them in stream order right away.
        """
        status, active = self._active_device()
        if status == 0 and int(active) == self.ordinal:
            self._run(pointers, stream, frontend)
        else:
            with current(self.ordinal):
                self._run(pointers, stream, frontend)

    def _run(self, pointers: tuple[int, ...], stream: int, frontend: Frontend) -> None:
        held = []  # workspaces live until the last launch has been given to the stream
        for workspace in self.plan.workspaces:
            array = frontend.empty((workspace.nbytes + workspace.alignment,), U8, self.ordinal)
            held.append(array)
            base = frontend.pointer(array)
            aligned = -(-base // workspace.alignment) * workspace.alignment
            self._fill(workspace, aligned, stream)
            pointers = (*pointers, aligned)
        for launch in self._launches:
            launch.run(pointers, stream)

    def _fill(self, workspace: Workspace, address: int, stream: int) -> None:
        if workspace.contents is not None:
            if is_capturing(stream):
                raise CaptureError(
                    "offs: offsets on the host cannot be captured into a CUDA graph, their values "
                    "would be frozen. Pass offs as an array on the device"
                )
            source = np.ascontiguousarray(workspace.contents)
            check(
                self._api.cuMemcpyHtoDAsync(address, source.ctypes.data, source.nbytes, stream),
                f"copy of workspace {workspace.name}",
            )
        elif workspace.zeroed:
            check(
                self._api.cuMemsetD8Async(address, 0, workspace.nbytes, stream),
                f"clearing of workspace {workspace.name}",
            )


class _Arguments(threading.local):
    """The packed arguments of one launch, one copy per thread, with an address cell per slot."""

    def __init__(self, packed: PackedArguments, names: tuple[str, ...]) -> None:
        size = len(packed.image)
        self.buffer = ctypes.create_string_buffer(size + PACKING_ALIGNMENT)
        base = -(-ctypes.addressof(self.buffer) // PACKING_ALIGNMENT) * PACKING_ALIGNMENT
        ctypes.memmove(base, packed.image, size)
        self.table = (ctypes.c_void_p * max(len(packed.starts), 1))(
            *(base + start for start in packed.starts)
        )
        self.table_address = ctypes.addressof(self.table)
        self.cells = [
            (
                ctypes.c_uint64.from_address(base + slot.offset),
                names.index(slot.name),
                slot.displacement,
            )
            for slot in packed.slots
        ]
        self.maps = [
            _MapCell(base + slot.offset, names.index(slot.name), slot) for slot in packed.map_slots
        ]


class _MapCell:
    """The place of one encoded TensorMap and the address that it was encoded for."""

    __slots__ = ("address", "index", "place", "slot")

    def __init__(self, place: int, index: int, slot: MapSlot) -> None:
        self.place = place
        self.index = index
        self.slot = slot
        self.address: int | None = None

    def encode(self, address: int) -> None:
        self.address = None  # should encoding fail, the old map must not pass for the new one
        encoded = encode(self.slot.tensor_map, address + self.slot.displacement)
        ctypes.memmove(self.place, encoded, TENSOR_MAP_BYTES)
        self.address = address


class _BoundLaunch:
    """One launch with its handle and packed arguments."""

    def __init__(self, launch: Launch, names: tuple[str, ...], ordinal: int) -> None:
        if launch.cluster != (1, 1, 1) or launch.attributes.cooperative:
            raise LaunchError("launch: clusters and cooperative launches are not served yet")
        self._launch = launch
        api = driver()
        # The bindings take a CUkernel too, but convert it anew at every launch.
        self._handle = api.CUfunction(int(load(launch.kernel, ordinal)))
        self._stream_type = api.CUstream
        self._streams: dict[int, Any] = {}
        self._arguments = _Arguments(pack(launch.arguments), names)
        self._shape = (*launch.grid, *launch.block, launch.smem_bytes)
        self._call = api.cuLaunchKernel

    def run(self, pointers: tuple[int, ...], stream: int) -> None:
        arguments = self._arguments
        for place, index, displacement in arguments.cells:
            place.value = pointers[index] + displacement
        for cell in arguments.maps:
            # Encoding costs 1.2 us (H200 host, 2026-11-29): only when the address is another one.
            if cell.address != pointers[cell.index]:
                cell.encode(pointers[cell.index])
        handle = self._streams.get(stream)
        if handle is None:
            handle = self._remember_stream(stream)
        (status,) = self._call(self._handle, *self._shape, handle, arguments.table_address, 0)
        if status:
            self._refused(status)

    def _remember_stream(self, stream: int) -> Any:
        if len(self._streams) >= _MAX_STREAMS:
            self._streams.clear()
        handle = self._streams[stream] = self._stream_type(stream)
        return handle

    def _refused(self, status: Any) -> None:
        launch = self._launch
        check(
            (status,),
            f"launch of {launch.kernel.entry} with grid {launch.grid}, block {launch.block}, "
            f"{launch.smem_bytes} bytes of dynamic shared memory",
        )


def ready(plan: Plan, ordinal: int) -> bool:
    """Return whether binding the plan would load nothing into the driver."""
    return all(is_loaded(launch.kernel, ordinal) for launch in plan.launches)


def is_capturing(stream: int) -> bool:
    """Return whether a stream is being captured into a CUDA graph."""
    api = driver()
    state = check(api.cuStreamIsCapturing(stream), "cuStreamIsCapturing")
    return bool(state != api.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE)


def stream_handle(stream: Any) -> int:
    """Return the handle behind an int, or an object that follows ``__cuda_stream__``.

    Raises
    ------
    InvalidProblemError
        If it is no stream.
    """
    if isinstance(stream, int):
        return stream
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        return int((protocol() if callable(protocol) else protocol)[1])
    for name in ("cuda_stream", "ptr"):
        if hasattr(stream, name):
            return int(getattr(stream, name))
    raise InvalidProblemError(
        "stream: expected a handle or an object with __cuda_stream__; "
        f"got {type(stream).__name__}. Pass a stream of torch, CuPy or cuda.core"
    )


def order_streams(first: int, then: int, ordinal: int) -> None:
    """Make a stream wait for what another has been given so far, without the host waiting."""
    api = driver()
    with current(ordinal):
        flags = api.CUevent_flags.CU_EVENT_DISABLE_TIMING
        event = check(api.cuEventCreate(flags), "cuEventCreate")
        try:
            check(api.cuEventRecord(event, first), "cuEventRecord")
            check(api.cuStreamWaitEvent(then, event, 0), "cuStreamWaitEvent")
        finally:
            check(api.cuEventDestroy(event), "cuEventDestroy")
