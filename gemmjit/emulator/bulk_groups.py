"""Bulk async-groups: stores and reductions from shared memory that threads wait for by group.

Every thread has its own groups (PTX ISA 9.7.9.27.2): a group is what the thread issued since its
last `cp.async.bulk.commit_group`; `wait_group n` waits for all but its newest n groups, and with
`.read` only until their sources have been read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gemmjit.emulator.async_engine import Operation
from gemmjit.emulator.dispatch import instruction, reject
from gemmjit.emulator.lanes import LaneSet
from gemmjit.emulator.module import Immediate, Instruction
from gemmjit.emulator.operands import Operands
from gemmjit.emulator.steps import LaneOp, Step

if TYPE_CHECKING:
    from gemmjit.emulator.grid import Grid

__all__ = ["BulkGroups", "BulkStore", "bulk_groups"]


class BulkStore(Operation):
    """A pending store: it reads its source and writes its target in two steps.

    Parameters
    ----------
    read : callable
        Reads shared memory; returns the data.
    write : callable
        Takes the data and writes global memory.
    slots : tuple
        Grid, and the slots of the blocks whose memory is read.
    where : str
        The instruction.
    """

    __slots__ = ("_data", "_read", "_write")

    def __init__(
        self,
        read: Callable[[], Any],
        write: Callable[[Any], None],
        slots: tuple[Any, frozenset[int]],
        where: str = "",
    ) -> None:
        super().__init__("bulk store", self._finish, slots=slots, where=where)
        self._read: Callable[[], Any] | None = read
        self._write = write
        self._data: Any = None

    def read_source(self) -> None:
        """Read shared memory now, unless that has happened."""
        if self._read is not None:
            self._data = self._read()
            self._read = None

    def _finish(self) -> None:
        self.read_source()
        self._write(self._data)
        self._data = None


class BulkGroups:
    """The bulk async-groups of all threads of a grid; eager machines have none."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        # Per thread: sizes of the groups (the open one last) whose sources were not waited for.
        self._unread: dict[int, deque[int]] = {}
        self._open: dict[int, list[BulkStore]] = {}
        self._committed: dict[int, deque[list[BulkStore]]] = {}

    def issue(self, lane: int, store: BulkStore) -> None:
        """Submit a store of a thread to its open group."""
        engine = self.grid.machine.engine
        self._unread.setdefault(lane, deque([0]))[-1] += 1
        engine.submit(store)
        if not store.done:
            self._open.setdefault(lane, []).append(store)

    def commit(self, lanes: LaneSet) -> None:
        """Close the open group of every lane; it may be empty."""
        for lane in lanes.lanes.tolist():
            if lane in self._unread:
                self._unread[lane].append(0)
            if lane in self._open or lane in self._committed:
                self._committed.setdefault(lane, deque()).append(self._open.pop(lane, []))

    def wait(self, lanes: LaneSet, newest: int, reads_only: bool) -> None:
        """Wait until at most ``newest`` groups of each lane are pending."""
        if self._unread:
            for lane in lanes.lanes.tolist():
                sizes = self._unread.get(lane, ())
                while len(sizes) > newest + 1:
                    self._unread[lane].popleft()
        if not self._committed:
            return
        engine = self.grid.machine.engine
        for lane in lanes.lanes.tolist():
            groups = self._committed.get(lane)
            if groups is None:
                continue
            count = max(len(groups) - newest, 0)
            if reads_only:
                for group in list(groups)[:count]:
                    for store in group:
                        store.read_source()
                continue
            for _ in range(count):
                for store in groups.popleft():
                    if not store.done:
                        engine.finish(store)
            if not groups:
                del self._committed[lane]

    def unwaited(self, slot: int) -> int | None:
        """Return a thread of an ending block that has not waited for its stores, or None."""
        threads = self.grid.space.threads
        found = None
        for lane in [lane for lane in self._unread if lane // threads == slot]:
            if any(self._unread.pop(lane)):
                found = lane
        return found


def bulk_groups(grid: Grid) -> BulkGroups:
    """Return the bulk async-groups of a grid."""
    found: BulkGroups | None = grid.state.get("bulk_groups")
    if found is None:
        found = grid.state["bulk_groups"] = BulkGroups(grid)
    return found


@instruction("cp.async.bulk.commit_group")
def build_commit_group(operands: Operands, found: Instruction) -> Step:
    """`cp.async.bulk.commit_group`."""
    return LaneOp(bulk_groups(operands.grid).commit)


@instruction("cp.async.bulk.wait_group")
def build_wait_group(operands: Operands, found: Instruction) -> Step:
    """`cp.async.bulk.wait_group{.read} N`."""
    count = found.operands[0]
    if not isinstance(count, Immediate) or not isinstance(count.value, int):
        raise reject(found, "the number of groups must be a literal")
    newest, reads_only = count.value, found.mods[-1] == "read"
    groups = bulk_groups(operands.grid)
    return LaneOp(lambda lanes: groups.wait(lanes, newest, reads_only))
