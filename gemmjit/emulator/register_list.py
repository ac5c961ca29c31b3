"""Vector operands of asynchronous instructions: registers that are read or written later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gemmjit.emulator.dispatch import reject
from gemmjit.emulator.module import Instruction, Operand, Register, Vector

__all__ = ["RegisterList", "register_list"]

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class RegisterList:
    """Which registers an instruction names.

    Attributes
    ----------
    numbers : frozenset of int
        Their numbers in the 32-bit register file.
    order : tuple of int
        The same, in operand order.
    """

    numbers: frozenset[int]
    order: tuple[int, ...]

    def read(self, file: Array, slot: int, first: int, threads: int) -> Array:
        """Return the registers of so many threads from `first` on, `[threads, registers]`."""
        return np.ascontiguousarray(file[self._index(), slot, first : first + threads].T)

    def write(self, file: Array, slot: int, first: int, threads: int, values: Any) -> None:
        """Assign `[threads, registers]`, or one value to all."""
        transposed = values.T if isinstance(values, np.ndarray) else values
        file[self._index(), slot, first : first + threads] = transposed

    def _index(self) -> Any:
        """Return a slice where the registers are equally spaced (compilers number them so)."""
        first, count = self.order[0], len(self.order)
        step = self.order[1] - first if count > 1 else 1
        end = first + step * count
        if step and self.order == tuple(range(first, end, step)):
            return slice(first, end if end >= 0 else None, step)
        return list(self.order)


def register_list(found: Instruction, operand: Operand, count: int) -> RegisterList:
    """Return the registers of an operand of 32-bit registers, a vector or a single one."""
    items = operand.items if isinstance(operand, Vector) else (operand,)
    if len(items) != count:
        raise reject(found, f"expected {count} registers; got {len(items)}")
    numbers = []
    for item in items:
        if not isinstance(item, Register) or item.type not in ("b32", "f32", "u32", "s32"):
            raise reject(found, f"operand {item!r} is no 32-bit register")
        numbers.append(item.row)
    return RegisterList(frozenset(numbers), tuple(numbers))
