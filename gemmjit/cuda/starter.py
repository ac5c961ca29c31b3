"""What hands a launch to the driver in the fewest steps of the host.

Beside CuPy it is CuPy's own function: it takes plain integers and costs a third of what the
bindings add, which make objects of the stream and the status (0.10 of 0.29 us, both without the
driver's part). It is not used where CuPy is not: its first call would import all of CuPy.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from gemmjit.cuda.driver import driver

__all__ = ["Starter", "starter"]

#: What CuPy's function takes; one that takes anything else is not used.
_SIGNATURE = (
    "launchKernel(intptr_t f, unsigned int grid_dim_x, unsigned int grid_dim_y, "
    "unsigned int grid_dim_z, unsigned int block_dim_x, unsigned int block_dim_y, "
    "unsigned int block_dim_z, unsigned int shared_mem_bytes, intptr_t stream, "
    "intptr_t kernel_params, intptr_t extra)"
)


class Starter(NamedTuple):
    """One way to launch one kernel.

    Attributes
    ----------
    start : callable
        It takes the stream, the host address of the table of parameters, and 0. It returns a tuple
        with the status or, where it raises instead, None.
    takes_handles : bool
        Whether streams are passed as handles, plain integers; else as objects of the bindings.
    refusals : tuple of type
        What it raises if the driver refuses the launch; with a ``status``.
    never_captured : int
        A handle that means a stream which no graph can capture; -1 if there is none.
    """

    start: Callable[[Any, int, int], Any]
    takes_handles: bool
    refusals: tuple[type[Exception], ...]
    never_captured: int


def starter(
    function: int, grid: tuple[int, ...], block: tuple[int, ...], smem_bytes: int
) -> Starter:
    """Return what launches a kernel.

    Parameters
    ----------
    function : int
        Handle of the kernel.
    grid, block : tuple of int
        Blocks, and threads of a block.
    smem_bytes : int
        Dynamic shared memory of a block.
    """
    shape = (*grid, *block, smem_bytes)
    api = driver()
    module = _of_cupy()
    if module is not None:
        start = partial(module.launchKernel, function, *shape)
        return Starter(start, True, (module.CUDADriverError,), never_captured=0)
    # The bindings take a CUkernel too, but convert it anew at every launch.
    start = partial(api.cuLaunchKernel, api.CUfunction(function), *shape)
    # A setting of the bindings makes 0 the default stream of the thread, which can be captured;
    # else it is the one whose handle is 1.
    numbers = [api.cuStreamGetId(api.CUstream(handle)) for handle in (0, 1)]
    legacy = numbers[0] == numbers[1] and not numbers[0][0]
    return Starter(start, False, (), never_captured=0 if legacy else -1)


def _of_cupy() -> Any:
    """Return CuPy's module of driver functions, if CuPy is there and it is the one that we know."""
    if "cupy" not in sys.modules:
        return None
    module = sys.modules.get("cupy_backends.cuda.api.driver")
    try:
        known = module.launchKernel.__doc__.startswith(_SIGNATURE)  # type: ignore[union-attr]
        known = known and issubclass(module.CUDADriverError, Exception)  # type: ignore[union-attr]
        module.ctxGetCurrent()  # type: ignore[union-attr] # it finds the driver's library
    except (AttributeError, OSError, RuntimeError, TypeError):
        return None
    return module if known else None
