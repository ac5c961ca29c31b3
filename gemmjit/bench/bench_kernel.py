"""Kernels of the harness itself, compiled once a device."""

from __future__ import annotations

from functools import cache
from typing import Any

from gemmjit.arch import targets_for
from gemmjit.compiler import get_compiler, standard_options
from gemmjit.cuda.device import device
from gemmjit.cuda.driver import check, driver

__all__ = ["bench_kernel"]


@cache
def bench_kernel(source: str, entry: str, ordinal: int) -> Any:
    """Return the handle of a kernel.

    Parameters
    ----------
    source : str
        CUDA C++ that includes nothing.
    entry : str
        Its ``extern "C"`` kernel.
    ordinal : int
        Device, whose context is current.

    Raises
    ------
    NvrtcNotFoundError, CompileError
        If it cannot be compiled.
    """
    target = targets_for(device(ordinal).arch)[0]
    done = get_compiler().compile(
        source, target=target, name=f"bench/{entry}.cu", options=standard_options(target)
    )
    api = driver()
    library = check(
        api.cuLibraryLoadData(done.cubin, [], [], 0, [], [], 0), f"cuLibraryLoadData of {entry}"
    )
    return check(api.cuLibraryGetKernel(library, entry.encode()), f"cuLibraryGetKernel {entry}")
