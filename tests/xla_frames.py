"""A call of XLA's foreign function interface as a handler finds it, made without XLA.

For what cannot run on the CPU's: a stream, a device number, memory of the device.
"""

from __future__ import annotations

import ctypes
from ctypes import addressof, c_int64, c_void_p, pointer, sizeof
from typing import Any

import numpy as np

from gemmjit.integrations import xla_ffi

_NUMBERS = {dtype.numpy: number for number, dtype in xla_ffi._DTYPES.items()}


class Frame:
    """One call, with an interface that counts what it is asked for.

    Parameters
    ----------
    arguments : list of numpy.ndarray
        Arrays in host memory that pass for ones of a device.
    result : numpy.ndarray
    attributes : dict
        Texts.
    stream, ordinal : int
        What the interface says.
    refuses : str
        Name of a function that gives an error.
    """

    def __init__(
        self,
        arguments: list[Any],
        result: Any,
        attributes: dict[str, str],
        *,
        stream: int = 0,
        ordinal: int = 0,
        refuses: str = "",
    ) -> None:
        self.errors: list[tuple[int, str]] = []
        self.held: dict[int, Any] = {}
        self.allocated = 0
        self._alive: list[Any] = []
        self._refuses = refuses
        self._answers = {"stream_get": stream, "device_ordinal_get": ordinal}
        self._api = xla_ffi._Api(struct_size=sizeof(xla_ffi._Api))
        for name in xla_ffi._FUNCTIONS:
            function = xla_ffi.Handler(lambda address, name=name: self._asked(name, address))
            self._alive.append(function)
            setattr(self._api, name, ctypes.cast(function, c_void_p).value)
        self._frame = xla_ffi._Frame(
            struct_size=sizeof(xla_ffi._Frame),
            api=pointer(self._api),
            context=0xC0FFEE,
            stage=3,
            arguments=self._arrays(arguments),
            results=self._arrays([result]),
            attributes=self._attributes(attributes),
        )

    def run(self, handler: Any) -> int:
        """Let a handler run; return the error that it gives, 0 for none."""
        return handler(addressof(self._frame)) or 0

    def _arrays(self, arrays: list[Any]) -> Any:
        buffers = []
        for array in arrays:
            dims = (c_int64 * array.ndim)(*array.shape)
            self._alive += [dims, array]
            buffers.append(
                pointer(
                    xla_ffi._Buffer(
                        struct_size=sizeof(xla_ffi._Buffer),
                        dtype=_NUMBERS[array.dtype],
                        data=array.ctypes.data,
                        rank=array.ndim,
                        dims=dims,
                    )
                )
            )
        values = (ctypes.POINTER(xla_ffi._Buffer) * len(buffers))(*buffers)
        self._alive += [buffers, values]
        return xla_ffi._Arrays(
            struct_size=sizeof(xla_ffi._Arrays), size=len(buffers), values=values
        )

    def _span(self, text: str) -> Any:
        raw = ctypes.create_string_buffer(text.encode())
        self._alive.append(raw)
        return pointer(xla_ffi._Span(addressof(raw), len(text)))

    def _attributes(self, attributes: dict[str, str]) -> Any:
        names = [self._span(name) for name in sorted(attributes)]
        texts = [self._span(attributes[name]) for name in sorted(attributes)]
        size = len(names)
        given = (ctypes.POINTER(xla_ffi._Span) * size)(*names)
        types = (ctypes.c_int * size)(*[4] * size)
        values = (c_void_p * size)(*[addressof(text.contents) for text in texts])
        self._alive += [names, texts, given, types, values]
        return xla_ffi._Attributes(
            struct_size=sizeof(xla_ffi._Attributes),
            size=size, types=types, names=given, values=values,
        )  # fmt: skip

    def _asked(self, name: str, address: int) -> int:
        if name == "error_create":
            told = xla_ffi._ErrorCreate.from_address(address)
            self.errors.append((told.code, told.message.decode()))
            return len(self.errors)
        if name == "error_get_message":
            xla_ffi._ErrorMessage.from_address(address).message = b"there is none left"
            return 0
        if name == self._refuses:
            return 77
        if name == "stream_get":
            asked = xla_ffi._StreamGet.from_address(address)
            assert asked.context == 0xC0FFEE
            asked.stream = self._answers[name]
        elif name == "device_ordinal_get":
            xla_ffi._DeviceGet.from_address(address).ordinal = self._answers[name]
        elif name == "memory_allocate":
            asked = xla_ffi._MemoryAllocate.from_address(address)
            block = np.zeros(asked.size + asked.alignment, np.uint8)
            asked.data = -(-block.ctypes.data // asked.alignment) * asked.alignment
            self.held[asked.data] = (asked.size, block)
            self.allocated += 1
        elif name == "memory_free":
            asked = xla_ffi._MemoryFree.from_address(address)
            size, _ = self.held.pop(asked.data)
            assert size == asked.size
        return 0
