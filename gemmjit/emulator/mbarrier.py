"""mbarrier objects (PTX ISA 9.7.13.15): phases, pending arrivals, transaction bytes.

The opaque 64 bits in shared memory are not used: the state of every 8-byte cell is kept beside the
memory. A phase completes when no arrivals and no transaction bytes are pending. `try_wait` suspends
a thread until then; it returns false (its time-out) only when nothing else in the machine can run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gemmjit.emulator.faults import BarrierFault
from gemmjit.emulator.lanes import WARP, LaneSet
from gemmjit.emulator.shared_memory import SPAN

if TYPE_CHECKING:
    from gemmjit.emulator.grid import Grid

__all__ = ["MAX_COUNT", "MBarriers"]

Array = npt.NDArray[Any]
MAX_COUNT = (1 << 20) - 1
_CELL_BITS = 3
_CELLS = SPAN >> _CELL_BITS


class MBarriers:
    """All mbarrier objects of a grid's resident blocks.

    Attributes
    ----------
    valid : bool array [cells]
        Whether an mbarrier lives in the cell (flat shared index // 8).
    expected, pending, tx, phase : int64 arrays [cells]
        Arrivals of a phase, those still missing, transaction bytes still missing (negative when
        bytes came before they were expected), number of completed phases.
    """

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        cells = grid.space.blocks * _CELLS
        self.valid = np.zeros(cells, np.bool_)
        self.expected = np.zeros(cells, np.int64)
        self.pending = np.zeros(cells, np.int64)
        self.tx = np.zeros(cells, np.int64)
        self.phase = np.zeros(cells, np.int64)
        # cell -> (program counter, lanes, predicate row) of suspended try_waits
        self.waiters: dict[int, list[tuple[int, LaneSet, Array]]] = {}
        self.finished: list[str] = []

    def reset(self, group: int) -> None:
        """Forget the barriers of a cluster that starts in this slot group."""
        size = self.grid.cluster_size * _CELLS
        self.valid[group * size : (group + 1) * size] = False

    def cells(self, flat: Array) -> Array:
        """Cells of flat shared indices, which must hold initialised barriers."""
        cells = flat >> _CELL_BITS
        valid = self.valid[cells]
        if not valid.all():
            cell = int(cells.reshape(-1)[np.flatnonzero(~valid.reshape(-1))[0]])
            raise BarrierFault(f"{self.name(cell)} is used but was not initialised")
        return cells

    # -- operations -------------------------------------------------------------------------

    def init(self, lanes: LaneSet, flat: Array, counts: Array) -> None:
        """mbarrier.init."""
        for lane, cell, count in zip(
            lanes.lanes.tolist(), (flat.reshape(-1) >> _CELL_BITS).tolist(),
            np.broadcast_to(counts, flat.shape).reshape(-1).tolist(), strict=True,
        ):  # fmt: skip
            if not 1 <= count <= MAX_COUNT:
                raise BarrierFault(f"{self.name(cell)}: count {count} is not in 1..{MAX_COUNT}")
            if self.waiters.get(cell):
                raise BarrierFault(f"{self.name(cell)} is initialised while threads wait on it")
            self.valid[cell] = True
            self.expected[cell] = self.pending[cell] = count
            self.tx[cell] = self.phase[cell] = 0
            self.grid.machine.progress += 1
            self.grid.machine.races.barrier_init(self.grid, lane, cell)
            if self.grid.machine.trace is not None:
                self.grid.machine.trace.phase_begins(self, cell)

    def invalidate(self, lanes: LaneSet, flat: Array) -> None:
        """mbarrier.inval."""
        for cell in np.unique(self.cells(flat)).tolist():
            if self.waiters.get(cell):
                raise BarrierFault(f"{self.name(cell)} is invalidated while threads wait on it")
            self.valid[cell] = False
            self.grid.machine.progress += 1

    def arrive(
        self, cells: Array, counts: Array | int, *, drop: bool = False, completes: bool = True
    ) -> Array:
        """Arrive-on, once per element of `cells`; the state tokens before each arrival."""
        flat = cells.reshape(-1).tolist()
        each = np.broadcast_to(counts, cells.shape).reshape(-1).tolist()
        tokens = np.empty(len(flat), np.uint64)
        for position, (cell, count) in enumerate(zip(flat, each, strict=True)):
            pending = int(self.pending[cell])
            tokens[position] = (int(self.phase[cell]) & 0xFFFF_FFFF) << 32 | pending
            if count < 1 or count > pending:
                raise BarrierFault(
                    f"{self.name(cell)}: {count} arrivals, {pending} of "
                    f"{int(self.expected[cell])} are pending in this phase"
                )
            if not completes and count == pending:
                raise BarrierFault(f"{self.name(cell)}: a .noComplete arrival completes the phase")
            if drop:
                self.expected[cell] -= count
            self.pending[cell] = pending - count
            if pending == count and self.tx[cell] == 0:
                self._complete(cell)
        self.grid.machine.progress += 1
        return tokens.reshape(cells.shape)

    def expect_tx(self, cells: Array, nbytes: Array | int) -> None:
        """Expect-tx: more transaction bytes are to come in this phase."""
        each = np.broadcast_to(nbytes, cells.shape).reshape(-1).tolist()
        for cell, count in zip(cells.reshape(-1).tolist(), each, strict=True):
            self._add_tx(cell, count)

    def complete_tx(self, flat: int, nbytes: int) -> None:
        """Complete-tx of an asynchronous operation on the barrier at a flat shared index."""
        cell = flat >> _CELL_BITS
        if not self.valid[cell]:
            raise BarrierFault(f"{self.name(cell)}: {nbytes} bytes complete, it is not initialised")
        self._add_tx(cell, -nbytes)
        if self.pending[cell] == 0 and self.tx[cell] == 0:
            self._complete(cell)
        self.grid.machine.progress += 1

    def _add_tx(self, cell: int, nbytes: int) -> None:
        total = int(self.tx[cell]) + nbytes
        if abs(total) > MAX_COUNT:
            raise BarrierFault(
                f"{self.name(cell)}: transaction count {total} exceeds {MAX_COUNT} bytes"
            )
        self.tx[cell] = total
        if nbytes > 0:
            self.grid.machine.progress += 1

    def _complete(self, cell: int) -> None:
        if self.grid.machine.trace is not None:
            self.grid.machine.trace.phase_ends(self, cell)
        self.phase[cell] += 1
        self.pending[cell] = self.expected[cell]
        if self.expected[cell] == 0:
            # Everybody has dropped out: the barrier can never be used again.
            self.valid[cell] = False
        for pc, lanes, predicate in self.waiters.pop(cell, ()):
            lanes.put(predicate, True)
            self.grid.machine.races.mbarrier_acquire(self.grid, lanes, cell)
            self.grid.scheduler.make_ready(pc + 1, lanes)

    # -- waiting ----------------------------------------------------------------------------

    def passed(self, cells: Array, phase: Array, parity: bool) -> Any:
        """Whether the phase (a parity, or a state token) is complete."""
        if parity:
            return np.not_equal(self.phase[cells] & 1, phase & 1)
        return (self.phase[cells] & 0xFFFF_FFFF) > (
            phase.astype(np.uint64) >> np.uint64(32)
        ).astype(np.int64)

    def suspend(self, pc: int, lanes: LaneSet, cells: Array, predicate: Array) -> None:
        """Suspend lanes in a try_wait until the current phases of their barriers complete."""
        flat = cells.reshape(-1)
        for cell in np.unique(flat).tolist():
            part = lanes.select(flat == cell)
            assert part is not None
            self.waiters.setdefault(cell, []).append((pc, part, predicate))
            if self.grid.machine.trace is not None:
                what = f"mbarrier {self.offset_of(cell):#x} phase {int(self.phase[cell])}"
                self.grid.machine.trace.waits(self.grid, part, what)

    def time_out(self) -> bool:
        """Let every suspended try_wait return false; whether there was one."""
        if not self.waiters:
            return False
        waiting, self.waiters = self.waiters, {}
        for entries in waiting.values():
            for pc, lanes, predicate in entries:
                lanes.put(predicate, False)
                self.grid.scheduler.make_ready(pc + 1, lanes)
        return True

    # -- reports ----------------------------------------------------------------------------

    def slot_of(self, cell: int) -> int:
        """Return the slot of the block that a barrier belongs to."""
        return cell // _CELLS

    def offset_of(self, cell: int) -> int:
        """Return a barrier's shared address in its block."""
        return cell % _CELLS << _CELL_BITS

    def name(self, cell: int) -> str:
        """Block, offset and variable of a barrier."""
        slot, offset = self.slot_of(cell), self.offset_of(cell)
        where = ""
        for variable in self.grid.program.variables:
            inside = variable.offset <= offset < variable.offset + variable.nbytes
            if variable.space.startswith("shared") and inside:
                where = f" ({variable.name}+{offset - variable.offset})"
        return f"{self.grid.block_name(slot)}: mbarrier at shared offset {offset:#x}{where}"

    def state(self, cell: int) -> str:
        """Return the counts of a barrier, as text."""
        text = (
            f"{self.name(cell)}: phase {int(self.phase[cell])}, {int(self.pending[cell])} of "
            f"{int(self.expected[cell])} arrivals pending"
        )
        return text + (f", {int(self.tx[cell])} transaction bytes pending" if self.tx[cell] else "")

    def block_exited(self, slot: int) -> None:
        """Check that an ended block left no barrier with bytes missing."""
        span = slice(slot * _CELLS, (slot + 1) * _CELLS)
        for number in np.flatnonzero(self.valid[span]).tolist():
            cell = slot * _CELLS + number
            if self.tx[cell]:
                raise BarrierFault(f"the block exits, but {self.state(cell)}")
            if len(self.finished) < 1024:
                self.finished.append(self.state(cell))
        if self.grid.machine.trace is not None:
            self.grid.machine.trace.block_exits(self.grid, slot)

    def describe(self) -> list[str]:
        """Return what is waited for, for a deadlock report."""
        lines = []
        per_block = self.grid.space.threads // WARP
        for cell, entries in self.waiters.items():
            warps = sorted({int(w) % per_block for _, lanes, _ in entries for w in lanes.warp_ids})
            places = "; ".join(sorted({self.grid.program.describe(pc) for pc, _, _ in entries}))
            parity = int(self.phase[cell]) & 1
            lines.append(
                f"{self.state(cell)}; warps {warps} wait for the phase of parity {parity} at "
                f"{places}"
            )
        return lines
