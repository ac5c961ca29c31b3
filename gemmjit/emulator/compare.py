"""Comparison and selection: setp, set, selp, slct (PTX ISA 9.7.6)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from gemmjit.emulator.alu_half import decode_half
from gemmjit.emulator.dispatch import instruction, reject
from gemmjit.emulator.module import Instruction, Operand, Pair
from gemmjit.emulator.operands import Operands, type_of
from gemmjit.emulator.steps import Map, MapMany, Step, Ufunc

__all__: list[str] = []

Array = npt.NDArray[Any]

_ORDERED: dict[str, np.ufunc] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal, "lo": np.less, "ls": np.less_equal, "hi": np.greater,
    "hs": np.greater_equal,
}  # fmt: skip
_LOGIC: dict[str, np.ufunc] = {
    "and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor,
}  # fmt: skip


def _comparison(found: Instruction, name: str, kind: str) -> Callable[..., Any]:
    """Return the comparison of values; unordered float forms are true for NaN."""
    if type_of(kind).kind != "f":
        if name not in _ORDERED:
            raise reject(found)
        return _ORDERED[name]
    if name == "num":
        return lambda a, b: ~(np.isnan(a) | np.isnan(b))
    if name == "nan":
        return lambda a, b: np.isnan(a) | np.isnan(b)
    if name == "ne":
        # Ordered: NaN differs from nothing.
        return lambda a, b: (a != b) & ~(np.isnan(a) | np.isnan(b))
    if name in _ORDERED:
        return _ORDERED[name]
    base = _ORDERED.get(name[:-1])
    if base is None or name[-1] != "u":
        raise reject(found)
    return lambda a, b: base(a, b) | np.isnan(a) | np.isnan(b)


def _sources(operands: Operands, pair: tuple[Operand, ...], kind: str) -> list[Array]:
    bits = {"f16": "b16", "bf16": "b16", "f16x2": "b32", "bf16x2": "b32"}.get(kind, kind)
    return [operands.source(operand, bits) for operand in pair]


def _on_values(kind: str, compare: Callable[..., Any]) -> Callable[..., Any]:
    if kind in ("f16", "bf16"):
        return lambda a, b: compare(decode_half(kind, a), decode_half(kind, b))
    return compare


@instruction("setp")
def _setp(operands: Operands, found: Instruction) -> Step:
    kind, name = found.mods[-1], found.mods[0]
    logic = next((m for m in found.mods[1:] if m in _LOGIC), "")
    a, b = _sources(operands, found.operands[1:3], kind)
    if kind.endswith("x2"):
        return _setp_pair(operands, found, a, b, kind.removesuffix("x2"), name, logic)
    compare = _on_values(kind, _comparison(found, name, kind))
    target = found.operands[0]
    if not logic and not isinstance(target, Pair):
        out = operands.destination(target, "pred")
        if isinstance(compare, np.ufunc):
            return Ufunc(compare, (a, b), out)
        return Map(compare, (a, b), out)
    targets = (target.first, target.second) if isinstance(target, Pair) else (target,)
    outs = [operands.destination(t, "pred") for t in targets]
    if not logic:
        return MapMany(lambda x, y: _both(compare(x, y)), (a, b), outs)
    third, negated = operands.predicate_reader(found.operands[3])
    combine = _LOGIC[logic]

    def run(x: Array, y: Array, c: Array) -> list[Array]:
        truth, extra = compare(x, y), c ^ negated
        return [combine(truth, extra), combine(~truth, extra)][: len(outs)]

    return MapMany(run, (a, b, third), outs)


def _both(truth: Array) -> list[Array]:
    return [truth, ~truth]


def _setp_pair(
    operands: Operands, found: Instruction, a: Array, b: Array, kind: str, name: str, logic: str
) -> Step:
    compare = _comparison(found, name, "f32")
    target = found.operands[0]
    if not isinstance(target, Pair):
        raise reject(found)
    outs = [operands.destination(t, "pred") for t in (target.first, target.second)]
    extra = operands.predicate_reader(found.operands[3]) if logic else None

    def run(x: Array, y: Array, *c: Array) -> list[Array]:
        xs, ys = (np.ascontiguousarray(v)[..., None].view(np.uint16) for v in (x, y))
        truth = compare(decode_half(kind, xs), decode_half(kind, ys))
        halves = [truth[..., 0], truth[..., 1]]
        if extra is not None:
            halves = [_LOGIC[logic](h, c[0] ^ extra[1]) for h in halves]
        return halves

    sources = (a, b) if extra is None else (a, b, extra[0])
    return MapMany(run, sources, outs)


@instruction("set")
def _set(operands: Operands, found: Instruction) -> Step:
    result, kind, name = found.mods[-2], found.mods[-1], found.mods[0]
    logic = next((m for m in found.mods[1:] if m in _LOGIC), "")
    a, b = _sources(operands, found.operands[1:3], kind)
    sources = [a, b]
    negated = False
    if logic:
        third, negated = operands.predicate_reader(found.operands[3])
        sources.append(third)
    pair = kind.endswith("x2")
    base_kind = kind.removesuffix("x2")
    compare = _comparison(found, name, "f32" if pair else kind)
    one: Any = {"f32": 1.0, "f16": 0x3C00, "bf16": 0x3F80, "f16x2": 0x3C00, "bf16x2": 0x3F80}.get(
        result, -1
    )

    def run(x: Array, y: Array, *c: Array) -> Array:
        if pair or base_kind in ("f16", "bf16"):
            if pair:
                x, y = (np.ascontiguousarray(v)[..., None].view(np.uint16) for v in (x, y))
            x, y = decode_half(base_kind, x), decode_half(base_kind, y)
        truth = compare(x, y)
        if c:
            truth = _LOGIC[logic](truth, (c[0] ^ negated)[..., None] if pair else c[0] ^ negated)
        if pair:
            held = np.where(truth, one & 0xFFFF, 0).astype(np.uint16)
            return np.ascontiguousarray(held).view(np.uint32)[..., 0]
        return np.where(truth, one, 0)

    width = {"f16": "b16", "bf16": "b16", "f16x2": "b32", "bf16x2": "b32"}.get(result, result)
    out = operands.destination(found.operands[0], width)
    return Map(lambda *v: run(*v).astype(out.dtype), sources, out)


@instruction("selp")
def _selp(operands: Operands, found: Instruction) -> Step:
    kind = found.mods[-1]
    kind = {"f16": "b16", "bf16": "b16"}.get(kind, kind)
    a, b = (operands.source(o, kind) for o in found.operands[1:3])
    chooser, negated = operands.predicate_reader(found.operands[3])
    out = operands.destination(found.operands[0], kind)
    if negated:
        a, b = b, a
    return Map(np.where, (chooser, a, b), out)


@instruction("slct")
def _slct(operands: Operands, found: Instruction) -> Step:
    kind, by = found.mods[-2], found.mods[-1]
    a, b = (operands.source(o, kind) for o in found.operands[1:3])
    c = operands.source(found.operands[3], by)
    return Map(
        lambda x, y, z: np.where(z >= 0, x, y),
        (a, b, c),
        operands.destination(found.operands[0], kind),
    )
