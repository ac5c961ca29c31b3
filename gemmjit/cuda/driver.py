"""The CUDA driver, loaded when it is first needed, with every status checked."""

from __future__ import annotations

from functools import cache
from typing import Any

from gemmjit.errors import DriverNotFoundError, LaunchError

__all__ = ["MIN_DRIVER_CUDA", "check", "driver", "driver_version", "is_available"]

#: CUDA version that the driver must serve: cubins of any NVRTC 13 load on it (driver 580 or newer).
MIN_DRIVER_CUDA = (13, 0)


@cache
def driver() -> Any:
    """Return ``cuda.bindings.driver``, initialised.

    Raises
    ------
    DriverNotFoundError
        If there is no driver, no device, or the driver is older than CUDA 13.
    """
    from cuda.bindings import driver as api

    try:
        status, version = api.cuDriverGetVersion()
        (started,) = api.cuInit(0)
    except Exception as error:  # the loader raises several types for a missing libcuda
        raise DriverNotFoundError(
            "driver: expected NVIDIA driver 580 or newer (libcuda.so.1); found none. "
            "Install the driver; without it, only what needs no GPU works"
        ) from error
    success = api.CUresult.CUDA_SUCCESS
    if status != success or started != success:
        reason = started if started != success else status
        raise DriverNotFoundError(
            f"driver: cuInit failed with {reason.name}. "
            "Check nvidia-smi; without a driver, only what needs no GPU works"
        )
    if (version // 1000, version % 1000 // 10) < MIN_DRIVER_CUDA:
        raise DriverNotFoundError(
            f"driver: expected CUDA 13.0 or newer (driver 580); got CUDA "
            f"{version // 1000}.{version % 1000 // 10}. Update the NVIDIA driver"
        )
    return api


def is_available() -> bool:
    """Return whether a usable driver and at least one device are present."""
    try:
        return int(check(driver().cuDeviceGetCount(), "cuDeviceGetCount")) > 0
    except (DriverNotFoundError, LaunchError):
        return False


def driver_version() -> str:
    """Return the CUDA version that the driver serves, as in ``13.0``."""
    version = int(check(driver().cuDriverGetVersion(), "cuDriverGetVersion"))
    return f"{version // 1000}.{version % 1000 // 10}"


def check(result: tuple[Any, ...], what: str) -> Any:
    """Return the value of a driver call, or raise with its name.

    Parameters
    ----------
    result : tuple
        Status and values, as the bindings return them.
    what : str
        The call and what it was for.

    Raises
    ------
    LaunchError
        If the status is not success.
    """
    status = result[0]
    if status.value != 0:
        text = driver().cuGetErrorString(status)[1]
        explanation = text.decode() if text else "unknown error"
        raise LaunchError(f"{what}: the driver answered {status.name} ({explanation})")
    return result[1] if len(result) == 2 else result[1:]
