"""The emulator's 128-byte tensor map: encode, decode and edit.

The driver's ``CUtensorMap`` is opaque, so the emulator defines its own contents for the same 128
bytes. Kernels may pass maps by value, keep them in global memory, copy them, or edit them with
``tensormap.replace`` (PTX ISA 9.1, section 9.7.9.28); a checksum finds maps that are torn, never
written, or encoded by a driver.

Layout, little endian: magic (8), address (8), element type, rank, interleave, swizzle mode,
swizzle atomicity, L2 promotion, fill, 0 (8 x 1), five dimensions (5 x 8), four strides (4 x 8),
box (5 x 2), element strides (5 x 1), zeros (13), CRC-32 of all before (4).
"""

from __future__ import annotations

import struct
import zlib
from functools import lru_cache

from gemmjit.emulator.faults import TensorMapFault
from gemmjit.tensormap import (
    MAX_RANK,
    ElementType,
    Fill,
    Interleave,
    L2Promotion,
    Swizzle,
    TensorMap,
)

__all__ = ["OBJECT_BYTES", "decode", "encode", "replace"]

#: Size of a tensor map in bytes.
OBJECT_BYTES = 128

_MAGIC = b"gemmjit\x01"
_LAYOUT = struct.Struct("<8sQ8B5Q4Q5H5B13x")
_CHECKSUM = struct.Struct("<I")
# Positions in the unpacked tuple.
_ADDRESS, _TYPE, _RANK, _INTERLEAVE, _MODE, _ATOMICITY, _L2, _FILL = range(1, 9)
_DIMS, _STRIDES, _BOX, _STEPS, _FIELDS = 10, 15, 19, 24, 29

#: Swizzle by (mode, atomicity) as `tensormap.replace` numbers them.
_SWIZZLES = {
    (0, 0): Swizzle.NONE,
    (1, 0): Swizzle.BYTES_32,
    (2, 0): Swizzle.BYTES_64,
    (3, 0): Swizzle.BYTES_128,
    (3, 1): Swizzle.BYTES_128_ATOM_32,
    (3, 2): Swizzle.BYTES_128_ATOM_32_FLIP_8,
    (3, 3): Swizzle.BYTES_128_ATOM_64,
}
_MODES = {swizzle: key for key, swizzle in _SWIZZLES.items()}

#: Element types in the order of `tensormap.replace`, which is not the driver's.
_PTX_TYPES = (
    *(ElementType(v) for v in range(8)),
    ElementType.FLOAT32_FTZ,
    ElementType.FLOAT64,
    ElementType.BFLOAT16,
    *(ElementType(v) for v in range(11, 16)),
)


def _seal(fields: list[int]) -> bytes:
    body = _LAYOUT.pack(_MAGIC, *fields)
    return body + _CHECKSUM.pack(zlib.crc32(body))


def _open(data: bytes) -> list[int]:
    if len(data) != OBJECT_BYTES:
        raise TensorMapFault(f"tensor map: expected {OBJECT_BYTES} bytes; got {len(data)}")
    body = data[: -_CHECKSUM.size]
    magic, *fields = _LAYOUT.unpack(body)
    if magic != _MAGIC:
        raise TensorMapFault(
            "tensor map: expected an object that the emulator encoded; got other bytes, starting "
            f"with {data[:16].hex()} (unwritten memory, a wrong address or a driver's map)"
        )
    if _CHECKSUM.unpack(data[-_CHECKSUM.size :])[0] != zlib.crc32(body):
        raise TensorMapFault("tensor map: the object is torn: a part of it was overwritten")
    return fields


def encode(tensor_map: TensorMap, address: int) -> bytes:
    """Return the object for a map and the address of its element 0.

    Parameters
    ----------
    tensor_map : TensorMap
        Of rank 1 to 5; its other rules are checked when it is used.
    address : int
        Global address in bytes.

    Returns
    -------
    bytes
        128 bytes.

    Raises
    ------
    TensorMapFault
        If a field does not fit its place.
    """

    def padded(values: tuple[int, ...], count: int) -> list[int]:
        return [*values, *[0] * (count - len(values))]

    t = tensor_map
    mode, atomicity = _MODES[t.swizzle]
    fields = [address, t.element_type, t.rank, t.interleave, mode, atomicity]
    fields += [t.l2_promotion, t.fill, 0]
    fields += padded(t.dims, MAX_RANK) + padded(t.strides, MAX_RANK - 1)
    fields += padded(t.box, MAX_RANK) + padded(t.element_strides, MAX_RANK)
    try:
        return _seal(fields)
    except struct.error as error:
        raise TensorMapFault(f"tensor map: a field of {t} does not fit: {error}") from None


