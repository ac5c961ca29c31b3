"""A kernel that does nothing for a known time: it holds the device back, and calibrates clocks."""

from __future__ import annotations

import ctypes

from gemmjit.bench.bench_kernel import bench_kernel
from gemmjit.cuda.device import current
from gemmjit.cuda.driver import check, driver

__all__ = ["delay"]

_ENTRY = "gemmjit_bench_delay"

# One thread that watches the global timer draws next to no power, so that the device stays cool.
_SOURCE = """
extern "C" __global__ void gemmjit_bench_delay(unsigned long long nanoseconds)
{
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start) :: "memory");
    do {
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now) :: "memory");
    } while (now - start < nanoseconds);
}
"""


def delay(seconds: float, stream: int, ordinal: int) -> None:
    """Keep a stream busy for a time, with one thread.

    Parameters
    ----------
    seconds : float
        At least this long; the timer of recent GPUs advances in steps of about a microsecond.
    stream : int
        Stream handle.
    ordinal : int
        Device.

    Raises
    ------
    NvrtcNotFoundError, CompileError
        If the kernel cannot be compiled.
    """
    nanoseconds = round(seconds * 1e9)
    arguments = ((nanoseconds,), (ctypes.c_ulonglong,))
    with current(ordinal):
        kernel = bench_kernel(_SOURCE, _ENTRY, ordinal)
        check(
            driver().cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, arguments, 0),
            "launch of the delay kernel",
        )
