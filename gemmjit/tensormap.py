"""What a TensorMap says: the description that TMA instructions read, and the rules it must obey.

A `TensorMap` is a value without an address: tensor, box and layout in shared memory. The executor
that launches a kernel turns it into the 128-byte object (the CUDA driver its opaque one, the
emulator its own). Rules and enumerations: CUDA driver API 13.1, ``cuTensorMapEncodeTiled``, and
PTX ISA 9.1, sections 5.5 and 9.7.9.27.1.1.

Dimension 0 is the contiguous one, everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from gemmjit.arch import Arch
from gemmjit.dtypes import DType
from gemmjit.errors import InvalidDtypeError

__all__ = [
    "MAX_RANK",
    "ElementType",
    "Fill",
    "Interleave",
    "L2Promotion",
    "Swizzle",
    "TensorMap",
    "element_type_of",
    "violations",
]

#: The most dimensions that a TensorMap has.
MAX_RANK = 5

_MAX_DIM = 2**32
_MAX_STRIDE = 2**40
_MAX_BOX = 256
_MAX_ELEMENT_STRIDE = 8


class ElementType(IntEnum):
    """Element types; the value is the driver's ``CUtensorMapDataType``."""

    UINT8 = 0
    UINT16 = 1
    UINT32 = 2
    INT32 = 3
    UINT64 = 4
    INT64 = 5
    FLOAT16 = 6
    FLOAT32 = 7
    FLOAT64 = 8
    BFLOAT16 = 9
    FLOAT32_FTZ = 10
    TFLOAT32 = 11
    TFLOAT32_FTZ = 12
    #: 16 four-bit elements in 8 bytes, packed in shared memory too (PTX ``b4x16``).
    U4X16_ALIGN8B = 13
    #: 16 four-bit elements; in shared memory 8 bytes and 8 bytes of padding (``b4x16_p64``).
    U4X16_ALIGN16B = 14
    #: 16 six-bit elements; in shared memory 12 bytes and 4 bytes of padding (``b6x16_p32``).
    U6X16_ALIGN16B = 15

    @property
    def bits(self) -> int:
        """Width of one element in global memory."""
        return _BITS[self]

    @property
    def smem_bits(self) -> int:
        """Width of one element in shared memory, padding included."""
        return 8 if self.is_padded else _BITS[self]

    @property
    def is_float(self) -> bool:
        """Whether the type is a floating-point type (out-of-bounds elements may be NaN)."""
        return self in _FLOATS

    @property
    def is_padded(self) -> bool:
        """Whether each 16 elements take 16 bytes of shared memory."""
        return self in (ElementType.U4X16_ALIGN16B, ElementType.U6X16_ALIGN16B)

    @property
    def is_sub_byte(self) -> bool:
        """Whether an element has fewer than eight bits."""
        return _BITS[self] < 8


_BITS = dict(
    zip(ElementType, (8, 16, 32, 32, 64, 64, 16, 32, 64, 16, 32, 32, 32, 4, 4, 6), strict=True)
)
_FLOATS = frozenset(ElementType(v) for v in range(6, 13))


class Interleave(IntEnum):
    """Interleaved global layouts; the value is the driver's ``CUtensorMapInterleave``."""

    NONE = 0
    BYTES_16 = 1
    BYTES_32 = 2


class Swizzle(IntEnum):
    """Layouts in shared memory; the value is the driver's ``CUtensorMapSwizzle``."""

    NONE = 0
    BYTES_32 = 1
    BYTES_64 = 2
    BYTES_128 = 3
    BYTES_128_ATOM_32 = 4
    BYTES_128_ATOM_32_FLIP_8 = 5
    BYTES_128_ATOM_64 = 6

    @property
    def span(self) -> int:
        """Bytes within which chunks are permuted (0: they are not)."""
        return (0, 32, 64, 128, 128, 128, 128)[self]

    @property
    def atom(self) -> int:
        """Bytes of the chunks that are permuted."""
        return (16, 16, 16, 16, 32, 32, 64)[self]

    @property
    def repeat(self) -> int:
        """Bytes after which the pattern repeats, which is also its natural alignment."""
        return (128, 256, 512, 1024, 512, 512, 256)[self]

    @classmethod
    def of_bytes(cls, width: int) -> Swizzle:
        """Return the plain swizzle of 0, 32, 64 or 128 bytes."""
        return {0: cls.NONE, 32: cls.BYTES_32, 64: cls.BYTES_64, 128: cls.BYTES_128}[width]


