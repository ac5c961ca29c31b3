"""CuPy arrays. Imported when the first one appears."""

from __future__ import annotations

from typing import Any, ClassVar

import cupy

from gemmjit.arrays import ArrayView, Frontend, register
from gemmjit.dtypes import DType, dtype_of

__all__ = ["CupyFrontend"]


class CupyFrontend(Frontend):
    """CuPy arrays on the current stream of their device."""

    name: ClassVar = "cupy"

    def __init__(self) -> None:
        self._dtypes: dict[Any, DType] = {}

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

    def pointer(self, array: Any) -> int:
        """Return the address of the first element."""
        return int(array.data.ptr)

    def empty(self, shape: tuple[int, ...], dtype: DType, device: int) -> Any:
        """Return a new CuPy array from the current memory pool."""
        if cupy.cuda.runtime.getDevice() == device:
            return cupy.empty(shape, dtype.numpy)
        with cupy.cuda.Device(device):
            return cupy.empty(shape, dtype.numpy)

    def current_stream(self, device: int) -> int:
        """Return the handle of CuPy's current stream."""
        return int(cupy.cuda.get_current_stream(device).ptr)


register(cupy.ndarray, CupyFrontend())
