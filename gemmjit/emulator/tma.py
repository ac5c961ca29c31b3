"""Boxes of the tensor memory accelerator: which global bytes go where in shared memory.

The functions here turn a TensorMap, its address and coordinates into a
`gemmjit.emulator.box_copy.BoxCopy`; they move nothing.

Sources: PTX ISA 9.1, sections 5.5 (tensors, boxes, out-of-bounds, swizzles) and 9.7.9.27.1 (tensor
copies and their restrictions); CUDA C++ Programming Guide, multi-dimensional TMA, for the 128-byte
alignment of shared memory. Seen on an H200, and in no document: a load that starts at a negative
coordinate fills, a store that does faults; and a load whose first coordinate along the contiguous
dimension is no multiple of 16 bytes is an illegal instruction (bf16, swizzled or not, ranks 2 to 4;
the coordinates of the other dimensions are free), and such a store too. Along that dimension a load
is clipped by the element, but a store by 16 bytes: where the tensor ends inside a chunk of 16, what
lies behind its end there is overwritten with what shared memory holds (bf16, all swizzles; seen on
2026-11-30). The same is assumed for the other element types, in bytes.

Rows that are narrower than the swizzle lie a whole span apart when they are loaded, dimension 1
fastest. Chunks go where those of a row of the whole span would go, the rest of it is not written,
and only bytes of the box complete on the mbarrier (H200, driver 580.159.04, 2026-11-30: bf16, rows
of 64 and 32 bytes under swizzle 128, of 32 under 64 and of 16 under 32, ranks 2 and 3; assumed for
the other element types, in bytes).

Not here: im2col modes and interleaved layouts; of such narrow rows stores, reductions, gather4,
scatter4, and the swizzles of 32-byte and 64-byte chunks, of which nothing was seen (all refused).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import gcd, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemmjit.emulator.box_copy import UNIT_TYPES, BoxCopy, Indices, swizzled
from gemmjit.emulator.faults import TensorMapFault
from gemmjit.emulator.tensormap_object import decode, encode, replace
from gemmjit.tensormap import ElementType, Fill, Interleave, Swizzle, TensorMap, violations

__all__ = [
    "SMEM_ALIGNMENT",
    "check_map",
    "decode",
    "encode",
    "gather4",
    "load_box",
    "replace",
    "scatter4",
    "store_box",
]

#: Alignment in bytes of the shared address of a tensor copy.
SMEM_ALIGNMENT = 128

#: Grid in bytes on which a box starts along the contiguous dimension.
_STORE_CLIP = 16  # bytes of a row that a store writes or leaves as a whole
_START_GRID = 16


@lru_cache(maxsize=1024)
def check_map(tensor_map: TensorMap, base_address: int, arch: str) -> None:
    """Raise unless a map obeys every rule that the driver and this emulator have for it.

    Raises
    ------
    TensorMapFault
        Listing all broken rules, or naming what is not emulated.
    """
    reasons = violations(tensor_map, base_address, arch)
    if reasons:
        raise TensorMapFault("tensor map: " + "; ".join(reasons))
    if tensor_map.interleave is not Interleave.NONE:
        raise TensorMapFault("tensor map: interleaved layouts are not emulated")
    if tensor_map.swizzle > Swizzle.BYTES_128:
        _refuse_narrow_rows(tensor_map, f"swizzle {tensor_map.swizzle.name}")


def _row_bytes(tensor_map: TensorMap) -> int:
    """Bytes of a row in shared memory, padding of 4-bit and 6-bit types included."""
    return tensor_map.counts[0] * tensor_map.element_type.smem_bits // 8


def _refuse_narrow_rows(tensor_map: TensorMap, what: str) -> None:
    """Raise where rows are narrower than the swizzle, and were not seen with `what`."""
    row, span = _row_bytes(tensor_map), tensor_map.swizzle.span
    if row < span:
        raise TensorMapFault(
            f"tensor map: box[0]: a row of {row} bytes is narrower than swizzle "
            f"{tensor_map.swizzle.name}, and how such rows are spaced is in no document and was "
            f"seen of plain loads under BYTES_32, BYTES_64 and BYTES_128 only, not of {what}; "
            f"expected {span} bytes"
        )


@lru_cache(maxsize=512)
def _payload(tensor_map: TensorMap, unit: int, phase: int) -> Indices:
    """Swizzled units of a box, (rows..., units), from a start at ``phase`` within 1024 bytes.

    The rows are in dimensions outermost first. Only payload appears: the padding of the 4-bit and
    6-bit types is never touched.
    """
    counts = tensor_map.counts
    element = tensor_map.element_type
    rows = np.arange(prod(counts[1:])) * tensor_map.row_pitch
    if element.is_padded:
        payload = 2 * element.bits  # bytes of 16 elements
        chunks = np.arange(counts[0] // 16) * 16
        row = (chunks[:, None] + np.arange(0, payload, unit)).ravel()
    else:
        row = np.arange(0, _row_bytes(tensor_map), unit)
    address = swizzled(phase + rows[:, None] + row, tensor_map.swizzle)
    pattern: Indices = (address // unit).reshape(*reversed(counts[1:]), row.size).astype(np.intp)
    pattern.setflags(write=False)
    return pattern


@lru_cache(maxsize=512)
def _rows(tensor_map: TensorMap) -> NDArray[np.int64]:
    """Byte offset of each row of a box from its first, dimensions outermost first."""
    offsets = np.zeros((1,) * (tensor_map.rank - 1), np.int64)
    for i in range(1, tensor_map.rank):
        steps = np.arange(tensor_map.counts[i], dtype=np.int64) * tensor_map.element_strides[i]
        shape = [1] * (tensor_map.rank - 1)
        shape[-i] = steps.size
        offsets = offsets + steps.reshape(shape) * tensor_map.strides[i - 1]
    offsets.setflags(write=False)
    return offsets


def _inside(start: int, step: int, count: int, dim: int) -> tuple[int, int]:
    """Range of box positions whose coordinates ``start + step * i`` lie in ``[0, dim)``."""
    low = min(max(-(start // step), 0), count)  # ceil(-start / step)
    high = min(max(-((start - dim) // step), low), count)
    return low, high


@lru_cache(maxsize=64)
def _fill_unit(element: ElementType, fill: Fill, unit: int) -> NDArray[Any]:
    """One unit of fill. The bits of the NaN are undocumented; the canonical one is taken."""
    octets = np.zeros(16, np.uint8)
    if fill is Fill.NAN:
        width = element.bits // 8
        nan = ((1 << (element.bits - 1)) - 1).to_bytes(width, "little")
        octets = np.frombuffer(nan * (16 // width), np.uint8)
    return np.ascontiguousarray(octets[:unit]).view(UNIT_TYPES[unit])[0]  # type: ignore[no-any-return]


def _check_start(tensor_map: TensorMap, coordinates: Sequence[int], smem_address: int) -> None:
    if smem_address % SMEM_ALIGNMENT:
        raise TensorMapFault(
            f"tensor copy: expected a shared address that is a multiple of {SMEM_ALIGNMENT}; "
            f"got {smem_address:#x}"
        )
    element = tensor_map.element_type
    if element.is_padded and coordinates[0] % 128:
        raise TensorMapFault(
            f"tensor copy: coordinate 0: expected a multiple of 128 for {element.name}; "
            f"got {coordinates[0]}"
        )
    if coordinates[0] * element.bits % (8 * _START_GRID):
        raise TensorMapFault(
            f"tensor copy: coordinate 0: expected a multiple of {8 * _START_GRID // element.bits} "
            f"({_START_GRID} bytes of {element.name}, {element.bits} bits each); got "
            f"{coordinates[0]}, which is an illegal instruction"
        )


def _box(
    tensor_map: TensorMap,
    base_address: int,
    coordinates: Sequence[int],
    smem_address: int,
    clip: int = 1,
) -> BoxCopy:
    """Describe a box of which what is inside is moved, in chunks of ``clip`` bytes of a row."""
    t = tensor_map
    if len(coordinates) != t.rank:
        raise TensorMapFault(
            f"tensor copy: expected {t.rank} coordinates for a map of rank {t.rank}; "
            f"got {len(coordinates)}"
        )
    _check_start(t, coordinates, smem_address)
    steps = (1, *t.element_strides[1:])
    ranges = [
        _inside(c, s, n, d) for c, s, n, d in zip(coordinates, steps, t.counts, t.dims, strict=True)
    ]
    bits = t.element_type.bits
    low, high = (x * bits // 8 for x in ranges[0])  # bytes of a row that are inside
    high = min(-(-high // clip) * clip, t.counts[0] * bits // 8)
    first = base_address + coordinates[0] * bits // 8 + low
    first += sum(c * s for c, s in zip(coordinates[1:], t.strides, strict=True))
    inner = (slice(low_i, high_i) for low_i, high_i in reversed(ranges[1:]))
    outer = tuple(inner)
    return _assemble(t, _rows(t)[outer].ravel() + first, outer, (low, high), smem_address)


def _assemble(
    t: TensorMap,
    runs: NDArray[np.int64],
    outer: tuple[Any, ...],
    columns: tuple[int, int],
    smem_address: int,
) -> BoxCopy:
    """Join the runs with their places; ``outer`` selects rows, ``columns`` bytes of a row."""
    low, high = columns if columns[1] > columns[0] else (0, 0)
    unit = gcd(low, high, _largest_unit(t))
    origin = smem_address & -1024
    whole = _payload(t, unit, smem_address - origin) + origin // unit
    part = whole[outer][..., low // unit : high // unit]
    shared = part.reshape(prod(part.shape[:-1]), part.shape[-1])
    if high == low:
        runs, shared = runs[:0], shared[:0]
    return BoxCopy(
        runs=runs,
        run_bytes=high - low,
        unit=unit,
        shared=shared,
        whole=whole,
        fill=_fill_unit(t.element_type, t.fill, unit),
        complete=shared.size == whole.size,
        box_bytes=t.box_bytes,
        element_type=t.element_type,
        shared_range=(smem_address, smem_address + t.smem_bytes),
    )


def _largest_unit(t: TensorMap) -> int:
    """Return the largest unit that stays in one piece in both memories."""
    if t.element_type.is_padded:
        return gcd(2 * t.element_type.bits, 16)
    return 8 if t.swizzle is Swizzle.BYTES_128_ATOM_32_FLIP_8 else 16


def load_box(
    tensor_map: TensorMap, base_address: int, coordinates: Sequence[int], smem_address: int
) -> BoxCopy:
    """Describe a tiled load (``cp.async.bulk.tensor`` to shared memory).

    Parameters
    ----------
    tensor_map : TensorMap
        Valid by `check_map`.
    base_address : int
        Global address of element 0.
    coordinates : sequence of int
        First element of the box in each dimension, contiguous dimension first; any sign. The
        first one is a multiple of 16 bytes.
    smem_address : int
        Shared address (of the block, not of the cluster), a multiple of 128.

    Raises
    ------
    TensorMapFault
        If the coordinates or the shared address break a rule.
    """
    return _box(tensor_map, base_address, coordinates, smem_address)


def store_box(
    tensor_map: TensorMap, base_address: int, coordinates: Sequence[int], smem_address: int
) -> BoxCopy:
    """Describe a tiled store or reduction; what lies outside the tensor is not written.

    Along the contiguous dimension outside begins with the next chunk of 16 bytes.

    Raises
    ------
    TensorMapFault
        If a coordinate is negative (hardware faults), or as `load_box`; if the element type can
        only be loaded; or if rows are narrower than the swizzle.
    """
    _check_store(tensor_map, coordinates)
    clip = 1 if tensor_map.element_type.is_padded else _STORE_CLIP
    return _box(tensor_map, base_address, coordinates, smem_address, clip)


def _check_store(tensor_map: TensorMap, coordinates: Sequence[int]) -> None:
    for i, c in enumerate(coordinates):
        if c < 0:
            raise TensorMapFault(
                f"tensor store: coordinate {i}: expected 0 or more (a negative one faults); got {c}"
            )
    if tensor_map.element_type is ElementType.U4X16_ALIGN16B:
        raise TensorMapFault("tensor store: U4X16_ALIGN16B can only be loaded")
    _refuse_narrow_rows(tensor_map, "stores")


def gather4(
    tensor_map: TensorMap,
    base_address: int,
    column: int,
    rows: Sequence[int],
    smem_address: int,
) -> BoxCopy:
    """Describe ``.tile::gather4``: four rows of a matrix, one box of one row each.

    Parameters
    ----------
    tensor_map : TensorMap
        Of rank 2 with ``box[1] == 1``.
    base_address, smem_address : int
        As for `load_box`.
    column : int
        First element in dimension 0.
    rows : sequence of four int
        Coordinates in dimension 1; rows outside the tensor are filled.

    Raises
    ------
    TensorMapFault
        If the map is not of that kind, or as `load_box`.
    """
    t = tensor_map
    if t.rank != 2 or t.box[1] != 1:
        raise TensorMapFault(f"gather4: expected rank 2 and box[1] = 1; got {t.rank}, {t.box}")
    if len(rows) != 4:
        raise TensorMapFault(f"gather4: expected four rows; got {len(rows)}")
    _refuse_narrow_rows(t, "gather4")
    _check_start(t, (column, 0), smem_address)
    bits = t.element_type.bits
    low, high = (x * bits // 8 for x in _inside(column, 1, t.counts[0], t.dims[0]))
    kept = np.flatnonzero([0 <= r < t.dims[1] for r in rows])
    runs = base_address + column * bits // 8 + low + np.asarray(rows, np.int64)[kept] * t.strides[0]
    four = TensorMap(
        element_type=t.element_type, dims=t.dims, strides=t.strides, box=(t.box[0], 4),
        swizzle=t.swizzle, fill=t.fill,
    )  # fmt: skip
    return _assemble(four, runs, (kept,), (low, high), smem_address)


def scatter4(
    tensor_map: TensorMap,
    base_address: int,
    column: int,
    rows: Sequence[int],
    smem_address: int,
) -> BoxCopy:
    """Describe ``.tile::scatter4``: the store that corresponds to `gather4`."""
    _check_store(tensor_map, (column, *rows))
    return gather4(tensor_map, base_address, column, rows, smem_address)
