"""Control flow: bra, brx.idx, call, ret, exit, trap (PTX ISA chapter 9.7.12)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy.typing as npt

from gemmjit.emulator.dispatch import instruction, reject
from gemmjit.emulator.faults import Trap
from gemmjit.emulator.lanes import LaneSet
from gemmjit.emulator.module import (
    Function,
    Instruction,
    Operand,
    Register,
    Symbol,
    Variable,
    Vector,
)
from gemmjit.emulator.operands import Operands
from gemmjit.emulator.printf import print_formatted
from gemmjit.emulator.ptx_types import PTX_TYPES
from gemmjit.emulator.steps import Control, Copy, LaneOp, Step

__all__: list[str] = []

Array = npt.NDArray[Any]


@instruction("bra")
def _bra(operands: Operands, found: Instruction) -> Step:
    return Control("bra", operands.grid.program.branch_targets(operands.pc))


@instruction("brx.idx")
def _brx(operands: Operands, found: Instruction) -> Step:
    index = operands.source(found.operands[0], "u32")
    return Control("brx", operands.grid.program.branch_targets(operands.pc), index)


@instruction("exit")
def _exit(operands: Operands, found: Instruction) -> Step:
    return Control("exit")


@instruction("ret")
def _ret(operands: Operands, found: Instruction) -> Step:
    return Control("ret")


@instruction("trap", "brkpt")
def _trap(operands: Operands, found: Instruction) -> Step:
    def run(lanes: LaneSet) -> None:
        name = operands.grid.thread_name(int(lanes.lanes[0]))
        raise Trap(f"{found.name} executed by {lanes.count} threads, first {name}")

    return LaneOp(run)


class Call:
    """One call site: how arguments and results move.

    Formal parameters are registers, or `.param` variables in the thread's local memory; either way
    they are rows, and passing one is copying a row.
    """

    def __init__(
        self,
        operands: Operands,
        results: Sequence[Operand],
        arguments: Sequence[Operand],
        address: Array | None,
        builtin: Callable[[LaneSet], None] | None,
    ) -> None:
        self._operands = operands
        self._results = results
        self._arguments = arguments
        self.address = address
        self.builtin = builtin
        self._copies: dict[tuple[str, str], list[Copy]] = {}

    def arguments(self, function: Function) -> list[Copy]:
        """Return copies from the caller's arguments to the parameters of `function`."""
        key = ("arguments", function.name)
        if key not in self._copies:
            pairs = zip(self._arguments, function.params, strict=True)
            self._copies[key] = [c for a, f in pairs for c in self._move(a, f, True)]
        return self._copies[key]

    def results(self, function: Function) -> list[Copy]:
        """Return copies from the results of `function` to where the caller wants them."""
        key = ("results", function.name)
        if key not in self._copies:
            pairs = zip(self._results, function.returns, strict=True)
            self._copies[key] = [c for a, f in pairs for c in self._move(a, f, False)]
        return self._copies[key]

    def _move(self, actual: Operand, formal: Variable | Register, inward: bool) -> list[Copy]:
        operands = self._operands
        if isinstance(formal, Register):
            inside = operands.register(formal)
            if inward:
                bits = "pred" if formal.type == "pred" else f"b{8 * PTX_TYPES[formal.type].nbytes}"
                return [Copy(operands.source(actual, bits), inside)]
            assert isinstance(actual, Register)
            return [Copy(inside, operands.register(actual))]
        if not isinstance(actual, Symbol) or not isinstance(actual.target, Variable):
            raise reject(operands.grid.program.instructions[operands.pc], "argument is no .param")
        outside = parameter_bytes(operands, actual.target)
        inside_bytes = parameter_bytes(operands, formal)
        pairs = [(outside, inside_bytes) if inward else (inside_bytes, outside)]
        return [Copy(a[..., i], b[..., i]) for a, b in pairs for i in range(formal.nbytes)]


def parameter_bytes(operands: Operands, variable: Variable) -> Array:
    """Return a call's `.param` variable in all local memories, `[blocks, threads, nbytes]`."""
    grid = operands.grid
    local = grid.local.data.reshape(*operands.shape, grid.local_stride)
    return local[:, :, variable.offset : variable.offset + variable.nbytes]


@instruction("call")
def _call(operands: Operands, found: Instruction) -> Step:
    items = list(found.operands)
    results: tuple[Operand, ...] = ()
    if isinstance(items[0], Vector):
        results = items.pop(0).items  # type: ignore[union-attr]
    callee = items.pop(0)
    arguments = items[0].items if items and isinstance(items[0], Vector) else ()
    if isinstance(callee, Register):
        address = operands.register(callee)
        return Control("call", (), Call(operands, results, arguments, address, None))
    if not isinstance(callee, Symbol) or not isinstance(callee.target, Function):
        raise reject(found, "the callee is no function")
    function = callee.target
    if function.body is None:
        builtin = _builtin(operands, found, function.name, arguments, results)
        return Control("call", (), Call(operands, results, arguments, None, builtin))
    target = operands.grid.program.starts[function.name]
    return Control("call", (target,), Call(operands, results, arguments, None, None))


def _builtin(
    operands: Operands,
    found: Instruction,
    name: str,
    arguments: Sequence[Operand],
    results: Sequence[Operand],
) -> Callable[[LaneSet], None]:
    def parameter(operand: Operand, dtype: str) -> Array:
        if not isinstance(operand, Symbol) or not isinstance(operand.target, Variable):
            raise reject(found, "argument is no .param")
        return parameter_bytes(operands, operand.target).view(dtype)[..., 0]

    grid = operands.grid
    if name == "vprintf":
        text, values = (parameter(item, "i8") for item in arguments)
        result = parameter(results[0], "i4") if results else None

        def vprintf(lanes: LaneSet) -> None:
            for lane in lanes.lanes:
                address, pointer = int(text.reshape(-1)[lane]), int(values.reshape(-1)[lane])
                grid.machine.output.append(print_formatted(grid, int(lane), address, pointer))
            if result is not None:
                lanes.put(result, 0)

        return vprintf
    if name == "__assertfail":
        message, file, line = (
            parameter(item, code)
            for item, code in zip(arguments[:3], ("i8", "i8", "u4"), strict=True)
        )

        def assertfail(lanes: LaneSet) -> None:
            lane = int(lanes.lanes[0])
            strings = grid.machine.memory.string_at
            what = strings(int(message.reshape(-1)[lane]))
            where = strings(int(file.reshape(-1)[lane]))
            number = int(line.reshape(-1)[lane])
            raise Trap(f"{where}:{number}: {grid.thread_name(lane)}: assertion {what!r} failed")

        return assertfail
    raise reject(found, f"function {name} has no body and is not provided")
