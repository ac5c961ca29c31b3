"""What hands a launch to the driver in the fewest steps of the host.

CuPy's own way to the driver's function takes plain integers and costs a third of what the bindings
add, which make objects of the stream and the status (0.10 of 0.29 us, both without the driver's
part). It brings neither CuPy's arrays nor a context.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from typing import Any

from gemmjit.cuda.driver import driver

__all__ = ["LaunchRefusedError", "never_captured", "refusals", "starter"]

#: What CuPy's function takes; one that takes anything else is not used.
_SIGNATURE = (
    "launchKernel(intptr_t f, unsigned int grid_dim_x, unsigned int grid_dim_y, "
    "unsigned int grid_dim_z, unsigned int block_dim_x, unsigned int block_dim_y, "
    "unsigned int block_dim_z, unsigned int shared_mem_bytes, intptr_t stream, "
    "intptr_t kernel_params, intptr_t extra)"
)


class LaunchRefusedError(Exception):
    """The driver did not take a launch.

    Attributes
    ----------
    status : int
        A CUresult.
    """

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


@cache
def _of_cupy() -> Any:
    """Return CuPy's module of driver functions, or None if it is not the one that is known."""
    driver()  # initialised, so that it answers CuPy too
    try:
        module = import_module("cupy_backends.cuda.api.driver")
        module.ctxGetCurrent()  # finds the driver's library, which is loaded lazily
        known = module.launchKernel.__doc__.startswith(_SIGNATURE)
        return module if known and issubclass(module.CUDADriverError, Exception) else None
    except (AttributeError, ImportError, OSError, RuntimeError, TypeError):
        return None


@cache
def refusals() -> tuple[type[Exception], ...]:
    """Return the exceptions of a launch that the driver refuses; each has a `status`."""
    module = _of_cupy()
    return (LaunchRefusedError,) if module is None else (module.CUDADriverError,)


@cache
def never_captured() -> int:
    """Return a handle that a launch takes for a stream that no graph can capture; -1 for none.

    To CuPy's function, 0 is the legacy default stream. The bindings can be told to take it for the
    default stream of the thread, which can be captured.
    """
    return -1 if _of_cupy() is None else 0


def starter(
    function: int, grid: tuple[int, ...], block: tuple[int, ...], smem_bytes: int
) -> Callable[[int, int, int], Any]:
    """Return what launches a kernel.

    Parameters
    ----------
    function : int
        Handle of the kernel.
    grid, block : tuple of int
        Blocks, and threads of a block.
    smem_bytes : int
        Dynamic shared memory of a block.

    Returns
    -------
    callable
        It takes the stream's handle, the host address of the table of parameters, and 0. It raises
        one of `refusals`.
    """
    shape = (*grid, *block, smem_bytes)
    module = _of_cupy()
    if module is not None:
        return partial(module.launchKernel, function, *shape)
    api = driver()
    # The bindings take a CUkernel too, but convert it anew at every launch.
    launch = partial(api.cuLaunchKernel, api.CUfunction(function), *shape)

    def start(stream: int, table: int, extra: int) -> None:
        (status,) = launch(stream, table, extra)
        if status:
            raise LaunchRefusedError(int(status))

    return start
