"""PTX text to :class:`~gemmjit.emulator.module.Module` (PTX ISA chapters 4, 5, 7 and 11).

Names of registers and labels are scoped per `{}` block; inline assembly from CUDA reuses them
freely. A directive that is not known is an error: skipping one could change the meaning.
"""

from __future__ import annotations

import bisect
import re
from functools import partial

from gemmjit.emulator.faults import PtxSyntaxError
from gemmjit.emulator.module import (
    Function,
    Instruction,
    Label,
    Module,
    Register,
    SourceLine,
    Symbol,
)
from gemmjit.emulator.ptx_operands import Scope, parse_operands
from gemmjit.emulator.ptx_variables import parse_parameters, parse_variable

__all__ = ["parse"]

_COMMENT = re.compile(r'"[^"\n]*"|//[^\n]*|/\*.*?\*/', re.S)
_LINE_DIRECTIVE = re.compile(r"^([ \t]*\.(?:loc|file)\b[^\n;]*);?[ \t]*$", re.M)
_SECTION = re.compile(r"\.section\s+[^\s{]+\s*\{[^}]*\}")
_STATEMENT = re.compile(
    r"\s*(?:([A-Za-z_$%][\w$]*)\s*:(?!:)|([{}])|((?:[^;{}]|\{[^;{}]*\}|\{[^;{}]*\{[^;]*\}\s*\})*?);)"
)
_INSTRUCTION = re.compile(r"(?:@\s*(!?)\s*([%$\w]+)\s+)?([a-z][\w.:]*)\s*(.*)", re.S)
_LOC = re.compile(
    r"\.loc\s+(\d+)\s+(\d+)\s+\d+"
    r"(?:\s*,\s*function_name\s+\S+?\s*,\s*inlined_at\s+(\d+)\s+(\d+)\s+\d+)?"
)
_FILE = re.compile(r'\.file\s+(\d+)\s+"([^"]*)"')
_HEADER = re.compile(r"\.(version)\s+(\d+)\.(\d+)|\.(target)\s+([\w, ]+)|\.(address_size)\s+(\d+)")
_LINKAGE = re.compile(r"\.(extern|visible|weak|common)\s+")
_FUNCTION = re.compile(r"\.(entry|func)\b\s*(?:\(([^)]*)\)\s*)?([\w$]+)\s*(?:\(([^)]*)\))?", re.S)
_DIRECTIVE = re.compile(r"\.([a-z_]+)\s*((?:\d+\s*,\s*)*\d+)?\s*")
_FUNCTION_DIRECTIVES = {
    "maxntid", "reqntid", "minnctapersm", "maxnctapersm", "maxnreg", "reqnctapercluster",
    "maxclusterrank", "explicitcluster", "blocksareclusters", "noreturn", "abi_preserve",
    "abi_preserve_control",
}  # fmt: skip
_SPACES = ("global", "const", "shared", "local", "param", "tex")


class _Text:
    """The cleaned text with a map from offsets to line numbers."""

    def __init__(self, ptx: str) -> None:
        def blank(match: re.Match[str]) -> str:
            found = match[0]
            return found if found.startswith('"') else "\n" * found.count("\n") or " "

        text = _COMMENT.sub(blank, ptx)
        text = _LINE_DIRECTIVE.sub(r"\1;", text)
        self.text = _SECTION.sub(lambda m: "\n" * m[0].count("\n"), text)
        self.breaks = [m.start() for m in re.finditer("\n", self.text)]

    def line(self, offset: int) -> int:
        return bisect.bisect_left(self.breaks, offset) + 1

    def error(self, offset: int, message: str) -> PtxSyntaxError:
        line = self.line(offset)
        shown = self.text[offset : offset + 80].strip().split("\n")[0]
        return PtxSyntaxError(f"PTX line {line}: {message}: {shown!r}")


def parse(ptx: str) -> Module:
    """Parse PTX text.

    Parameters
    ----------
    ptx : str
        A translation unit as NVRTC, nvcc or any other compiler writes it.

    Returns
    -------
    Module
        A new one each time: linking writes rows and offsets into it.

    Raises
    ------
    PtxSyntaxError
        Names the PTX line.
    """
    text = _Text(ptx)
    module = Module()
    outer = Scope()
    position, end = 0, len(text.text)
    while True:
        while position < end and text.text[position].isspace():
            position += 1
        if position >= end:
            break
        position = _top_level(text, position, module, outer)
    _resolve_symbols(outer, module)
    if not module.target:
        raise PtxSyntaxError("PTX has no .target directive")
    return module


def _top_level(text: _Text, position: int, module: Module, outer: Scope) -> int:
    header = _HEADER.match(text.text, position)
    if header:
        if header[1]:
            module.version = (int(header[2]), int(header[3]))
        elif header[4]:
            module.target = header[5].split(",")[0].strip()
        else:
            module.address_size = int(header[7])
            if module.address_size != 64:
                raise text.error(position, "only .address_size 64 is supported")
        return header.end()
    start = position
    extern = False
    while linkage := _LINKAGE.match(text.text, position):
        extern |= linkage[1] == "extern"
        position = linkage.end()
    function = _FUNCTION.match(text.text, position)
    if function:
        return _function(text, function, module, outer)
    statement = _STATEMENT.match(text.text, position)
    if not statement or statement[3] is None:
        raise text.error(start, "expected a directive")
    body = statement[3].strip()
    if body.startswith(".file"):
        found = _FILE.match(body)
        if found:
            module.files[int(found[1])] = found[2]
    elif body.startswith(tuple("." + space for space in _SPACES)):
        for variable in parse_variable(body, extern, partial(text.error, start)):
            module.variables[variable.name] = variable
            outer.variables[variable.name] = variable
    elif not body.startswith((".loc", ".pragma")) and body:
        raise text.error(start, "unknown directive")
    return statement.end()


