"""What a cubin says of itself: an ELF reader of the few fields that matter here.

A cubin is an ELF64 file of machine 190. ``.nv.info`` and ``.nv.info.<kernel>`` are lists of
attributes: a format byte, a kind byte, then two bytes of value or of length.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

__all__ = ["ElfKernel", "arch_number", "is_cubin", "read_kernels"]

_MACHINE_CUDA = 190
_FORMAT_SIZED = 4  # attribute format: two bytes of length, then the value
_KIND_MAX_THREADS = 0x05
_KIND_FRAME_BYTES = 0x11
_KIND_REGISTERS = 0x2F


@dataclass(frozen=True, slots=True)
class ElfKernel:
    """One kernel of a cubin.

    Attributes
    ----------
    registers : int
        Registers of a thread.
    frame_bytes : int
        Stack frame in bytes; more than 0 means spills or arrays in local memory.
    max_threads : int
        Threads of a block that it was compiled for (launch bounds); 1024 when it has none.
    """

    registers: int
    frame_bytes: int
    max_threads: int


@dataclass(frozen=True, slots=True)
class _Section:
    name: str
    data: bytes
    link: int


def is_cubin(image: bytes) -> bool:
    """Return whether an image is an ELF file for a GPU."""
    return (
        len(image) >= 64
        and image[:5] == b"\x7fELF\x02"
        and int.from_bytes(image[18:20], "little") == _MACHINE_CUDA
    )


def arch_number(image: bytes) -> int:
    """Return the architecture number of a cubin: 90 for ``sm_90`` and for ``sm_90a``.

    Raises
    ------
    ValueError
        If the image is not a cubin.
    """
    if not is_cubin(image):
        raise ValueError("expected a cubin; got something else")
    return int.from_bytes(image[48:52], "little") >> 8 & 0xFF


def read_kernels(image: bytes) -> dict[str, ElfKernel]:
    """Return the kernels of a cubin by name.

    Raises
    ------
    ValueError
        If the image is not a cubin, or is cut short.
    """
    if not is_cubin(image):
        raise ValueError("expected a cubin; got something else")
    try:
        return _read_kernels(image)
    except (struct.error, IndexError, KeyError, StopIteration) as error:
        raise ValueError(f"the cubin is damaged: {type(error).__name__}: {error}") from error


def _read_kernels(image: bytes) -> dict[str, ElfKernel]:
    sections = _sections(image)
    by_name = {section.name: section for section in sections}
    symbols = by_name[".symtab"]
    strings = sections[symbols.link].data
    names = [
        _text(strings, struct.unpack_from("<I", symbols.data, offset)[0])
        for offset in range(0, len(symbols.data), 24)
    ]
    registers: dict[str, int] = {}
    frames: dict[str, int] = {}
    for kind, value in _attributes(by_name[".nv.info"].data):
        if kind in (_KIND_REGISTERS, _KIND_FRAME_BYTES):
            symbol, number = struct.unpack("<II", value)
            (registers if kind == _KIND_REGISTERS else frames)[names[symbol]] = number
    kernels = {}
    prefix = ".nv.constant0."  # only kernels have parameters, hence this section
    for section in sections:
        if not section.name.startswith(prefix):
            continue
        name = section.name[len(prefix) :]
        threads = [
            prod(struct.unpack("<3I", value))
            for kind, value in _attributes(by_name[f".nv.info.{name}"].data)
            if kind == _KIND_MAX_THREADS
        ]
        kernels[name] = ElfKernel(registers[name], frames.get(name, 0), *(threads or [1024]))
    return kernels


def _sections(image: bytes) -> list[_Section]:
    segments, table = struct.unpack_from("<QQ", image, 32)
    segment_bytes, num_segments, entry_bytes, count, names_idx = struct.unpack_from(
        "<HHHHH", image, 54
    )
    if segments + num_segments * segment_bytes > len(image):
        raise IndexError("the table of segments ends beyond the file")
    headers = [
        struct.unpack_from("<IIQQQQIIQQ", image, table + i * entry_bytes) for i in range(count)
    ]

    def body(header: tuple[int, ...]) -> bytes:
        kind, offset, size = header[1], header[4], header[5]
        if kind == 8:  # occupies no space in the file
            return b""
        if offset + size > len(image):
            raise IndexError("a section ends beyond the file")
        return image[offset : offset + size]

    names = body(headers[names_idx])
    return [_Section(_text(names, header[0]), body(header), header[6]) for header in headers]


def _text(strings: bytes, offset: int) -> str:
    return strings[offset : strings.index(0, offset)].decode()


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    offset = 0
    while offset < len(data):
        form, kind, short = struct.unpack_from("<BBH", data, offset)
        size = short if form == _FORMAT_SIZED else 0
        yield kind, data[offset + 4 : offset + 4 + size]
        offset += 4 + size
