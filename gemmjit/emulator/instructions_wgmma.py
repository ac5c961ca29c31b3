"""Matrix products of a warpgroup: wgmma.mma_async, fence, commit_group, wait_group.

PTX ISA 9.7.15.5 to 9.7.15.7. The numbers and layouts are in :mod:`gemmjit.emulator.wgmma`, what is
in flight in :mod:`gemmjit.emulator.warpgroups`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from gemmjit.emulator.dispatch import instruction, reject
from gemmjit.emulator.faults import ConvergenceFault, MemoryFault
from gemmjit.emulator.grid import Grid
from gemmjit.emulator.lanes import WARP, LaneSet
from gemmjit.emulator.matrix_descriptor import CHUNK
from gemmjit.emulator.module import Immediate, Instruction, Vector
from gemmjit.emulator.operands import Operands
from gemmjit.emulator.register_list import register_list
from gemmjit.emulator.shared_memory import SPAN
from gemmjit.emulator.steps import LaneOp, Step
from gemmjit.emulator.warpgroups import GROUP, Warpgroup, warpgroup
from gemmjit.emulator.wgmma import WgmmaPlan, wgmma_plan

__all__: list[str] = []

Array = npt.NDArray[Any]

_INTEGERS = ("s8", "u8", "b1")


def _groups(grid: Grid, lanes: LaneSet) -> Iterator[Warpgroup]:
    """Yield the warpgroups of a set that consists of whole ones."""
    if not lanes.full_groups:
        raise ConvergenceFault("wgmma: not all threads of a warpgroup execute the instruction")
    threads = grid.space.threads
    for lane in lanes.lanes[::GROUP].tolist():
        yield warpgroup(grid, *divmod(lane, threads))


def _constant(found: Instruction, position: int) -> int:
    operand = found.operands[position]
    if not isinstance(operand, Immediate) or not isinstance(operand.value, int):
        raise reject(found, f"operand {position}: expected an integer constant")
    return operand.value


def _plan(operands: Operands, found: Instruction) -> WgmmaPlan:
    """Read the name and the constants behind scale-d."""
    mods = [m for m in found.mods if m not in ("sync", "aligned", "satfinite", "and", "popc")]
    if len(mods) != 5 or "aligned" not in found.mods or ("b1" in mods) != ("and" in found.mods):
        raise reject(found)
    _, shape, d_type, a_type, b_type = mods
    constants = [_constant(found, i) for i in range(4, len(found.operands))]
    in_registers = isinstance(found.operands[1], Vector)
    if a_type in _INTEGERS:
        expected = 0
    elif a_type in ("f16", "bf16"):
        expected = 3 if in_registers else 4
    else:
        expected = 2
    if len(constants) != expected:
        raise reject(found, f"expected {expected} constants after scale-d; got {len(constants)}")
    scales = constants[:2] or [1, 1]
    trans = constants[2:] if len(constants) == 4 else [0, *constants[2:]]
    return wgmma_plan(
        shape, d_type, a_type, b_type,
        scale_a=scales[0], scale_b=scales[1],
        trans_a=trans[0], trans_b=trans[1] if len(trans) == 2 else 0,
        satfinite="satfinite" in found.mods, model=operands.grid.machine.numerics,
    )  # fmt: skip


class _Product:
    """One `wgmma.mma_async` instruction."""

    def __init__(self, operands: Operands, found: Instruction) -> None:
        if len(found.operands) < 4:
            raise reject(found)
        self.plan = _plan(operands, found)
        self.grid = operands.grid
        self.where = operands.grid.program.describe(operands.pc)
        self.d = register_list(found, found.operands[0], self.plan.d_registers)
        a = found.operands[1]
        self.a_registers = register_list(found, a, 4) if isinstance(a, Vector) else None
        self.a = None if isinstance(a, Vector) else operands.source(a, "b64")
        self.b = operands.source(found.operands[2], "b64")
        self.scale_d, self.negated = operands.predicate_reader(found.operands[3])
        self.memory = operands.grid.shared.view(np.dtype(np.complex128))

    def run(self, lanes: LaneSet) -> None:
        """Issue the product for all warpgroups of a set."""
        a = self._uniform(lanes, self.a, "descriptor of A") if self.a is not None else None
        b = self._uniform(lanes, self.b, "descriptor of B")
        scale_d = self._uniform(lanes, self.scale_d, "scale-d")
        seen: dict[tuple[int, int], Array] = {}
        for i, group in enumerate(_groups(self.grid, lanes)):
            self._issue(group, None if a is None else a[i], b[i], scale_d[i] != self.negated, seen)

    def _uniform(self, lanes: LaneSet, row: Array, what: str) -> list[int]:
        values = lanes.get(row).reshape(-1, GROUP)
        first = values[:, :1]
        if (values != first).any():
            raise ConvergenceFault(f"wgmma.mma_async: {what} differs within a warpgroup")
        found: list[int] = first[:, 0].tolist()
        return found

    def _issue(
        self,
        group: Warpgroup,
        a: int | None,
        b: int,
        scale_d: bool,
        seen: dict[tuple[int, int], Array],
    ) -> None:
        plan = self.plan
        # Descriptors are checked when the instruction is issued, memory is read when it completes.
        b_chunks = self._located(group, plan.chunks_of_b(b), "B")
        a_chunks = None
        if a is not None:
            a_chunks = self._located(group, plan.chunks_of_a(a), "A")
        accumulator = group.take(self.d, plan, scale_d)
        held = a_matrix = None
        if self.a_registers is not None:
            held = group.take_input(self.a_registers)
            a_matrix = plan.a_from_registers(held[None])[0]

        def complete() -> None:
            b_matrix = seen.get((group.slot, b))
            if b_matrix is None:
                b_matrix = plan.b_from_chunks(self._read(group.slot, b_chunks))
                if self.grid.machine.engine.eager:
                    # Warpgroups that complete at once, with the same B, share its conversion.
                    seen[group.slot, b] = b_matrix
            if a_chunks is not None:
                matrix = plan.a_from_chunks(self._read(group.slot, a_chunks))
            else:
                assert a_matrix is not None
                matrix = a_matrix
            old = accumulator.matrix if scale_d else None
            accumulator.matrix = plan.product(matrix, b_matrix, old)

        operation = group.issue(accumulator, complete, self.where)
        if held is not None and self.a_registers is not None:
            group.inputs.append((operation, self.a_registers, held))
        self.grid.machine.progress += 1

    def _located(self, group: Warpgroup, chunks: Array, name: str) -> Array:
        """Return where chunks lie in the grid's shared memory, after checking the bounds."""
        shared, slot = self.grid.shared, group.slot
        low, high = int(chunks.min()) * CHUNK, (int(chunks.max()) + 1) * CHUNK
        if low < shared.base or high > shared.base + shared.limit:
            raise MemoryFault(
                f"wgmma.mma_async: matrix {name} spans offsets {low:#x} to {high:#x}, outside the "
                f"block's shared memory [{shared.base:#x}, {shared.base + shared.limit:#x})"
            )
        located: Array = chunks + slot * SPAN // CHUNK
        warp = (slot * self.grid.space.threads + group.first) // WARP
        warps = range(warp, warp + GROUP // WARP)
        self.grid.machine.races.async_issue_read(self.grid, slot, located, warps)
        return located

    def _read(self, slot: int, located: Array) -> Array:
        self.grid.machine.races.async_read(self.grid, slot, located)
        data: Array = self.memory[located]
        return data.view(np.uint8).reshape(*located.shape, CHUNK)


@instruction("wgmma.mma_async.sync")
def build_mma_async(operands: Operands, found: Instruction) -> Step:
    """`wgmma.mma_async.sync.aligned.shape.dtype.atype.btype d, a, b-desc, scale-d, ...`."""
    product = _Product(operands, found)
    return LaneOp(product.run, sync=GROUP)


@instruction("wgmma.fence.sync")
def build_fence(operands: Operands, found: Instruction) -> Step:
    """`wgmma.fence.sync.aligned`."""
    if found.mods != ("fence", "sync", "aligned"):
        raise reject(found)

    def run(lanes: LaneSet) -> None:
        for group in _groups(operands.grid, lanes):
            group.fence()

    return LaneOp(run, sync=GROUP)


@instruction("wgmma.commit_group.sync")
def build_commit_group(operands: Operands, found: Instruction) -> Step:
    """`wgmma.commit_group.sync.aligned`."""
    if found.mods != ("commit_group", "sync", "aligned"):
        raise reject(found)

    def run(lanes: LaneSet) -> None:
        for group in _groups(operands.grid, lanes):
            group.commit()

    return LaneOp(run, sync=GROUP)


@instruction("wgmma.wait_group.sync")
def build_wait_group(operands: Operands, found: Instruction) -> Step:
    """`wgmma.wait_group.sync.aligned N`."""
    if found.mods != ("wait_group", "sync", "aligned"):
        raise reject(found)
    pending = _constant(found, 0)
    if pending < 0:
        raise reject(found, f"expected N of 0 or more; got {pending}")

    def run(lanes: LaneSet) -> None:
        for group in _groups(operands.grid, lanes):
            group.wait(pending)

    return LaneOp(run, sync=GROUP)
