"""Operands as rows: what an instruction reads and writes, as arrays `[blocks, threads]`.

A register is a row of the register file, seen through the type of the instruction. Constants and
per-block values are broadcast rows, so every source looks the same to a step.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gemmjit.emulator.faults import UnknownInstruction
from gemmjit.emulator.lanes import LaneSet
from gemmjit.emulator.memory import PARAM_WINDOW
from gemmjit.emulator.module import (
    Address,
    Function,
    Immediate,
    Negated,
    Operand,
    Register,
    Sink,
    Special,
    Symbol,
    Variable,
    Vector,
)
from gemmjit.emulator.ptx_types import PTX_TYPES, PtxType

if TYPE_CHECKING:
    from gemmjit.emulator.grid import Grid

__all__ = ["AddressRow", "Operands", "RegisterGroup", "type_of"]

Array = npt.NDArray[Any]


def type_of(name: str) -> PtxType:
    """Return the PTX type of this name.

    Raises
    ------
    UnknownInstruction
        No such type.
    """
    found = PTX_TYPES.get(name)
    if found is None:
        raise UnknownInstruction(f"unknown type .{name}")
    return found


class AddressRow:
    """An address operand: a row plus a constant offset.

    `values(lanes)` gives signed 64-bit (or unsigned 32-bit) addresses shaped as `lanes.get`.
    """

    __slots__ = ("offset", "row", "symbol")

    def __init__(self, row: Array, offset: int, symbol: Variable | None) -> None:
        self.row = row
        # Addresses wrap in the width of their register, so that a negative offset subtracts.
        self.offset = int(np.array(offset, np.int64).astype(row.dtype))
        self.symbol = symbol

    def values(self, lanes: LaneSet) -> Array:
        """Addresses of the lanes."""
        found = lanes.get(self.row)
        return found + self.offset if self.offset else found

    def reader(self, lanes: LaneSet) -> Callable[[], Array]:
        """:meth:`values` with the view prepared."""
        view, offset, inner = lanes.row_view(self.row), self.offset, lanes.inner
        if inner is not None:
            return (lambda: view[inner] + offset) if offset else (lambda: view[inner])
        return (lambda: view + offset) if offset else (lambda: view)


class RegisterGroup:
    """A vector operand as one array `[registers, ...]`."""

    __slots__ = ("block", "rows")

    def __init__(self, rows: list[Array], block: Array | None) -> None:
        self.rows = rows
        self.block = block

    def read(self, lanes: LaneSet) -> Array:
        """Values `[registers, *shape of lanes.get]`."""
        if self.block is not None:
            view = self.block[(slice(None), *lanes.rect)]
            return view if lanes.inner is None else view[:, lanes.inner]
        return np.stack([lanes.get(row) for row in self.rows])

    def write(self, lanes: LaneSet, values: Any) -> None:
        """Assign `values[register]` to every register."""
        if self.block is not None and lanes.inner is None:
            view = self.block[(slice(None), *lanes.rect)]
            view[...] = values.reshape(view.shape)
            return
        for row, value in zip(self.rows, values, strict=True):
            lanes.put(
                row, value if lanes.inner is not None else value.reshape(lanes.get(row).shape)
            )

    def read_warps(self, lanes: LaneSet) -> Array:
        """Values `[warps, 32, registers]` of whole warps."""
        found = self.read(lanes)
        return found.reshape(len(self.rows), -1, 32).transpose(1, 2, 0)

    def write_warps(self, lanes: LaneSet, values: Array) -> None:
        """Inverse of :meth:`read_warps`."""
        self.write(lanes, values.transpose(2, 0, 1).reshape(len(self.rows), -1))


class Operands:
    """Resolves the operands of one grid's instructions."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.shape = (grid.space.blocks, grid.space.threads)
        self.pc = -1

    # -- registers and constants ------------------------------------------------------------

    def constant(self, value: Any, dtype: np.dtype[Any]) -> Array:
        """Return a broadcast row."""
        return np.broadcast_to(np.asarray(value, dtype), self.shape)

    def register(self, register: Register) -> Array:
        """Return the row of a register in its storage type (unsigned, or bool for predicates)."""
        kind = PTX_TYPES[register.type]
        row: Array = self.grid.registers[0 if kind.kind == "p" else kind.nbytes][register.row]
        return row

    def source(self, operand: Operand, type_name: str) -> Array:
        """Return the row that an instruction of this type reads."""
        kind = type_of(type_name)
        if kind.kind == "p":
            return self.predicate(operand)
        if isinstance(operand, Register):
            return _seen_as(self.register(operand), kind, operand)
        if isinstance(operand, Immediate):
            return self.constant(_immediate(operand, kind), kind.dtype)
        if isinstance(operand, Special):
            return self._special(operand, kind)
        if isinstance(operand, Symbol | Address):
            return self._symbol_value(operand, kind)
        raise UnknownInstruction(f"operand {operand!r} cannot be read as .{type_name}")

    def predicate(self, operand: Operand) -> Array:
        """Return a predicate source; :meth:`predicate_reader` also takes negated ones."""
        if isinstance(operand, Register) and operand.type == "pred":
            return self.register(operand)
        if isinstance(operand, Immediate):
            return self.constant(bool(operand.value), np.dtype(np.bool_))
        if isinstance(operand, Special):
            return self._special(operand, PTX_TYPES["pred"])
        raise UnknownInstruction(f"operand {operand!r} is not a predicate")

    def predicate_reader(self, operand: Operand) -> tuple[Array, bool]:
        """Return a predicate source and whether it is read inverted."""
        if isinstance(operand, Negated):
            return self.predicate(operand.operand), True
        return self.predicate(operand), False

    def destination(self, operand: Operand, type_name: str) -> Array:
        """Return the row that an instruction of this type writes.

        A register wider than the type is written as a whole: results extend by their own sign.
        """
        kind = type_of(type_name)
        if isinstance(operand, Sink):
            return np.zeros(self.shape, np.bool_ if kind.kind == "p" else kind.dtype)
        if not isinstance(operand, Register):
            raise UnknownInstruction(f"operand {operand!r} cannot be written")
        row = self.register(operand)
        if kind.kind == "p" or row.dtype == np.bool_:
            if (kind.kind == "p") != (row.dtype == np.bool_):
                raise UnknownInstruction(
                    f"{operand.name} is .{operand.type}, expected .{type_name}"
                )
            return row
        if row.dtype.itemsize == kind.nbytes:
            return row.view(kind.dtype)
        if row.dtype.itemsize < kind.nbytes:
            raise UnknownInstruction(
                f"{operand.name} is .{operand.type}, too narrow for .{type_name}"
            )
        return row.view(np.dtype(f"{'i' if kind.kind == 's' else 'u'}{row.dtype.itemsize}"))

    def items(self, operand: Operand) -> tuple[Operand, ...]:
        """Return the items of a vector, or the operand itself."""
        return operand.items if isinstance(operand, Vector) else (operand,)

    def group(self, operand: Operand, type_name: str, writes: bool = False) -> RegisterGroup:
        """Return a vector operand as a group of rows; contiguous registers become one array."""
        items = self.items(operand)
        get = self.destination if writes else self.source
        rows = [get(item, type_name) for item in items]
        first = items[0]
        block = None
        if isinstance(first, Register) and all(
            isinstance(item, Register)
            and item.type != "pred"
            and PTX_TYPES[item.type].nbytes == PTX_TYPES[first.type].nbytes
            and item.row == first.row + index
            for index, item in enumerate(items)
        ):
            kind, storage = type_of(type_name), self.register(first)
            if storage.dtype.itemsize == kind.nbytes:
                file = self.grid.registers[kind.nbytes]
                block = file[first.row : first.row + len(items)].view(kind.dtype)
        return RegisterGroup(rows, block)

    # -- addresses --------------------------------------------------------------------------

    def address(self, operand: Operand) -> AddressRow:
        """Return `[base + offset]`."""
        if not isinstance(operand, Address):
            raise UnknownInstruction(f"operand {operand!r} is not an address")
        base, offset = operand.base, operand.offset
        if isinstance(base, Register):
            row = self.register(base)
            if row.dtype.itemsize == 8:
                return AddressRow(row.view(np.int64), offset, None)
            if row.dtype.itemsize == 4:
                return AddressRow(row, offset, None)
            raise UnknownInstruction(f"{base.name} is too narrow for an address")
        if isinstance(base, Immediate):
            return AddressRow(self.constant(int(base.value), np.dtype(np.int64)), offset, None)
        if isinstance(base, Symbol) and isinstance(base.target, Variable):
            row = self._symbol_value(base, PTX_TYPES["u64"]).view(np.int64)
            return AddressRow(row, offset, base.target)
        raise UnknownInstruction(f"address base {base!r} is not understood")

    def _symbol_value(self, operand: Symbol | Address, kind: PtxType) -> Array:
        offset = 0
        if isinstance(operand, Address):
            offset = operand.offset
            if not isinstance(operand.base, Symbol):
                raise UnknownInstruction(f"operand {operand!r} is not understood")
            operand = operand.base
        target = operand.target
        if isinstance(target, Function):
            return self.constant(self.grid.program.function_address(target), kind.dtype)
        if not isinstance(target, Variable):
            raise UnknownInstruction(f"{operand.name} is no variable")
        if target.space.startswith("shared"):
            rank = self.grid.shared.origin[:, :1] - self.grid.shared.base
            return np.broadcast_to((rank + target.offset + offset).astype(kind.dtype), self.shape)
        if target.space in ("global", "const"):
            return self.constant(self.grid.symbol_address(target) + offset, kind.dtype)
        if target.space == "param" and self.grid.is_entry_parameter(target):
            # 64 bits hold a generic address; 32 bits an offset, which `cvta.param` widens.
            window = PARAM_WINDOW if kind.nbytes == 8 else 0
            return self.constant(window + target.offset + offset, kind.dtype)
        return self.constant(target.offset + offset, kind.dtype)

    def _special(self, operand: Special, kind: PtxType) -> Array:
        row = self.grid.specials.get(operand.name)
        if row is None:
            raise UnknownInstruction(f"special register {operand.name} is not modelled")
        if row.dtype == np.bool_ or row.dtype.itemsize == kind.nbytes:
            return row if row.dtype == np.bool_ else row.view(kind.dtype)
        # Another width than the register's: the value converted once is only right for registers
        # that never change, which holds for all but the clocks.
        if operand.name.startswith(("%clock", "%globaltimer")):
            raise UnknownInstruction(f"{operand.name} read as .{kind.name}")
        return self.grid.converted_special(operand.name, kind.dtype)


