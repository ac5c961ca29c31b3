"""The table from opcodes to the functions that build their steps.

A builder takes the grid's :class:`~gemmjit.emulator.operands.Operands` and the instruction, checks
its form, and returns a :class:`~gemmjit.emulator.steps.Step`. It is registered under a prefix of
the dotted name; the longest registered prefix wins, so `mbarrier.init` and `mbarrier` may differ.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

from gemmjit.emulator.faults import UnknownInstruction
from gemmjit.emulator.modifiers import unknown_modifiers
from gemmjit.emulator.module import Instruction
from gemmjit.emulator.steps import Step

if TYPE_CHECKING:
    from gemmjit.emulator.operands import Operands

__all__ = ["Builder", "build_step", "instruction", "known_opcodes", "reject"]

Builder = Callable[["Operands", Instruction], Step]

_BUILDERS: dict[str, Builder] = {}
_MODULES = (
    "alu_integer", "alu_bits", "alu_float", "alu_half", "compare", "convert", "move", "load_store",
    "atomics", "warp", "barriers", "control", "instructions_mbarrier", "copy_async", "bulk_groups",
    "copy_bulk", "instructions_tma", "instructions_mma", "instructions_wgmma", "wmma", "system",
    "instructions_tcgen05_alloc", "instructions_tcgen05_ld_st", "instructions_tcgen05_mma",
    "instructions_tcgen05_cp", "instructions_tcgen05_sync", "cluster_launch_control",
    "dependencies", "register_pool",
)  # fmt: skip


def instruction(*prefixes: str) -> Callable[[Builder], Builder]:
    """Register a builder for all instructions whose name starts with one of `prefixes`."""

    def register(builder: Builder) -> Builder:
        for prefix in prefixes:
            _BUILDERS[prefix] = builder
        return builder

    return register


@cache
def _load() -> None:
    for name in _MODULES:
        importlib.import_module(f"gemmjit.emulator.{name}")


def known_opcodes() -> list[str]:
    """Return the registered prefixes, sorted."""
    _load()
    return sorted(_BUILDERS)


def reject(
    instruction: Instruction, what: str = "this form has no semantics"
) -> UnknownInstruction:
    """Return the exception for a form that a builder does not know."""
    return UnknownInstruction(f"{instruction.name}: {what} in the emulator")


def build_step(operands: Operands, found: Instruction) -> Step:
    """Return the step of an instruction.

    Raises
    ------
    UnknownInstruction
        No builder knows the opcode, or the builder does not know the form.
    """
    _load()
    parts = found.name.split(".")
    for count in range(len(parts), 0, -1):
        builder = _BUILDERS.get(".".join(parts[:count]))
        if builder is not None:
            unknown = unknown_modifiers(found.opcode, found.mods)
            if unknown:
                raise reject(found, f"modifier .{unknown[0]} has no semantics")
            return builder(operands, found)
    raise UnknownInstruction(f"{found.name}: unknown instruction")
