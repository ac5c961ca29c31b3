"""What both GPU backends share: events, the lead-in, facts about the device."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import pairwise
from typing import Any

from gemmjit.bench.backend import Backend, DeviceFacts, Graph
from gemmjit.bench.delay import delay
from gemmjit.bench.stream_copy import stream_copy
from gemmjit.cuda.device import current, device
from gemmjit.cuda.driver import check, driver, driver_version
from gemmjit.dtypes import F16
from gemmjit.errors import GemmjitError
from gemmjit.logs import logger

__all__ = ["CudaBackend", "kernel_driver_version"]

#: How long the lead-in holds the device for a graph to be enqueued: at first, and at most. It is
#: doubled whenever the host was slower.
_LEAD_IN = 100e-6
_LONGEST_LEAD_IN = 5e-3


class CudaBackend(Backend):
    """Events and launches on one stream of one device.

    Parameters
    ----------
    ordinal : int
        CUDA device.
    """

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal
        self._api = driver()
        self._events: list[Any] = []
        self._lead_in_seconds = _LEAD_IN
        where = device(ordinal)
        self.facts = DeviceFacts(
            name=where.name,
            arch=str(where.arch),
            num_sms=where.num_sms,
            memory_bytes=self._total_memory(),
            l2_bytes=self._attribute("CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE"),
            driver=kernel_driver_version(),
            driver_cuda=driver_version(),
        )

    @property
    def stream(self) -> int:
        """Handle of the stream that everything runs on."""
        raise NotImplementedError

    @cached_property
    def lead_in(self) -> bool:
        """Whether the delay kernel can be compiled and launched; tried when first asked."""
        try:
            with self.active():
                delay(1e-6, self.stream, self.ordinal)
                self.synchronize()
        except GemmjitError as error:
            logger("bench").warning("no lead-in: %s", error)
            return False
        return True

    def _launch(self, graph: Graph) -> None:
        """Enqueue a graph on the stream."""
        raise NotImplementedError

    def measure(
        self,
        graphs: Sequence[Graph],
        *,
        lead_in: bool = False,
        while_running: Callable[[], None] | None = None,
    ) -> list[float]:
        """Replay graphs with an event before, between and after them."""
        events = self._take_events(len(graphs) + 1)
        stream = self.stream
        with self.active():
            if lead_in and self.lead_in:
                delay(self._lead_in_seconds * len(graphs), stream, self.ordinal)
            check(self._api.cuEventRecord(events[0], stream), "cuEventRecord")
            for graph, event in zip(graphs, events[1:], strict=True):
                self._launch(graph)
                check(self._api.cuEventRecord(event, stream), "cuEventRecord")
            if lead_in and self._is_past(events[0]):
                self._lead_in_seconds = min(2 * self._lead_in_seconds, _LONGEST_LEAD_IN)
            if while_running is not None:
                while_running()
            check(self._api.cuEventSynchronize(events[-1]), "cuEventSynchronize")
            return [
                float(check(self._api.cuEventElapsedTime(a, b), "cuEventElapsedTime")) * 1e-3
                for a, b in pairwise(events)
            ]

    @contextmanager
    def profiled(self) -> Iterator[None]:
        """Start and stop the driver's profiling, each with nothing on its way."""
        self.synchronize()
        with current(self.ordinal):
            check(self._api.cuProfilerStart(), "cuProfilerStart")
        try:
            yield
            self.synchronize()
        finally:
            with current(self.ordinal):
                check(self._api.cuProfilerStop(), "cuProfilerStop")

    def time_delay(self, seconds: float) -> float:
        """Return what the events say of a kernel that lasts a known time, in seconds."""
        first, last = self._take_events(2)
        with self.active():
            delay(_LEAD_IN, self.stream, self.ordinal)
            check(self._api.cuEventRecord(first, self.stream), "cuEventRecord")
            delay(seconds, self.stream, self.ordinal)
            check(self._api.cuEventRecord(last, self.stream), "cuEventRecord")
            check(self._api.cuEventSynchronize(last), "cuEventSynchronize")
            elapsed = check(self._api.cuEventElapsedTime(first, last), "cuEventElapsedTime")
        return float(elapsed) * 1e-3

    def replay(self, graph: Graph) -> None:
        """Replay a graph and wait for it."""
        with self.active():
            self._launch(graph)
            self.synchronize()

    def synchronize(self) -> None:
        """Wait for everything on the device."""
        with current(self.ordinal):
            check(self._api.cuCtxSynchronize(), "cuCtxSynchronize")

    def idle(self, seconds: float) -> None:
        """Sleep on the host."""
        time.sleep(seconds)

    def now(self) -> float:
        """Return the host's monotonic clock."""
        return time.perf_counter()

    def copy_call(self, nbytes: int) -> Callable[[], Any]:
        """Return a copy between two arrays of random bytes."""
        source, target = (self.empty((nbytes // 2,), F16) for _ in range(2))
        self.draw(source, 1.0, 0)
        self.draw(target, 1.0, 1)
        to, source_at = self._address(target), self._address(source)

        def call() -> Any:
            stream_copy(to, source_at, nbytes, self._capturing_stream(), self.ordinal)
            return source, target  # both live as long as the graph

        return call

    def pci_bus_id(self) -> str:
        """Return the device's PCI address, by which the management library knows it."""
        with current(self.ordinal):
            handle = check(self._api.cuDeviceGet(self.ordinal), "cuDeviceGet")
            raw = check(self._api.cuDeviceGetPCIBusId(32, handle), "cuDeviceGetPCIBusId")
        return bytes(raw).split(b"\0", 1)[0].decode()

    def _address(self, array: Any) -> int:
        raise NotImplementedError

    def _capturing_stream(self) -> int:
        return self.stream

    def _is_past(self, event: Any) -> bool:
        """Return whether the device has passed an event, that is, did not wait for the host."""
        return bool(self._api.cuEventQuery(event)[0].value == 0)

    def _take_events(self, count: int) -> list[Any]:
        flags = self._api.CUevent_flags.CU_EVENT_DEFAULT
        with current(self.ordinal):
            while len(self._events) < count:
                self._events.append(check(self._api.cuEventCreate(flags), "cuEventCreate"))
        return self._events[:count]

    def _attribute(self, name: str) -> int:
        handle = check(self._api.cuDeviceGet(self.ordinal), "cuDeviceGet")
        which = getattr(self._api.CUdevice_attribute, name)
        return int(check(self._api.cuDeviceGetAttribute(which, handle), name))

    def _total_memory(self) -> int:
        handle = check(self._api.cuDeviceGet(self.ordinal), "cuDeviceGet")
        return int(check(self._api.cuDeviceTotalMem(handle), "cuDeviceTotalMem"))


def kernel_driver_version() -> str:
    """Return the version of the kernel driver, or an empty text where nothing says it."""
    from gemmjit.bench.telemetry import driver_version_text

    return driver_version_text()
