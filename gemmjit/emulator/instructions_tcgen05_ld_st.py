"""`tcgen05.ld`, `tcgen05.st`, `tcgen05.wait` (PTX ISA 9.1, section 9.7.16.8).

Both are asynchronous. The registers of a load may be used at once, as true register dependencies
are respected (9.7.16.6.4.5), but its access of tensor memory is over at the wait only; under the
reading `"poison"` of `ld_registers` they hold poison until then. Those of a store are read at once.
A warp reaches the 32 lanes of its quadrant, its number modulo 4, whatever the address says (seen
with DeepGEMM's kernels).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gemmjit.emulator.async_engine import Operation
from gemmjit.emulator.cta_group import warps_of
from gemmjit.emulator.dispatch import instruction, reject
from gemmjit.emulator.faults import ConvergenceFault, MemoryFault, RaceError
from gemmjit.emulator.grid import Grid
from gemmjit.emulator.lanes import WARP, LaneSet
from gemmjit.emulator.module import Immediate, Instruction, Vector
from gemmjit.emulator.operands import Operands
from gemmjit.emulator.register_list import RegisterList, register_list
from gemmjit.emulator.steps import LaneOp, Step
from gemmjit.emulator.tcgen05_fragments import SHAPES, TmemFragment, tmem_fragment
from gemmjit.emulator.tensor_memory import TensorMemory, split, tensor_memory
from gemmjit.emulator.tmem_hazards import Region, region
from gemmjit.emulator.tmem_reduction import QUALIFIERS, TmemReduction

__all__: list[str] = []

Array = npt.NDArray[Any]

_POISON = 0xFFFFFFFF


@dataclass(slots=True, eq=False)
class _Access:
    """A load or store in flight.

    Attributes
    ----------
    registers : RegisterList or None
        Of a load.
    values : array (32, registers) or None
        What a load has read.
    """

    operation: Operation
    regions: list[Region]
    registers: RegisterList | None = None
    values: Array | None = None


def _in_flight(grid: Grid, state: str) -> dict[int, list[_Access]]:
    """Return the accesses of a kind by their warp, numbered over the grid."""
    found: dict[int, list[_Access]] = grid.state.setdefault(f"tcgen05 {state}", {})
    return found


def _fragment(operands: Operands, found: Instruction, option: str) -> TmemFragment:
    """Read shape, repetitions, packing and split from the name and the operands."""
    shapes = [m for m in found.mods if m in SHAPES]
    counts = [int(m[1:]) for m in found.mods if re.fullmatch(r"x\d+", m)]
    others = set(found.mods) - {*shapes, *(f"x{n}" for n in counts), option}
    reduces = "red" in others
    known = {"ld", "st", "sync", "aligned"} | (QUALIFIERS if reduces else {"b32"})
    if len(shapes) != 1 or len(counts) != 1 or others - known or (reduces and option in found.mods):
        raise reject(found)
    halves = 0
    expected = 3 if reduces else 2
    if shapes[0] == "16x32bx2":
        expected += 1
        given = found.operands[-1 if found.mods[0] == "ld" else 1]
        if not isinstance(given, Immediate) or not isinstance(given.value, int):
            raise reject(found, "immHalfSplitoff must be an integer constant")
        halves = given.value
    if len(found.operands) != expected or "aligned" not in found.mods:
        raise reject(found, f"{len(found.operands)} operands")
    packed = option in found.mods
    if packed:
        where = operands.grid.program.describe(operands.pc)
        operands.grid.machine.assumptions.rely("pack_16b", where)
    return tmem_fragment(shapes[0], counts[0], packed, halves)


class _Instruction:
    """What loads and stores have in common."""

    def __init__(self, operands: Operands, found: Instruction, is_load: bool) -> None:
        self.grid = operands.grid
        self.memory: TensorMemory = tensor_memory(operands.grid)
        self.where = operands.grid.program.describe(operands.pc)
        self.fragment = _fragment(operands, found, "pack::16b" if is_load else "unpack::16b")
        self.reduction = TmemReduction(found) if "red" in found.mods else None
        place = (1 if self.reduction is None else 2) if is_load else 0
        self.address = operands.address(found.operands[place])
        vector = found.operands[0 if is_load else -1]
        count = self.fragment.registers
        if self.reduction is not None:
            items = vector.items if isinstance(vector, Vector) else (vector,)
            vector, count = Vector((*items, found.operands[1])), count + 1
        self.registers = register_list(found, vector, count)
        self.file = operands.grid.registers[4]
        self.state = "load reads" if is_load else "store writes"

    def places(self, lanes: LaneSet) -> list[tuple[int, int, int, int, int]]:
        """Return first lane, slot, warp, and lane and column in tensor memory, of all warps."""
        warps = warps_of(self.grid, lanes)
        addresses = np.ascontiguousarray(self.address.values(lanes)).reshape(-1, WARP)
        if (addresses != addresses[:, :1]).any():
            raise ConvergenceFault("tcgen05: the address differs within a warp")
        found = []
        for (first, slot, warp), address in zip(warps, addresses[:, 0].tolist(), strict=True):
            lane, column = split(address)
            if lane // WARP != warp % 4:
                self.grid.machine.assumptions.rely(
                    "tmem_quadrant", f"{self.where}: warp {warp} with an address in lane {lane}"
                )
            inner = lane % WARP
            if inner and (inner != 16 or self.fragment.num_lanes == WARP):
                raise MemoryFault(
                    f"tcgen05: lane {lane} of the address: expected a multiple of "
                    f"{self.fragment.num_lanes}"
                )
            found.append((first, slot, warp, warp % 4 * WARP + inner, column))
        return found

    def begin(self, slot: int, warp: int, lane: int, column: int) -> list[Region]:
        """Check an access and note that it is in flight."""
        regions = []
        for start, count in self.fragment.ranges:
            self.memory.check_columns(slot, column + start, count, self.where)
            regions.append(region(slot, lane, self.fragment.num_lanes, column + start, count))
        if len(regions) == 2 and regions[0][2].stop > regions[1][2].start:
            regions = [(slot, regions[0][1], slice(regions[0][2].start, regions[1][2].stop))]
        for part in regions:
            self.memory.hazards.begin(self.state, part, self.where)
            self.memory.hazards.by_warp(part, warp, self.where)
        return regions

    def submit(self, first: int, access: _Access) -> None:
        """Hand an access to the engine."""
        _in_flight(self.grid, self.state).setdefault(first // WARP, []).append(access)
        self.grid.machine.engine.submit(access.operation)
        self.grid.machine.progress += 1


class _Load(_Instruction):
    def run(self, lanes: LaneSet) -> None:
        machine = self.grid.machine
        for first, slot, warp, lane, column in self.places(lanes):
            regions = self.begin(slot, warp, lane, column)
            slots = (self.grid, frozenset((slot,)))
            access = _Access(Operation("tcgen05.ld", _nothing, slots=slots, where=self.where),
                             regions, self.registers)  # fmt: skip
            access.operation.complete = self._reader(access, slot, lane, column)
            thread = first - slot * self.grid.space.threads
            self.registers.write(self.file, slot, thread, WARP, _POISON)
            self.submit(first, access)
            if machine.assumptions.reading("ld_registers") == "dependent":
                if not access.operation.done:
                    machine.engine.finish(access.operation)
                assert access.values is not None
                self.registers.write(self.file, slot, thread, WARP, access.values)

    def _reader(self, access: _Access, slot: int, lane: int, column: int) -> Any:
        def read() -> None:
            values = self.fragment.load(self.memory.data[slot], lane, column)
            if self.reduction is not None:
                values = np.concatenate([values, self.reduction(values)[:, None]], axis=1)
            access.values = values

        return read


class _Store(_Instruction):
    def run(self, lanes: LaneSet) -> None:
        for first, slot, warp, lane, column in self.places(lanes):
            regions = self.begin(slot, warp, lane, column)
            thread = first - slot * self.grid.space.threads
            values = self.registers.read(self.file, slot, thread, WARP)
            slots = (self.grid, frozenset((slot,)))
            write = self._writer(slot, lane, column, values)
            self.submit(
                first,
                _Access(Operation("tcgen05.st", write, slots=slots, where=self.where), regions),
            )

    def _writer(self, slot: int, lane: int, column: int, values: Array) -> Any:
        def write() -> None:
            self.fragment.store(self.memory.data[slot], lane, column, values)

        return write


def _nothing() -> None:
    return None


@instruction("tcgen05.ld.sync", "tcgen05.ld.red.sync")
def build_load(operands: Operands, found: Instruction) -> Step:
    """`tcgen05.ld.sync.aligned.shape.num{.pack::16b}.b32 r, [taddr]{, immHalfSplitoff}`.

    Or `tcgen05.ld.red.sync.aligned.shape.num.op{.abs}{.NaN}.type r, redval, [taddr]...`.
    """
    return LaneOp(_Load(operands, found, True).run, sync=WARP)


@instruction("tcgen05.st.sync")
def build_store(operands: Operands, found: Instruction) -> Step:
    """`tcgen05.st.sync.aligned.shape.num{.unpack::16b}.b32 [taddr]{, immHalfSplitoff}, r`."""
    return LaneOp(_Store(operands, found, False).run, sync=WARP)


def _wait(grid: Grid, state: str, lanes: LaneSet) -> None:
    memory, engine = tensor_memory(grid), grid.machine.engine
    dependent = grid.machine.assumptions.reading("ld_registers") == "dependent"
    for first, slot, warp in warps_of(grid, lanes):
        thread = first - slot * grid.space.threads
        for access in _in_flight(grid, state).pop(first // WARP, ()):
            if not access.operation.done:
                engine.finish(access.operation)
            for part in access.regions:
                memory.hazards.end(state, part)
                memory.hazards.waited(part, warp)
            if access.registers is None or dependent:
                continue
            held = access.registers.read(grid.registers[4], slot, thread, WARP)
            if (held != np.uint32(_POISON)).any():
                raise RaceError(
                    f"{access.operation.where}: registers were written before tcgen05.wait::ld"
                )
            access.registers.write(grid.registers[4], slot, thread, WARP, access.values)


@instruction("tcgen05.wait::ld", "tcgen05.wait::st")
def build_wait(operands: Operands, found: Instruction) -> Step:
    """`tcgen05.wait::ld.sync.aligned` and `tcgen05.wait::st.sync.aligned`."""
    if found.mods[1:] != ("sync", "aligned"):
        raise reject(found)
    state = "load reads" if found.mods[0] == "wait::ld" else "store writes"
    grid = operands.grid

    def run(lanes: LaneSet) -> None:
        _wait(grid, state, lanes)

    return LaneOp(run, sync=WARP)