class L2Promotion(IntEnum):
    """Granularity of L2 requests; the value is the driver's ``CUtensorMapL2promotion``."""

    NONE = 0
    BYTES_64 = 1
    BYTES_128 = 2
    BYTES_256 = 3


class Fill(IntEnum):
    """What a load writes for elements outside the tensor (``CUtensorMapFloatOOBfill``)."""

    ZERO = 0
    NAN = 1


_ELEMENT_TYPES = {
    "bfloat16": ElementType.BFLOAT16,
    "float16": ElementType.FLOAT16,
    "float32": ElementType.FLOAT32,
    "float64": ElementType.FLOAT64,
    "int32": ElementType.INT32,
    "int64": ElementType.INT64,
    "uint8": ElementType.UINT8,
}


def element_type_of(dtype: DType) -> ElementType:
    """Return the element type under which TMA moves a `DType`.

    Raises
    ------
    InvalidDtypeError
        If TMA has no such type.
    """
    try:
        return _ELEMENT_TYPES[dtype.name]
    except KeyError:
        known = ", ".join(_ELEMENT_TYPES)
        raise InvalidDtypeError(f"dtype: TMA moves {known}; got {dtype.name}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorMap:
    """A tiled tensor map, as ``cuTensorMapEncodeTiled`` takes it, without the address.

    Attributes
    ----------
    element_type : ElementType
    dims : tuple of int
        Elements of the tensor in each dimension, contiguous dimension first; rank 1 to 5.
    strides : tuple of int
        Bytes between neighbours in dimensions 1 and up: one fewer than ``dims``.
    box : tuple of int
        Extent of the box in each dimension, in elements of the tensor (not of the box: with an
        element stride s, ``ceil(box / s)`` elements are moved).
    element_strides : tuple of int
        Step through the tensor in each dimension; empty means all ones. The first is ignored
        without interleave.
    interleave, swizzle, l2_promotion, fill
        See their types.
    """

    element_type: ElementType
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...] = ()
    interleave: Interleave = Interleave.NONE
    swizzle: Swizzle = Swizzle.NONE
    l2_promotion: L2Promotion = L2Promotion.NONE
    fill: Fill = Fill.ZERO

    def __post_init__(self) -> None:
        if not self.element_strides:
            object.__setattr__(self, "element_strides", (1,) * len(self.dims))

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.dims)

    @property
    def counts(self) -> tuple[int, ...]:
        """Elements that one copy moves in each dimension."""
        steps = list(self.element_strides)
        if self.interleave is Interleave.NONE:
            steps[0] = 1
        return tuple(-(-b // s) for b, s in zip(self.box, steps, strict=True))

    @property
    def box_bytes(self) -> int:
        """Bytes that one load adds to its mbarrier (``complete_tx``).

        The whole box counts, elements outside the tensor included, in the packed width of global
        memory: padding of the 4-bit and 6-bit types in shared memory does not count.
        """
        return math.prod(self.counts) * self.element_type.bits // 8

    @property
    def row_pitch(self) -> int:
        """Bytes from a row of the box to the next in shared memory: no less than the swizzle."""
        return max(self.counts[0] * self.element_type.smem_bits // 8, self.swizzle.span)

    @property
    def smem_bytes(self) -> int:
        """Bytes of shared memory that one box spans, gaps between its rows included."""
        return math.prod(self.counts[1:]) * self.row_pitch


_Rule = tuple[bool, str, str, object]  # whether it holds, field, expected, got


def violations(tensor_map: TensorMap, base_address: int, arch: Arch | str) -> list[str]:
    """Return every rule of ``cuTensorMapEncodeTiled`` that a map breaks; empty means valid.

    Parameters
    ----------
    tensor_map : TensorMap
    base_address : int
        Address of element 0, in bytes.
    arch : Arch or str
        Architecture whose TMA unit would read the map.

    Returns
    -------
    list of str
        One reason each, naming field, expected and got.

    Notes
    -----
    What depends on a coordinate (a multiple of 128 with padded types) is checked by the copy.
    """
    rules = list(_rank_rules(tensor_map))
    if all(holds for holds, *_ in rules):  # the other rules index by dimension
        rules += _tensor_rules(tensor_map, base_address)
        rules += _box_rules(tensor_map)
        rules += _layout_rules(tensor_map)
        rules += _arch_rules(tensor_map, Arch.parse(arch))
    return [f"{f}: expected {expected}; got {got}" for ok, f, expected, got in rules if not ok]


def _rank_rules(t: TensorMap) -> Iterator[_Rule]:
    yield 1 <= t.rank <= MAX_RANK, "dims", f"1 to {MAX_RANK} dimensions", t.rank
    for field, expected in (("strides", t.rank - 1), ("box", t.rank), ("element_strides", t.rank)):
        got = len(getattr(t, field))
        yield got == expected, field, f"{expected} entries for rank {t.rank}", got


def _tensor_rules(t: TensorMap, base_address: int) -> Iterator[_Rule]:
    name, padded = t.element_type.name, t.element_type.is_padded
    grain = 32 if padded or t.interleave is Interleave.BYTES_32 else 16
    aligned = f"a multiple of {grain} bytes ({name}, interleave {t.interleave.name})"
    yield base_address % grain == 0, "base_address", aligned, hex(base_address)
    for i, dim in enumerate(t.dims):
        yield 1 <= dim <= _MAX_DIM, f"dims[{i}]", "1 to 2^32 elements", dim
    multiple = 128 if padded else 2 if t.element_type is ElementType.U4X16_ALIGN8B else 1
    yield t.dims[0] % multiple == 0, "dims[0]", f"a multiple of {multiple} for {name}", t.dims[0]
    for i, stride in enumerate(t.strides):
        yield stride % grain == 0, f"strides[{i}]", aligned, stride
        yield 0 <= stride < _MAX_STRIDE, f"strides[{i}]", "0 to 2^40 - 1 bytes", stride


def _box_rules(t: TensorMap) -> Iterator[_Rule]:
    for i, extent in enumerate(t.box):
        yield 1 <= extent <= _MAX_BOX, f"box[{i}]", f"1 to {_MAX_BOX} elements", extent
    for i, step in enumerate(t.element_strides):
        allowed = f"1 to {_MAX_ELEMENT_STRIDE}"
        yield 1 <= step <= _MAX_ELEMENT_STRIDE, f"element_strides[{i}]", allowed, step
    name, bits = t.element_type.name, t.box[0] * t.element_type.bits
    got = f"{t.box[0]} elements of {t.element_type.bits} bits"
    if t.element_type.is_padded:
        yield t.box[0] == 128, "box[0]", f"128 elements for {name}", t.box[0]
    if t.interleave is Interleave.NONE:
        yield bits % 128 == 0, "box[0]", "a multiple of 16 bytes", got
        span = t.swizzle.span
        fits = not span or bits <= 8 * span
        yield fits, "box[0]", f"at most {span} bytes under swizzle {t.swizzle.name}", got


_U4_SWIZZLES = (Swizzle.NONE, Swizzle.BYTES_128, Swizzle.BYTES_128_ATOM_32)
_PADDED_SWIZZLES = {
    ElementType.U4X16_ALIGN16B: _U4_SWIZZLES,
    ElementType.U6X16_ALIGN16B: (*_U4_SWIZZLES, Swizzle.BYTES_128_ATOM_64),
}


def _layout_rules(t: TensorMap) -> Iterator[_Rule]:
    name = t.element_type.name
    plain = t.interleave is Interleave.NONE
    yield plain or t.rank >= 3, "interleave", f"NONE with rank {t.rank}", t.interleave.name
    if t.interleave is Interleave.BYTES_32:
        matches = t.swizzle is Swizzle.BYTES_32
        yield matches, "swizzle", "BYTES_32 with 32-byte interleave", t.swizzle.name
    if t.element_type is ElementType.U6X16_ALIGN16B:
        yield plain, "interleave", f"NONE for {name}", t.interleave.name
    if t.element_type in _PADDED_SWIZZLES:
        allowed = _PADDED_SWIZZLES[t.element_type]
        names = ", ".join(s.name for s in allowed)
        yield t.swizzle in allowed, "swizzle", f"one of {names} for {name}", t.swizzle.name
    zero = t.fill is Fill.ZERO or t.element_type.is_float
    yield zero, "fill", f"ZERO for {name} (NAN is for floating-point types)", t.fill.name


def _arch_rules(t: TensorMap, arch: Arch) -> Iterator[_Rule]:
    yield arch.number >= 90, "arch", "compute capability 9.0 or higher for TMA", arch.name
    new = arch.number >= 100
    later = f"compute capability 10.0 or higher ({arch.name} has 9.0)"
    yield new or not t.element_type.is_sub_byte, "element_type", later, t.element_type.name
    yield new or t.swizzle <= Swizzle.BYTES_128, "swizzle", later, t.swizzle.name