def _function(text: _Text, match: re.Match[str], module: Module, outer: Scope) -> int:
    function = Function(match[3], match[1] == "entry")
    scope = Scope(outer)
    fail = partial(text.error, match.start())
    function.returns = parse_parameters(match[2] or "", fail)
    function.params = parse_parameters(match[4] or "", fail)
    for parameter in function.returns + function.params:
        if isinstance(parameter, Register):
            scope.registers[parameter.name] = parameter
            function.registers.append(parameter)
        else:
            scope.variables[parameter.name] = parameter
    position = match.end()
    while directive := _DIRECTIVE.match(text.text, _skip_space(text.text, position)):
        name = directive[1]
        if name == "pragma":
            position = text.text.index(";", position) + 1
            continue
        if name not in _FUNCTION_DIRECTIVES:
            raise text.error(directive.start(), "unknown function directive")
        numbers = tuple(int(x) for x in directive[2].split(",")) if directive[2] else ()
        function.directives[name] = numbers
        position = directive.end()
    position = _skip_space(text.text, position)
    known = module.functions.get(function.name)
    if text.text[position] == ";":
        module.functions.setdefault(function.name, function)
        return position + 1
    if text.text[position] != "{":
        raise text.error(position, "expected a function body")
    if known is not None and known.body is not None:
        raise fail("function defined twice")
    module.functions[function.name] = function
    return _Body(text, function, scope).parse(position + 1)


def _skip_space(text: str, position: int) -> int:
    while text[position].isspace():
        position += 1
    return position


class _Body:
    """Parses one function body into instructions."""

    def __init__(self, text: _Text, function: Function, scope: Scope) -> None:
        self.text = text
        self.function = function
        self.scope = scope
        self.source: SourceLine | None = None
        self.body: list[Instruction] = []
        self.pending_label = ""

    def parse(self, position: int) -> int:
        """Parse up to the closing brace; the offset after it."""
        depth, text = 1, self.text.text
        while True:
            match = _STATEMENT.match(text, position)
            if not match:
                raise self.text.error(position, "unfinished statement")
            if match[1]:
                self.scope.labels[match[1]] = Label(match[1], len(self.body))
                self.pending_label = match[1]
            elif match[2] == "{":
                depth += 1
                self.scope = Scope(self.scope)
            elif match[2] == "}":
                depth -= 1
                if depth == 0:
                    break
                assert self.scope.parent is not None
                self.scope = self.scope.parent
            else:
                self.statement(match[3].strip(), match.start(3))
            position = match.end()
        self.function.body = self.body
        return match.end()

    def statement(self, text: str, offset: int) -> None:
        if not text:
            return
        if text[0] != ".":
            self.instruction(text, offset)
            return
        fail = partial(self.text.error, offset)
        kind = re.match(r"\.(\w+)", text)
        name = kind[1] if kind else ""
        if name == "loc":
            self.loc(text)
        elif name == "reg":
            self.scope.declare_registers(text, fail)
        elif name in _SPACES:
            for variable in parse_variable(text, False, fail):
                self.scope.variables[variable.name] = variable
                self.function.variables.append(variable)
        elif name == "branchtargets":
            targets = text[len(".branchtargets") :].split(",")
            self.scope.tables[self.pending_label] = tuple(target.strip() for target in targets)
        elif name == "callprototype":
            self.scope.tables[self.pending_label] = ()
        elif name not in ("pragma", "file"):
            raise fail("unknown directive")

    def loc(self, text: str) -> None:
        match = _LOC.match(text)
        if match:
            outer = SourceLine(int(match[3]), int(match[4])) if match[3] else None
            self.source = SourceLine(int(match[1]), int(match[2]), outer)

    def instruction(self, text: str, offset: int) -> None:
        match = _INSTRUCTION.match(text)
        if not match:
            raise self.text.error(offset, "not an instruction")
        fail = partial(self.text.error, offset)
        guard = None
        if match[2]:
            guard = self.scope.register(match[2])
            if guard is None:
                raise fail(f"guard {match[2]} is not declared")
        name = match[3].rstrip(":")
        opcode, *mods = name.split(".")
        operands = parse_operands(match[4], self.scope, fail)
        parsed = Instruction(
            name, opcode, tuple(mods), operands, guard, match[1] == "!",
            self.text.line(offset), self.source, text,
        )  # fmt: skip
        self.body.append(parsed)
        if opcode == "brx":
            table = operands[-1]
            targets = self.scope.table(table.name) if isinstance(table, Symbol) else ()
            parsed.targets = tuple(self.scope.symbol(name) for name in targets)
            if not targets:
                raise fail("brx needs a .branchtargets table")


def _resolve_symbols(scope: Scope, module: Module) -> None:
    """Bind every symbol to a label, variable or function; labels win inside their scope."""
    for symbol, where in scope.symbols:
        symbol.target = (
            where.label(symbol.name)
            or where.variable(symbol.name)
            or module.functions.get(symbol.name)
        )
        if symbol.target is None and not where.is_table(symbol.name):
            raise PtxSyntaxError(f"PTX: {symbol.name!r} is not declared")
