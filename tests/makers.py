"""Arrays of every framework in every memory layout, with known bytes around their elements.

An operand is written into a flat buffer whose other elements hold poison, uploaded whole, and
viewed with the layout's strides. So a kernel that reads beside its operand meets NaN, one that
writes beside its result is seen, and no framework's own strided copies are trusted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.lib.stride_tricks import as_strided

NUMPY_DTYPES = {
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
    "float32": np.dtype(np.float32),
    "int32": np.dtype(np.int32),
    "int64": np.dtype(np.int64),
}
_BITS = {2: np.dtype(np.int16), 4: np.dtype(np.int32), 8: np.dtype(np.int64)}
_GUARD = 128  # elements on both sides of an operand; keeps any alignment


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How an operand lies in its buffer; numbers in elements."""

    name: str
    swapped: bool = False  # the last two axes change places in memory
    outer_swapped: bool = False  # 3D: the first two axes change places in memory
    pad: int = 0  # after each line of the fastest axis
    step: int = 1  # stride of the fastest axis
    offset: int = 0  # of the first element from the 256-byte grid
    reversed_axis: int | None = None
    expanded_axis: int | None = None
    unit_stride: int | None = None  # stride of axes of length 1

    def strides(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Strides in elements, all positive (or 0)."""
        axes = list(range(len(shape)))
        if self.swapped:
            axes[-1], axes[-2] = axes[-2], axes[-1]
        if self.outer_swapped:
            axes[0], axes[1] = axes[1], axes[0]
        strides = [0] * len(shape)
        step = self.step
        for axis in reversed(axes):
            if axis != _axis(self.expanded_axis, shape):
                strides[axis] = step
                step *= max(shape[axis], 1)
            if axis == axes[-1]:
                step += self.pad
        if self.unit_stride is not None:
            strides = [
                self.unit_stride if n == 1 else s for n, s in zip(shape, strides, strict=True)
            ]
        return tuple(strides)


def _axis(axis: int | None, shape: tuple[int, ...]) -> int | None:
    return None if axis is None else axis % len(shape)


PLAIN = Layout(name="plain")
SWAPPED = Layout(name="swapped", swapped=True)
PADDED = Layout(name="padded", pad=8)
ODD_PAD = Layout(name="odd_pad", pad=3)
MISALIGNED = Layout(name="misaligned", offset=1)
HALF_ALIGNED = Layout(name="half_aligned", offset=4)
STEPPED = Layout(name="stepped", step=2)
SWAPPED_ODD = Layout(name="swapped_odd", swapped=True, pad=1, offset=3)
REVERSED_ROWS = Layout(name="reversed_rows", reversed_axis=-2)
REVERSED_COLUMNS = Layout(name="reversed_columns", reversed_axis=-1)
EXPANDED_OUTER = Layout(name="expanded_outer", expanded_axis=0)
EXPANDED_INNER = Layout(name="expanded_inner", expanded_axis=-1)
OUTER_SWAPPED = Layout(name="outer_swapped", outer_swapped=True)  # 3D only

#: Layouts that an operand may have; a result must not be expanded.
LAYOUTS = (
    PLAIN, SWAPPED, PADDED, ODD_PAD, MISALIGNED, HALF_ALIGNED, STEPPED, SWAPPED_ODD,
    REVERSED_ROWS, REVERSED_COLUMNS, EXPANDED_OUTER, EXPANDED_INNER,
)  # fmt: skip


class Placed:
    """An array inside a buffer of poison.

    Attributes
    ----------
    array : array
        What to pass.
    """

    def __init__(
        self, maker: Maker, values: np.ndarray, dtype: str, layout: Layout, poison: float
    ) -> None:
        shape = values.shape
        strides = layout.strides(shape)
        itemsize = NUMPY_DTYPES[dtype].itemsize
        reach = sum((n - 1) * s for n, s in zip(shape, strides, strict=True) if n > 0)
        self._start = maker.guard + layout.offset
        self._before = np.full(self._start + reach + 1 + maker.guard, poison).astype(
            NUMPY_DTYPES[dtype]
        )
        self._shape, self._strides = shape, tuple(s * itemsize for s in strides)
        self._reversed = _axis(layout.reversed_axis, shape)
        target, source = self._view(self._before), np.asarray(values, np.float64)
        if layout.expanded_axis is not None:  # its elements are one and the same
            first = tuple(
                slice(1) if axis == _axis(layout.expanded_axis, shape) else slice(None)
                for axis in range(len(shape))
            )
            target, source = target[first], source[first]
        if values.size:
            target[...] = source.astype(target.dtype)
        self._maker = maker
        self._flat = maker.upload(self._before)
        self.array = maker.strided(self._flat, shape, strides, self._start, self._reversed)

    def _view(self, flat: np.ndarray) -> np.ndarray:
        view = as_strided(flat[self._start :], self._shape, self._strides)
        return view if self._reversed is None else np.flip(view, self._reversed)

    def read(self) -> np.ndarray:
        """Return the elements as they are now, in float64."""
        return self._view(self._maker.download(self._flat)).astype(np.float64)

    def raw(self) -> np.ndarray:
        """Return every byte of the buffer as it is now, elements and poison."""
        return self._maker.download(self._flat).view(np.uint8)

    def assert_only_elements_changed(self) -> None:
        """Fail if a byte of the buffer that belongs to no element is not what it was."""
        inside = np.zeros(self._before.size, bool)
        self._view_of_mask(inside)[...] = True
        self._compare(~inside)

    def assert_unchanged(self) -> None:
        """Fail if any byte of the buffer, elements included, is not what it was."""
        self._compare(np.ones(self._before.size, bool))

    def _view_of_mask(self, mask: np.ndarray) -> np.ndarray:
        itemsize = self._before.itemsize
        return as_strided(mask[self._start :], self._shape, [s // itemsize for s in self._strides])

    def _compare(self, where: np.ndarray) -> None:
        now = self._maker.download(self._flat)
        changed = np.flatnonzero((_bits(now) != _bits(self._before)) & where)
        assert changed.size == 0, (
            f"{changed.size} elements changed that must not; the first lies "
            f"{int(changed[0]) - self._start} elements from the array's start"
        )


def _bits(array: np.ndarray) -> np.ndarray:
    return array.view(_BITS[array.dtype.itemsize])


class Maker:
    """One array framework on one kind of device."""

    name: str
    on_gpu: bool = False
    has_negative_strides: bool = True
    guard: int = _GUARD  # 0: what is placed ends where its last element does

    def upload(self, flat: np.ndarray) -> Any:
        """Return a one-dimensional array with these elements."""
        raise NotImplementedError

    def download(self, array: Any) -> np.ndarray:
        """Return a C-contiguous array as a NumPy array of its own."""
        raise NotImplementedError

    def strided(
        self,
        flat: Any,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        start: int,
        reversed_axis: int | None,
    ) -> Any:
        """Return a view of `flat`; strides and start in elements."""
        raise NotImplementedError

    def full(self, shape: tuple[int, ...], value: float, dtype: str) -> Any:
        """Return a C-contiguous array of one value."""
        return self.array(np.full(shape, value), dtype)

    def array(self, values: np.ndarray, dtype: str) -> Any:
        """Return a C-contiguous array of its own."""
        values = np.asarray(values)
        flat = self.upload(values.astype(NUMPY_DTYPES[dtype]).reshape(-1))
        return flat.reshape(values.shape)

    def place(
        self,
        values: np.ndarray,
        dtype: str,
        layout: Layout = PLAIN,
        poison: float = float("nan"),
    ) -> Placed:
        """Return an array in the given layout, surrounded by poison."""
        return Placed(self, values, dtype, layout, poison)

    def read(self, array: Any) -> np.ndarray:
        """Return a C-contiguous array's elements in float64."""
        return self.download(array).astype(np.float64)

    def owns(self, array: Any) -> bool:
        """Return whether an array belongs to this framework and device."""
        raise NotImplementedError

    def dtype_name(self, array: Any) -> str:
        """Return the canonical name of an array's element type."""
        return str(array.dtype).removeprefix("torch.")

    def poison_pool(self, shape: tuple[int, ...], dtype: str) -> None:
        """Leave NaN in the memory that the next allocation of this size is likely to get."""
        for _ in range(3):
            poisoned = self.full(shape, float("nan"), dtype)
            del poisoned


class NumpyMaker(Maker):
    """NumPy arrays."""

    name = "numpy"

    def upload(self, flat: np.ndarray) -> np.ndarray:
        raw = np.empty(flat.nbytes + 256, np.uint8)
        shift = -raw.ctypes.data % 256
        aligned = raw[shift : shift + flat.nbytes].view(flat.dtype)
        aligned[...] = flat
        return aligned

    def download(self, array: np.ndarray) -> np.ndarray:
        assert array.flags.c_contiguous
        return array.copy()

    def strided(self, flat, shape, strides, start, reversed_axis):
        view = as_strided(flat[start:], shape, [s * flat.itemsize for s in strides])
        return view if reversed_axis is None else np.flip(view, reversed_axis)

    def owns(self, array: Any) -> bool:
        return type(array) is np.ndarray


class TorchMaker(Maker):
    """torch tensors on the CPU or on a CUDA device."""

    has_negative_strides = False

    def __init__(self, device: str) -> None:
        import torch

        self.torch = torch
        self.device = torch.device(device)
        self.on_gpu = self.device.type == "cuda"
        self.name = "torch" if self.on_gpu else "torch_cpu"

    def upload(self, flat: np.ndarray) -> Any:
        bits = self.torch.from_numpy(_bits(flat).copy()).to(self.device)
        return bits.view(getattr(self.torch, flat.dtype.name))

    def download(self, array: Any) -> np.ndarray:
        assert array.is_contiguous()
        dtype = NUMPY_DTYPES[self.dtype_name(array)]
        bits = array.detach().view(getattr(self.torch, _BITS[dtype.itemsize].name))
        return bits.cpu().numpy().copy().view(dtype)

    def strided(self, flat, shape, strides, start, reversed_axis):
        assert reversed_axis is None, "torch has no negative strides"
        return self.torch.as_strided(flat, shape, strides, start)

    def owns(self, array: Any) -> bool:
        return type(array) is self.torch.Tensor and array.device.type == self.device.type


class CupyMaker(Maker):
    """CuPy arrays on the current device."""

    name = "cupy"
    on_gpu = True

    def __init__(self) -> None:
        import cupy

        self.cupy = cupy

    def upload(self, flat: np.ndarray) -> Any:
        return self.cupy.asarray(_bits(flat)).view(flat.dtype)

    def download(self, array: Any) -> np.ndarray:
        assert array.flags.c_contiguous
        dtype = np.dtype(array.dtype)
        return array.view(_BITS[dtype.itemsize]).get().view(dtype)

    def strided(self, flat, shape, strides, start, reversed_axis):
        byte_strides = [s * flat.itemsize for s in strides]
        view = self.cupy.lib.stride_tricks.as_strided(flat[start:], shape, byte_strides)
        if reversed_axis is None:
            return view
        index: list[slice] = [slice(None)] * len(shape)
        index[reversed_axis] = slice(None, None, -1)
        return view[tuple(index)]

    def owns(self, array: Any) -> bool:
        return type(array) is self.cupy.ndarray
