"""The backend on CuPy: gemmjit alone can be measured without torch."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, ClassVar

import numpy as np

from gemmjit.bench.backend import Graph
from gemmjit.bench.cuda_backend import CudaBackend
from gemmjit.dtypes import F16, DType, dtype_of
from gemmjit.errors import InvalidProblemError
from gemmjit.logs import logger

__all__ = ["CupyBackend", "missing"]

#: Random numbers are drawn on the host once and copied from random places of this block, so that
#: no kernel of CuPy's own has to be compiled.
_BLOCK = 1 << 22
_PIECE = 1 << 20
_CHUNKS = 16  # of a sample


def missing() -> str | None:
    """Return why CuPy cannot be used on a GPU, or None."""
    try:
        cupy = import_module("cupy")
        count = cupy.cuda.runtime.getDeviceCount()
    except Exception as error:  # CuPy raises types of its own for a missing driver
        return f"cupy cannot be used: {error}"
    return None if count else "cupy sees no GPU"


class CupyBackend(CudaBackend):
    """CuPy arrays on a stream of their own, captured into CuPy's graphs."""

    framework: ClassVar = "cupy"

    def __init__(self, ordinal: int = 0) -> None:
        self._cupy = import_module("cupy")
        self._cupy.cuda.Device(ordinal).use()
        self._stream = self._cupy.cuda.Stream(non_blocking=True)
        self._blocks: dict[tuple[DType, float], Any] = {}
        self._host_math = False
        super().__init__(ordinal)

    @property
    def stream(self) -> int:
        """Handle of the stream."""
        return int(self._stream.ptr)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Make the stream CuPy's current one."""
        with self._cupy.cuda.Device(self.ordinal), self._stream:
            yield

    def empty(self, shape: tuple[int, ...], dtype: DType) -> Any:
        """Return a new array."""
        with self.active():
            return self._cupy.empty(shape, dtype.numpy)

    def draw(self, array: Any, scale: float, seed: int) -> None:
        """Copy pieces of a random block from random places, each its own for every piece."""
        dtype = dtype_of(array.dtype)
        block = self._block(dtype, scale)
        random = np.random.default_rng(seed)
        with self.active():
            for start in range(0, array.size, _PIECE):
                count = min(_PIECE, array.size - start)
                shift = int(random.integers(_BLOCK - count + 1))
                (array.data + start * dtype.itemsize).copy_from_device_async(
                    block.data + shift * dtype.itemsize, count * dtype.itemsize
                )
            self.synchronize()

    def upload_ends(self, ends: Sequence[int]) -> Any:
        """Return an int32 array."""
        with self.active():
            return self._cupy.asarray(np.asarray(ends, np.int32))

    def fill(self, array: Any, value: float) -> None:
        """Set every byte: all ones is a NaN in each of the types, all zeros is zero."""
        if value != 0.0 and not math.isnan(value):
            raise InvalidProblemError(f"value: expected NaN or zero; got {value}")
        with self.active():
            array.data.memset_async(0xFF if math.isnan(value) else 0, array.nbytes)

    def upcast(self, array: Any) -> Any:
        """Return a float64 array: CuPy's, or NumPy's where CuPy cannot compile its kernels."""
        with self.active():
            if not self._host_math:
                try:
                    return array.astype(self._cupy.float64)
                except Exception as error:  # whatever CuPy's compiler raises
                    self._host_math = True
                    logger("bench").warning("results are verified on the CPU: %s", error)
            return array.get().astype(np.float64)

    def sample(self, array: Any, count: int) -> Sequence[float]:
        """Return chunks from all over an array that is contiguous."""
        base = array if array.flags.c_contiguous else array.T
        length = max(1, min(count // _CHUNKS, base.size // _CHUNKS))
        values: list[float] = []
        with self.active():
            flat = base.reshape(-1)
            for start in np.linspace(0, base.size - length, _CHUNKS).astype(int):
                values += flat[start : start + length].get().astype(np.float64).tolist()
        return values

    def swap_last(self, array: Any) -> Any:
        """Return the transposed view."""
        return array.swapaxes(-1, -2)

    def capture(self, calls: Sequence[Callable[[], Any]]) -> Graph:
        """Capture with a memory pool of its own, so that no later array shares its memory."""
        pool = self._cupy.cuda.MemoryPool()
        with self.active(), self._cupy.cuda.using_allocator(pool.malloc):
            # The first run compiles, and leaves blocks in the pool for the capture to take.
            warm = [call() for call in calls]
            self.synchronize()
            del warm
            self._stream.begin_capture()
            try:
                outputs = tuple([call() for call in calls])
            finally:
                graph = self._stream.end_capture()
            graph.launch(self._stream)
            self.synchronize()
        return Graph((graph, tuple(calls), pool), outputs)

    def _launch(self, graph: Graph) -> None:
        graph.handle[0].launch(self._stream)

    def dense_call(self, size: int) -> tuple[Callable[[], Any], str]:
        """Return a product through cuBLAS, in float16, which CuPy hands to it."""
        a, b, out = (self.empty((size, size), F16) for _ in range(3))
        self.draw(a, 1.0, 0)
        self.draw(b, size**-0.5, 1)

        def call() -> Any:
            self._cupy.matmul(a, b, out=out)
            return out

        return call, f"cupy.matmul {F16}"

    def release(self) -> None:
        """Return what CuPy's pool caches."""
        gc.collect()
        self._cupy.get_default_memory_pool().free_all_blocks()

    def _address(self, array: Any) -> int:
        return int(array.data.ptr)

    def _block(self, dtype: DType, scale: float) -> Any:
        block = self._blocks.get((dtype, scale))
        if block is None:
            random = np.random.default_rng(len(self._blocks))
            host = random.standard_normal(_BLOCK, np.float32) * np.float32(scale)
            bits = f"uint{dtype.bits}"
            with self.active():
                device = self._cupy.asarray(host.astype(dtype.numpy).view(bits))
            block = self._blocks[dtype, scale] = device.view(dtype.numpy)
        return block
