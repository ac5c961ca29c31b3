"""The pipe of products and copies that a thread issues, and the shared memory that they read.

`tcgen05.mma`, `cp` and `shift` of a block complete in the order of their issue, `tcgen05.commit`
behind those of its own thread; PTX ISA 9.7.16.6.2 promises that of some pairs, the others are found
as races by :mod:`gemmjit.emulator.tmem_hazards`. A commit does not wait for what another thread has
issued behind the last operation of its own (9.7.16.12).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from gemmjit.emulator.async_engine import Operation
from gemmjit.emulator.faults import MemoryFault
from gemmjit.emulator.grid import Grid
from gemmjit.emulator.lanes import WARP
from gemmjit.emulator.matrix_descriptor import CHUNK
from gemmjit.emulator.shared_memory import SPAN

__all__ = ["SharedOperand", "submit"]

Array = npt.NDArray[Any]


class SharedOperand:
    """A matrix in the shared memory of a block, checked at issue and read at completion.

    Parameters
    ----------
    grid : Grid
    slot : int
        The block whose memory it is.
    chunks : array of int
        16-byte chunks of it.
    what : str
        For messages.
    issuer : int
        The lane that issues; its warp must have seen what was written there.
    """

    def __init__(self, grid: Grid, slot: int, chunks: Array, what: str, issuer: int) -> None:
        shared = grid.shared
        low, high = int(chunks.min()) * CHUNK, (int(chunks.max()) + 1) * CHUNK
        if low < shared.base or high > shared.base + shared.limit:
            raise MemoryFault(
                f"{what} spans offsets {low:#x} to {high:#x}, outside the block's shared memory "
                f"[{shared.base:#x}, {shared.base + shared.limit:#x})"
            )
        self.grid = grid
        self.slot = slot
        self.located: Array = chunks + slot * SPAN // CHUNK
        # The same bytes may be rows of several blocks of a matrix.
        self.units = np.unique(self.located)
        warps = (issuer // WARP,) if issuer // grid.space.threads == slot else ()
        grid.machine.races.async_issue_read(grid, slot, self.units, warps)

    def read(self) -> Array:
        """Return the bytes, (*chunks, 16)."""
        grid = self.grid
        grid.machine.races.async_read(grid, self.slot, self.units)
        memory = grid.shared.view(np.dtype(np.complex128))
        data: Array = memory[self.located]
        return data.view(np.uint8).reshape(*self.located.shape, CHUNK)


def submit(
    grid: Grid, kind: str, lane: int, blocks: list[int], complete: Callable[[], None], where: str
) -> None:
    """Issue an operation of a thread behind the earlier ones; it concerns these blocks."""
    slot = lane // grid.space.threads
    newest: dict[int, tuple[int, Operation]] = grid.state.setdefault("tcgen05 pipes", {})
    own: dict[int, Operation] = grid.state.setdefault("tcgen05 threads", {})
    issuer, last = newest.get(slot, (lane, None))
    in_pipe = kind != "tcgen05.commit" or issuer == lane
    before = last if in_pipe else own.get(lane)
    operation = Operation(
        kind,
        complete,
        after=before if before is not None and not before.done else None,
        slots=(grid, frozenset(blocks)),
        where=where,
    )
    own[lane] = operation
    if in_pipe:
        newest[slot] = lane, operation
    grid.machine.engine.submit(operation)
    grid.machine.progress += 1
