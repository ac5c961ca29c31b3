"""One box between global and shared memory: runs on one side, places of their bytes on the other.

A `BoxCopy` lists the contiguous runs of global memory that lie inside the tensor and, for each,
the places in shared memory that hold them, swizzle included. It moves nothing across the machine:
the caller reads or writes the runs (and checks their bounds); `BoxCopy.write_shared` and
`BoxCopy.read_shared` do the shared side on a flat array.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemmjit.emulator.formats import encode
from gemmjit.tensormap import ElementType, Swizzle

__all__ = ["UNIT_TYPES", "BoxCopy", "Indices", "as_loaded", "swizzled"]

Indices = NDArray[np.intp]

#: Types by which whole units are moved; complex128 is NumPy's only plain 16-byte type.
UNIT_TYPES: dict[int, Any] = {
    1: np.uint8,
    2: np.uint16,
    4: np.uint32,
    8: np.uint64,
    16: np.complex128,
}


_CONVERTED = (ElementType.FLOAT32_FTZ, ElementType.TFLOAT32, ElementType.TFLOAT32_FTZ)


def swizzled(address: Any, swizzle: Swizzle) -> Any:
    """Return the place of a byte of shared memory under a swizzle.

    Parameters
    ----------
    address : int or ndarray of int
        Absolute shared address of the byte in the plain layout.
    swizzle : Swizzle

    Returns
    -------
    int or ndarray of int

    Notes
    -----
    Chunks of 16, 32 or 64 bytes move within a line of 32, 64 or 128 bytes: the chunk's number is
    XORed with the number of the 128-byte line (PTX ISA 5.5.7).
    """
    if swizzle is Swizzle.NONE:
        return address
    line = address >> 7
    chunk = line & (swizzle.span // swizzle.atom - 1)
    moved = address ^ (chunk * swizzle.atom)
    if swizzle is Swizzle.BYTES_128_ATOM_32_FLIP_8:
        moved = moved ^ ((line & 1) << 3)
    return moved


def as_loaded(element_type: ElementType, data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return what a load makes of the bytes of a tensor.

    Parameters
    ----------
    element_type : ElementType
    data : ndarray of uint8, whole elements in the last axis, C-contiguous

    Returns
    -------
    ndarray of uint8, same shape
        TFLOAT32 is rounded to tf32, to nearest even, infinities and NaN as they are (seen on
        sm_120: github.com/triton-lang/triton/pull/11751); the FTZ types lose their subnormals
        (by their name only). All others are copied.
    """
    if element_type not in _CONVERTED:
        return data
    bits = data.view(np.uint32)
    exponent = bits & np.uint32(0x7F800000)
    if element_type is not ElementType.TFLOAT32:
        bits = np.where(exponent == 0, bits & np.uint32(0x80000000), bits)
    if element_type is not ElementType.FLOAT32_FTZ:
        numbers = exponent != 0x7F800000
        values = np.where(numbers, bits.view(np.float32), np.float32(0))
        bits = np.where(numbers, encode("tf32", values), bits)
    return bits.view(np.uint8)


@dataclass(frozen=True, slots=True, eq=False)
class BoxCopy:
    """One box between global and shared memory.

    Attributes
    ----------
    runs : ndarray of int64, (runs,)
        Global byte address of each contiguous run inside the tensor.
    run_bytes : int
        Bytes of each run.
    unit : int
        Bytes of the units in which shared memory is addressed: 1, 2, 4, 8 or 16.
    shared : ndarray of intp, (runs, run_bytes // unit)
        Shared address of each unit of each run, divided by ``unit``.
    whole : ndarray of intp
        The same for every unit of the box, inside the tensor or not.
    fill : ndarray
        What a load writes outside the tensor: one unit.
    complete : bool
        Whether the whole box is inside the tensor.
    box_bytes : int
        Bytes that complete on the mbarrier.
    element_type : ElementType
        Decides how loaded values change, see `as_loaded`.
    shared_range : tuple of int
        First shared byte that the box spans, and the one after the last: where its rows are
        narrower than the swizzle, more than what it touches.
    """

    runs: NDArray[np.int64]
    run_bytes: int
    unit: int
    shared: Indices
    whole: Indices
    fill: NDArray[Any]
    complete: bool
    box_bytes: int
    element_type: ElementType
    shared_range: tuple[int, int]

    def write_shared(self, smem: NDArray[np.uint8], data: NDArray[np.uint8], base: int = 0) -> None:
        """Put a loaded box into shared memory, filling what lies outside the tensor.

        Parameters
        ----------
        smem : ndarray of uint8, (bytes,), aligned to 16
            Flat shared memory.
        data : ndarray of uint8, (runs, run_bytes), C-contiguous
            Contents of `runs`.
        base : int
            Position of shared address 0 in ``smem``, a multiple of 16.
        """
        units: NDArray[Any] = smem.view(UNIT_TYPES[self.unit])
        offset = base // self.unit
        if not self.complete:
            units[self.whole + offset] = self.fill
        if self.runs.size:
            loaded = as_loaded(self.element_type, data)
            units[self.shared + offset] = loaded.view(units.dtype)

    def read_shared(self, smem: NDArray[np.uint8], base: int = 0) -> NDArray[np.uint8]:
        """Take from shared memory what a store writes to `runs`; see `write_shared`.

        Returns
        -------
        ndarray of uint8, (runs, run_bytes)
        """
        units: NDArray[Any] = smem.view(UNIT_TYPES[self.unit])
        return units[self.shared + base // self.unit].view(np.uint8)
