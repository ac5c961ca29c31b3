"""The state of one launch: resident blocks, registers, special registers, memories.

Blocks occupy slots. A slot group holds one cluster; when all its blocks have exited, the group can
be filled with the next cluster of the grid. Everything a block owns is poisoned when it starts.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gemmjit.emulator.dispatch import build_step
from gemmjit.emulator.faults import Fault, MemoryFault
from gemmjit.emulator.lanes import WARP, LaneSet, LaneSpace
from gemmjit.emulator.memory import Storage
from gemmjit.emulator.module import Variable
from gemmjit.emulator.operands import Operands
from gemmjit.emulator.program import Program
from gemmjit.emulator.shared_memory import SharedMemory
from gemmjit.emulator.steps import Guard, Step

if TYPE_CHECKING:
    from gemmjit.emulator.barriers import ClusterBarriers, NamedBarriers
    from gemmjit.emulator.copy_async import AsyncCopies
    from gemmjit.emulator.dependencies import Dependencies
    from gemmjit.emulator.machine import Machine
    from gemmjit.emulator.mbarrier import MBarriers
    from gemmjit.emulator.scheduler import Scheduler

__all__ = ["Grid"]

Array = npt.NDArray[Any]
Dim3 = tuple[int, int, int]
_STACK_DEPTH = 64


class Grid:
    """One launch on the machine.

    Parameters
    ----------
    machine : Machine
        Owner.
    program : Program
        The kernel.
    grid, block, cluster : tuple of three int
        Launch shape in blocks, threads and blocks per cluster.
    smem_bytes : int
        Dynamic shared memory of a block.
    params : uint8 array
        The kernel parameters as the program lays them out.
    device : int
        Ordinal of the device it runs on.
    slots : int
        How many blocks may be resident at once; a multiple of the cluster size.
    """

    # The machine attaches these (`Machine.add`); they need the finished grid.
    scheduler: Scheduler
    bars: NamedBarriers
    cluster_barriers: ClusterBarriers
    mbarriers: MBarriers
    async_copies: AsyncCopies
    dependencies: Dependencies

    def __init__(
        self,
        machine: Machine,
        program: Program,
        grid: Dim3,
        block: Dim3,
        cluster: Dim3,
        smem_bytes: int,
        params: Array,
        device: int,
        slots: int,
    ) -> None:
        self.machine = machine
        self.program = program
        self.grid, self.block, self.cluster = grid, block, cluster
        self.cluster_size = cluster[0] * cluster[1] * cluster[2]
        self.device = device
        self.params = Storage(params)
        self.smem_bytes = smem_bytes
        threads = block[0] * block[1] * block[2]
        self.threads = threads
        padded = -(-threads // WARP) * WARP
        self.space = LaneSpace(slots, padded)
        self.exists = np.zeros((slots, padded), np.bool_)
        self.exists[:, :threads] = True
        self.alive = np.zeros((slots, padded), np.bool_)
        self.registers = _register_file(program.rows, slots, padded)
        self.carry = np.zeros((slots, padded), np.bool_)
        usable = program.dynamic_base - program.shared_base + smem_bytes
        if not smem_bytes:
            usable = program.shared_bytes
        self.shared = SharedMemory(slots, padded, self.cluster_size, program.shared_base, usable)
        self.local = Storage(np.empty(slots * padded * max(program.local_bytes, 16), np.uint8))
        self.local_stride = max(program.local_bytes, 16)
        self.return_pc = np.zeros((_STACK_DEPTH, slots, padded), np.int32)
        self.depth = np.zeros((slots, padded), np.int32)
        # Registers of a thread at the start, or 0 where only the PTX tells.
        self.entry_registers = 0
        self.cluster_ids = np.full(slots // self.cluster_size, -1, np.int64)
        clusters = (grid[0] // cluster[0]) * (grid[1] // cluster[1]) * (grid[2] // cluster[2])
        self.waiting: deque[int] = deque(range(clusters))
        self.specials = self._make_specials()
        self._converted: dict[tuple[str, Any], Array] = {}
        # What families of instructions keep for the grid, under names of their own. It refers back
        # to the grid, so that it must live here: a table elsewhere would keep both forever.
        self.state: dict[str, Any] = {}
        self.operands = Operands(self)
        self._steps: list[Step | None] = [None] * len(program.instructions)
        self._guards: list[Guard | None] = [None] * len(program.instructions)

    # -- instructions -----------------------------------------------------------------------

    def step(self, pc: int) -> Step:
        """Return the step of an instruction, built at its first use."""
        found = self._steps[pc]
        if found is None:
            instruction = self.program.instructions[pc]
            self.operands.pc = pc
            try:
                found = build_step(self.operands, instruction)
            except Fault as fault:
                fault.locate(self.program.describe(pc))
                raise
            self._steps[pc] = found
            if instruction.guard is not None:
                row = self.operands.register(instruction.guard)
                self._guards[pc] = Guard(row, instruction.guard_negated)
        return found

    def guard(self, pc: int) -> Guard | None:
        """Return the guard of an instruction whose step has been built."""
        return self._guards[pc]

    # -- blocks -----------------------------------------------------------------------------

    def start_cluster(self, group: int, cluster: int) -> LaneSet:
        """Put a cluster into a slot group; the lanes that now start at the entry."""
        size = self.cluster_size
        first = group * size
        self.cluster_ids[group] = cluster
        counts = [self.grid[i] // self.cluster[i] for i in range(3)]
        at = _split(np.array([cluster]), counts)
        ranks = np.arange(size)
        inside = _split(ranks, list(self.cluster))
        slots = slice(first, first + size)
        for axis, name in enumerate("xyz"):
            self._block_row(f"%clusterid.{name}")[slots, 0] = at[axis]
            self._block_row(f"%cluster_ctaid.{name}")[slots, 0] = inside[axis]
            ctaid = at[axis] * self.cluster[axis] + inside[axis]
            self._block_row(f"%ctaid.{name}")[slots, 0] = ctaid
        for (name, dtype), base in self._converted.items():
            base[slots] = self._block_row(name)[slots].astype(dtype)
        for size_bytes, file in self.registers.items():
            file[:, slots] = False if size_bytes == 0 else _poison_of(file.dtype)
        for slot in range(first, first + size):
            self.shared.reset(slot)
        padded = self.space.threads
        self.local.data[first * padded * self.local_stride :][
            : size * padded * self.local_stride
        ] = 0xFF
        self.alive[slots] = self.exists[slots]
        self.depth[slots] = 0
        mask = np.zeros_like(self.alive)
        mask[slots] = self.exists[slots]
        return self.space.intern(mask)

    def finished(self) -> bool:
        """Whether all blocks have run to their end."""
        return not self.waiting and not self.scheduler.live_lanes

    def block_name(self, slot: int) -> str:
        """`block (x, y, z)` of the block in a slot."""
        at = [int(self._block_row(f"%ctaid.{axis}")[slot, 0]) for axis in "xyz"]
        return f"block ({at[0]}, {at[1]}, {at[2]})"

    def thread_name(self, lane: int) -> str:
        """`block (x, y, z) thread t` of a flat lane index."""
        slot, thread = divmod(lane, self.space.threads)
        return f"{self.block_name(slot)} thread {thread}"

    # -- variables --------------------------------------------------------------------------

    def is_entry_parameter(self, variable: Variable) -> bool:
        """Whether a `.param` variable is a parameter of the kernel."""
        return any(variable is parameter for parameter in self.program.entry.params)

    def symbol_address(self, variable: Variable) -> int:
        """Address of a `.global` or `.const` variable on this grid's device."""
        found = self.machine.symbols.get((self.device, id(self.program), variable.name))
        if found is None:
            raise MemoryFault(f"variable {variable.name} was not loaded")
        return found

    def parameter_bytes(self, address: int, nbytes: int) -> Array:
        """Return a view of the kernel parameters at an offset."""
        if address < 0 or address + nbytes > len(self.params.data):
            raise MemoryFault(f"{nbytes} bytes at parameter offset {address} pass the parameters")
        return self.params.data[address : address + nbytes]

    # -- special registers ------------------------------------------------------------------

    def _make_specials(self) -> dict[str, Array]:
        shape = (self.space.blocks, self.space.threads)
        thread = np.arange(self.space.threads, dtype=np.uint32)
        lane = thread % WARP
        per_thread = {
            "%laneid": lane,
            "%warpid": thread // WARP,
            "%lanemask_eq": np.uint32(1) << lane,
            "%lanemask_lt": (np.uint32(1) << lane) - np.uint32(1),
        }
        per_thread["%lanemask_le"] = per_thread["%lanemask_lt"] | per_thread["%lanemask_eq"]
        per_thread["%lanemask_gt"] = ~per_thread["%lanemask_le"]
        per_thread["%lanemask_ge"] = ~per_thread["%lanemask_lt"]
        for axis, values in zip("xyz", _split(thread, list(self.block)), strict=True):
            per_thread[f"%tid.{axis}"] = values.astype(np.uint32)
        rows = {name: np.broadcast_to(values, shape) for name, values in per_thread.items()}
        constants = {
            "%nwarpid": -(-self.threads // WARP),
            "%nsmid": self.space.blocks,
            "%gridid": 0,
            "%cluster_nctarank": self.cluster_size,
            "%dynamic_smem_size": self.smem_bytes,
            "%total_smem_size": self.shared.limit,
            "%aggr_smem_size": self.shared.limit + self.program.shared_base,
        }
        for index, axis in enumerate("xyz"):
            constants[f"%ntid.{axis}"] = self.block[index]
            constants[f"%nctaid.{axis}"] = self.grid[index]
            constants[f"%cluster_nctaid.{axis}"] = self.cluster[index]
            constants[f"%nclusterid.{axis}"] = self.grid[index] // self.cluster[index]
        for name, value in constants.items():
            rows[name] = np.broadcast_to(np.uint32(value), shape)
        explicit = self.cluster_size > 1 or "explicitcluster" in self.program.entry.directives
        rows["%is_explicit_cluster"] = np.broadcast_to(np.bool_(explicit), shape)
        slot = np.arange(shape[0], dtype=np.uint32)[:, None]
        rows["%smid"] = np.broadcast_to(slot, shape)
        rows["%cluster_ctarank"] = np.broadcast_to(slot % np.uint32(self.cluster_size), shape)
        self._per_block: dict[str, Array] = {}
        for name in ("ctaid", "clusterid", "cluster_ctaid"):
            for axis in "xyz":
                base = np.zeros((shape[0], 1), np.uint32)
                self._per_block[f"%{name}.{axis}"] = base
                rows[f"%{name}.{axis}"] = np.broadcast_to(base, shape)
        clock = self.machine.clock
        rows["%clock64"] = rows["%globaltimer"] = np.broadcast_to(clock, shape)
        low = clock.reshape(1).view(np.uint32)
        rows["%clock"] = rows["%globaltimer_lo"] = np.broadcast_to(low[0:1], shape)
        rows["%clock_hi"] = rows["%globaltimer_hi"] = np.broadcast_to(low[1:2], shape)
        return rows

    def _block_row(self, name: str) -> Array:
        return self._per_block[name]

    def converted_special(self, name: str, dtype: np.dtype[Any]) -> Array:
        """Return a special register as another integer type."""
        row = self.specials[name]
        if name not in self._per_block:
            return row.astype(dtype)
        base = self._converted.setdefault((name, dtype), self._per_block[name].astype(dtype))
        return np.broadcast_to(base, row.shape)


def _split(index: Array, counts: list[int]) -> list[Array]:
    x, y = counts[0], counts[1]
    return [index % x, index // x % y, index // (x * y)]


def _poison_of(dtype: np.dtype[Any]) -> Any:
    return np.frombuffer(b"\xff" * dtype.itemsize, dtype)[0]


def _register_file(rows: dict[int, int], blocks: int, threads: int) -> dict[int, Array]:
    files: dict[int, Array] = {}
    for size, count in rows.items():
        if size == 0:
            dtype: Any = np.bool_
        elif size == 16:
            dtype = np.dtype([("lo", "u8"), ("hi", "u8")])
        else:
            dtype = np.dtype(f"u{size}")
        files[size] = np.empty((count, blocks, threads), dtype)
    return files
