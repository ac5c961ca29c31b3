"""Functions of Python as handlers of XLA's foreign function interface: its C structures in ctypes.

The structures are those of ``xla/ffi/api/c_api.h``, which jaxlib ships. Within major version 0 of
that interface fields are only ever added behind the others, and each structure says how long it is.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from ctypes import POINTER, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint32, c_void_p
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import jax

from gemmjit.arrays import ArrayView, contiguous_strides
from gemmjit.dtypes import BF16, F16, F32, I32, I64, DType
from gemmjit.errors import GemmjitError, InvalidDtypeError, LaunchError

__all__ = ["Call", "Handler", "handler", "register"]

_MAJOR = 0
_EXECUTE, _METADATA = 3, 1
_INVALID_ARGUMENT, _INTERNAL = 3, 13
_STRING = 4
#: Numbers of ``XLA_FFI_DataType``.
_DTYPES = {10: F16, 11: F32, 16: BF16, 4: I32, 5: I64}


class _Struct(ctypes.Structure):
    """A structure that begins with its length and a pointer to extensions."""

    _fields_: ClassVar = [("struct_size", c_size_t), ("extension", c_void_p)]


class _Version(_Struct):
    _fields_: ClassVar = [("major", c_int), ("minor", c_int)]


class _Buffer(_Struct):
    _fields_: ClassVar = [
        ("dtype", c_int),
        ("data", c_void_p),
        ("rank", c_int64),
        ("dims", POINTER(c_int64)),
    ]


class _Arrays(_Struct):
    """Arguments, or results."""

    _fields_: ClassVar = [
        ("size", c_int64),
        ("types", POINTER(c_int)),
        ("values", POINTER(POINTER(_Buffer))),
    ]


class _Span(ctypes.Structure):
    _fields_: ClassVar = [("pointer", c_void_p), ("length", c_size_t)]

    def text(self) -> str:
        """Return what the span covers."""
        return ctypes.string_at(self.pointer, self.length).decode()


class _Attributes(_Struct):
    _fields_: ClassVar = [
        ("size", c_int64),
        ("types", POINTER(c_int)),
        ("names", POINTER(POINTER(_Span))),
        ("values", POINTER(c_void_p)),
    ]


_FUNCTIONS = (
    "error_create", "error_get_message", "error_destroy", "handler_register", "stream_get",
    "type_register", "context_get", "state_set", "state_get", "memory_allocate", "memory_free",
    "pool_schedule", "pool_num_threads", "future_create", "future_set_available",
    "future_set_error", "run_id_get", "device_ordinal_get",
)  # fmt: skip


class _Api(_Struct):
    _fields_: ClassVar = [
        ("version", _Version),
        ("internal", c_void_p),
        *((name, c_void_p) for name in _FUNCTIONS),
    ]


class _Frame(_Struct):
    _fields_: ClassVar = [
        ("api", POINTER(_Api)),
        ("context", c_void_p),
        ("stage", c_int),
        ("arguments", _Arrays),
        ("results", _Arrays),
        ("attributes", _Attributes),
        ("future", c_void_p),
    ]


class _Metadata(ctypes.Structure):
    _fields_: ClassVar = [
        ("struct_size", c_size_t),
        ("version", _Version),
        ("traits", c_uint32),  # and more behind it, which XLA fills in itself
    ]


class _Extension(ctypes.Structure):
    _fields_: ClassVar = [
        ("struct_size", c_size_t),
        ("type", c_int),
        ("next", c_void_p),
        ("metadata", POINTER(_Metadata)),
    ]


class _ErrorCreate(_Struct):
    _fields_: ClassVar = [("message", c_char_p), ("code", c_int)]


class _ErrorMessage(_Struct):
    _fields_: ClassVar = [("error", c_void_p), ("message", c_char_p)]


class _ErrorDestroy(_Struct):
    _fields_: ClassVar = [("error", c_void_p)]


class _StreamGet(_Struct):
    _fields_: ClassVar = [("context", c_void_p), ("stream", c_void_p)]


class _DeviceGet(_Struct):
    _fields_: ClassVar = [("context", c_void_p), ("ordinal", c_int32)]


class _MemoryAllocate(_Struct):
    _fields_: ClassVar = [
        ("context", c_void_p),
        ("size", c_size_t),
        ("alignment", c_size_t),
        ("data", c_void_p),
    ]


class _MemoryFree(_Struct):
    _fields_: ClassVar = [
        ("context", c_void_p),
        ("size", c_size_t),
        ("data", c_void_p),
    ]


#: The type of a handler, and of every function of the interface: it takes one structure.
Handler = ctypes.CFUNCTYPE(c_void_p, c_void_p)


class Block(NamedTuple):
    """Memory that belongs to one call."""

    address: int
    nbytes: int


class Call:
    """One call of a handler: its arrays, its attributes, and what XLA offers meanwhile.

    Nothing of it may be used after the handler has returned.
    """

    def __init__(self, frame: _Frame) -> None:
        self._api = frame.api.contents
        self._frame = frame

    def arguments(self, device: int) -> list[ArrayView]:
        """Return the arrays to read, C-contiguous, as ones of a device."""
        return _views(self._frame.arguments, device)

    def result(self, device: int) -> ArrayView:
        """Return the array to write, C-contiguous."""
        (only,) = _views(self._frame.results, device)
        return only

    def attribute(self, name: str) -> str:
        """Return an attribute that is a text."""
        given = self._frame.attributes
        for i in range(given.size):
            if given.names[i].contents.text() == name and given.types[i] == _STRING:
                return _Span.from_address(given.values[i]).text()
        raise LaunchError(f"{name}: expected a text among the attributes of the call; got none")

    def stream(self) -> int:
        """Return the handle of the CUDA stream that the call belongs to."""
        asked = _StreamGet(ctypes.sizeof(_StreamGet), None, self._frame.context)
        self._ask("stream_get", asked)
        return asked.stream or 0

    def device(self) -> int:
        """Return the number of the CUDA device that the call runs on."""
        asked = _DeviceGet(ctypes.sizeof(_DeviceGet), None, self._frame.context)
        self._ask("device_ordinal_get", asked)
        return int(asked.ordinal)

    def allocate(self, nbytes: int, alignment: int = 256) -> Block:
        """Return device memory, to be freed before the handler returns; in order of the stream."""
        asked = _MemoryAllocate(
            ctypes.sizeof(_MemoryAllocate), None, self._frame.context, nbytes, alignment
        )
        self._ask("memory_allocate", asked)
        return Block(asked.data or 0, nbytes)

    def free(self, block: Block) -> None:
        """Give memory back."""
        asked = _MemoryFree(
            ctypes.sizeof(_MemoryFree), None, self._frame.context, block.nbytes, block.address
        )
        self._ask("memory_free", asked)

    def error(self, raised: BaseException) -> int:
        """Return XLA's error for an exception."""
        code = _INVALID_ARGUMENT if isinstance(raised, GemmjitError) else _INTERNAL
        text = f"{type(raised).__name__}: {raised}".encode()
        return self._call(
            "error_create", _ErrorCreate(ctypes.sizeof(_ErrorCreate), None, text, code)
        )

    def _call(self, name: str, structure: _Struct) -> int:
        if self._api.struct_size < getattr(_Api, name).offset + ctypes.sizeof(c_void_p):
            raise LaunchError(
                f"jaxlib: expected an interface with {name}; this one is too old. "
                "Install a newer jax"
            )
        return Handler(getattr(self._api, name))(ctypes.addressof(structure)) or 0

    def _ask(self, name: str, structure: _Struct) -> None:
        error = self._call(name, structure)
        if error:
            told = _ErrorMessage(ctypes.sizeof(_ErrorMessage), None, error)
            self._call("error_get_message", told)
            text = (told.message or b"").decode(errors="replace")
            self._call("error_destroy", _ErrorDestroy(ctypes.sizeof(_ErrorDestroy), None, error))
            raise LaunchError(f"XLA refuses {name}: {text}")


