"""`tcgen05.ld.red`: what a thread has loaded, reduced to one register (PTX ISA 9.1, 9.7.16.8.3).

For sm_103 and sm_110. Without `.NaN` a NaN loses against any number, as for `min` and `max`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemmjit.emulator.dispatch import reject
from gemmjit.emulator.module import Instruction

__all__ = ["QUALIFIERS", "TmemReduction"]

#: Qualifiers of the reducing form.
QUALIFIERS = frozenset(("red", "min", "max", "abs", "NaN", "f32", "u32", "s32"))

_TYPES: dict[str, Any] = {"f32": np.float32, "u32": np.uint32, "s32": np.int32}
_NAN = 0x7FFFFFFF


class TmemReduction:
    """One reduction.

    Parameters
    ----------
    found : Instruction
        `tcgen05.ld.red.sync.aligned.shape.num.op{.abs}{.NaN}.type`.

    Raises
    ------
    UnknownInstruction
        If the manual does not list the form.
    """

    def __init__(self, found: Instruction) -> None:
        mods = set(found.mods)
        ops, types = mods & {"min", "max"}, mods & set(_TYPES)
        if len(ops) != 1 or len(types) != 1 or not mods & {"32x32b", "16x32bx2"} or "x1" in mods:
            raise reject(found)
        if mods & {"abs", "NaN"} and types != {"f32"}:
            raise reject(found, ".abs and .NaN belong to .f32")
        self.type = types.pop()
        self.op = ops.pop()
        self.by_magnitude = "abs" in mods
        self.keeps_nan = "NaN" in mods

    def __call__(self, words: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """Return the results of (threads, registers) as bits, (threads,)."""
        values = np.ascontiguousarray(words).view(_TYPES[self.type])
        if self.type != "f32":
            least: NDArray[Any] = values.min(axis=1) if self.op == "min" else values.max(axis=1)
            return least.view(np.uint32)
        if self.by_magnitude:
            values = np.abs(values)
        # By bits in the order of the numbers, so that -0 is less than +0.
        bits = values.view(np.int32).astype(np.int64)
        keys = np.where(bits < 0, -(bits & 0x7FFFFFFF) - 1, bits)
        is_nan = np.isnan(values)
        least_key = np.int64(-(2**40)) if self.op == "max" else np.int64(2**40)
        keys = np.where(is_nan, least_key, keys)
        chosen = keys.argmin(axis=1) if self.op == "min" else keys.argmax(axis=1)
        out: NDArray[np.uint32] = values.view(np.uint32)[np.arange(len(values)), chosen]
        spoiled = is_nan.any(axis=1) if self.keeps_nan else is_nan.all(axis=1)
        return np.where(spoiled, np.uint32(_NAN), out)
