"""Devices: architecture, multiprocessors, and which one is current."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from gemmjit.arch import Arch
from gemmjit.cuda.driver import check, driver

__all__ = ["Device", "current", "device", "is_current", "num_devices"]


@dataclass(frozen=True, slots=True)
class Device:
    """One CUDA device.

    Attributes
    ----------
    ordinal : int
        Its number in this process.
    name : str
    arch : Arch
        Compute capability, without a suffix.
    num_sms : int
        Streaming multiprocessors.
    context : object
        Its primary context, retained for the life of the process.
    """

    ordinal: int
    name: str
    arch: Arch
    num_sms: int
    context: Any


@cache
def num_devices() -> int:
    """Return how many devices the process sees."""
    return int(check(driver().cuDeviceGetCount(), "cuDeviceGetCount"))


@cache
def device(ordinal: int) -> Device:
    """Return a device by its number."""
    api = driver()
    handle = check(api.cuDeviceGet(ordinal), f"cuDeviceGet({ordinal})")
    attribute = api.CUdevice_attribute

    def read(which: Any) -> int:
        return int(check(api.cuDeviceGetAttribute(which, handle), f"cuDeviceGetAttribute {which}"))

    major = read(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
    minor = read(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
    raw = check(api.cuDeviceGetName(128, handle), "cuDeviceGetName")
    return Device(
        ordinal=ordinal,
        name=raw.split(b"\0", 1)[0].decode(),
        arch=Arch.of_capability(major, minor),
        num_sms=read(attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
        context=check(api.cuDevicePrimaryCtxRetain(handle), "cuDevicePrimaryCtxRetain"),
    )


def is_current(ordinal: int) -> bool:
    """Return whether this thread has a context on a device; it need not be the primary one."""
    status, active = driver().cuCtxGetDevice()
    return bool(status == 0) and int(active) == ordinal


@contextmanager
def current(ordinal: int) -> Iterator[None]:
    """Make a device current for the block, and restore what was current before.

    A context that is current already on the same device stays: it need not be the primary one.
    """
    if is_current(ordinal):
        yield
        return
    api = driver()
    check(api.cuCtxPushCurrent(device(ordinal).context), "cuCtxPushCurrent")
    try:
        yield
    finally:
        check(api.cuCtxPopCurrent(), "cuCtxPopCurrent")
