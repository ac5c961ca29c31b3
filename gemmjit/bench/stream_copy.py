"""A copy by all multiprocessors, 16 bytes a load: what memory gives to kernels.

The driver's own copy is no ceiling: replayed from a graph it moved 2.7 TB/s where kernels that read
weights moved 4.4 (H200, 2026-11-30).
"""

from __future__ import annotations

import ctypes

from gemmjit.bench.bench_kernel import bench_kernel
from gemmjit.cuda.device import current
from gemmjit.cuda.driver import check, driver
from gemmjit.errors import InvalidProblemError

__all__ = ["COPY_GRANULE", "stream_copy"]

_THREADS = 256
_LOADS = 4  # of one thread, all under way before the first store

#: Bytes that one block copies; sizes are multiples of it.
COPY_GRANULE = _THREADS * _LOADS * 16

_ENTRY = "gemmjit_bench_copy"
_SOURCE = f"""
extern "C" __global__ void __launch_bounds__({_THREADS})
{_ENTRY}(uint4* __restrict__ to, const uint4* __restrict__ from)
{{
    const unsigned long long first = blockIdx.x * {_THREADS * _LOADS}ull + threadIdx.x;
    uint4 held[{_LOADS}];
#pragma unroll
    for (int i = 0; i < {_LOADS}; ++i) held[i] = from[first + i * {_THREADS}];
#pragma unroll
    for (int i = 0; i < {_LOADS}; ++i) to[first + i * {_THREADS}] = held[i];
}}
"""


def stream_copy(to: int, source: int, nbytes: int, stream: int, ordinal: int) -> None:
    """Copy between two addresses of a device.

    Parameters
    ----------
    to, source : int
        Device addresses on the 16-byte grid.
    nbytes : int
        A multiple of `COPY_GRANULE`.
    stream : int
        Stream handle.
    ordinal : int
        Device.

    Raises
    ------
    InvalidProblemError
        If `nbytes` is no multiple of `COPY_GRANULE`.
    """
    if nbytes % COPY_GRANULE:
        raise InvalidProblemError(
            f"nbytes: expected a multiple of {COPY_GRANULE}; got {nbytes}. Round it up"
        )
    arguments = ((to, source), (ctypes.c_void_p, ctypes.c_void_p))
    with current(ordinal):
        kernel = bench_kernel(_SOURCE, _ENTRY, ordinal)
        blocks = nbytes // COPY_GRANULE
        check(
            driver().cuLaunchKernel(kernel, blocks, 1, 1, _THREADS, 1, 1, 0, stream, arguments, 0),
            "launch of the copy kernel",
        )
