"""Registers that warps of a block hand to each other: setmaxnreg (PTX ISA 9.7.19.5).

A block owns the registers that its warps start with. `setmaxnreg.dec` gives those of a warp back to
the block's pool, `setmaxnreg.inc` takes what a warp lacks, and waits until the pool has it. Warps
that have exited keep theirs: on an H200 a consumer whose registers were short by 8 a thread waited
forever, although two warps of 32 registers had ended.

The start is what the cubin says (`KernelLaunch.registers`), a multiple of 8. Without a cubin it is
what ptxas would give: `.maxnreg`, or by `.maxntid` (or `.reqntid`) and `.minnctapersm` the most
with which so many blocks are resident (:func:`gemmjit.occupancy.registers_at_entry`); in either
case no more than the largest setmaxnreg asks for. A kernel without such a bound has no pool: ptxas
ignores its setmaxnreg (its advisory C7508).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gemmjit.emulator.dispatch import instruction, reject
from gemmjit.emulator.faults import BarrierFault, ConvergenceFault
from gemmjit.emulator.lanes import WARP, LaneSet
from gemmjit.emulator.module import Immediate, Instruction
from gemmjit.emulator.operands import Operands
from gemmjit.emulator.steps import Barrier, Step
from gemmjit.emulator.warpgroups import GROUP
from gemmjit.occupancy import registers_at_entry

if TYPE_CHECKING:
    from gemmjit.emulator.grid import Grid

__all__ = ["RegisterPool", "block_exited", "describe", "register_pool"]

Array = npt.NDArray[Any]
_STEP = 8


class RegisterPool:
    """The registers of every resident block.

    Attributes
    ----------
    entry : int
        Registers of a thread at the start.
    held : int array [slots, warps]
        Registers of a thread of each warp.
    waiters : list of (program counter, lanes of one warp, registers)
        In the order in which they came.
    """

    def __init__(self, grid: Grid, entry: int) -> None:
        self.grid = grid
        self.entry = entry
        self.held = np.full((grid.space.blocks, grid.space.threads // WARP), entry, np.int64)
        self.waiters: list[tuple[int, LaneSet, int]] = []

    def free(self, slot: int) -> int:
        """Return the registers in the pool of a block, as registers of a thread of one warp."""
        return self.entry * self.held.shape[1] - int(self.held[slot].sum())

    def give(self, lanes: LaneSet, registers: int) -> None:
        """Execute setmaxnreg.dec: the warps keep `registers`, those that wait may go on."""
        for slot, warp in self._warps(lanes):
            held = int(self.held[slot, warp])
            if registers > held:
                raise BarrierFault(
                    f"setmaxnreg.dec: {registers} registers: expected at most the {held} that "
                    f"warp {warp} of {self.grid.block_name(slot)} has"
                )
            self.held[slot, warp] = registers
        waiting, self.waiters = self.waiters, []
        for pc, part, wanted in waiting:
            rest = self.take(pc, part, wanted)
            if rest is not None:
                self.grid.scheduler.make_ready(pc + 1, rest)
        self.grid.machine.progress += 1

    def take(self, pc: int, lanes: LaneSet, registers: int) -> LaneSet | None:
        """Execute setmaxnreg.inc: the lanes whose warps get `registers` now; the others wait."""
        waits = []
        for slot, warp in self._warps(lanes):
            held = int(self.held[slot, warp])
            if registers < held:
                raise BarrierFault(
                    f"setmaxnreg.inc: {registers} registers: expected at least the {held} that "
                    f"warp {warp} of {self.grid.block_name(slot)} has"
                )
            if registers - held > self.free(slot):
                waits.append(slot * self.held.shape[1] + warp)
            else:
                self.held[slot, warp] = registers
        for number in waits:
            part = lanes.space.of_warp(number, lanes.mask)
            assert part is not None
            self.waiters.append((pc, part, registers))
            if self.grid.machine.trace is not None:
                self.grid.machine.trace.waits(self.grid, part, f"{registers} registers")
        return lanes.select(~np.isin(lanes.lanes // WARP, waits)) if waits else lanes

    def _warps(self, lanes: LaneSet) -> list[tuple[int, int]]:
        return [divmod(int(number), self.held.shape[1]) for number in lanes.warp_ids]

    def describe(self) -> list[str]:
        """Return who waits for registers, for a deadlock report."""
        waiting: dict[tuple[int, int, int], list[int]] = {}
        for pc, lanes, registers in self.waiters:
            ((slot, warp),) = self._warps(lanes)
            waiting.setdefault((slot, pc, registers), []).append(warp)
        lines = []
        for (slot, pc, registers), warps in waiting.items():
            holders: dict[int, list[int]] = {}
            for warp, held in enumerate(self.held[slot].tolist()):
                holders.setdefault(held, []).append(warp)
            held = "; ".join(f"{n} by warps {who}" for n, who in holders.items())
            lacks = Counter(registers - int(self.held[slot, w]) for w in warps)
            lines.append(
                f"{self.grid.block_name(slot)}: warps {sorted(warps)} wait for {registers} "
                f"registers a thread ({' or '.join(map(str, sorted(lacks)))} more, "
                f"{WARP * sum(n * k for n, k in lacks.items())} in all) at "
                f"{self.grid.program.describe(pc)}; {WARP * self.free(slot)} of "
                f"{WARP * self.entry * self.held.shape[1]} are free; held: {held}"
            )
        return lines


def _entry_registers(grid: Grid) -> int:
    """Return the registers of a thread at the start of a kernel, or 0 if nothing tells."""
    directives = grid.program.entry.directives
    known = grid.entry_registers
    if not known:
        threads = directives.get("maxntid") or directives.get("reqntid")
        if "maxnreg" in directives:
            known = directives["maxnreg"][0]
        elif threads:
            blocks = directives.get("minnctapersm", (1,))[0]
            target = grid.program.module.target.split(",")[0].strip()
            known = registers_at_entry(int(np.prod(threads)), blocks, target)
        known = min(known, max(map(_count, _users(grid)), default=0))
    return -(-known // _STEP) * _STEP


def _users(grid: Grid) -> list[Instruction]:
    return [i for i in grid.program.instructions if i.opcode == "setmaxnreg"]


def _count(found: Instruction) -> int:
    count = found.operands[0]
    value = int(count.value) if isinstance(count, Immediate) else 0
    if value % _STEP or not 24 <= value <= 256:
        raise reject(found, f"{value} registers: expected a multiple of {_STEP} in 24..256;")
    return value


def register_pool(grid: Grid) -> RegisterPool | None:
    """Return the pool of a grid, made at its first use; None if there is none."""
    if "register_pool" not in grid.state:
        entry = _entry_registers(grid)
        grid.state["register_pool"] = RegisterPool(grid, entry) if entry else None
    found: RegisterPool | None = grid.state["register_pool"]
    return found


def describe(grid: Grid) -> list[str]:
    """Return who waits for registers in a grid, for a deadlock report."""
    pool: RegisterPool | None = grid.state.get("register_pool")
    return pool.describe() if pool is not None else []


def block_exited(grid: Grid, slot: int) -> None:
    """Take the registers of an ended block back; the next one in its slot starts anew.

    Raises
    ------
    ConvergenceFault
        If a warpgroup did not execute its setmaxnreg as a whole.
    """
    pool: RegisterPool | None = grid.state.get("register_pool")
    if pool is None:
        return
    held = pool.held[slot].tolist()
    pool.held[slot] = pool.entry
    for first in range(0, len(held), GROUP // WARP):
        of_group = held[first : first + GROUP // WARP]
        if len(set(of_group)) > 1:
            raise ConvergenceFault(
                f"{grid.block_name(slot)} exits: its warps from {first} on, one warpgroup, have "
                f"{of_group} registers; setmaxnreg is for all warps of a warpgroup"
            )


@instruction("setmaxnreg")
def build_setmaxnreg(operands: Operands, found: Instruction) -> Step:
    """`setmaxnreg.action.sync.aligned.u32 imm-reg-count`, for whole warps."""
    registers = _count(found)
    pool = register_pool(operands.grid)
    gives = found.mods[0] == "dec"

    def run(pc: int, lanes: LaneSet) -> LaneSet | None:
        if pool is None:
            return lanes
        missing = operands.grid.alive & ~lanes.mask
        if missing.reshape(-1, WARP)[lanes.warp_ids].any():
            raise ConvergenceFault("the guard of an .aligned instruction differs within a warp")
        if gives:
            pool.give(lanes, registers)
            return lanes
        return pool.take(pc, lanes, registers)

    return Barrier(run, WARP)
