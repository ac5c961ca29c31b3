"""Atomics and reductions: atom, red, on scalars and vectors (PTX ISA 9.7.13.16, 9.7.13.17).

Lanes that hit the same place are served in ascending order, so a run is reproducible.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from gemmjit.emulator.alu_half import decode_half, encode_half
from gemmjit.emulator.dispatch import instruction, reject
from gemmjit.emulator.lanes import LaneSet
from gemmjit.emulator.load_store import space_of
from gemmjit.emulator.module import Instruction, Sink
from gemmjit.emulator.operands import Operands, type_of
from gemmjit.emulator.ptx_types import PTX_TYPES
from gemmjit.emulator.spaces import space_named
from gemmjit.emulator.steps import LaneOp, Step

__all__ = ["reduction_function"]

Array = npt.NDArray[Any]


def _inc(old: Array, limit: Array) -> Array:
    return np.where(old >= limit, 0, old + 1).astype(old.dtype)


def _dec(old: Array, limit: Array) -> Array:
    return np.where((old == 0) | (old > limit), limit, old - 1).astype(old.dtype)


_INTEGER: dict[str, Callable[..., Any]] = {
    "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and,
    "or": np.bitwise_or, "xor": np.bitwise_xor, "exch": lambda old, b: b, "inc": _inc, "dec": _dec,
}  # fmt: skip


def reduction_function(operation: str, kind: str) -> Callable[[Array, Array], Array]:
    """Return `new = f(old, operand)` on the storage type of a PTX type.

    Parameters
    ----------
    operation : str
        `add`, `min`, `max`, `and`, `or`, `xor`, `exch`, `inc`, `dec`.
    kind : str
        PTX type; halves and their pairs are held as unsigned integers.
    """
    if kind in ("f16", "bf16", "f16x2", "bf16x2") and operation != "exch":
        name, pair = kind.removesuffix("x2"), kind.endswith("x2")
        inner = {"add": np.add, "min": np.fmin, "max": np.fmax}[operation]

        def half(old: Array, b: Array) -> Array:
            a_bits, b_bits = np.ascontiguousarray(old), np.ascontiguousarray(b)
            if pair:
                a_bits, b_bits = (v[..., None].view(np.uint16) for v in (a_bits, b_bits))
            new = encode_half(name, inner(decode_half(name, a_bits), decode_half(name, b_bits)))
            return np.ascontiguousarray(new).view(np.uint32)[..., 0] if pair else new

        return half
    return _INTEGER[operation]


@instruction("atom", "red")
def _atomic(operands: Operands, found: Instruction) -> Step:
    mods = [m for m in found.mods if m not in ("noftz", "L2::cache_hint")]
    # The manual writes `.add.v2.f32`, and `.v2.f32.add` in its examples.
    kind = next((m for m in reversed(mods) if m in PTX_TYPES), "")
    operation = next((m for m in mods if m in _INTEGER or m == "cas"), "")
    vector = next((int(m[1:]) for m in mods if m in ("v2", "v4", "v8")), 1)
    if not operation or not kind or "async" in mods:
        raise reject(found)
    returns = found.opcode == "atom"
    items = list(found.operands)
    target = items.pop(0) if returns else Sink()
    address, path = operands.address(items.pop(0)), space_named(operands.grid, space_of(found))
    held = "b64" if type_of(kind).bits == 64 and type_of(kind).kind == "b" else kind
    if kind in ("f16", "bf16", "f16x2", "bf16x2"):
        held = f"b{type_of(kind).bits}"
    values = [operands.source(i, held) for i in operands.items(items[0])]
    swap = operands.source(items[1], held) if operation == "cas" else None
    wanted = operands.items(target) if not isinstance(target, Sink) else ()
    outs = [None if isinstance(o, Sink) else operands.destination(o, held) for o in wanted]
    dtype = type_of(held).dtype
    function = None if operation == "cas" else reduction_function(operation, kind)
    if len(values) != vector:
        raise reject(found)

    def run(lanes: LaneSet) -> None:
        given = np.stack([lanes.get(row).reshape(-1) for row in values], -1)
        other = None if swap is None else lanes.get(swap).reshape(-1)
        old = np.empty((lanes.count, vector), dtype)
        width = dtype.itemsize * vector
        changed = False
        at = address.values(lanes)
        for storage, offsets, positions in path.locate(lanes, at, width, True):
            cells = storage.view(dtype, vector).reshape(-1, vector)
            index = offsets.reshape(-1) // width
            where = np.arange(lanes.count) if positions is None else positions
            for turn in _turns(index):
                place, lane = index[turn], where[turn]
                before = cells[place]
                old[lane] = before
                if function is None:
                    assert other is not None
                    new = np.where(before == given[lane], other[lane][:, None], before)
                else:
                    new = function(before, given[lane])
                changed |= bool((new != before).any())
                cells[place] = new
        if changed:
            operands.grid.machine.progress += 1
        for number, out in enumerate(outs):
            if out is not None:
                lanes.put(out, old[:, number].reshape(lanes.get(out).shape))

    return LaneOp(run)


def _turns(index: Array) -> list[Array]:
    """Positions in rounds, so that no place occurs twice in a round, in lane order."""
    if len(index) == 1:
        return [np.zeros(1, np.int64)]
    order = np.argsort(index, kind="stable")
    ranked = index[order]
    first = np.flatnonzero(np.concatenate([[True], ranked[1:] != ranked[:-1]]))
    lengths = np.diff(np.append(first, len(ranked)))
    rank = np.arange(len(ranked)) - np.repeat(first, lengths)
    return [np.sort(order[rank == turn]) for turn in range(int(lengths.max()))]


@instruction("red.async", "st.async")
def _asynchronous(operands: Operands, found: Instruction) -> Step:
    """st.async and red.async to the shared memory of the cluster, with complete-tx."""
    from gemmjit.emulator.async_engine import Operation
    from gemmjit.emulator.instructions_mbarrier import barrier_indices

    mods = list(found.mods)
    kind = mods[-1]
    vector = next((int(m[1:]) for m in mods if m in ("v2", "v4")), 1)
    if "mbarrier::complete_tx::bytes" not in mods:
        raise reject(found)
    address, path = operands.address(found.operands[0]), space_named(operands.grid, "shared")
    values = [operands.source(i, kind) for i in operands.items(found.operands[1])]
    barrier = operands.address(found.operands[2])
    dtype = type_of(kind).dtype
    operation = next((m for m in mods if m in _INTEGER), "exch")
    function = reduction_function(operation, kind)
    grid = operands.grid
    width = dtype.itemsize * vector

    def run(lanes: LaneSet) -> None:
        given = np.stack([lanes.get(row).reshape(-1) for row in values], -1).copy()
        storage, offsets, _ = path.locate(lanes, address.values(lanes), width, True)[0]
        grid.machine.races.async_store(grid, offsets)
        flat = barrier_indices(operands, barrier, lanes).reshape(-1).tolist()
        cells = storage.view(dtype, vector).reshape(-1, vector)
        index = offsets.reshape(-1) // width
        slots = frozenset(int(i) >> 18 for i in flat)
        for position, barrier_at in enumerate(flat):

            def complete(position: int = position, barrier_at: int = barrier_at) -> None:
                place = index[position : position + 1]
                cells[place] = function(cells[place], given[position : position + 1])
                grid.mbarriers.complete_tx(barrier_at, width)

            grid.machine.engine.submit(Operation("st.async", complete, slots=(grid, slots)))

    return LaneOp(run)
