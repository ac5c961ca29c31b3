"""What runs when XLA reaches a grouped product: one handler for the CPU and one for CUDA.

Operands are read and the result is written where XLA put them. On CUDA the kernels go to XLA's own
stream, so nothing waits and nothing is copied.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from gemmjit.arrays import CPU, ArrayView, Frontend, register
from gemmjit.cuda.driver import check, driver
from gemmjit.dtypes import DType
from gemmjit.errors import LaunchError
from gemmjit.integrations import xla_ffi
from gemmjit.integrations.config_text import from_text
from gemmjit.ops.grouped_mm import grouped_mm

__all__ = ["PRODUCTS", "TARGET", "Buffer", "operands_of"]

#: The name that XLA knows the handlers by.
TARGET = "gemmjit_grouped_mm"

#: What a call computes: rows times the matrix of their group; that with the matrices stored
#: transposed; or, for each group, its rows of the first transposed times its rows of the second.
PRODUCTS = ("rows", "rows_transposed", "groups")


def operands_of(product: str, lhs: ArrayView, rhs: ArrayView) -> tuple[ArrayView, ArrayView]:
    """Return the arguments of `grouped_mm`, which are views of what JAX passes."""
    if product == "rows_transposed":
        rhs = _transposed(rhs)
    elif product == "groups":
        lhs = _transposed(lhs)
    return lhs, rhs


def _transposed(view: ArrayView) -> ArrayView:
    *outer, rows, columns = range(len(view.shape))
    order = (*outer, columns, rows)
    return view._replace(
        shape=tuple(view.shape[i] for i in order), strides=tuple(view.strides[i] for i in order)
    )


class Buffer:
    """An array in memory of XLA's, for the time of a call."""

    __slots__ = ("view",)

    def __init__(self, view: ArrayView) -> None:
        self.view = view

    @property
    def dtype(self) -> npt.DTypeLike:
        """NumPy's name of the element type."""
        return self.view.dtype.numpy

    def get(self) -> npt.NDArray[Any]:
        """Return a copy on the host, after everything that the call's stream was given."""
        host = np.empty(self.view.shape, self.view.dtype.numpy)
        if self.view.device == CPU:
            ctypes.memmove(host.ctypes.data, self.view.pointer, host.nbytes)
        elif host.nbytes:
            api = driver()
            check(api.cuStreamSynchronize(_running.stream), "cuStreamSynchronize")
            copied = api.cuMemcpyDtoH(host.ctypes.data, self.view.pointer, host.nbytes)
            check(copied, "copy of offsets")
        return host


class _Running(threading.local):
    """The call that a thread is in."""

    call: xla_ffi.Call
    result: Buffer
    stream: int
    scratch: list[xla_ffi.Block]


_running = _Running()


class BufferFrontend(Frontend):
    """Buffers of XLA: the result is the one that it allocated, workspaces come from its pool."""

    name: ClassVar = "jax"

    def view(self, array: Any, argument: str = "array") -> ArrayView:
        """Return the view of a buffer."""
        return array.view  # type: ignore[no-any-return]

    def signature(self, array: Any) -> tuple[Any, ...]:
        """Return shape, strides, type and device number."""
        return tuple(array.view[1:])

    def identify(
        self, mat_a: Any, mat_b: Any, offs: Any
    ) -> tuple[tuple[Any, ...], tuple[int, int, int]] | None:
        """Return signatures and addresses."""
        a, b, f = mat_a.view, mat_b.view, offs.view
        kind = ("jax", a[1:], b[1:], f[1:], a.pointer & 15, b.pointer & 15)
        return kind, (a.pointer, b.pointer, f.pointer)

    def pointer(self, array: Any) -> int:
        """Return the address of the first element."""
        return int(array.view.pointer)

    def empty(self, shape: tuple[int, ...], dtype: DType, device: int) -> Any:
        """Return the result, on the CPU; on a GPU, where `allocator` does that, a workspace."""
        if device == CPU:
            return self._result(shape, dtype)
        nbytes = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        block = _running.call.allocate(nbytes)
        _running.scratch.append(block)
        return Buffer(ArrayView(block.address, shape, (1,) * len(shape), dtype, device))

    def allocator(self, shape: tuple[int, ...], dtype: DType, device: int) -> Callable[[], Any]:
        """Return what gives the result of the call that is running."""
        return partial(self._result, shape, dtype)

    def _result(self, shape: tuple[int, ...], dtype: DType) -> Buffer:
        result = _running.result
        if result.view.shape != shape or result.view.dtype is not dtype:
            raise LaunchError(
                f"result: expected {dtype} of shape {shape}; XLA passes {result.view.dtype} of "
                f"shape {result.view.shape}. Call gemmjit.integrations.jax.ragged_dot"
            )
        if result.view.pointer % 16:
            raise LaunchError(
                f"result: expected an address on the 16-byte grid; got {result.view.pointer:#x}"
            )
        return result

    def current_stream(self, device: int) -> int:
        """Return the handle of the stream that the call belongs to."""
        return _running.stream


register(Buffer, BufferFrontend())


def _run(call: xla_ffi.Call, device: int, stream: int) -> None:
    lhs, rhs, ends = call.arguments(device)
    a, b = operands_of(call.attribute("product"), lhs, rhs)
    config = from_text(call.attribute("config") or None)
    _running.call, _running.stream, _running.scratch = call, stream, []
    _running.result = result = Buffer(call.result(device))
    dtype = result.view.dtype.numpy
    try:
        grouped_mm(Buffer(a), Buffer(b), offs=Buffer(ends), out_dtype=dtype, config=config)
    finally:
        for block in _running.scratch:
            call.free(block)
        del _running.call, _running.result, _running.stream, _running.scratch


@xla_ffi.handler
def on_cpu(call: xla_ffi.Call) -> None:
    """Run a call whose arrays are in host memory."""
    _run(call, CPU, 0)


@xla_ffi.handler
def on_cuda(call: xla_ffi.Call) -> None:
    """Run a call whose arrays are on a CUDA device, on the stream that XLA is filling."""
    _run(call, call.device(), call.stream())


xla_ffi.register(TARGET, on_cpu, "cpu")
xla_ffi.register(TARGET, on_cuda, "CUDA")
