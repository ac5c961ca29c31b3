"""What templates are told of the steps of an epilogue."""

from __future__ import annotations

from typing import NamedTuple

from gemmjit.dtypes import F32, DType
from gemmjit.epilogue import Chain, SwiGLU

__all__ = ["StepTable", "StepVariables"]


class StepVariables(NamedTuple):
    """One step, in C++.

    Attributes
    ----------
    struct : str
        Its name; empty if it has none.
    type : str
        Element type of what it reads; empty if it reads nothing.
    per : {"", "row", "column"}
        What it is read once for.
    layout : str
        ``GATE_SPLIT`` or ``GATE_INTERLEAVED`` for a gate; empty otherwise.
    contiguous : {"true", "false"}
        Whether neighbours lie side by side in what it reads.
    """

    struct: str
    type: str
    per: str
    layout: str
    contiguous: str


class StepTable(dict[str, StepVariables]):
    """The steps by their keywords, in order. A dictionary that nothing changes: a value."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self.items()))

    @classmethod
    def of(cls, chain: Chain, in_dtype: DType) -> StepTable:
        """Return the table of a chain on operands of a type."""
        table = cls()
        for step in chain.steps:
            operand = step.kind.operand
            per = "" if operand is None else "column" if "column" in operand.dims else "row"
            table[step.kind.keyword] = StepVariables(
                struct=step.kind.struct,
                type=(F32 if step.option.startswith("f32") else in_dtype).cuda if operand else "",
                per=per,
                layout=f"GATE_{step.option.upper()}" if step.kind is SwiGLU else "",
                contiguous="false" if step.option.endswith("strided") else "true",
            )
        return table
