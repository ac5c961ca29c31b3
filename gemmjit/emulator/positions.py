"""Positions in templates for programs whose PTX has none.

A kernel's PTX comes without line information. What stops a kernel, or is told of it, names lines of
that PTX; only then is PTX with line information asked for, and its positions are given to the same
instructions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from gemmjit.emulator.faults import PtxSyntaxError
from gemmjit.emulator.module import Instruction
from gemmjit.emulator.parser import parse
from gemmjit.emulator.program import Program, shown

__all__ = ["add_positions", "located"]

_LINE = re.compile(r"PTX line (\d+): ")


def add_positions(program: Program, with_lines: Callable[[], str]) -> bool:
    """Give the instructions of a program the positions that other PTX has for them.

    Parameters
    ----------
    program : Program
        Left as it is if it has positions, or if the other PTX has other instructions.
    with_lines : callable
        Returns PTX with line information; called only if the program has none.

    Returns
    -------
    bool
        Whether the program has positions now.
    """
    if _has_positions(program):
        return True
    try:
        module = parse(with_lines())
    except PtxSyntaxError:
        return False
    pairs: list[tuple[Instruction, Instruction]] = []
    for function in program.functions:
        other = module.functions.get(function.name)
        mine, found = function.body or [], (other and other.body) or []
        if [i.text for i in mine] != [i.text for i in found]:
            return False
        pairs += zip(mine, found, strict=True)
    program.module.files.update(module.files)
    for instruction, same in pairs:
        instruction.source = same.source
    return _has_positions(program)


def located(texts: Sequence[str], program: Program, with_lines: Callable[[], str]) -> list[str]:
    """Return messages with the positions of the instructions that they show.

    Parameters
    ----------
    texts : sequence of str
        With any number of instructions, each as `Program.describe` shows it.
    program : Program
        What they are about.
    with_lines : callable
        As for `add_positions`; called only if a message shows an instruction.
    """
    shows = any(_LINE.search(text) for text in texts)
    if not shows or not add_positions(program, with_lines):
        return list(texts)
    at: dict[int, list[int]] = {}
    for pc, instruction in enumerate(program.instructions):
        at.setdefault(instruction.ptx_line, []).append(pc)
    return [_located(text, program, at) for text in texts]


def _located(text: str, program: Program, at: dict[int, list[int]]) -> str:
    parts, done = [], 0
    for match in _LINE.finditer(text):
        start = match.start()
        bare = {shown(program.instructions[pc]): pc for pc in at.get(int(match[1]), ())}
        told = max((b for b in bare if text.startswith(b, start)), key=len, default="")
        end = start + len(told)
        if told and not text.startswith("  [", end):
            parts += [text[done:start], program.describe(bare[told])]
            done = end
    return "".join([*parts, text[done:]])


def _has_positions(program: Program) -> bool:
    return any(instruction.source is not None for instruction in program.instructions)
