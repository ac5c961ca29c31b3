"""A kernel ready to be launched.

Its functions in one instruction list, its registers in rows, its shared, local and parameter
variables laid out.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from gemmjit.emulator.faults import PtxSyntaxError, UnknownInstruction
from gemmjit.emulator.memory import CODE_WINDOW
from gemmjit.emulator.module import (
    Address,
    Function,
    Instruction,
    Label,
    Module,
    Negated,
    Operand,
    Pair,
    Register,
    SourceLine,
    Symbol,
    Variable,
    Vector,
)
from gemmjit.emulator.parser import parse
from gemmjit.emulator.ptx_types import PTX_TYPES

__all__ = ["Program", "link", "shown", "target_number"]

# Functions that the driver provides; the emulator implements them itself.
BUILTIN_FUNCTIONS = ("vprintf", "__assertfail", "malloc", "free")


def target_number(target: str) -> int:
    """`"sm_90a"` -> 90."""
    return int("".join(c for c in target.split("_")[-1] if c.isdigit()))


def _align(value: int, to: int) -> int:
    return -(-value // to) * to


class Program:
    """One entry point and everything it can reach; independent of any launch.

    Attributes
    ----------
    instructions : list of Instruction
        All functions, one after the other; a program counter is an index into it.
    starts : dict
        Function name to its first program counter.
    rows : dict
        Register bytes (0 for predicates) to the number of rows.
    shared_bytes : int
        Static shared memory, from `shared_base` on.
    shared_base : int
        First usable shared address: on sm_90 and later the first KiB belongs to the system.
    dynamic_base : int
        Address of `.extern .shared` arrays.
    local_bytes : int
        Per-thread bytes for `.local` variables and for the parameters of calls.
    param_bytes : int
        Size of the kernel parameters.
    """

    def __init__(self, module: Module, entry: Function) -> None:
        self.module = module
        self.entry = entry
        self.functions, self.variables = _reachable(module, entry)
        _refuse_recursion(self.functions)
        self.instructions: list[Instruction] = []
        self.starts: dict[str, int] = {}
        self._bases: list[int] = []
        self._by_base: dict[int, Function] = {}
        for function in self.functions:
            self.starts[function.name] = len(self.instructions)
            assert function.body is not None
            self._by_base[len(self.instructions)] = function
            self._bases.extend([len(self.instructions)] * (len(function.body) + 1))
            self.instructions.extend(function.body)
            # Falling off the end of a body is a return.
            self.instructions.append(_implicit_return(function))
        self.rows = self._allocate_rows()
        self.shared_base = 1024 if target_number(module.target) >= 90 else 0
        self.shared_bytes = 0
        self.dynamic_base = 0
        self._layout_shared()
        self.local_bytes = self._layout_local()
        self.param_bytes = self._layout_params()

    def label_pc(self, pc: int, label: Label) -> int:
        """Program counter of a label of the function that `pc` lies in."""
        return self._bases[pc] + label.index

    def branch_targets(self, pc: int) -> list[int]:
        """Program counters that a `bra` or `brx` can go to."""
        instruction = self.instructions[pc]
        symbols = instruction.targets or instruction.operands[:1]
        found = []
        for symbol in symbols:
            if not isinstance(symbol, Symbol) or not isinstance(symbol.target, Label):
                raise PtxSyntaxError(f"{instruction.text}: the target is no label")
            found.append(self.label_pc(pc, symbol.target))
        return found

    def function_address(self, function: Function) -> int:
        """Return what a pointer to a function holds."""
        return CODE_WINDOW + 16 * self.functions.index(function)

    def function_at(self, pc: int) -> Function:
        """Return the function that an instruction belongs to."""
        return self._by_base[self._bases[pc]]

    def source_of(self, instruction: Instruction) -> str:
        """`file:line` of an instruction, empty without `.loc`; outermost inlining position last."""
        parts: list[str] = []
        line: SourceLine | None = instruction.source
        while line is not None:
            file = self.module.files.get(line.file, f"file {line.file}").rsplit("/", 1)[-1]
            parts.append(f"{file}:{line.line}")
            line = line.inlined_at
        return " in ".join(parts)

    def describe(self, pc: int) -> str:
        """Instruction, PTX line and source line, for messages."""
        if pc >= len(self.instructions):
            return "end of the program"
        instruction = self.instructions[pc]
        source = self.source_of(instruction)
        return shown(instruction) + (f"  [{source}]" if source else "")

    def _allocate_rows(self) -> dict[int, int]:
        rows: dict[int, int] = {0: 0}

        def allocate(register: Register) -> None:
            kind = PTX_TYPES[register.type]
            size = 0 if kind.kind == "p" else kind.nbytes
            register.row = rows.setdefault(size, 0)
            rows[size] += 1

        seen: set[int] = set()
        vectors = [
            vector
            for instruction in self.instructions
            for operand in instruction.operands
            for vector in _vectors(operand)
        ]
        # Long operand lists first (accumulators), so that they become contiguous rows.
        vectors.sort(key=lambda vector: -len(vector.items))
        for vector in vectors:
            for item in vector.items:
                if isinstance(item, Register) and id(item) not in seen:
                    seen.add(id(item))
                    allocate(item)
        for register in self._registers():
            if id(register) not in seen:
                seen.add(id(register))
                allocate(register)
        return rows

    def _registers(self) -> Iterator[Register]:
        for function in self.functions:
            yield from function.registers
        for instruction in self.instructions:
            if instruction.guard is not None:
                yield instruction.guard
            for operand in instruction.operands:
                yield from _leaves(operand)

    def _layout_shared(self) -> None:
        offset = self.shared_base
        dynamic = [v for v in self.variables if v.space == "shared" and v.nbytes == 0]
        for variable in self.variables:
            if variable.space.startswith("shared") and variable.nbytes:
                offset = _align(offset, variable.align)
                variable.offset = offset
                offset += variable.nbytes
        self.shared_bytes = offset - self.shared_base
        # The driver aligns the dynamic part to what the kernel asks for, at least 16 bytes.
        self.dynamic_base = _align(offset, max([16] + [v.align for v in dynamic]))
        for variable in dynamic:
            variable.offset = self.dynamic_base

    def _layout_local(self) -> int:
        offset = 0
        for function in self.functions:
            formals = [] if function.is_entry else function.params + function.returns
            for variable in [*function.variables, *formals]:
                if isinstance(variable, Variable) and variable.space in ("local", "param"):
                    offset = _align(offset, max(variable.align, 1))
                    variable.offset = offset
                    offset += variable.nbytes
        return _align(offset, 16)

    def _layout_params(self) -> int:
        offset = 0
        for parameter in self.entry.params:
            if not isinstance(parameter, Variable):
                raise PtxSyntaxError(f"entry {self.entry.name}: register parameter")
            offset = _align(offset, parameter.align)
            parameter.offset = offset
            offset += parameter.nbytes
        return offset


def shown(instruction: Instruction) -> str:
    """Return an instruction and its PTX line, as messages show it."""
    text = " ".join(instruction.text.split())
    text = text if len(text) <= 120 else text[:117] + "..."
    return f"PTX line {instruction.ptx_line}: {text}"


@lru_cache(maxsize=128)
def link(ptx: str, entry: str) -> Program:
    """Parse `ptx` and prepare its kernel `entry`.

    Raises
    ------
    PtxSyntaxError
        The text is no PTX, or has no such entry.
    """
    module = parse(ptx)
    function = module.functions.get(entry)
    if function is None or not function.is_entry or function.body is None:
        entries = [f.name for f in module.functions.values() if f.is_entry]
        raise PtxSyntaxError(f"entry: expected one of {entries}, got {entry!r}")
    return Program(module, function)


def _reachable(module: Module, entry: Function) -> tuple[list[Function], list[Variable]]:
    """Find the functions and variables that a kernel refers to, through initialisers too."""
    functions, variables = [entry], list[Variable]()

    def refer(target: object) -> None:
        if isinstance(target, Variable) and target not in variables:
            variables.append(target)
            for _, value, _ in target.initial:
                if isinstance(value, tuple):
                    refer(module.variables.get(value[0]) or module.functions.get(value[0]))
        elif isinstance(target, Function) and target not in functions:
            if target.body is not None:
                functions.append(target)
            elif target.name not in BUILTIN_FUNCTIONS:
                raise PtxSyntaxError(f"function {target.name} has no body")

    for function in functions:  # grows while it runs
        for variable in function.variables:
            refer(variable)
        for instruction in function.body or ():
            for operand in instruction.operands:
                for symbol in _symbols(operand):
                    refer(symbol.target)
    return functions, variables


def _refuse_recursion(functions: list[Function]) -> None:
    """Refuse recursion: registers and frames are allocated once for each function."""
    calls: dict[str, set[str]] = {}
    for function in functions:
        symbols = [
            s
            for i in function.body or ()
            if i.opcode == "call"
            for o in i.operands
            for s in _symbols(o)
        ]
        calls[function.name] = {s.target.name for s in symbols if isinstance(s.target, Function)}
    for name in calls:
        seen: set[str] = set()
        todo = list(calls[name])
        while todo:
            callee = todo.pop()
            if callee == name:
                raise UnknownInstruction(f"recursive call of function {name} in the emulator")
            if callee not in seen:
                seen.add(callee)
                todo.extend(calls.get(callee, ()))


def _implicit_return(function: Function) -> Instruction:
    last = function.body[-1].ptx_line if function.body else 0
    return Instruction("ret", "ret", (), (), None, False, last, None, "ret  (end of body)")


def _vectors(operand: Operand) -> Iterator[Vector]:
    if isinstance(operand, Vector):
        yield operand
    elif isinstance(operand, Address) and operand.coordinates is not None:
        yield operand.coordinates


def _leaves(operand: Operand) -> Iterator[Register]:
    if isinstance(operand, Register):
        yield operand
    elif isinstance(operand, Vector):
        for item in operand.items:
            yield from _leaves(item)
    elif isinstance(operand, Pair):
        yield from _leaves(operand.first)
        yield from _leaves(operand.second)
    elif isinstance(operand, Negated):
        yield from _leaves(operand.operand)
    elif isinstance(operand, Address):
        yield from _leaves(operand.base)
        if operand.coordinates is not None:
            yield from _leaves(operand.coordinates)


def _symbols(operand: Operand) -> Iterator[Symbol]:
    if isinstance(operand, Symbol):
        yield operand
    elif isinstance(operand, Vector):
        for item in operand.items:
            yield from _symbols(item)
    elif isinstance(operand, Address):
        yield from _symbols(operand.base)
