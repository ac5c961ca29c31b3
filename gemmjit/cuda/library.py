"""Cubins loaded into the driver: context-free libraries, one per cubin for the whole process."""

from __future__ import annotations

import threading
from typing import Any

from gemmjit.build import CompiledKernel
from gemmjit.cuda.device import device
from gemmjit.cuda.driver import check, driver
from gemmjit.errors import LaunchError

__all__ = ["is_loaded", "load"]

#: What a block may use of dynamic shared memory without asking.
_DEFAULT_DYNAMIC_SMEM = 48 * 1024

_lock = threading.Lock()
_kernels: dict[tuple[str, str], Any] = {}
_allowed: dict[tuple[str, str, int], int] = {}


def is_loaded(kernel: CompiledKernel, ordinal: int) -> bool:
    """Return whether `load` would have nothing to do."""
    key = (kernel.identity, kernel.nvrtc_version)
    if key not in _kernels:
        return False
    needed = kernel.smem_bytes > _DEFAULT_DYNAMIC_SMEM
    return not needed or _allowed.get((*key, ordinal), 0) >= kernel.smem_bytes


def load(kernel: CompiledKernel, ordinal: int) -> Any:
    """Return the driver's handle of a kernel, ready to be launched on a device.

    Parameters
    ----------
    kernel : CompiledKernel
    ordinal : int
        Device that it will be launched on.

    Raises
    ------
    LaunchError
        If the cubin is for another architecture, or the driver refuses it.
    """
    api = driver()
    key = (kernel.identity, kernel.nvrtc_version)
    with _lock:
        handle = _kernels.get(key)
        if handle is None:
            handle = _kernels[key] = _load(api, kernel, ordinal)
        if kernel.smem_bytes > _DEFAULT_DYNAMIC_SMEM:
            _allow_smem(api, handle, kernel, (*key, ordinal))
    return handle


def _load(api: Any, kernel: CompiledKernel, ordinal: int) -> Any:
    # The driver may load lazily, and answer with an error that says nothing only when it looks.
    here = device(ordinal)
    if not kernel.target.runs_on(here.arch):
        raise LaunchError(
            f"{kernel.entry}: expected a cubin that runs on cuda:{ordinal} ({here.name}, "
            f"{here.arch}); got one for {kernel.target}. Compile it with arch={here.arch.name!r}"
        )
    what = (
        f"{kernel.entry} for {kernel.target}, compiled by NVRTC {kernel.nvrtc_version}, "
        f"on cuda:{ordinal} ({here.arch})"
    )
    data = api.cuLibraryLoadData(kernel.cubin, [], [], 0, [], [], 0)
    library = check(data, f"cuLibraryLoadData of {what}")
    found = api.cuLibraryGetKernel(library, kernel.entry.encode())
    return check(found, f"cuLibraryGetKernel of {what}")


def _allow_smem(api: Any, handle: Any, kernel: CompiledKernel, key: tuple[str, str, int]) -> None:
    if _allowed.get(key, 0) >= kernel.smem_bytes:
        return
    attribute = api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    dev = check(api.cuDeviceGet(key[2]), "cuDeviceGet")
    try:
        check(
            api.cuKernelSetAttribute(attribute, kernel.smem_bytes, handle, dev),
            "cuKernelSetAttribute",
        )
    except LaunchError as error:
        raise LaunchError(
            f"{kernel.entry}: device {key[2]} refuses {kernel.smem_bytes} bytes of shared memory "
            f"a block ({error}). Use a smaller tile or fewer stages"
        ) from error
    _allowed[key] = kernel.smem_bytes
