"""Bits: logic, shifts, fields, permutes and counts (PTX ISA 9.7.1.17 to 9.7.1.24, 9.7.8)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gemmjit.emulator.dispatch import instruction, reject
from gemmjit.emulator.module import Immediate, Instruction, Negated
from gemmjit.emulator.operands import Operands, type_of
from gemmjit.emulator.steps import Map, Step, Ufunc

__all__: list[str] = []

Array = npt.NDArray[Any]

_LOGIC: dict[str, tuple[np.ufunc, np.ufunc]] = {
    "and": (np.bitwise_and, np.logical_and),
    "or": (np.bitwise_or, np.logical_or),
    "xor": (np.bitwise_xor, np.logical_xor),
}


@instruction("and", "or", "xor")
def _logic(operands: Operands, found: Instruction) -> Step:
    kind = found.mods[-1]
    out = operands.destination(found.operands[0], kind)
    bitwise, logical = _LOGIC[found.opcode]
    if kind == "pred":
        pairs = [operands.predicate_reader(o) for o in found.operands[1:3]]
        if any(negated for _, negated in pairs):
            (a, na), (b, nb) = pairs
            return Map(lambda x, y: logical(x ^ na, y ^ nb), (a, b), out)
        return Ufunc(logical, [row for row, _ in pairs], out)
    return Ufunc(bitwise, [operands.source(o, kind) for o in found.operands[1:3]], out)


@instruction("not", "cnot")
def _not(operands: Operands, found: Instruction) -> Step:
    kind = found.mods[-1]
    out = operands.destination(found.operands[0], kind)
    if kind == "pred":
        source = found.operands[1]
        if isinstance(source, Negated):
            raise reject(found)
        return Ufunc(np.logical_not, (operands.predicate(source),), out)
    source_row = operands.source(found.operands[1], kind)
    if found.opcode == "cnot":
        return Map(lambda a: (a == 0).astype(a.dtype), (source_row,), out)
    return Ufunc(np.invert, (source_row,), out)


@instruction("shl", "shr")
def _shift(operands: Operands, found: Instruction) -> Step:
    kind = type_of(found.mods[-1])
    a = operands.source(found.operands[1], kind.name)
    out = operands.destination(found.operands[0], kind.name)
    ufunc = np.left_shift if found.opcode == "shl" else np.right_shift
    amount = found.operands[2]
    if isinstance(amount, Immediate):
        # Amounts above the width act as the width; NumPy leaves them undefined.
        count = int(amount.value) & 0xFFFF_FFFF
        if count < kind.bits:
            return Ufunc(ufunc, (a, operands.constant(count, kind.dtype)), out)
        if kind.kind == "s" and found.opcode == "shr":
            return Ufunc(ufunc, (a, operands.constant(kind.bits - 1, kind.dtype)), out)
        return Ufunc(np.bitwise_and, (a, operands.constant(0, kind.dtype)), out)
    b = operands.source(amount, "u32")
    arithmetic = kind.kind == "s" and found.opcode == "shr"
    width, dtype = np.uint32(kind.bits), kind.dtype

    def run(x: Array, n: Array) -> Any:
        count = np.minimum(n, width - np.uint32(1)).astype(dtype)
        shifted = ufunc(x, count)
        return shifted if arithmetic else np.where(n >= width, dtype.type(0), shifted)

    return Map(run, (a, b), out)


@instruction("shf")
def _funnel(operands: Operands, found: Instruction) -> Step:
    left, clamp = "l" in found.mods, "clamp" in found.mods
    low, high, amount = (operands.source(o, "b32") for o in found.operands[1:4])

    def run(a: Array, b: Array, c: Array) -> Array:
        count = np.minimum(c, np.uint32(32)) if clamp else c & np.uint32(31)
        both = (b.astype(np.uint64) << np.uint64(32)) | a
        wide = count.astype(np.uint64)
        if left:
            return ((both << wide) >> np.uint64(32)).astype(np.uint32)
        return (both >> wide).astype(np.uint32)

    return Map(run, (low, high, amount), operands.destination(found.operands[0], "b32"))


@instruction("lop3")
def _lop3(operands: Operands, found: Instruction) -> Step:
    if found.mods[0] in ("or", "and"):
        raise reject(found)
    table = found.operands[4]
    if not isinstance(table, Immediate):
        raise reject(found, "the look-up table must be a literal")
    terms = [i for i in range(8) if int(table.value) >> i & 1]
    sources = [operands.source(o, "b32") for o in found.operands[1:4]]

    def run(a: Array, b: Array, c: Array) -> Array:
        result = np.zeros_like(a)
        for term in terms:
            x = a if term & 4 else ~a
            y = b if term & 2 else ~b
            z = c if term & 1 else ~c
            result |= x & y & z
        return result

    return Map(run, sources, operands.destination(found.operands[0], "b32"))


@instruction("prmt")
def _prmt(operands: Operands, found: Instruction) -> Step:
    mode = found.mods[1] if len(found.mods) > 1 else ""
    sources = [operands.source(o, "b32") for o in found.operands[1:4]]
    modes = {  # byte selectors by the low two bits of c (PTX ISA 9.7.8.7)
        "f4e": [[0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5], [3, 4, 5, 6]],
        "b4e": [[0, 7, 6, 5], [1, 0, 7, 6], [2, 1, 0, 7], [3, 2, 1, 0]],
        "rc8": [[0] * 4, [1] * 4, [2] * 4, [3] * 4],
        "ecl": [[0, 1, 2, 3], [1, 1, 2, 3], [2, 2, 2, 3], [3, 3, 3, 3]],
        "ecr": [[0, 0, 0, 0], [0, 1, 1, 1], [0, 1, 2, 2], [0, 1, 2, 3]],
        "rc16": [[0, 1, 0, 1], [2, 3, 2, 3], [0, 1, 0, 1], [2, 3, 2, 3]],
    }
    if mode and mode not in modes:
        raise reject(found)
    table = np.array(modes[mode], np.int64) if mode else None

    def run(a: Array, b: Array, c: Array) -> Array:
        both = np.stack(np.broadcast_arrays(a, b), -1)
        raw = np.ascontiguousarray(both).view(np.uint8).reshape(*both.shape[:-1], 8)
        if table is not None:
            selected = table[(c & np.uint32(3)).astype(np.int64)]
            chosen = np.take_along_axis(raw, selected, -1)
        else:
            shifts = np.array([0, 4, 8, 12], np.uint32)
            selector = (c[..., None] >> shifts) & np.uint32(15)
            chosen = np.take_along_axis(raw, (selector & np.uint32(7)).astype(np.int64), -1)
            signs = (chosen.view(np.int8) >> np.int8(7)).view(np.uint8)
            chosen = np.where(selector & np.uint32(8), signs, chosen)
        return np.ascontiguousarray(chosen).view(np.uint32)[..., 0]

    return Map(run, sources, operands.destination(found.operands[0], "b32"))


@instruction("bfe")
def _bfe(operands: Operands, found: Instruction) -> Step:
    kind = type_of(found.mods[-1])
    a = operands.source(found.operands[1], kind.name)
    position, length = (operands.source(o, "u32") for o in found.operands[2:4])
    bits, signed = kind.bits, kind.kind == "s"

    def run(x: Array, p: Array, n: Array) -> Array:
        pos = (p & np.uint32(255)).astype(np.int64)
        count = (n & np.uint32(255)).astype(np.int64)
        value = x.astype(np.uint64) & np.uint64((1 << bits) - 1)
        field = np.where(pos < 64, value >> np.minimum(pos, 63).astype(np.uint64), np.uint64(0))
        mask = np.where(
            count >= 64,
            ~np.uint64(0),
            (np.uint64(1) << np.minimum(count, 63).astype(np.uint64)) - np.uint64(1),
        )
        field = field & mask
        if signed:
            # The sign comes from the field's top bit, or from the source's when it runs past it.
            top = np.minimum(pos + count - 1, bits - 1)
            sign = np.where(
                count > 0,
                value >> np.maximum(top, 0).astype(np.uint64) & np.uint64(1),
                np.uint64(0),
            )
            valid = np.minimum(count, np.maximum(bits - pos, 0))
            extend = ~((np.uint64(1) << np.minimum(valid, 63).astype(np.uint64)) - np.uint64(1))
            extend = np.where(valid >= 64, np.uint64(0), extend)
            field = np.where(sign != 0, field | extend, field)
        return field.astype(x.dtype)

    return Map(run, (a, position, length), operands.destination(found.operands[0], kind.name))


@instruction("bfi")
def _bfi(operands: Operands, found: Instruction) -> Step:
    kind = type_of(found.mods[-1])
    a, b = (operands.source(o, kind.name) for o in found.operands[1:3])
    position, length = (operands.source(o, "u32") for o in found.operands[3:5])
    bits = kind.bits

    def run(x: Array, y: Array, p: Array, n: Array) -> Array:
        pos = (p & np.uint32(255)).astype(np.uint64)
        count = (n & np.uint32(255)).astype(np.uint64)
        ones = np.where(
            count >= 64,
            ~np.uint64(0),
            (np.uint64(1) << np.minimum(count, 63).astype(np.uint64)) - np.uint64(1),
        )
        inside = pos < bits
        shift = np.minimum(pos, np.uint64(63))
        mask = np.where(inside, ones << shift, np.uint64(0))
        value = (y.astype(np.uint64) & ~mask) | ((x.astype(np.uint64) << shift) & mask)
        return value.astype(x.dtype)

    return Map(run, (a, b, position, length), operands.destination(found.operands[0], kind.name))


@instruction("bmsk")
def _bmsk(operands: Operands, found: Instruction) -> Step:
    a, b = (operands.source(o, "u32") for o in found.operands[1:3])
    clamp = "clamp" in found.mods

    def run(p: Array, n: Array) -> Array:
        pos, count = p.astype(np.uint64), n.astype(np.uint64)
        if clamp:
            pos, count = np.minimum(pos, np.uint64(32)), np.minimum(count, np.uint64(32))
        else:
            pos, count = pos & np.uint64(31), count & np.uint64(31)
        mask = ((np.uint64(1) << count) - np.uint64(1)) << pos
        return mask.astype(np.uint32)

    return Map(run, (a, b), operands.destination(found.operands[0], "b32"))


@instruction("brev")
def _brev(operands: Operands, found: Instruction) -> Step:
    kind = type_of(found.mods[-1])
    flip = np.array([int(f"{i:08b}"[::-1], 2) for i in range(256)], np.uint8)

    def run(a: Array) -> Array:
        raw = np.ascontiguousarray(a)[..., None].view(np.uint8)
        return np.ascontiguousarray(flip[raw][..., ::-1]).view(a.dtype)[..., 0]

    source = operands.source(found.operands[1], kind.name)
    return Map(run, (source,), operands.destination(found.operands[0], kind.name))


def _top_bit(values: Array) -> Any:
    """Index of the highest set bit of unsigned values, -1 for zero."""
    wide = values.astype(np.uint64)
    result = np.full(wide.shape, -1, np.int64)
    for step in (32, 16, 8, 4, 2, 1):
        upper = wide >> np.uint64(step)
        big = upper != 0
        result += np.where(big, step, 0)
        wide = np.where(big, upper, wide)
    return result + (wide != 0)


@instruction("clz", "popc", "bfind")
def _count(operands: Operands, found: Instruction) -> Step:
    kind = type_of(found.mods[-1])
    source = operands.source(found.operands[1], kind.name)
    out = operands.destination(found.operands[0], "u32")
    bits = kind.bits
    if found.opcode == "popc":
        return Map(lambda a: np.bitwise_count(a), (source,), out)
    if found.opcode == "clz":
        return Map(lambda a: (bits - 1 - _top_bit(a)).astype(np.uint32), (source,), out)
    amount = "shiftamt" in found.mods

    def run(a: Array) -> Any:
        # For signed values: the highest bit that differs from the sign.
        value = np.where(a < 0, ~a, a) if kind.kind == "s" else a
        top = _top_bit(value.view(f"u{bits // 8}") if value.flags.c_contiguous else value)
        if amount:
            top = np.where(top >= 0, bits - 1 - top, -1)
        return top.astype(np.int32).view(np.uint32)

    return Map(run, (source,), out)


@instruction("fns")
def _fns(operands: Operands, found: Instruction) -> Step:
    mask, base = (operands.source(o, "b32") for o in found.operands[1:3])
    offset = operands.source(found.operands[3], "s32")

    def one(m: int, b: int, n: int) -> int:
        if n == 0:
            return b if m >> b & 1 else -1
        step, left = (1, n) if n > 0 else (-1, -n)
        at = b
        while 0 <= at < 32:
            if m >> at & 1:
                left -= 1
                if left == 0:
                    return at
            at += step
        return -1

    def run(m: Array, b: Array, n: Array) -> Array:
        flat = zip(
            m.reshape(-1).tolist(), b.reshape(-1).tolist(), n.reshape(-1).tolist(), strict=True
        )
        return np.array([one(*v) for v in flat], np.int32).view(np.uint32).reshape(m.shape)

    return Map(run, (mask, base, offset), operands.destination(found.operands[0], "b32"))


@instruction("szext")
def _szext(operands: Operands, found: Instruction) -> Step:
    kind = type_of(found.mods[-1])
    a = operands.source(found.operands[1], kind.name)
    n = operands.source(found.operands[2], "u32")
    clamp = "clamp" in found.mods

    def run(x: Array, count: Array) -> Array:
        width = np.minimum(count, np.uint32(32)) if clamp else count & np.uint32(31)
        shift = (np.uint32(32) - width).astype(np.int64)
        wide = x.astype(np.int64) & 0xFFFF_FFFF
        if kind.kind == "s":
            moved = (wide << (shift + 32)) >> (shift + 32)
        else:
            moved = ((wide << shift) & 0xFFFF_FFFF) >> shift
        return np.where(width == 0, 0, moved).astype(x.dtype)

    return Map(run, (a, n), operands.destination(found.operands[0], kind.name))
