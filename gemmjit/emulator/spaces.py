"""Loads and stores of whole lane sets, one class per state space (PTX ISA chapter 5.1).

All spaces answer one question, :meth:`Space.locate`: which storage and which byte offsets do these
addresses mean? Loads, stores and atomics are built on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gemmjit.emulator.faults import MemoryFault, UnknownInstruction
from gemmjit.emulator.lanes import LaneSet
from gemmjit.emulator.memory import (
    GLOBAL_WINDOW,
    LOCAL_WINDOW,
    PARAM_WINDOW,
    SHARED_WINDOW,
    Allocation,
    GlobalFault,
    Storage,
)

if TYPE_CHECKING:
    from gemmjit.emulator.grid import Grid

__all__ = ["Space", "space_named"]

Array = npt.NDArray[Any]
# (storage, byte offsets, positions in the lane set or None for all of them)
Located = tuple[Storage, Array, Array | None]


class Space:
    """Base: access through :meth:`locate`."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid

    def locate(self, lanes: LaneSet, addresses: Array, width: int, writes: bool) -> list[Located]:
        """Where the addresses of the lanes lie; bounds and alignment are checked."""
        raise NotImplementedError

    def load(self, lanes: LaneSet, addresses: Array, dtype: np.dtype[Any], count: int) -> Array:
        """Load elements: shaped as `lanes.get`, plus an axis when `count` is above 1."""
        width = dtype.itemsize * count
        located = self.locate(lanes, addresses, width, False)
        storage, offsets, positions = located[0]
        if positions is None:
            found: Array = storage.view(dtype, count)[offsets // width]
            return found
        shape = addresses.shape if count == 1 else (*addresses.shape, count)
        result = np.empty(shape, dtype)
        flat = result.reshape(-1) if count == 1 else result.reshape(-1, count)
        for storage, offsets, positions in located:
            flat[positions] = storage.view(dtype, count)[offsets // width]
        return result

    def store(
        self, lanes: LaneSet, addresses: Array, values: Array, dtype: np.dtype[Any], count: int
    ) -> None:
        """Store `values` (shaped as :meth:`load` returns them)."""
        width = dtype.itemsize * count
        self.grid.machine.progress += 1
        for storage, offsets, positions in self.locate(lanes, addresses, width, True):
            if positions is None:
                storage.view(dtype, count)[offsets // width] = values
            else:
                flat = values.reshape(-1) if count == 1 else values.reshape(-1, count)
                storage.view(dtype, count)[offsets // width] = flat[positions]


class GlobalSpace(Space):
    """`.global` and `.const`; remembers the allocation of the last access."""

    def __init__(self, grid: Grid) -> None:
        super().__init__(grid)
        self._hint: Allocation | None = None

    def locate(self, lanes: LaneSet, addresses: Array, width: int, writes: bool) -> list[Located]:
        """See :meth:`Space.locate`."""
        hint = self._hint
        memory = self.grid.machine.memory
        if hint is None or addresses.dtype != np.int64:
            addresses = addresses.astype(np.int64)
            hint = memory.find(int(addresses.flat[0]))
        if hint is not None:
            offsets = addresses - hint.base
            bits = int(np.bitwise_or.reduce(offsets, axis=None))
            inside = bits >= 0 and (
                bits + width <= hint.nbytes or int(offsets.max()) + width <= hint.nbytes
            )
            if inside and not (bits | hint.base) & (width - 1):
                if writes and not hint.writable:
                    raise MemoryFault(f"store into read-only memory {hint.name}")
                self._hint = hint
                return [(hint, offsets, None)]
        return self._general(lanes, addresses, width, writes)

    def _general(self, lanes: LaneSet, addresses: Array, width: int, writes: bool) -> list[Located]:
        flat = addresses.reshape(-1)
        wrong = np.flatnonzero(flat & (width - 1))
        if len(wrong):
            lane = int(lanes.lanes[wrong[0]])
            raise MemoryFault(
                f"{self.grid.thread_name(lane)}: global address {int(flat[wrong[0]]):#x} is not a "
                f"multiple of {width}"
            )
        try:
            parts = self.grid.machine.memory.partition(flat.view(np.uint64), width)
        except GlobalFault as fault:
            lane = int(lanes.lanes[fault.index])
            raise MemoryFault(f"{self.grid.thread_name(lane)}: {fault.reason}") from None
        if writes and any(not allocation.writable for allocation, _ in parts):
            raise MemoryFault("store into read-only memory")
        self._hint = parts[-1][0]
        return [(a, flat[positions] - a.base, positions) for a, positions in parts]


class SharedSpace(Space):
    """`.shared`, own and of the cluster."""

    def __init__(self, grid: Grid) -> None:
        super().__init__(grid)
        self._tracked = grid.machine.races.tracks(grid)

    def locate(self, lanes: LaneSet, addresses: Array, width: int, writes: bool) -> list[Located]:
        """See :meth:`Space.locate`."""
        shared = self.grid.shared
        flat = shared.index(lanes, addresses, width)
        if self._tracked:
            self.grid.machine.races.generic_access(self.grid, lanes, flat, width, writes)
        return [(shared, flat, None)]


class LocalSpace(Space):
    """`.local`: the same offsets mean another place for every thread."""

    def locate(self, lanes: LaneSet, addresses: Array, width: int, writes: bool) -> list[Located]:
        """See :meth:`Space.locate`."""
        offsets = addresses.astype(np.int64).reshape(-1)
        limit = self.grid.program.local_bytes
        wrong = np.flatnonzero((offsets < 0) | (offsets + width > limit) | (offsets & (width - 1)))
        if len(wrong):
            lane = int(lanes.lanes[wrong[0]])
            raise MemoryFault(
                f"{self.grid.thread_name(lane)}: access of {width} bytes at local offset "
                f"{int(offsets[wrong[0]]):#x} of {limit} bytes"
            )
        flat = lanes.lanes * self.grid.local_stride + offsets
        return [(self.grid.local, flat.reshape(addresses.shape), None)]


class ParamSpace(Space):
    """`.param`: the kernel's parameters (read only) by window address."""

    def locate(self, lanes: LaneSet, addresses: Array, width: int, writes: bool) -> list[Located]:
        """See :meth:`Space.locate`."""
        offsets = addresses.astype(np.int64)
        offsets = np.where(offsets >= PARAM_WINDOW, offsets - PARAM_WINDOW, offsets)
        if writes:
            raise MemoryFault("store into the parameters of the kernel")
        limit = self.grid.program.param_bytes
        low, high = int(offsets.min()), int(offsets.max())
        if low < 0 or high + width > limit or (offsets & (width - 1)).any():
            raise MemoryFault(
                f"access of {width} bytes at parameter offsets {low}..{high} of {limit} bytes"
            )
        return [(self.grid.params, offsets, None)]


class GenericSpace(Space):
    """Generic addresses: the window decides, lane by lane if need be."""

    def __init__(self, grid: Grid) -> None:
        super().__init__(grid)
        self._windows: list[tuple[int, Space]] = [
            (SHARED_WINDOW, space_named(grid, "shared")),
            (LOCAL_WINDOW, space_named(grid, "local")),
            (PARAM_WINDOW, space_named(grid, "param")),
        ]
        self._global = GlobalSpace(grid)

    def locate(self, lanes: LaneSet, addresses: Array, width: int, writes: bool) -> list[Located]:
        """See :meth:`Space.locate`."""
        low, high = int(addresses.min()), int(addresses.max())
        if low >= GLOBAL_WINDOW:
            return self._global.locate(lanes, addresses, width, writes)
        for window, space in self._windows:
            if window <= low and high < window + (1 << 32):
                shift = 0 if window == PARAM_WINDOW else window
                return space.locate(lanes, addresses - shift, width, writes)
        return self._mixed(lanes, addresses, width, writes)

    def _mixed(self, lanes: LaneSet, addresses: Array, width: int, writes: bool) -> list[Located]:
        flat = addresses.reshape(-1)
        window = np.where(flat >= GLOBAL_WINDOW, -1, flat >> 32)
        found: list[Located] = []
        known = {w >> 32 for w, _ in self._windows}
        for number in np.unique(window):
            positions = np.flatnonzero(window == number)
            if number != -1 and int(number) not in known:
                lane = int(lanes.lanes[positions[0]])
                raise MemoryFault(
                    f"{self.grid.thread_name(lane)}: address {int(flat[positions[0]]):#x} lies in "
                    "no state space"
                )
            if len(positions) == lanes.count:
                return self._global.locate(lanes, addresses, width, writes)
            part = lanes.select(window == number)
            assert part is not None
            inner = part.get(_row_of(lanes, addresses))
            for storage, offsets, chosen in self.locate(part, inner, width, writes):
                where = positions if chosen is None else positions[chosen]
                found.append((storage, offsets.reshape(-1), where))
        return found


def _row_of(lanes: LaneSet, values: Array) -> Array:
    """Values of a lane set as a row of all lanes (others are zero)."""
    row = np.zeros(lanes.mask.shape, values.dtype)
    lanes.put(row, values)
    return row


_CLASSES: dict[str, type[Space]] = {
    "global": GlobalSpace, "const": GlobalSpace, "shared": SharedSpace, "shared::cta": SharedSpace,
    "shared::cluster": SharedSpace, "local": LocalSpace, "param": ParamSpace,
    "param::entry": ParamSpace, "generic": GenericSpace,
}  # fmt: skip


def space_named(grid: Grid, name: str) -> Space:
    """Return a new access path of this state space; each instruction has its own."""
    found = _CLASSES.get(name)
    if found is None:
        raise UnknownInstruction(f"unknown state space .{name}")
    return found(grid)
