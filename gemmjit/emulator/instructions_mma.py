"""Warp-wide matrix instructions: mma.sync, ldmatrix, stmatrix, movmatrix (PTX ISA 9.7.14.5).

The numbers are in :mod:`gemmjit.emulator.mma`, the register maps in
:mod:`gemmjit.emulator.fragments`; here operands meet lanes and shared memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gemmjit.emulator import fragments
from gemmjit.emulator.dispatch import instruction, reject
from gemmjit.emulator.faults import MemoryFault
from gemmjit.emulator.instructions_mma_kinds import build_kind
from gemmjit.emulator.lanes import WARP, LaneSet
from gemmjit.emulator.mma import mma_plan
from gemmjit.emulator.module import Instruction
from gemmjit.emulator.operands import Operands
from gemmjit.emulator.program import target_number
from gemmjit.emulator.small_floats import expand
from gemmjit.emulator.spaces import space_named
from gemmjit.emulator.steps import LaneOp, Step

__all__: list[str] = []

Array = npt.NDArray[Any]

_ROW_BYTES = 16
# A row as one element, so that it moves as a whole; only copied, never computed with.
_ROW_TYPE = np.dtype(np.complex128)


@instruction("mma.sync")
def build_mma(operands: Operands, found: Instruction) -> Step:
    """`mma.sync.aligned.shape.alayout.blayout{.satfinite}.dtype.atype.btype.ctype{.op.popc|.rn}`."""
    if any(m.startswith("kind::") for m in found.mods):
        return build_kind(operands, found)
    mods = [m for m in found.mods if m not in ("sync", "aligned", "satfinite", "rn", "popc")]
    bit_op = next((m for m in mods if m in ("and", "xor")), None)
    mods = [m for m in mods if m != bit_op]
    if len(mods) != 7 or "aligned" not in found.mods:
        raise reject(found)
    shape, a_layout, b_layout, d_type, a_type, b_type, c_type = mods
    plan = mma_plan(
        shape, a_type, b_type, c_type, d_type,
        a_layout=a_layout, b_layout=b_layout, satfinite="satfinite" in found.mods, bit_op=bit_op,
        model=operands.grid.machine.numerics,
        arch_number=target_number(operands.grid.program.module.target),
    )  # fmt: skip
    word = "b64" if a_type == "f64" else "b32"
    d, a, b, c = (operands.group(x, word, writes=i == 0) for i, x in enumerate(found.operands))
    counts = tuple(len(group.rows) for group in (a, b, c, d))
    if counts != plan.registers:
        raise reject(found, f"expected {plan.registers} registers of A, B, C, D; got {counts}")

    def run(lanes: LaneSet) -> None:
        fetched = [np.ascontiguousarray(group.read_warps(lanes)) for group in (a, b, c)]
        d.write_warps(lanes, plan(*fetched))

    return LaneOp(run, sync=WARP)


#: Source formats of ldmatrix.m8n16: bits of an element.
_EXPANDED = {"b4x16_p64": 4, "b6x16_p32": 6}


def _shape_of(found: Instruction) -> tuple[int, bool]:
    """Return the number of matrices and `.trans`; the parts of the name come in any order."""
    if "m8n8" not in found.mods or "b16" not in found.mods:
        raise reject(found, "only .m8n8 matrices of .b16 are known")
    known = {"sync", "aligned", "m8n8", "b16", "trans", "shared", "shared::cta", "x1", "x2", "x4"}
    counts = [int(m[1]) for m in found.mods if m in ("x1", "x2", "x4")]
    if len(counts) != 1 or not known.issuperset(found.mods):
        raise reject(found)
    return counts[0], "trans" in found.mods


def _expanded_count(found: Instruction) -> int:
    counts = [int(m[1]) for m in found.mods if m in ("x1", "x2", "x4")]
    known = {"sync", "aligned", "m8n16", "b8x16", "shared", "shared::cta", "x1", "x2", "x4"}
    if len(counts) != 1 or not (known | set(_EXPANDED)).issuperset(found.mods):
        raise reject(found)
    if not {"aligned", "m8n16", "b8x16"} <= set(found.mods):
        raise reject(found, "expected .m8n16 and .b8x16")
    return counts[0]


class _Rows:
    """The 16-byte rows that the lanes of a warp name: lane 8j + i gives row i of matrix j."""

    def __init__(self, operands: Operands, found: Instruction, address: int, num: int) -> None:
        in_shared = any(m.startswith("shared") for m in found.mods)
        self.space = space_named(operands.grid, "shared" if in_shared else "generic")
        self.shared = operands.grid.shared
        self.address = operands.address(found.operands[address])
        self.num = num

    def flat(self, lanes: LaneSet, writes: bool) -> Array:
        """Return the rows as numbers of 16-byte units of shared memory, `[warps, num, 8]`."""
        if self.num < 4:
            chosen = lanes.select(np.arange(lanes.count) % WARP < 8 * self.num)
            assert chosen is not None
            lanes = chosen
        addresses = self.address.values(lanes)
        located = self.space.locate(lanes, addresses, _ROW_BYTES, writes)
        if len(located) != 1 or located[0][0] is not self.shared or located[0][2] is not None:
            raise MemoryFault("a row address lies outside shared memory")
        return located[0][1].reshape(-1, self.num, 8) >> 4


@instruction("ldmatrix.sync")
def build_ldmatrix(operands: Operands, found: Instruction) -> Step:
    """`ldmatrix.sync.aligned.m8n8.num{.trans}{.shared}.b16 r, [p]`.

    Or `.m8n16.num{.shared}.b8x16.b4x16_p64` and `.b6x16_p32`: 16 elements of a row are expanded to
    a byte each, in its low bits.
    """
    bits = next((_EXPANDED[m] for m in found.mods if m in _EXPANDED), 8)
    num, trans = _shape_of(found) if bits == 8 else (_expanded_count(found), False)
    rows = _Rows(operands, found, 1, num)
    destination = operands.group(found.operands[0], "b32", writes=True)
    if len(destination.rows) != num:
        raise reject(found, f"expected {num} registers; got {len(destination.rows)}")
    memory = rows.shared.view(_ROW_TYPE)

    def run(lanes: LaneSet) -> None:
        data = memory[rows.flat(lanes, False)].view(np.uint8).reshape(-1, num, 8, _ROW_BYTES)
        if bits != 8:
            data = np.ascontiguousarray(expand(bits, data))
        registers = fragments.rows_to_registers(data, trans)
        destination.write(lanes, registers.swapaxes(0, 1).reshape(num, -1))

    return LaneOp(run, sync=WARP)


@instruction("stmatrix.sync")
def build_stmatrix(operands: Operands, found: Instruction) -> Step:
    """`stmatrix.sync.aligned.m8n8.num{.trans}{.shared}.b16 [p], r`."""
    num, trans = _shape_of(found)
    rows = _Rows(operands, found, 0, num)
    source = operands.group(found.operands[1], "b32")
    if len(source.rows) != num:
        raise reject(found, f"expected {num} registers; got {len(source.rows)}")
    memory, machine = rows.shared.view(_ROW_TYPE), operands.grid.machine

    def run(lanes: LaneSet) -> None:
        flat = rows.flat(lanes, True)
        registers = source.read(lanes).reshape(num, -1, WARP).swapaxes(0, 1)
        data = fragments.rows_from_registers(np.ascontiguousarray(registers), trans)
        memory[flat] = data.view(_ROW_TYPE)[..., 0]
        machine.progress += 1

    return LaneOp(run, sync=WARP)


@instruction("movmatrix.sync")
def build_movmatrix(operands: Operands, found: Instruction) -> Step:
    """`movmatrix.sync.aligned.m8n8.trans.b16 d, a`."""
    if found.mods != ("sync", "aligned", "m8n8", "trans", "b16"):
        raise reject(found)
    destination = operands.destination(found.operands[0], "b32")
    source = operands.source(found.operands[1], "b32")

    def run(lanes: LaneSet) -> None:
        registers = np.ascontiguousarray(lanes.by_warp(source))
        lanes.put_warps(destination, fragments.transpose_registers(registers))

    return LaneOp(run, sync=WARP)
