"""Device-side printf: the format string and the packed arguments of `vprintf`."""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING

from gemmjit.emulator.memory import LOCAL_WINDOW

if TYPE_CHECKING:
    from gemmjit.emulator.grid import Grid

__all__ = ["print_formatted"]

_CONVERSION = re.compile(
    r"%([-+ #0]*)(\*|\d+)?(?:\.(\*|\d+))?(hh|h|ll|l|z|j|t)?([diouxXcsfFeEgGaAp%])"
)


def print_formatted(grid: Grid, lane: int, text: int, arguments: int) -> str:
    """Return what one thread prints.

    Parameters
    ----------
    grid : Grid
        The launch.
    lane : int
        Flat lane index.
    text : int
        Generic address of the format string.
    arguments : int
        Generic address of the packed arguments, each aligned to its size; 0 without arguments.
    """
    memory = grid.machine.memory
    offset = arguments - LOCAL_WINDOW

    def take(size: int, code: str) -> int | float:
        nonlocal offset
        offset = -(-offset // size) * size
        if 0 <= offset < grid.local_stride:
            start = lane * grid.local_stride + offset
            raw = grid.local.data[start : start + size].tobytes()
        else:
            raw = memory.bytes_at(offset + LOCAL_WINDOW, size).tobytes()
        offset += size
        value: int | float = struct.unpack("<" + code, raw)[0]
        return value

    def convert(match: re.Match[str]) -> str:
        flags, width, precision, length, kind = match.groups()
        if kind == "%":
            return "%"
        width = str(take(4, "i")) if width == "*" else width or ""
        precision = str(take(4, "i")) if precision == "*" else precision
        spec = "%" + flags + width + (f".{precision}" if precision is not None else "")
        if kind in "fFeEgG":
            return (spec + kind) % take(8, "d")
        if kind in "aA":
            return float(take(8, "d")).hex()
        if kind == "s":
            return (spec + "s") % memory.string_at(int(take(8, "Q")))
        if kind == "p":
            return f"{take(8, 'Q'):#x}"
        if kind == "c":
            return (spec + "c") % (int(take(4, "i")) & 0xFF)
        wide = length in ("ll", "l", "z", "j", "t")
        signed = kind in "di"
        code = ("q" if signed else "Q") if wide else ("i" if signed else "I")
        return (spec + ("d" if kind in "diu" else kind)) % take(8 if wide else 4, code)

    return _CONVERSION.sub(convert, memory.string_at(text))