def _seen_as(row: Array, kind: PtxType, register: Register) -> Array:
    if row.dtype == np.bool_:
        raise UnknownInstruction(f"{register.name} is a predicate, expected .{kind.name}")
    size = row.dtype.itemsize
    if size == kind.nbytes:
        return row.view(kind.dtype)
    if size < kind.nbytes:
        raise UnknownInstruction(
            f"{register.name} is .{register.type}, too narrow for .{kind.name}"
        )
    # The low bytes of a wider register: a strided view.
    narrow = row.view(kind.dtype)
    step = size // kind.nbytes
    return narrow.reshape(*row.shape, step)[..., 0]


def _immediate(operand: Immediate, kind: PtxType) -> Any:
    value = operand.value
    if isinstance(value, float):
        if kind.kind == "f" and kind.dtype.kind == "f":
            return value
        code = {4: "<f", 8: "<d"}.get(kind.nbytes)
        if code is None:
            raise UnknownInstruction(f"literal {operand.text} for .{kind.name}")
        return int.from_bytes(struct.pack(code, value), "little")
    if kind.dtype.kind == "f" and kind.nbytes == 2:
        bits = np.array(value & 0xFFFF, np.uint16)
        return bits.view(np.float16)[()]
    if kind.dtype.kind == "f":
        return float(value)
    masked = value & ((1 << (8 * kind.nbytes)) - 1)
    return np.array(masked, f"u{kind.nbytes}").view(kind.dtype)[()]
