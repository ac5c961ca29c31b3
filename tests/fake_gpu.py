"""A CUDA driver that launches nothing, and host arrays that pass for a GPU's.

The project's own code runs unchanged down to the driver's functions; those look into the packed
arguments as a driver would, and record what they find there.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from fake_arrays import CupyOnFake, TorchOnFake

from gemmjit.cuda import counters, library
from gemmjit.cuda import device as device_module
from gemmjit.cuda import driver as driver_module
from gemmjit.cuda import launch as launch_module
from gemmjit.cuda import starter as starter_module
from gemmjit.ops.grouped_mm import _calls

#: What a kernel of the ladder is given by value behind its TensorMaps: operands first.
_OPERANDS = ("mat_a", "mat_b", "out", "offs")
#: Where the counters' address lies behind them, in words, if the epilogue reads nothing.
_CLAIMS = 7


class Status(int):
    """A CUresult."""

    @property
    def value(self) -> int:
        return int(self)

    @property
    def name(self) -> str:
        return {0: "CUDA_SUCCESS", 201: "CUDA_ERROR_INVALID_CONTEXT"}.get(
            self, f"CUDA_ERROR_{self}"
        )


OK, NO_CONTEXT = Status(0), Status(201)


class Results(Status):
    """All of them."""

    CUDA_SUCCESS = OK


@dataclass(frozen=True)
class Seen:
    """One launch, as the driver saw it."""

    function: int
    stream: int
    device: int
    operands: dict[str, int]
    maps: tuple[int, ...]
    claims: int


class FakeDriver(types.SimpleNamespace):
    """``cuda.bindings.driver`` of a machine with Hopper GPUs."""

    CUresult = Results
    CUfunction = CUstream = CUtensorMapDataType = CUtensorMapInterleave = int
    CUtensorMapSwizzle = CUtensorMapL2promotion = CUtensorMapFloatOOBfill = int
    cuuint64_t = cuuint32_t = int
    CUfunction_attribute = types.SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8)
    CUdevice_attribute = types.SimpleNamespace(
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR=9,
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR=0,
        CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT=132,
    )

    def __init__(self, num_devices: int = 1) -> None:
        super().__init__()
        self.num_devices = num_devices
        self.seen: dict[int, list[Seen]] = {}
        self.encoded = 0
        self.asked_for_context = 0
        self.pushed = 0
        self.capturing: set[int] = set()
        self.allocated: list[np.ndarray] = []
        self._streams: dict[tuple[int, Any], int] = {}
        self._contexts = threading.local()
        self._entries: list[bytes] = []

    @property
    def contexts(self) -> list[int]:
        """Devices of this thread's contexts, the current one last; at first the primary one."""
        if not hasattr(self._contexts, "stack"):
            self._contexts.stack = [0]
        return self._contexts.stack

    @property
    def launches(self) -> list[Seen]:
        """What this thread has launched."""
        return self.seen.setdefault(threading.get_ident(), [])

    def cuInit(self, flags):
        return (OK,)

    def cuDriverGetVersion(self):
        return OK, 13000

    def cuDeviceGetCount(self):
        return OK, self.num_devices

    def cuDeviceGet(self, ordinal):
        return OK, ordinal

    def cuDeviceGetName(self, length, device):
        return OK, b"Fake H200\0"

    def cuDeviceGetAttribute(self, attribute, device):
        return OK, attribute

    def cuDevicePrimaryCtxRetain(self, device):
        return OK, device

    def cuCtxGetDevice(self):
        self.asked_for_context += 1
        return (OK, self.contexts[-1]) if self.contexts else (NO_CONTEXT, None)

    def cuCtxPushCurrent(self, context):
        self.pushed += 1
        self.contexts.append(context)
        return (OK,)

    def cuCtxPopCurrent(self):
        return OK, self.contexts.pop()

    def cuGetErrorString(self, status):
        return OK, b"as the fake driver says"

    def cuLibraryLoadData(self, *arguments):
        return OK, 1

    def cuLibraryGetKernel(self, loaded, entry):
        self._entries.append(entry)
        return OK, len(self._entries)

    def cuKernelSetAttribute(self, *arguments):
        return (OK,)

    def cuStreamIsCapturing(self, stream):
        return (OK, int(stream in self.capturing)) if self.contexts else (NO_CONTEXT, None)

    def cuMemcpyHtoDAsync(self, to, source, nbytes, stream):
        if not self.contexts:
            return (NO_CONTEXT,)
        ctypes.memmove(to, source, nbytes)
        return (OK,)

    CUstream_flags = types.SimpleNamespace(CU_STREAM_NON_BLOCKING=1)
    CUstreamCaptureMode = types.SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED=2)

    def cuThreadExchangeStreamCaptureMode(self, mode):
        return OK, 0

    def cuCtxGetId(self, context):
        return (OK, 100 + self.contexts[-1]) if self.contexts else (NO_CONTEXT, None)

    def cuStreamGetId(self, stream):
        if not self.contexts:
            return NO_CONTEXT, None
        stream = stream or 1  # two handles of the legacy default stream
        owner = (
            threading.current_thread() if stream == 2 else self.contexts[-1] if stream < 2 else 0
        )
        return OK, self._streams.setdefault((stream, owner), len(self._streams))

    def cuMemAlloc(self, nbytes):
        self.allocated.append(np.zeros(nbytes, np.uint8))
        return OK, self.allocated[-1].ctypes.data

    def cuStreamCreate(self, flags):
        return OK, 77

    def cuMemsetD8Async(self, to, value, nbytes, stream):
        ctypes.memset(to, value, nbytes)
        return (OK,)

    def cuStreamSynchronize(self, stream):
        return (OK,)

    def cuStreamDestroy(self, stream):
        return (OK,)

    CUevent_flags = types.SimpleNamespace(CU_EVENT_DISABLE_TIMING=2)

    def cuEventCreate(self, flags):
        return OK, 1

    def cuEventRecord(self, event, stream):
        return (OK,)

    def cuStreamWaitEvent(self, stream, event, flags):
        return (OK,)

    def cuEventDestroy(self, event):
        return (OK,)

    CUstreamCaptureStatus = types.SimpleNamespace(CU_STREAM_CAPTURE_STATUS_NONE=0)

    def cuTensorMapEncodeTiled(self, kind, rank, address, *rest):
        assert len(rest[0]) == rank
        self.encoded += 1
        encoded = (ctypes.c_uint64 * 16)(address)
        return OK, types.SimpleNamespace(getPtr=lambda: ctypes.addressof(encoded))

    def cuLaunchKernel(self, function, gx, gy, gz, bx, by, bz, smem, stream, table, extra):
        if not self.contexts:
            return (NO_CONTEXT,)
        entry = self._entries[function - 1].decode()
        num_maps = 3 if "_k3_" in entry else 2 if "_k2_" in entry else 0
        places = (ctypes.c_uint64 * (num_maps + 1)).from_address(table)
        maps = tuple(ctypes.c_uint64.from_address(place).value for place in places[:-1])
        found = (ctypes.c_uint64 * (_CLAIMS + 1)).from_address(places[-1])
        operands = dict(zip(_OPERANDS, found, strict=False))
        self.launches.append(
            Seen(function, stream, self.contexts[-1], operands, maps, found[_CLAIMS])
        )
        return (OK,)

    def entry_of(self, seen: Seen) -> str:
        """Return the name of the kernel that was launched."""
        return self._entries[seen.function - 1].decode()