@lru_cache(maxsize=1024)
def decode(data: bytes) -> tuple[TensorMap, int]:
    """Return the map and the address that an object holds.

    Raises
    ------
    TensorMapFault
        If the bytes are not an object of `encode` and `replace`, or its enumerations are invalid.
    """
    fields = [0, *_open(data)]
    rank = fields[_RANK]
    key = (fields[_MODE], fields[_ATOMICITY])
    if key not in _SWIZZLES:
        raise TensorMapFault(f"tensor map: swizzle mode {key[0]} has no atomicity {key[1]}")
    if not 1 <= rank <= MAX_RANK:
        raise TensorMapFault(f"tensor map: rank: expected 1 to {MAX_RANK}; got {rank}")

    def part(start: int, count: int) -> tuple[int, ...]:
        return tuple(fields[start : start + count])

    tensor_map = TensorMap(
        element_type=ElementType(fields[_TYPE]),
        dims=part(_DIMS, rank),
        strides=part(_STRIDES, rank - 1),
        box=part(_BOX, rank),
        element_strides=part(_STEPS, rank),
        interleave=Interleave(fields[_INTERLEAVE]),
        swizzle=_SWIZZLES[key],
        l2_promotion=L2Promotion(fields[_L2]),
        fill=Fill(fields[_FILL]),
    )
    return tensor_map, fields[_ADDRESS]


_SCALARS = {
    # field: (place, values of new_val that are valid, amount added to it)
    "global_address": (_ADDRESS, 2**64, 0),
    "rank": (_RANK, MAX_RANK, 1),
    "interleave_layout": (_INTERLEAVE, 3, 0),
    "swizzle_mode": (_MODE, 4, 0),
    "swizzle_atomicity": (_ATOMICITY, 4, 0),
    "fill_mode": (_FILL, 2, 0),
}
_VECTORS = {
    # field: (place, entries, smallest new_val that does not fit)
    "global_dim": (_DIMS, MAX_RANK, 2**32),
    "global_stride": (_STRIDES, MAX_RANK - 1, 2**64),
    "box_dim": (_BOX, MAX_RANK, 2**16),
    "element_stride": (_STEPS, MAX_RANK, 2**8),
}


def replace(data: bytes, field: str, value: int, ordinal: int | None = None) -> bytes:
    """Return the object with one field changed (``tensormap.replace.tile``).

    Parameters
    ----------
    data : bytes
        128 bytes: an object, or zeros, from which a map can be built field by field.
    field : str
        As PTX spells it: ``global_address``, ``rank``, ``box_dim``, ``global_dim``,
        ``global_stride``, ``element_stride``, ``elemtype``, ``interleave_layout``,
        ``swizzle_mode``, ``swizzle_atomicity``, ``fill_mode``.
    value : int
        ``new_val`` as PTX numbers it: a rank less one, element types in PTX's own order,
        strides in bytes.
    ordinal : int, optional
        ``ord`` of the fields that have one.

    Raises
    ------
    TensorMapFault
        If the object, the field, the ordinal or the value is invalid.
    """
    # Compilers also build a map from 128 zero bytes, replacing every field.
    blank = data == bytes(OBJECT_BYTES)
    fields = [0] * _FIELDS if blank else [0, *_open(data)]
    if field == "elemtype":
        if not 0 <= value < len(_PTX_TYPES):
            raise TensorMapFault(f"tensormap.replace.{field}: expected 0 to 15; got {value}")
        fields[_TYPE] = int(_PTX_TYPES[value])
    elif field in _SCALARS:
        place, count, offset = _SCALARS[field]
        if not 0 <= value < count:
            raise TensorMapFault(
                f"tensormap.replace.{field}: expected 0 to {count - 1}; got {value}"
            )
        fields[place] = value + offset
    elif field in _VECTORS:
        place, entries, limit = _VECTORS[field]
        if ordinal is None or not 0 <= ordinal < entries:
            raise TensorMapFault(
                f"tensormap.replace.{field}: expected an ordinal from 0 to {entries - 1}; "
                f"got {ordinal}"
            )
        if not 0 <= value < limit:
            raise TensorMapFault(f"tensormap.replace.{field}: {value} does not fit")
        fields[place + ordinal] = value
    else:
        known = ", ".join([*_SCALARS, *_VECTORS, "elemtype"])
        raise TensorMapFault(f"tensormap.replace: expected one of {known}; got {field}")
    return _seal(fields[1:])
