"""Variable and parameter declarations of PTX (ISA chapters 5.1, 5.4 and 7.1)."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

from gemmjit.emulator.faults import PtxSyntaxError
from gemmjit.emulator.module import Register, Variable
from gemmjit.emulator.ptx_types import PTX_TYPES

__all__ = ["parse_parameters", "parse_variable"]

Failure = Callable[[str], PtxSyntaxError]

_QUALIFIER = re.compile(r"\s*\.(align\s+(\d+)|attribute\s*\([^)]*\)|ptr|[a-z]\w*)")
_DECLARATOR = re.compile(r"\s*([%\w$]+)\s*((?:\[[^\]]*\]\s*)*)(?:=\s*(.*))?$", re.S)
_SYMBOL = re.compile(r"(?:generic\()?\s*([A-Za-z_$][\w$]*)\s*\)?(?:\s*\+\s*(\d+))?$")


def parse_variable(text: str, extern: bool, fail: Failure) -> list[Variable]:
    """`.global .align 4 .u32 a[2] = {1, 2}`, also several comma-separated names.

    Parameters
    ----------
    text : str
        The declaration without linkage and semicolon.
    extern : bool
        Whether `.extern` stood before it.
    fail : callable
        Makes the exception for a message.
    """
    space, type_name, align, vector, rest = _qualifiers(text, fail)
    names = [rest] if "=" in rest or "{" in rest else rest.split(",")
    return [_declarator(name, space, type_name, align, vector, extern, fail) for name in names]


def parse_parameters(text: str, fail: Failure) -> list[Variable | Register]:
    """Return the parameter list of a function: `.param` variables or `.reg` registers."""
    found: list[Variable | Register] = []
    for item in text.split(","):
        item = item.strip()
        if item.startswith(".reg"):
            type_name, name = item.removeprefix(".reg").split()
            found.append(Register(name, type_name.lstrip(".")))
        elif item:
            found.extend(parse_variable(item, False, fail))
    return found


def _qualifiers(text: str, fail: Failure) -> tuple[str, str, int, int, str]:
    space, type_name, align, vector, position = "", "", 0, 1, 0
    pointer = False
    while match := _QUALIFIER.match(text, position):
        word = match[1]
        if word.startswith("align"):
            # After `.ptr` the alignment is that of the object pointed to.
            align = align if pointer else int(match[2])
        elif word == "ptr":
            pointer = True
        elif word in PTX_TYPES:
            type_name = word
        elif word in ("v2", "v4", "v8"):
            vector = int(word[1:])
        elif not space:
            space = word
        elif not pointer and not word.startswith("attribute"):
            raise fail(f"unknown qualifier .{word}")
        position = match.end()
    if type_name not in PTX_TYPES:
        raise fail("a variable needs a type")
    return space, type_name, align, vector, text[position:].strip()


def _declarator(
    text: str, space: str, type_name: str, align: int, vector: int, extern: bool, fail: Failure
) -> Variable:
    match = _DECLARATOR.match(text)
    if not match:
        raise fail("not a declarator")
    element = PTX_TYPES[type_name].nbytes
    count = vector
    initial = _initial(match[3], element, PTX_TYPES[type_name].kind == "f", fail)
    for dimension in re.findall(r"\[([^\]]*)\]", match[2]):
        if dimension.strip():
            count *= int(dimension, 0)
        else:
            count = len(initial)
    return Variable(
        match[1], space, type_name, count * element, align or element * vector, extern, initial
    )


def _initial(
    text: str | None, element: int, is_float: bool, fail: Failure
) -> tuple[tuple[int, int | tuple[str, int], int], ...]:
    if text is None:
        return ()
    items = text.replace("{", " ").replace("}", " ").split(",")
    return tuple(
        (index * element, _value(item.strip(), element, is_float, fail), element)
        for index, item in enumerate(items)
        if item.strip()
    )


def _value(text: str, element: int, is_float: bool, fail: Failure) -> int | tuple[str, int]:
    bits = re.match(r"0[fFdD]([0-9a-fA-F]+)$", text)
    if bits and len(bits[1]) == 2 * element:
        return int(bits[1], 16)
    try:
        number = int(text.rstrip("uU"), 0)
    except ValueError:
        number = None
    if number is not None and not is_float:
        return number & ((1 << (8 * element)) - 1)
    if is_float and re.match(r"-?[\d.]+(?:[eE][+-]?\d+)?$", text):
        return int.from_bytes(
            struct.pack("<" + {2: "e", 4: "f", 8: "d"}[element], float(text)), "little"
        )
    symbol = _SYMBOL.match(text)
    if not symbol:
        raise fail(f"initialiser {text!r} is not understood")
    return symbol[1], int(symbol[2] or 0)
