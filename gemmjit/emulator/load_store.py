"""ld, ldu, st, prefetch and their vector, cache and scope forms (PTX ISA 9.7.9.8 to 9.7.9.15)."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gemmjit.emulator.control import parameter_bytes
from gemmjit.emulator.dispatch import instruction, reject
from gemmjit.emulator.faults import MemoryFault
from gemmjit.emulator.lanes import LaneSet
from gemmjit.emulator.module import (
    Address,
    Immediate,
    Instruction,
    Register,
    Symbol,
    Variable,
)
from gemmjit.emulator.operands import Operands, type_of
from gemmjit.emulator.spaces import space_named
from gemmjit.emulator.steps import Copy, LaneOp, Nothing, Step, Together

__all__ = ["space_of"]

Array = npt.NDArray[Any]
_BULK_LIMIT = 1 << 24
_SPACES = (
    "global", "shared", "shared::cta", "shared::cluster", "local", "const", "param",
    "param::entry", "param::func",
)  # fmt: skip


def space_of(found: Instruction) -> str:
    """Return the state space in the modifiers, `generic` without one."""
    return next((m for m in found.mods if m in _SPACES), "generic")


def _vector(found: Instruction) -> int:
    return next((int(m[1:]) for m in found.mods if m in ("v2", "v4", "v8")), 1)


def _fixed_parameter(operands: Operands, address: Any, nbytes: int) -> Array | None:
    """Return the parameter bytes `[blocks, threads, nbytes]` when the address is a constant."""
    if not isinstance(address, Address) or not isinstance(address.base, Symbol):
        return None
    variable = address.base.target
    if not isinstance(variable, Variable):
        return None
    if not 0 <= address.offset <= variable.nbytes - nbytes:
        raise reject(
            operands.grid.program.instructions[operands.pc],
            f"offset {address.offset} passes parameter {variable.name} of {variable.nbytes} bytes",
        )
    if operands.grid.is_entry_parameter(variable):
        raw = operands.grid.parameter_bytes(variable.offset + address.offset, nbytes)
        return np.broadcast_to(raw, (*operands.shape, nbytes))
    return parameter_bytes(operands, variable)[:, :, address.offset : address.offset + nbytes]


@instruction("ld", "ldu")
def _ld(operands: Operands, found: Instruction) -> Step:
    kind, count, space = type_of(found.mods[-1]), _vector(found), space_of(found)
    items = operands.items(found.operands[0])
    if len(items) != count:
        raise reject(found, f"{len(items)} registers for .v{count}")
    name = "pred" if kind.name == "pred" else kind.name
    outs = [operands.destination(item, name) for item in items]
    if kind.name in ("f16", "bf16"):
        raise reject(found)
    if space.startswith("param"):
        fixed = _fixed_parameter(operands, found.operands[1], kind.nbytes * count)
        if fixed is not None:
            values = np.moveaxis(_elements(fixed, kind.dtype, count), -1, 0)
            return Together([Copy(v, out) for v, out in zip(values, outs, strict=True)])
    address, path = operands.address(found.operands[1]), space_named(operands.grid, space)
    dtype = kind.dtype

    def run(lanes: LaneSet) -> None:
        values = path.load(lanes, address.values(lanes), dtype, count)
        if count == 1:
            lanes.put(outs[0], values)
        else:
            for index, out in enumerate(outs):
                lanes.put(out, values[..., index])

    def prepare(lanes: LaneSet) -> Any:
        if lanes.inner is not None:
            return partial(run, lanes)
        read, views, load = address.reader(lanes), [lanes.row_view(o) for o in outs], path.load
        if count == 1:
            view = views[0]

            def one() -> None:
                view[...] = load(lanes, read(), dtype, 1)

            return one

        def many() -> None:
            values = load(lanes, read(), dtype, count)
            for index, out in enumerate(views):
                out[...] = values[..., index]

        return many

    return LaneOp(run, prepare=prepare)


def _elements(raw: Array, dtype: np.dtype[Any], count: int) -> Array:
    """Bytes `[..., n]` as elements `[..., count]`, a view when the bytes are one."""
    if raw.strides[0] == 0 and raw.strides[1] == 0:
        values = np.ascontiguousarray(raw[0, 0]).view(dtype)
        return np.broadcast_to(values, (*raw.shape[:2], count))
    return raw.view(dtype)


@instruction("st")
def _st(operands: Operands, found: Instruction) -> Step:
    kind, count, space = type_of(found.mods[-1]), _vector(found), space_of(found)
    items = operands.items(found.operands[1])
    if len(items) != count or "async" in found.mods or "bulk" in found.mods:
        raise reject(found)
    sources = [operands.source(item, kind.name) for item in items]
    if space.startswith("param"):
        fixed = _fixed_parameter(operands, found.operands[0], kind.nbytes * count)
        if fixed is None:
            raise reject(found, "a store to .param through a register")
        targets = np.moveaxis(_elements(fixed, kind.dtype, count), -1, 0)
        return Together([Copy(s, t) for s, t in zip(sources, targets, strict=True)])
    address, path = operands.address(found.operands[0]), space_named(operands.grid, space)
    dtype = kind.dtype

    def run(lanes: LaneSet) -> None:
        if count == 1:
            values = lanes.get(sources[0])
        else:
            values = np.stack([lanes.get(row) for row in sources], -1)
        path.store(lanes, address.values(lanes), values, dtype, count)

    return LaneOp(run)


@instruction("st.bulk")
def _zero(operands: Operands, found: Instruction) -> Step:
    """`st.bulk{.weak}{.shared::cta} [a], size, 0`: zeros, 8 bytes at a time."""
    if set(found.mods) - {"bulk", "weak", "shared::cta"} or len(found.operands) != 3:
        raise reject(found)
    amount, value = found.operands[1:]
    if not isinstance(value, Immediate) or value.value != 0:
        raise reject(found, "an initval other than 0 has no semantics")
    narrow = isinstance(amount, Register) and type_of(amount.type).bits == 32
    size = operands.source(amount, "b32" if narrow else "b64")
    address, path = operands.address(found.operands[0]), space_named(operands.grid, space_of(found))
    dtype = np.dtype(np.uint64)

    def run(lanes: LaneSet) -> None:
        sizes = np.broadcast_to(lanes.get(size), lanes.get(operands.grid.alive).shape).reshape(-1)
        for nbytes in np.unique(sizes).tolist():
            if nbytes % 8 or nbytes > _BULK_LIMIT:
                raise MemoryFault(
                    f"st.bulk: size: expected a multiple of 8 up to {_BULK_LIMIT}; got {nbytes}"
                )
            chosen = lanes.select(sizes == nbytes)
            assert chosen is not None
            at = address.values(chosen)
            for offset in range(0, nbytes, 8):
                place = at + at.dtype.type(offset)
                path.store(chosen, place, np.zeros(place.shape, dtype), dtype, 1)

    return LaneOp(run)


@instruction("prefetch", "prefetchu", "applypriority", "discard", "createpolicy")
def _hint(operands: Operands, found: Instruction) -> Step:
    if found.opcode == "createpolicy":
        # The policy is opaque; every value means the same here.
        return Copy(
            operands.constant(0, np.dtype("u8")), operands.destination(found.operands[0], "b64")
        )
    if found.mods and found.mods[0] == "tensormap":
        return Nothing()
    operands.address(found.operands[0])
    return Nothing()