def _views(arrays: _Arrays, device: int) -> list[ArrayView]:
    views = []
    for i in range(arrays.size):
        buffer = arrays.values[i].contents
        shape = tuple(buffer.dims[: buffer.rank])
        views.append(
            ArrayView(
                buffer.data or 0, shape, contiguous_strides(shape), _dtype(buffer.dtype), device
            )
        )
    return views


def _dtype(number: int) -> DType:
    found = _DTYPES.get(number)
    if found is None:
        names = ", ".join(dtype.name for dtype in _DTYPES.values())
        raise InvalidDtypeError(f"array: expected one of {names}; got XLA's type {number}. Cast it")
    return found


def handler(function: Callable[[Call], None]) -> Any:
    """Return a C function that XLA can call, which runs one of Python.

    An exception becomes an error of XLA with its text. XLA may call from any thread.
    """
    minor = _minor_version()

    def run(address: int) -> int:
        frame = _Frame.from_address(address)
        if frame.extension:
            extension = _Extension.from_address(frame.extension)
            if extension.type == _METADATA:
                # Without traits: XLA then keeps the call out of its command buffers, in which
                # nothing could be compiled or loaded.
                version = extension.metadata.contents.version
                version.major, version.minor = _MAJOR, minor
                return 0
        if frame.stage != _EXECUTE:
            return 0
        call = Call(frame)
        try:
            function(call)
        except BaseException as raised:  # nothing may unwind into XLA
            return call.error(raised)
        return 0

    return Handler(run)


def _minor_version() -> int:
    """Return the minor version of jaxlib's own interface, which it surely accepts.

    Raises
    ------
    LaunchError
        If its major version is not the one whose structures these are.
    """
    header = Path(jax.ffi.include_dir(), "xla", "ffi", "api", "c_api.h").read_text()
    found = dict(re.findall(r"#define XLA_FFI_API_(MAJOR|MINOR) (\d+)", header))
    if int(found.get("MAJOR", -1)) != _MAJOR:
        raise LaunchError(
            f"jaxlib: expected version {_MAJOR} of XLA's foreign function interface; "
            f"got {found.get('MAJOR', 'none')}. Install the jax that the extra `jax` names"
        )
    return int(found.get("MINOR", 0))


def register(name: str, function: Any, platform: str) -> None:
    """Give XLA a handler under a name; it must live as long as the process."""
    address = ctypes.cast(function, c_void_p).value
    jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(address), platform=platform)
