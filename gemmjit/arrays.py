"""Any array as one view: pointer, shape, strides, type, device. And the frameworks that make them.

A `Frontend` knows one array framework. NumPy's lives here, the others register themselves when an
array of theirs first appears, so that nothing is imported that the caller has not imported already.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, ClassVar, NamedTuple

import numpy as np

from gemmjit.dtypes import DType, dtype_of
from gemmjit.errors import InvalidDtypeError, InvalidProblemError

__all__ = [
    "CPU",
    "FRONTENDS",
    "ArrayView",
    "Frontend",
    "contiguous_strides",
    "frontend_of",
    "register",
]

#: Device number of host memory.
CPU = -1


class ArrayView(NamedTuple):
    """What a kernel needs to know of an array.

    Attributes
    ----------
    pointer : int
        Address of the first element; 0 is possible for an array without elements.
    shape, strides : tuple of int
        Strides in elements.
    dtype : DType
    device : int
        CUDA device number, or `CPU`.
    """

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType
    device: int

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    def byte_range(self) -> tuple[int, int]:
        """Return the first byte and the byte past the last that the elements can touch."""
        if 0 in self.shape:
            return self.pointer, self.pointer
        low = high = 0
        for size, stride in zip(self.shape, self.strides, strict=True):
            reach = (size - 1) * stride
            low += min(reach, 0)
            high += max(reach, 0)
        itemsize = self.dtype.itemsize
        return self.pointer + low * itemsize, self.pointer + (high + 1) * itemsize


@lru_cache(maxsize=4096)
def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides, in elements, of a C-contiguous array."""
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


class Frontend(ABC):
    """One array framework.

    Attributes
    ----------
    name : str
        As it appears in messages.
    """

    name: ClassVar[str]

    @abstractmethod
    def view(self, array: Any, argument: str = "array") -> ArrayView:
        """Return the view of an array, which messages call `argument`; never copies or waits."""

    @abstractmethod
    def signature(self, array: Any) -> tuple[Any, ...]:
        """Return shape, strides, type and device as the framework spells them.

        Equal signatures mean equal views but for the pointer. The last element is the device
        number.
        """

    @abstractmethod
    def pointer(self, array: Any) -> int:
        """Return the address of the first element."""

    def identify(
        self, mat_a: Any, mat_b: Any, offs: Any
    ) -> tuple[Any, tuple[int, int, int]] | None:
        """Return what a call's operands have in common with those of a call that ran before.

        This is on the path of every call, so it is one method: a framework answers it with as few
        steps of the interpreter as it can.

        Returns
        -------
        tuple or None
            What stands for the signatures of the three arrays with the alignment of the first two,
            which decide how the call runs; and the three addresses, which do not. None if these
            arrays need a closer look at every call, or one is not of this framework.
        """
        return None

    @abstractmethod
    def empty(self, shape: tuple[int, ...], dtype: DType, device: int) -> Any:
        """Return a new C-contiguous array on the framework's current stream."""

    def allocator(self, shape: tuple[int, ...], dtype: DType, device: int) -> Callable[[], Any]:
        """Return what makes arrays as `empty` does, always of one kind."""
        return partial(self.empty, shape, dtype, device)

    @abstractmethod
    def current_stream(self, device: int) -> int:
        """Return the handle of the framework's current stream on a device."""

    def stream_reader(self, device: int) -> Callable[[], int]:
        """Return what reads the current stream as `current_stream` does, on one device."""
        return partial(self.current_stream, device)

    def check_writable(self, array: Any, argument: str) -> None:  # noqa: B027
        """Raise if the array's memory must not be written."""

    def check_differentiable(self, array: Any, argument: str) -> None:  # noqa: B027
        """Raise if the array asks for a gradient that the call would not record."""

    def operator(self, arrays: tuple[Any, ...]) -> Callable[..., Any] | None:
        """Return what runs `grouped_mm` for arrays that the framework itself has a say in.

        Parameters
        ----------
        arrays : tuple
            The array arguments of a call; some may be None, or of another kind.

        Returns
        -------
        callable or None
            It takes the arguments of the call. None if nothing is to be recorded or traced.
        """
        return None

    def for_subclass(self) -> Frontend:
        """Return the frontend for arrays of a subclass of what this one serves."""
        return self

    def requires_grad(self, array: Any) -> bool:
        """Return whether the array may ask for a gradient; cheap."""
        return False


