"""Matrices in shared memory as `wgmma` and `tcgen05` read them: descriptors, canonical layouts.

A descriptor gives start, two strides and a swizzle; the canonical layouts of PTX ISA 9.1, sections
9.7.15.5.1.2 and 9.7.16.3.3, turn them into addresses. With T elements in 16 bytes, S chunks of 16
bytes in a swizzle span, r the index in M or N and k the index in K, the byte offset is, before the
swizzle:

=========  ========  =====================================================================
major      swizzle   offset
=========  ========  =====================================================================
K          none      ``(r % 8) * 16 + (r // 8) * SBO + (k % T) * size + (k // T) * LBO``
K          span      ``(r % 8) * span + (r // 8) * SBO + k * size``
MN         none      ``(r % T) * size + (r // T) * SBO + (k % 8) * 16 + (k // 8) * LBO``
MN         span      ``(r % ST) * size + (r // ST) * LBO + (k % 8) * span + (k // 8) * SBO``
=========  ========  =====================================================================

Under the 128-byte swizzle with 32-byte atoms, an atom along M or N is 4 deep in K (table 55).

The swizzle acts on the absolute address (start plus offset), as it does for tensor copies.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from gemmjit.emulator.box_copy import Indices, swizzled
from gemmjit.emulator.faults import MemoryFault
from gemmjit.tensormap import Swizzle

__all__ = [
    "CHUNK",
    "MatrixDescriptor",
    "chunk_indices",
    "decode_tcgen05",
    "decode_wgmma",
    "encode_wgmma",
]

#: Bytes of the chunks in which matrices are addressed.
CHUNK = 16

_WGMMA_SWIZZLES = (Swizzle.NONE, Swizzle.BYTES_128, Swizzle.BYTES_64, Swizzle.BYTES_32)
_WGMMA_RESERVED = ((14, 16), (30, 32), (46, 49), (52, 62))


_TCGEN05_SWIZZLES = {
    0: Swizzle.NONE, 1: Swizzle.BYTES_128_ATOM_32, 2: Swizzle.BYTES_128, 4: Swizzle.BYTES_64,
    6: Swizzle.BYTES_32,
}  # fmt: skip
# First bit, width and value of the fixed fields.
_TCGEN05_FIXED = ((14, 2, 0), (30, 2, 0), (46, 3, 1), (53, 8, 0))


@dataclass(frozen=True, slots=True)
class MatrixDescriptor:
    """What a shared-memory descriptor says, in bytes.

    Attributes
    ----------
    start : int
        Shared address of the matrix, a multiple of 16.
    lbo, sbo : int
        Leading and stride dimension byte offsets.
    swizzle : Swizzle
    """

    start: int
    lbo: int
    sbo: int
    swizzle: Swizzle


@lru_cache(maxsize=4096)
def decode_wgmma(bits: int) -> MatrixDescriptor:
    """Read the 64-bit descriptor of `wgmma.mma_async` (PTX ISA 9.7.15.5.1.2.2).

    Raises
    ------
    MemoryFault
        If a reserved bit is set, or the base offset is not zero (its use is not documented well
        enough to be emulated, and no known kernel sets it).
    """
    for low, high in _WGMMA_RESERVED:
        field = (bits >> low) & ((1 << (high - low)) - 1)
        if field:
            raise MemoryFault(
                f"wgmma descriptor {bits:#018x}: bits {low} to {high - 1}: expected 0; got {field}"
            )
    base_offset = (bits >> 49) & 7
    if base_offset:
        raise MemoryFault(
            f"wgmma descriptor {bits:#018x}: base offset: expected 0; got {base_offset}, which is "
            "not emulated: start the swizzle pattern at a multiple of its size"
        )
    start, lbo, sbo = ((bits >> low & 0x3FFF) << 4 for low in (0, 16, 32))
    return MatrixDescriptor(start, lbo, sbo, _WGMMA_SWIZZLES[bits >> 62])


@lru_cache(maxsize=4096)
def decode_tcgen05(bits: int) -> MatrixDescriptor:
    """Read the 64-bit shared memory descriptor of `tcgen05` (PTX ISA 9.7.16.4.1, table 40).

    Raises
    ------
    MemoryFault
        If a fixed field has another value, the swizzle is none, or the base offset or the absolute
        leading dimension (sm_103a) is used, of which no known kernel shows the meaning.
    """
    text = f"tcgen05 shared memory descriptor {bits:#018x}"
    for low, width, value in _TCGEN05_FIXED:
        field = bits >> low & ((1 << width) - 1)
        if field != value:
            raise MemoryFault(
                f"{text}: bits {low} to {low + width - 1}: expected {value}; got {field}"
            )
    base_offset = bits >> 49 & 7
    if base_offset:
        raise MemoryFault(
            f"{text}: base offset: expected 0; got {base_offset}, which is not emulated: start the "
            "swizzle pattern at a multiple of its size"
        )
    if bits >> 52 & 1:
        raise MemoryFault(f"{text}: bit 52: an absolute leading dimension is not emulated")
    code = bits >> 61
    if code not in _TCGEN05_SWIZZLES:
        raise MemoryFault(f"{text}: swizzle: expected 0, 1, 2, 4 or 6; got {code}")
    start, lbo, sbo = ((bits >> low & 0x3FFF) << 4 for low in (0, 16, 32))
    return MatrixDescriptor(start, lbo, sbo, _TCGEN05_SWIZZLES[code])


def encode_wgmma(descriptor: MatrixDescriptor) -> int:
    """Return the 64 bits that `decode_wgmma` reads."""
    fields = [(x & 0x3FFFF) >> 4 for x in (descriptor.start, descriptor.lbo, descriptor.sbo)]
    code = _WGMMA_SWIZZLES.index(descriptor.swizzle)
    return fields[0] | fields[1] << 16 | fields[2] << 32 | code << 62


@lru_cache(maxsize=1024)
def _pattern(
    lbo: int,
    sbo: int,
    swizzle: Swizzle,
    phase: int,
    mn_major: bool,
    rows: int,
    size: int,
    chunks: int,
) -> Indices:
    """Chunk numbers of a matrix that starts at ``phase`` within 1024 bytes."""
    per_chunk, span = CHUNK // size, swizzle.span
    if mn_major:
        # One chunk holds neighbours in M or N: (k, rows / T).
        k, r = np.arange(CHUNK * chunks // size)[:, None], np.arange(0, rows, per_chunk)
        if span:
            wide, deep = span // size, 4 if swizzle is Swizzle.BYTES_128_ATOM_32 else 8
            offset = r % wide * size + r // wide * lbo + k % deep * span + k // deep * sbo
        else:
            offset = r // per_chunk * sbo + k % 8 * CHUNK + k // 8 * lbo
    else:
        # One chunk holds neighbours in K: (rows, chunks).
        r, chunk = np.arange(rows)[:, None], np.arange(chunks)
        if span:
            offset = r % 8 * span + r // 8 * sbo + chunk * CHUNK
        else:
            offset = r % 8 * CHUNK + r // 8 * sbo + chunk * lbo
    indices: Indices = (swizzled(phase + offset, swizzle) // CHUNK).astype(np.intp)
    indices.setflags(write=False)
    return indices


def chunk_indices(
    descriptor: MatrixDescriptor, *, mn_major: bool, rows: int, size: int, chunks: int = 2
) -> Indices:
    """Return which 16-byte chunks of shared memory hold one instruction's operand.

    Parameters
    ----------
    descriptor : MatrixDescriptor
    mn_major : bool
        Whether neighbours in M or N are contiguous.
    rows : int
        Extent in M or N.
    size : int
        Bytes of an element.
    chunks : int
        Length of K in 16 bytes.

    Returns
    -------
    ndarray of intp
        Shared addresses divided by 16: ``(rows, chunks)`` if K-major, so that the bytes read in
        order are the matrix ``(rows, K)``; ``(K, rows * size // 16)`` if MN-major, bytes
        ``(K, rows)``.
    """
    d = descriptor
    phase = d.start & 1023
    pattern = _pattern(d.lbo, d.sbo, d.swizzle, phase, mn_major, rows, size, chunks)
    return pattern + (d.start - phase) // CHUNK