class CupyDriver:
    """CuPy's way to a driver's launches."""

    class CUDADriverError(RuntimeError):
        def __init__(self, status):
            super().__init__(status)
            self.status = int(status)

    def __init__(self, fake: FakeDriver) -> None:
        self._fake = fake

    def launchKernel(self, *arguments):
        (status,) = self._fake.cuLaunchKernel(*arguments)
        if status:
            raise self.CUDADriverError(status)


def install(patch: pytest.MonkeyPatch, num_devices: int = 1, by_cupy: bool = False) -> FakeDriver:
    """Put a fake driver in the place of the bindings', with nothing remembered of another.

    Kernels are launched by CuPy's way to the driver, or by the bindings.
    """
    import cuda.bindings.nvrtc  # it looks into the real driver's module

    fake = FakeDriver(num_devices)
    patch.setattr(cuda.bindings, "driver", fake, raising=False)
    patch.setitem(sys.modules, "cuda.bindings.driver", fake)
    ways = CupyDriver(fake) if by_cupy else None
    patch.setattr(starter_module, "_of_cupy", lambda: ways)
    patch.setattr(library, "_kernels", {})
    patch.setattr(library, "_allowed", {})
    patch.setattr(launch_module, "_streams", {})
    patch.setattr(counters, "PLACES", {})
    patch.setattr(counters, "_larger", {})
    patch.setattr(counters, "_unused", {})
    patch.setattr(launch_module, "_kept", type(launch_module._kept)())
    forget()
    return fake


def forget() -> None:
    """Drop what was remembered of a driver."""
    driver_module.driver.cache_clear()
    device_module.device.cache_clear()
    device_module.num_devices.cache_clear()
    _calls.clear()


@contextlib.contextmanager
def framework(name: str, num_devices: int = 1) -> Iterator[tuple[FakeDriver, Any]]:
    """Give a fake driver, and a framework whose host arrays pass for those of its device 0."""
    with pytest.MonkeyPatch.context() as patch:
        fake = install(patch, num_devices, by_cupy=name == "cupy")
        made = (TorchOnFake if name == "torch" else CupyOnFake)(patch, num_devices)
        try:
            yield fake, made
        finally:
            if name == "cupy":
                made.close()
    forget()
