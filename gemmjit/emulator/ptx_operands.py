"""Scopes of names, and the text of operands to :mod:`~gemmjit.emulator.module` objects."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

from gemmjit.emulator.faults import PtxSyntaxError
from gemmjit.emulator.module import (
    Address,
    Immediate,
    Label,
    Negated,
    Operand,
    Pair,
    Register,
    Sink,
    Special,
    Symbol,
    Variable,
    Vector,
)

__all__ = ["Scope", "parse_operands"]

Failure = Callable[[str], PtxSyntaxError]

_ITEM = re.compile(r"\s*(\[[^\]]*\]|\{[^}]*\}|\([^)]*\)|[^,]+?)\s*(?:,|$)")
_INTEGER = re.compile(r"(-?)(0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)[uU]?$")
_FLOAT_BITS = re.compile(r"0([fFdD])([0-9a-fA-F]+)$")
_DECIMAL = re.compile(r"-?\d*\.?\d+(?:[eE][+-]?\d+)?$|-?\d+\.$")
_OFFSET = re.compile(r"(.*?[\w$>])\s*([+-])\s*(-?\w+)$", re.S)
_NAME = re.compile(r"[A-Za-z_$%][\w$]*(?:\.[xyzw])?$")
_DECLARATION = re.compile(r"\.reg\s*(?:\.v[24]\s*)?\.(\w+)\s+(.*)", re.S)
_RANGE = re.compile(r"([%\w$]+?)<(\d+)>$")

_SPECIAL_PREFIXES = (
    "%tid", "%ntid", "%laneid", "%warpid", "%nwarpid", "%ctaid", "%nctaid", "%smid", "%nsmid",
    "%gridid", "%clusterid", "%nclusterid", "%cluster_", "%is_explicit_cluster", "%lanemask_",
    "%clock", "%pm", "%envreg", "%globaltimer", "%total_smem_size", "%dynamic_smem_size",
    "%aggr_smem_size", "%reserved_smem", "%current_graph_exec",
)  # fmt: skip


class Scope:
    """The names that a `{}` block declares, with a link to the block around it."""

    def __init__(self, parent: Scope | None = None) -> None:
        self.parent = parent
        self.registers: dict[str, Register] = {}
        self.ranges: dict[str, tuple[str, int]] = {}
        self.labels: dict[str, Label] = {}
        self.variables: dict[str, Variable] = {}
        self.tables: dict[str, tuple[str, ...]] = {}
        self.operands: dict[str, Operand] = {}
        self.symbols: list[tuple[Symbol, Scope]] = parent.symbols if parent else []

    def declare_registers(self, text: str, fail: Failure) -> None:
        """`.reg .b32 a, %r<8>;`."""
        match = _DECLARATION.match(text)
        if not match:
            raise fail("not a register declaration")
        for name in match[2].split(","):
            name = name.strip()
            ranged = _RANGE.match(name)
            if ranged:
                self.ranges[ranged[1]] = (match[1], int(ranged[2]))
            else:
                self.registers[name] = Register(name, match[1])

    def register(self, name: str) -> Register | None:
        """Return the register that `name` means here, or None."""
        scope: Scope | None = self
        prefix = name.rstrip("0123456789")
        while scope is not None:
            found = scope.registers.get(name)
            if found is not None:
                return found
            ranged = scope.ranges.get(prefix)
            if ranged is not None and name != prefix and int(name[len(prefix) :]) < ranged[1]:
                found = scope.registers[name] = Register(name, ranged[0])
                return found
            scope = scope.parent
        return None

    def label(self, name: str) -> Label | None:
        """Return the label of this block or of one around it."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.labels:
                return scope.labels[name]
            scope = scope.parent
        return None

    def variable(self, name: str) -> Variable | None:
        """Return the variable that `name` means here, or None."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.variables:
                return scope.variables[name]
            scope = scope.parent
        return None

    def table(self, name: str) -> tuple[str, ...]:
        """Return the targets of a `.branchtargets` declaration."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.tables:
                return scope.tables[name]
            scope = scope.parent
        return ()

    def is_table(self, name: str) -> bool:
        """Whether `name` is a branch table or a call prototype."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.tables:
                return True
            scope = scope.parent
        return False

    def symbol(self, name: str) -> Symbol:
        """Return a name to be resolved when the whole module is known."""
        symbol = Symbol(name)
        self.symbols.append((symbol, self))
        return symbol


def parse_operands(text: str, scope: Scope, fail: Failure) -> tuple[Operand, ...]:
    """Operands of one instruction.

    Parameters
    ----------
    text : str
        Everything after the opcode, without the semicolon.
    scope : Scope
        Block of the instruction.
    fail : callable
        Makes the exception for a message.
    """
    return tuple(_operand(item, scope, fail) for item in _split(text, fail))


def _split(text: str, fail: Failure) -> list[str]:
    text = text.strip()
    if not text:
        return []
    if "[" not in text and "{" not in text and "(" not in text:
        return [item.strip() for item in text.split(",")]
    items, position = [], 0
    while position < len(text):
        match = _ITEM.match(text, position)
        if not match:
            raise fail("cannot split the operands")
        items.append(match[1])
        position = match.end()
    return items


def _operand(text: str, scope: Scope, fail: Failure) -> Operand:
    known = scope.operands.get(text)
    if known is None:
        known = scope.operands[text] = _parse(text, scope, fail)
    return known


def _parse(text: str, scope: Scope, fail: Failure) -> Operand:
    first = text[:1]
    if first == "[":
        return _address(text[1:-1].strip(), scope, fail)
    if first in ("{", "("):
        return Vector(parse_operands(text[1:-1], scope, fail))
    if text == "_":
        return Sink()
    if "|" in text:
        left, right = text.split("|", 1)
        return Pair(_operand(left.strip(), scope, fail), _operand(right.strip(), scope, fail))
    if first == "!":
        return Negated(_operand(text[1:].strip(), scope, fail))
    register = scope.register(text)
    if register is not None:
        return register
    if text.startswith(_SPECIAL_PREFIXES):
        return Special(text)
    literal = _literal(text)
    if literal is not None:
        return literal
    if _NAME.match(text):
        if text.startswith("%"):
            raise fail(f"register {text} is not declared")
        return scope.symbol(text)
    offset = _OFFSET.match(text)
    if offset and _literal(offset[3]) is not None:
        return _address(text, scope, fail)
    raise fail(f"operand {text!r} is not understood")


def _literal(text: str) -> Immediate | None:
    bits = _FLOAT_BITS.match(text)
    if bits:
        code, width = ("f", 4) if bits[1] in "fF" else ("d", 8)
        if len(bits[2]) == 2 * width:
            value: float = struct.unpack(">" + code, bytes.fromhex(bits[2]))[0]
            return Immediate(value, text)
    integer = _INTEGER.match(text)
    if integer:
        digits = integer[2]
        octal = len(digits) > 1 and digits[0] == "0" and digits.isdigit()
        magnitude = int(digits, 8) if octal else int(digits, 0)
        return Immediate(-magnitude if integer[1] else magnitude, text)
    if text == "WARP_SZ":
        return Immediate(32, text)
    if _DECIMAL.match(text):
        return Immediate(float(text), text)
    return None


def _address(text: str, scope: Scope, fail: Failure) -> Address:
    coordinates: Vector | None = None
    brace = text.find("{")
    if brace >= 0:
        inner = text[brace : text.index("}") + 1]
        parsed = _operand(inner, scope, fail)
        coordinates = parsed if isinstance(parsed, Vector) else None
        text = text[:brace].rstrip().rstrip(",").rstrip()
    offset = 0
    match = _OFFSET.match(text)
    if match:
        literal = _literal(match[3])
        if literal is None or not isinstance(literal.value, int):
            raise fail(f"address {text!r} is not understood")
        offset = literal.value if match[2] == "+" else -literal.value
        text = match[1].strip()
    return Address(_operand(text, scope, fail), offset, coordinates)
