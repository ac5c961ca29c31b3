"""CuPy arrays. Imported when the first one appears."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from operator import attrgetter
from typing import Any, ClassVar

import cupy
import numpy as np

from gemmjit.arrays import ArrayView, Frontend, register
from gemmjit.dtypes import BF16, DType, dtype_of

__all__ = ["CupyFrontend"]


class CupyFrontend(Frontend):
    """CuPy arrays on the current stream of their device."""

    name: ClassVar = "cupy"

    def __init__(self) -> None:
        self._dtypes: dict[Any, DType] = {}
        self._stream = cupy.cuda.get_current_stream

    def view(self, array: Any, argument: str = "array") -> ArrayView:
        """Return the view of a CuPy array."""
        dtype = self._dtypes.get(array.dtype)
        if dtype is None:
            dtype = self._dtypes[array.dtype] = dtype_of(array.dtype, argument)
        itemsize = dtype.itemsize
        strides = tuple([s // itemsize for s in array.strides])
        return ArrayView(array.data.ptr, array.shape, strides, dtype, array.data.device_id)

    def signature(self, array: Any) -> tuple[Any, ...]:
        """Return shape, strides in bytes, type and device number."""
        return array.shape, array.strides, array.dtype, array.data.device_id

    def identify(
        self, mat_a: Any, mat_b: Any, offs: Any
    ) -> tuple[Any, tuple[int, int, int]] | None:
        """Return signatures and addresses."""
        kind = type(mat_a)
        if type(mat_b) is not kind or type(offs) is not kind:
            return None
        memory_a, memory_b, memory_offs = mat_a.data, mat_b.data, offs.data
        pointer_a = memory_a.ptr
        pointer_b = memory_b.ptr
        return (
            mat_a.shape,
            mat_b.shape,
            offs.shape,
            mat_a.strides,
            mat_b.strides,
            offs.strides,
            mat_a.dtype,
            mat_b.dtype,
            offs.dtype,
            memory_a.device_id,
            memory_b.device_id,
            memory_offs.device_id,
            pointer_a & 15,
            pointer_b & 15,
        ), (pointer_a, pointer_b, memory_offs.ptr)

    #: The address of the first element; no function of ours, since it runs in every call.
    pointer = staticmethod(attrgetter("data.ptr"))  # type: ignore[assignment]

    def empty(self, shape: tuple[int, ...], dtype: DType, device: int) -> Any:
        """Return a new CuPy array from the current memory pool."""
        if cupy.cuda.runtime.getDevice() == device:
            return cupy.ndarray(shape, dtype.numpy)
        with cupy.cuda.Device(device):
            return cupy.ndarray(shape, dtype.numpy)

    def allocator(self, shape: tuple[int, ...], dtype: DType, device: int) -> Callable[[], Any]:
        """Return what makes arrays as `empty` does, always of one kind."""
        if cupy.cuda.runtime.getDeviceCount() != 1:
            return partial(self.empty, shape, dtype, device)
        # The one device there is, is the current one.
        if not _constructs_in_two_steps():
            return partial(cupy.ndarray, shape, dtype.numpy)
        new = cupy._core.core._ndarray_base.__new__
        # CuPy finds NumPy's own types by their classes quicker than by their dtypes.
        kind = dtype.numpy if dtype is BF16 else dtype.numpy.type
        return partial(_construct, new, cupy.ndarray, shape, kind)

    def current_stream(self, device: int) -> int:
        """Return the handle of CuPy's current stream."""
        return int(self._stream(device).ptr)

    def stream_reader(self, device: int) -> Callable[[], int]:
        """Return what reads the current stream as `current_stream` does, on one device."""
        stream = self._stream

        def read() -> int:
            return stream(device).ptr  # type: ignore[no-any-return]

        return read


def _construct(new: Any, array_type: type, shape: tuple[int, ...], dtype: Any) -> Any:
    """Return a new array in two thirds of the time of ``cupy.ndarray(shape, dtype)``.

    These are the two steps of ``cupy.ndarray.__new__`` in CuPy 14, without what handles arguments
    around them.
    """
    array = new(array_type)
    array._init(shape, dtype)
    return array


@cache
def _constructs_in_two_steps() -> bool:
    """Return whether `_construct`, which is internal to CuPy, makes what ``cupy.ndarray`` makes."""
    for shape, dtype in (((3, 5), np.float32), ((2, 3, 4), BF16.numpy)):
        try:
            new = cupy._core.core._ndarray_base.__new__
            made = _construct(new, cupy.ndarray, shape, dtype)
        except (AttributeError, TypeError):
            return False
        like = cupy.ndarray(shape, dtype)
        names = ("shape", "strides", "dtype", "size", "nbytes", "base")
        if type(made) is not cupy.ndarray or not made.flags.c_contiguous:
            return False
        if any(getattr(made, name) != getattr(like, name) for name in names):
            return False
    return True


register(cupy.ndarray, CupyFrontend())
