"""Global memory: arenas of guarded allocations in one 64-bit address space (PTX ISA chapter 5.1).

Windows of the generic address space are fixed constants. They lie far apart, and gaps lie between
allocations, so that an address that is off by a little never hits something else.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from gemmjit.emulator.faults import MemoryFault

__all__ = [
    "CODE_WINDOW", "GLOBAL_WINDOW", "LOCAL_WINDOW", "PARAM_WINDOW", "POISON", "SHARED_WINDOW",
    "AddressSpace", "Allocation", "DeviceMemory", "Storage",
]  # fmt: skip

Array = npt.NDArray[Any]

SHARED_WINDOW = 0x0010_0000_0000
LOCAL_WINDOW = 0x0020_0000_0000
PARAM_WINDOW = 0x0030_0000_0000
CODE_WINDOW = 0x0040_0000_0000
GLOBAL_WINDOW = 0x7000_0000_0000
_DEVICE_SPAN = 0x0100_0000_0000
_GUARD = 4096
# NaN as f32, bf16, f16 and f64, -1 as an integer: never mistaken for a fresh zero.
POISON = 0xFF


class Storage:
    """Bytes with cached views of other element types."""

    __slots__ = ("_views", "data")

    def __init__(self, data: Array) -> None:
        self.data = data
        self._views: dict[tuple[Any, int], Array] = {}

    def view(self, dtype: np.dtype[Any], count: int = 1) -> Array:
        """Elements of `dtype`, as rows of `count` when that is above 1; a partial tail is cut."""
        key = (dtype, count)
        found = self._views.get(key)
        if found is None:
            width = dtype.itemsize * count
            found = self.data[: len(self.data) // width * width].view(dtype)
            found = self._views[key] = found if count == 1 else found.reshape(-1, count)
        return found


class Allocation(Storage):
    """A range of global memory.

    Attributes
    ----------
    base : int
        Address of the first byte.
    nbytes : int
        Size; the byte after it belongs to nobody.
    writable : bool
        Whether stores are allowed.
    """

    __slots__ = ("base", "name", "nbytes", "writable")

    def __init__(self, base: int, data: Array, name: str, writable: bool = True) -> None:
        super().__init__(data)
        self.base = base
        self.nbytes = len(data)
        self.name = name
        self.writable = writable


class DeviceMemory:
    """The global memory of one device.

    Parameters
    ----------
    device : int
        Ordinal; arenas of different devices share one address space (peer access).
    """

    def __init__(self, device: int = 0) -> None:
        self.device = device
        self.allocations: list[Allocation] = []
        self._next = GLOBAL_WINDOW + device * _DEVICE_SPAN + _GUARD
        self.module_symbols: dict[tuple[str, str], int] = {}

    def allocate(
        self, nbytes: int, data: Any = None, *, name: str = "", writable: bool = True
    ) -> int:
        """Allocate fresh memory, 256-byte aligned.

        Parameters
        ----------
        nbytes : int
            Size in bytes.
        data : array_like, optional
            Initial contents (at most `nbytes` bytes). The rest is poisoned (0xFF), not zero.
        name : str
            Shown in fault messages.

        Returns
        -------
        int
            Address.
        """
        contents = np.full(nbytes, POISON, np.uint8)
        if data is not None:
            raw = np.frombuffer(np.ascontiguousarray(data).tobytes(), np.uint8)
            contents[: len(raw)] = raw
        return self._insert(contents, 0, name, writable)

    def attach(
        self, array: Array, *, alignment_offset: int = 0, name: str = "", writable: bool = True
    ) -> int:
        """Map an existing contiguous array without a copy.

        Parameters
        ----------
        array : numpy.ndarray
            C- or F-contiguous; accesses outside its buffer fault.
        alignment_offset : int
            The address modulo 256, to map an array that its owner did not align.
        """
        if not (array.flags.c_contiguous or array.flags.f_contiguous):
            raise MemoryFault(
                "array: expected a contiguous array, got a strided one; attach its base"
            )
        flat = array.reshape(-1, order="A").view(np.uint8)
        writable = writable and array.flags.writeable
        return self._insert(flat, alignment_offset, name, writable)

    def _insert(self, data: Array, offset: int, name: str, writable: bool) -> int:
        base = self._next + offset % 256
        self.allocations.append(Allocation(base, data, name, writable))
        self._next = -(-(base + len(data) + _GUARD) // 256) * 256
        return base

    def free(self, pointer: int) -> None:
        """Give an allocation back; later accesses fault."""
        kept = [a for a in self.allocations if a.base != pointer]
        if len(kept) == len(self.allocations):
            raise MemoryFault(f"free: {pointer:#x} is not the start of an allocation")
        self.allocations = kept

    def find(self, pointer: int, nbytes: int = 1) -> Allocation:
        """Return the allocation that holds `nbytes` bytes from `pointer` on."""
        for allocation in self.allocations:
            if (
                allocation.base <= pointer
                and pointer + nbytes <= allocation.base + allocation.nbytes
            ):
                return allocation
        raise MemoryFault(f"no allocation holds {nbytes} bytes at {pointer:#x}")

    def read(self, pointer: int, dtype: Any = np.uint8, count: int = 1) -> Array:
        """Copy `count` elements of `dtype` out of the memory."""
        kind = np.dtype(dtype)
        allocation = self.find(pointer, kind.itemsize * count)
        start = pointer - allocation.base
        return allocation.data[start : start + kind.itemsize * count].copy().view(kind)

    def write(self, pointer: int, data: Any) -> None:
        """Copy an array into the memory."""
        raw = np.frombuffer(np.ascontiguousarray(data).tobytes(), np.uint8)
        allocation = self.find(pointer, len(raw))
        allocation.data[pointer - allocation.base :][: len(raw)] = raw


class AddressSpace:
    """The allocations of several arenas, found by address."""

    def __init__(self, arenas: Iterable[DeviceMemory]) -> None:
        allocations = [a for arena in arenas for a in arena.allocations]
        self.allocations = sorted(allocations, key=lambda a: a.base)
        self.bases = [a.base for a in self.allocations]
        self._base_array = np.array(self.bases or [0], np.uint64)

    def find(self, address: int) -> Allocation | None:
        """Return the allocation whose range starts at or before `address` and holds it."""
        position = bisect.bisect_right(self.bases, address) - 1
        if position < 0:
            return None
        found = self.allocations[position]
        return found if address < found.base + found.nbytes else None

    def holder(self, low: int, high: int, hint: Allocation | None) -> Allocation | None:
        """One allocation that holds the bytes `[low, high)`, or None."""
        if hint is not None and hint.base <= low and high <= hint.base + hint.nbytes:
            return hint
        found = self.find(low)
        return found if found is not None and high <= found.base + found.nbytes else None

    def partition(self, addresses: Array, width: int) -> list[tuple[Allocation, Array]]:
        """Split flat addresses by allocation: `(allocation, positions)` pairs.

        Raises
        ------
        MemoryFault
            With the position of the first address that no allocation holds, in `index`.
        """
        if not self.allocations:
            raise _outside(self, int(addresses[0]), width, 0)
        which = np.searchsorted(self._base_array, addresses, side="right").astype(np.int64) - 1
        parts = []
        for number in np.unique(which):
            positions = np.flatnonzero(which == number)
            if number < 0:
                raise _outside(self, int(addresses[positions[0]]), width, int(positions[0]))
            allocation = self.allocations[number]
            offsets = addresses[positions] - np.uint64(allocation.base)
            bad = np.flatnonzero(offsets + np.uint64(width) > allocation.nbytes)
            if len(bad):
                first = int(positions[bad[0]])
                raise _outside(self, int(addresses[first]), width, first)
            parts.append((allocation, positions))
        return parts

    def bytes_at(self, address: int, nbytes: int) -> Array:
        """Return a view of `nbytes` bytes of one allocation.

        Raises
        ------
        MemoryFault
            No allocation holds all of them.
        """
        found = self.holder(address, address + nbytes, None)
        if found is None:
            raise _outside(self, address, nbytes, 0)
        return found.data[address - found.base :][:nbytes]

    def string_at(self, address: int) -> str:
        """Return the zero-terminated text at an address."""
        found = self.find(address)
        if found is None:
            raise _outside(self, address, 1, 0)
        raw = found.data[address - found.base :]
        end = int(np.argmax(raw == 0))
        return raw[:end].tobytes().decode("utf-8", "replace")


class GlobalFault(MemoryFault):
    """A fault of one address of a vector; `index` is its position."""

    index = 0


def _outside(space: AddressSpace, address: int, width: int, index: int) -> GlobalFault:
    position = bisect.bisect_right(space.bases, address) - 1
    near = "no allocation lies below it"
    if position >= 0:
        below = space.allocations[position]
        end = below.base + below.nbytes
        name = f" {below.name}" if below.name else ""
        if address < end:
            near = f"it reaches {address + width - end} bytes past the end of allocation{name}"
        else:
            near = f"it starts {address - end} bytes past the end of allocation{name}"
        near += f" [{below.base:#x}, {end:#x})"
    fault = GlobalFault(f"access of {width} bytes at global address {address:#x}: {near}")
    fault.index = index
    return fault
