"""`tcgen05.cp` and `tcgen05.shift` (PTX ISA 9.1, section 9.7.16.9)."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gemmjit.emulator.cta_group import blocks_of, cta_group
from gemmjit.emulator.dispatch import instruction, reject
from gemmjit.emulator.faults import MemoryFault
from gemmjit.emulator.lanes import WARP, LaneSet
from gemmjit.emulator.matrix_descriptor import chunk_indices, decode_tcgen05
from gemmjit.emulator.module import Instruction
from gemmjit.emulator.operands import Operands
from gemmjit.emulator.small_floats import expand
from gemmjit.emulator.steps import LaneOp, Step
from gemmjit.emulator.tcgen05_pipe import SharedOperand, submit
from gemmjit.emulator.tensor_memory import LANES, split, tensor_memory
from gemmjit.emulator.tmem_hazards import Region, region

__all__: list[str] = []

Array = npt.NDArray[Any]

_QUARTER = 32
# Rows, 16-byte chunks of a row, the multicast it needs.
_SHAPES = {
    "128x256b": (128, 2, ()), "4x256b": (4, 2, ()), "128x128b": (128, 1, ()),
    "64x128b": (64, 1, ("warpx2::02_13", "warpx2::01_23")), "32x128b": (32, 1, ("warpx4",)),
}  # fmt: skip
_FORMATS = {"b4x16_p64": 4, "b6x16_p32": 6}
_SHIFTED = 8  # columns: 32 bytes


def _lanes_of(shape: str, multicast: str) -> Array:
    """Return the lanes that every row goes to, (copies, rows)."""
    row = np.arange(_SHAPES[shape][0])
    if shape == "4x256b":
        return _QUARTER * row[None]
    if shape == "32x128b":
        return row + _QUARTER * np.arange(4)[:, None]
    if shape == "64x128b":
        # A row of half h goes to both warps of pair h.
        half, inner = row // _QUARTER, row % _QUARTER
        if multicast == "warpx2::02_13":
            return np.stack([_QUARTER * (half + 2 * i) + inner for i in range(2)])
        return np.stack([_QUARTER * (2 * half + i) + inner for i in range(2)])
    return row[None]


class _Copy:
    """One `tcgen05.cp`."""

    def __init__(self, operands: Operands, found: Instruction) -> None:
        self.grid = operands.grid
        self.where = operands.grid.program.describe(operands.pc)
        self.group = cta_group(operands, found)
        mods = [m for m in found.mods if m not in ("cp", f"cta_group::{self.group}")]
        shapes = [m for m in mods if m in _SHAPES]
        if len(shapes) != 1 or len(found.operands) != 2:
            raise reject(found)
        self.shape = shapes[0]
        self.rows, self.chunks, needed = _SHAPES[self.shape]
        multicast = [m for m in mods if m.startswith("warpx")]
        formats = [m for m in mods if m in _FORMATS]
        rest = set(mods) - {*shapes, *multicast, *formats, "b8x16"}
        if rest or len(formats) > 1 or ("b8x16" in mods) != bool(formats):
            raise reject(found)
        if len(multicast) != bool(needed) or (needed and multicast[0] not in needed):
            raise reject(found, f".{self.shape}: expected one of {needed or 'no multicast'}")
        self.bits = _FORMATS[formats[0]] if formats else 8
        self.lanes = _lanes_of(self.shape, multicast[0] if multicast else "")
        self.target = operands.address(found.operands[0])
        self.source = operands.source(found.operands[1], "b64")

    def run(self, lanes: LaneSet) -> None:
        """Issue one copy for every lane."""
        targets = self.target.values(lanes).reshape(-1).tolist()
        shape = lanes.get(self.grid.alive).shape
        sources = np.broadcast_to(lanes.get(self.source), shape).reshape(-1).tolist()
        for lane, target, source in zip(lanes.lanes.tolist(), targets, sources, strict=True):
            self._issue(lane, target, source)

    def _issue(self, lane: int, address: int, source: int) -> None:
        grid, memory = self.grid, tensor_memory(self.grid)
        slot = lane // grid.space.threads
        issuer = (slot, lane % grid.space.threads // WARP)
        blocks = blocks_of(grid, slot, self.group)
        first, column = split(address)
        if first and (self.shape != "4x256b" or first >= _QUARTER):
            raise MemoryFault(f"tcgen05.cp: lane of the address: expected 0; got {first}")
        if self.shape == "4x256b":
            grid.machine.assumptions.rely("cp_4x256b", self.where)
        width = 4 * self.chunks
        chunks = chunk_indices(
            decode_tcgen05(source), mn_major=False, rows=self.rows, size=1, chunks=self.chunks
        )
        work = []
        for each in blocks:
            memory.check_columns(each, column, width, self.where)
            part = region(each, 0, LANES, column, width)
            memory.hazards.begin("copy writes", part, self.where)
            memory.hazards.by_issuer(part, issuer, self.where)
            operand = SharedOperand(grid, each, chunks, "tcgen05.cp: the source", lane)
            work.append((each, operand, part))
        done = partial(self._complete, work, self.lanes + first, slice(column, column + width))
        submit(grid, "tcgen05.cp", lane, blocks, done, self.where)

    def _complete(
        self, work: list[tuple[int, SharedOperand, Region]], lanes: Array, columns: slice
    ) -> None:
        memory = tensor_memory(self.grid)
        for slot, operand, part in work:
            data = operand.read()
            if self.bits != 8:
                data = self._expanded(data)
            words = np.ascontiguousarray(data).reshape(self.rows, -1).view(np.uint32)
            for copy in lanes:
                memory.data[slot][copy, columns] = words
            memory.hazards.end("copy writes", part)

    def _expanded(self, data: Array) -> Array:
        reading = self.grid.machine.assumptions.rely("tmem_containers", self.where)
        codes = expand(self.bits, data)
        return codes << np.uint8(2) if self.bits == 4 and reading == "middle" else codes


@instruction("tcgen05.cp")
def build_cp(operands: Operands, found: Instruction) -> Step:
    """`tcgen05.cp.cta_group.shape{.multicast}{.dst_fmt.src_fmt} [taddr], s-desc`."""
    return LaneOp(_Copy(operands, found).run)


@instruction("tcgen05.shift")
def build_shift(operands: Operands, found: Instruction) -> Step:
    """`tcgen05.shift.cta_group.down [taddr]`: 32 lanes and 8 columns from the address on."""
    group = cta_group(operands, found)
    if set(found.mods) != {"shift", "down", f"cta_group::{group}"}:
        raise reject(found)
    grid = operands.grid
    where = grid.program.describe(operands.pc)
    target = operands.address(found.operands[0])

    def complete(parts: list[Region], lane: int, column: int, reading: str) -> None:
        memory = tensor_memory(grid)
        for part in parts:
            rows = memory.data[part[0]][lane : lane + _QUARTER, column : column + _SHIFTED]
            if reading == "next":
                rows[:-1] = rows[1:].copy()
            else:
                rows[1:] = rows[:-1].copy()
            memory.hazards.end("copy writes", part)

    def run(lanes: LaneSet) -> None:
        reading = grid.machine.assumptions.rely("shift_down", where)
        memory = tensor_memory(grid)
        for thread, address in zip(
            lanes.lanes.tolist(), target.values(lanes).reshape(-1).tolist(), strict=True
        ):
            slot = thread // grid.space.threads
            lane, column = split(address)
            if lane % _QUARTER:
                raise MemoryFault(
                    f"tcgen05.shift: lane of the address: expected a multiple of 32; got {lane}"
                )
            blocks = blocks_of(grid, slot, group)
            parts = []
            for each in blocks:
                memory.check_columns(each, column, _SHIFTED, where)
                part = region(each, lane, _QUARTER, column, _SHIFTED)
                for state in ("load reads", "store writes"):
                    memory.hazards.check(state, part, where)
                memory.hazards.flights["copy writes"][part] += 1
                parts.append(part)
            done = partial(complete, parts, lane, column, reading)
            submit(grid, "tcgen05.shift", thread, blocks, done, where)

    return LaneOp(run)
