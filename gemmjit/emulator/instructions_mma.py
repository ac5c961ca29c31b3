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


#: Source formats of ldmatrix: bits of an element.
_EXPANDED = {"b4x16_p64": 4, "b6x16_p32": 6}
_MATRIX = {"sync", "aligned", "shared", "shared::cta"}


def _count(found: Instruction, known: set[str], needed: set[str], most: int = 4) -> int:
    """Return the number of matrices; the parts of the name come in any order."""
    counts = [m for m in found.mods if m in ("x1", "x2", "x4")]
    others = set(found.mods) - set(counts)
    if len(counts) != 1 or others - _MATRIX - known or not {"aligned", *needed} <= others:
        raise reject(found)
    if int(counts[0][1]) > most:
        raise reject(found, f"expected .x1 to .x{most}; got .{counts[0]};")
    return int(counts[0][1])


class _Rows:
    """The 16-byte rows that the lanes of a warp name: lane 8j + i gives row i of matrix j.

    Or lane 16j + i, where a matrix is 16 high.
    """

    def __init__(
        self, operands: Operands, found: Instruction, address: int, num: int, high: int = 8
    ) -> None:
        in_shared = any(m.startswith("shared") for m in found.mods)
        self.space = space_named(operands.grid, "shared" if in_shared else "generic")
        self.shared = operands.grid.shared
        self.address = operands.address(found.operands[address])
        self.num = num
        self.high = high

    def flat(self, lanes: LaneSet, writes: bool) -> Array:
        """Return the rows as numbers of 16-byte units of shared memory, `[warps, num, high]`."""
        if self.num * self.high < WARP:
            chosen = lanes.select(np.arange(lanes.count) % WARP < self.high * self.num)
            assert chosen is not None
            lanes = chosen
        addresses = self.address.values(lanes)
        located = self.space.locate(lanes, addresses, _ROW_BYTES, writes)
        if len(located) != 1 or located[0][0] is not self.shared or located[0][2] is not None:
            raise MemoryFault("a row address lies outside shared memory")
        return located[0][1].reshape(-1, self.num, self.high) >> 4


@instruction("ldmatrix.sync")
def build_ldmatrix(operands: Operands, found: Instruction) -> Step:
    """`ldmatrix.sync.aligned.m8n8.num{.trans}{.shared}.b16 r, [p]`.

    Or `.m16n16.num.trans{.shared}.b8`, or `.m8n16.num` and `.m16n16.num.trans` with
    `.b8x16.b4x16_p64` or `.b6x16_p32`: 16 elements of a row are expanded to a byte each, in its low
    bits.
    """
    formats = [m for m in found.mods if m in _EXPANDED]
    bits = _EXPANDED[formats[0]] if formats else 8
    expanded = {"b8x16", *formats[:1]}
    high, trans = 8, "trans" in found.mods
    if "m16n16" in found.mods:
        high = 16
        needed = {"m16n16", "trans", *(expanded if formats else {"b8"})}
        num = _count(found, needed, needed, 2)
    elif formats:
        num = _count(found, {"m8n16", *expanded}, {"m8n16", *expanded})
    else:
        num = _count(found, {"m8n8", "b16", "trans"}, {"m8n8", "b16"})
    rows = _Rows(operands, found, 1, num, high)
    destination = operands.group(found.operands[0], "b32", writes=True)
    count = num * high // 8
    if len(destination.rows) != count:
        raise reject(found, f"expected {count} registers; got {len(destination.rows)}")
    memory = rows.shared.view(_ROW_TYPE)

    def run(lanes: LaneSet) -> None:
        data = memory[rows.flat(lanes, False)].view(np.uint8).reshape(-1, num, high, _ROW_BYTES)
        if bits != 8:
            data = np.ascontiguousarray(expand(bits, data))
        if high == 16:
            registers = fragments.octets_to_registers(data)
        else:
            registers = fragments.rows_to_registers(data, trans)
        destination.write(lanes, registers.swapaxes(0, 1).reshape(count, -1))

    return LaneOp(run, sync=WARP)


@instruction("stmatrix.sync")
def build_stmatrix(operands: Operands, found: Instruction) -> Step:
    """`stmatrix.sync.aligned.m8n8.num{.trans}{.shared}.b16 [p], r`, or `.m16n8.num.trans.b8`."""
    octets, trans = "m16n8" in found.mods, "trans" in found.mods
    if octets:
        num = _count(found, {"m16n8", "b8", "trans"}, {"m16n8", "b8", "trans"})
    else:
        num = _count(found, {"m8n8", "b16", "trans"}, {"m8n8", "b16"})
    rows = _Rows(operands, found, 0, num)
    source = operands.group(found.operands[1], "b32")
    if len(source.rows) != num:
        raise reject(found, f"expected {num} registers; got {len(source.rows)}")
    memory, machine = rows.shared.view(_ROW_TYPE), operands.grid.machine

    def run(lanes: LaneSet) -> None:
        flat = rows.flat(lanes, True)
        registers = source.read(lanes).reshape(num, -1, WARP).swapaxes(0, 1)
        registers = np.ascontiguousarray(registers)
        if octets:
            data = fragments.octets_from_registers(registers)
        else:
            data = fragments.rows_from_registers(registers, trans)
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
