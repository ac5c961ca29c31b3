"""Moves between registers and address conversion: mov, cvta, isspacep.

PTX ISA 9.7.9.3, 9.7.9.20, 9.7.9.19.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gemmjit.emulator.dispatch import instruction, reject
from gemmjit.emulator.memory import GLOBAL_WINDOW, LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW
from gemmjit.emulator.module import Instruction, Negated, Sink, Vector
from gemmjit.emulator.operands import Operands, type_of
from gemmjit.emulator.steps import Copy, Map, Nothing, Step, Together, Ufunc

__all__: list[str] = []

Array = npt.NDArray[Any]


@instruction("mov")
def _mov(operands: Operands, found: Instruction) -> Step:
    kind = found.mods[-1]
    target, source = found.operands
    if isinstance(target, Vector):
        return _unpack(operands, found, target, kind)
    if isinstance(source, Vector):
        return _pack(operands, found, source, kind)
    if kind == "pred":
        row, negated = operands.predicate_reader(source)
        out = operands.destination(target, kind)
        return Ufunc(np.logical_not, (row,), out) if negated else Copy(row, out)
    if isinstance(source, Negated):
        raise reject(found)
    # Bits, not values: a float move must not touch the payload of a NaN.
    bits = f"b{type_of(kind).bits}" if kind[0] == "f" else kind
    return Copy(operands.source(source, bits), operands.destination(target, bits))


def _pieces(operands: Operands, whole: Array, count: int) -> list[Array]:
    """Return the parts of a row of wide registers, low part first, as strided views."""
    if whole.dtype.names:
        if count != 2:
            raise NotImplementedError
        return [whole["lo"], whole["hi"]]
    size = whole.dtype.itemsize // count
    parts = whole.view(f"u{size}").reshape(*whole.shape, count)
    return [parts[..., index] for index in range(count)]


def _pack(operands: Operands, found: Instruction, source: Vector, kind: str) -> Step:
    whole = operands.destination(found.operands[0], f"b{type_of(kind).bits}")
    count = len(source.items)
    part = f"b{type_of(kind).bits // count}"
    rows = [operands.source(item, part) for item in source.items]
    return Together(
        [Copy(r, p) for r, p in zip(rows, _pieces(operands, whole, count), strict=True)]
    )


def _unpack(operands: Operands, found: Instruction, target: Vector, kind: str) -> Step:
    count = len(target.items)
    bits = type_of(kind).bits
    whole = operands.source(found.operands[1], f"b{bits}")
    if not whole.flags.c_contiguous:
        whole = np.ascontiguousarray(whole)
    copies = [
        Copy(piece, operands.destination(item, f"b{bits // count}"))
        for piece, item in zip(_pieces(operands, whole, count), target.items, strict=True)
        if not isinstance(item, Sink)
    ]
    return Together(copies) if copies else Nothing()


_WINDOWS = {
    "shared": SHARED_WINDOW, "shared::cta": SHARED_WINDOW, "shared::cluster": SHARED_WINDOW,
    "local": LOCAL_WINDOW, "global": 0, "const": 0, "param": 0, "param::entry": 0,
}  # fmt: skip


@instruction("cvta")
def _cvta(operands: Operands, found: Instruction) -> Step:
    back = found.mods[0] == "to"
    space = found.mods[1] if back else found.mods[0]
    if space not in _WINDOWS:
        raise reject(found)
    kind = found.mods[-1]
    source = operands.source(found.operands[1], kind)
    out = operands.destination(found.operands[0], kind)
    window = _WINDOWS[space]
    if space.startswith("param") and not back and kind != "u32":
        base = np.uint64(PARAM_WINDOW)
        return Map(lambda a: np.where(a < base, a + base, a), (source,), out)
    if window == 0:
        return Copy(source, out)
    if kind == "u32":
        raise reject(found, "32-bit generic addresses")
    ufunc = np.subtract if back else np.add
    return Ufunc(ufunc, (source, operands.constant(window, source.dtype)), out)


@instruction("isspacep")
def _isspacep(operands: Operands, found: Instruction) -> Step:
    space = found.mods[0]
    source = operands.source(found.operands[1], "u64")
    out = operands.destination(found.operands[0], "pred")
    grid = operands.grid
    span = 1 << 32

    def inside(a: Array, window: int) -> Array:
        return (a >= np.uint64(window)) & (a < np.uint64(window + span))

    if space == "shared::cta" or space == "shared":
        first = (grid.shared.origin - grid.shared.base + SHARED_WINDOW).astype(np.uint64)
        return Map(lambda a, f: (a >= f) & (a < f + np.uint64(1 << 24)), (source, first), out)
    tests = {
        "shared::cluster": lambda a: inside(a, SHARED_WINDOW),
        "local": lambda a: inside(a, LOCAL_WINDOW),
        "param": lambda a: inside(a, PARAM_WINDOW),
        "param::entry": lambda a: inside(a, PARAM_WINDOW),
        "global": lambda a: a >= np.uint64(GLOBAL_WINDOW),
    }
    if space not in tests:
        raise reject(found)
    return Map(tests[space], (source,), out)