class NumpyFrontend(Frontend):
    """NumPy arrays in host memory."""

    name: ClassVar = "numpy"

    def view(self, array: Any, argument: str = "array") -> ArrayView:
        """Return the view of a NumPy array."""
        if isinstance(array, np.ma.MaskedArray):
            raise InvalidDtypeError(
                f"{argument}: expected an array without a mask, which would be ignored; "
                "got a masked one. Fill it, as with array.filled(0)"
            )
        dtype = dtype_of(array.dtype, argument)
        itemsize = dtype.itemsize
        if array.size and array.ctypes.data % itemsize:
            raise InvalidDtypeError(
                f"{argument}: expected its first element on a multiple of {itemsize} bytes; "
                f"got address {array.ctypes.data:#x}. Copy it with array.copy()"
            )
        if any(s % itemsize for s in array.strides):
            raise InvalidDtypeError(
                f"{argument}: expected strides in whole elements of {itemsize} bytes; "
                f"got {array.strides} bytes. Copy it with numpy.ascontiguousarray"
            )
        strides = tuple(s // itemsize for s in array.strides)
        return ArrayView(array.ctypes.data, array.shape, strides, dtype, CPU)

    def check_writable(self, array: Any, argument: str) -> None:
        """Raise for a read-only array: kernels write past NumPy's flag."""
        if not array.flags.writeable:
            raise InvalidProblemError(
                f"{argument}: expected an array that can be written; got a read-only one. "
                "Pass a copy of it"
            )

    def signature(self, array: Any) -> tuple[Any, ...]:
        """Return shape, strides in bytes, type and `CPU`."""
        return array.shape, array.strides, array.dtype, CPU

    def pointer(self, array: Any) -> int:
        """Return the address of the first element."""
        return int(array.ctypes.data)

    def empty(self, shape: tuple[int, ...], dtype: DType, device: int) -> Any:
        """Return a new NumPy array."""
        return np.empty(shape, dtype.numpy)

    def current_stream(self, device: int) -> int:
        """Return 0: host code has no streams."""
        return 0


#: The frontend of each type of array that has been seen; what `frontend_of` looks up first.
FRONTENDS: dict[type, Frontend] = {np.ndarray: NumpyFrontend()}
_MODULES = {"cupy": "gemmjit.cuda.cupy_arrays", "torch": "gemmjit.integrations.torch"}


def register(array_type: type, frontend: Frontend) -> None:
    """Let `frontend` serve arrays of a type."""
    FRONTENDS[array_type] = frontend


def frontend_of(array: Any, argument: str) -> Frontend:
    """Return the framework that an array belongs to.

    Parameters
    ----------
    array : numpy.ndarray, cupy.ndarray or torch.Tensor
    argument : str
        Its name in the call, for the message.

    Raises
    ------
    InvalidDtypeError
        If the type is not an array that gemmjit knows.
    """
    found = FRONTENDS.get(type(array))
    return found if found is not None else _find(array, argument)


def _find(array: Any, argument: str) -> Frontend:
    for base in type(array).__mro__:
        root = base.__module__.partition(".")[0]
        if base not in FRONTENDS and root in _MODULES:
            importlib.import_module(_MODULES[root])
        if base in FRONTENDS:
            found = FRONTENDS[base]
            FRONTENDS[type(array)] = found if base is type(array) else found.for_subclass()
            return FRONTENDS[type(array)]
    kind = f"{type(array).__module__}.{type(array).__qualname__}"
    if kind.startswith("jax"):  # arrays and tracers, of jax and jaxlib
        raise InvalidDtypeError(
            f"{argument}: expected a NumPy, CuPy or torch array; got {kind}. "
            "Call gemmjit.integrations.jax.ragged_dot"
        )
    if isinstance(array, list | tuple | int | float):
        raise InvalidDtypeError(
            f"{argument}: expected a NumPy, CuPy or torch array; got a {type(array).__name__}. "
            "Make an array of it, with numpy.asarray, cupy.asarray or torch.as_tensor, of the "
            "element type that it is to have"
        )
    raise InvalidDtypeError(
        f"{argument}: expected a NumPy, CuPy or torch array; got {kind}. "
        "Convert it without a copy through DLPack: cupy.from_dlpack or torch.from_dlpack"
    )
