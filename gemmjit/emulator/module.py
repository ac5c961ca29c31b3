"""A parsed PTX module: functions, instructions, operands, variables. Plain data, no behaviour."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = [
    "Address",
    "Function",
    "Immediate",
    "Instruction",
    "Label",
    "Module",
    "Negated",
    "Operand",
    "Pair",
    "Register",
    "Sink",
    "SourceLine",
    "Special",
    "Symbol",
    "Variable",
    "Vector",
]


@dataclass(slots=True, eq=False)
class Register:
    """A virtual register. `row` is its row in the register file of its class."""

    name: str
    type: str
    row: int = -1


@dataclass(slots=True, eq=False)
class Variable:
    """A variable of a state space.

    `nbytes` is 0 for `.extern .shared` arrays without a size. `initial` holds `(byte offset, value,
    element bytes)`; a value is an integer (bits) or the name of a symbol plus an addend.
    `offset` is filled in by the layout of its space.
    """

    name: str
    space: str
    type: str
    nbytes: int
    align: int
    extern: bool = False
    initial: tuple[tuple[int, int | tuple[str, int], int], ...] = ()
    offset: int = -1


@dataclass(slots=True, eq=False)
class Label:
    """A position in a function: index of the instruction that follows it."""

    name: str
    index: int


@dataclass(slots=True, frozen=True)
class Special:
    """A special register such as `%tid.x`."""

    name: str


@dataclass(slots=True, frozen=True)
class Immediate:
    """A literal: an integer, or a float given by value (`width` 32 or 64 when spelled in bits)."""

    value: int | float
    text: str


@dataclass(slots=True, eq=False)
class Symbol:
    """A name that is no register: variable, function or label; resolved after the body."""

    name: str
    target: Variable | Function | Label | None = None


@dataclass(slots=True, frozen=True)
class Sink:
    """The operand `_`: the result is dropped."""


@dataclass(slots=True, eq=False)
class Vector:
    """`{a, b, ...}`, also the coordinates and the parenthesised lists of a call."""

    items: tuple[Operand, ...]


@dataclass(slots=True, eq=False)
class Pair:
    """`a|b`: two results of one instruction."""

    first: Operand
    second: Operand


@dataclass(slots=True, eq=False)
class Negated:
    """`!p`: a predicate read inverted."""

    operand: Operand


@dataclass(slots=True, eq=False)
class Address:
    """`[base + offset]`, for tensor copies `[base, {coordinates}]`."""

    base: Operand
    offset: int = 0
    coordinates: Vector | None = None


Operand = Register | Special | Immediate | Symbol | Sink | Vector | Pair | Negated | Address


@dataclass(slots=True, frozen=True)
class SourceLine:
    """A `.loc`: file number, line, and where it was inlined (an outer `.loc`), if it was."""

    file: int
    line: int
    inlined_at: SourceLine | None = None


@dataclass(slots=True, eq=False)
class Instruction:
    """One instruction. `opcode` is the first part of `name`, `mods` the other parts."""

    name: str
    opcode: str
    mods: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: Register | None
    guard_negated: bool
    ptx_line: int
    source: SourceLine | None
    text: str
    targets: tuple[Symbol, ...] = ()


@dataclass(slots=True, eq=False)
class Function:
    """An `.entry` or `.func`. Parameters are variables of space `param` or registers."""

    name: str
    is_entry: bool
    returns: list[Variable | Register] = field(default_factory=list)
    params: list[Variable | Register] = field(default_factory=list)
    body: list[Instruction] | None = None
    registers: list[Register] = field(default_factory=list)
    variables: list[Variable] = field(default_factory=list)
    directives: dict[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Module:
    """A PTX translation unit."""

    version: tuple[int, int] = (0, 0)
    target: str = ""
    address_size: int = 64
    functions: dict[str, Function] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    files: dict[int, str] = field(default_factory=dict)
