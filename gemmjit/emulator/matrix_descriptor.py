"""Matrices in shared memory as `wgmma` reads them: descriptors and canonical layouts.

A descriptor gives start, two strides and a swizzle; the canonical layouts of PTX ISA 9.1, section
9.7.15.5.1.2, turn them into addresses. With T elements in 16 bytes, S chunks of 16 bytes in a
swizzle span, r the index in M or N and k the index in K, the byte offset is, before the swizzle:

=========  ========  =====================================================================
major      swizzle   offset
=========  ========  =====================================================================
K          none      ``(r % 8) * 16 + (r // 8) * SBO + (k % T) * size + (k // T) * LBO``
K          span      ``(r % 8) * span + (r // 8) * SBO + k * size``
MN         none      ``(r % T) * size + (r // T) * SBO + (k % 8) * 16 + (k // 8) * LBO``
MN         span      ``(r % ST) * size + (r // ST) * LBO + (k % 8) * span + (k // 8) * SBO``
=========  ========  =====================================================================

The swizzle acts on the absolute address (start plus offset), as it does for tensor copies.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from gemmjit.emulator.box_copy import Indices, swizzled
from gemmjit.emulator.faults import MemoryFault
from gemmjit.tensormap import Swizzle

__all__ = ["CHUNK", "MatrixDescriptor", "chunk_indices", "decode_wgmma", "encode_wgmma"]

#: Bytes of the chunks in which matrices are addressed.
CHUNK = 16

_WGMMA_SWIZZLES = (Swizzle.NONE, Swizzle.BYTES_128, Swizzle.BYTES_64, Swizzle.BYTES_32)
_WGMMA_RESERVED = ((14, 16), (30, 32), (46, 49), (52, 62))


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


def encode_wgmma(descriptor: MatrixDescriptor) -> int:
    """Return the 64 bits that `decode_wgmma` reads."""
    fields = [(x & 0x3FFFF) >> 4 for x in (descriptor.start, descriptor.lbo, descriptor.sbo)]
    code = _WGMMA_SWIZZLES.index(descriptor.swizzle)
    return fields[0] | fields[1] << 16 | fields[2] << 32 | code << 62


@lru_cache(maxsize=1024)
def _pattern(
    lbo: int, sbo: int, swizzle: Swizzle, phase: int, mn_major: bool, rows: int, size: int
) -> Indices:
    """Chunk numbers of a matrix that starts at ``phase`` within 1024 bytes."""
    per_chunk, span = CHUNK // size, swizzle.span
    if mn_major:
        # One chunk holds neighbours in M or N: (k, rows / T).
        k, r = np.arange(CHUNK * 2 // size)[:, None], np.arange(0, rows, per_chunk)
        if span:
            wide = span // size
            offset = r % wide * size + r // wide * lbo + k % 8 * span + k // 8 * sbo
        else:
            offset = r // per_chunk * sbo + k % 8 * CHUNK + k // 8 * lbo
    else:
        # One chunk holds neighbours in K: (rows, 2).
        r, chunk = np.arange(rows)[:, None], np.arange(2)
        if span:
            offset = r % 8 * span + r // 8 * sbo + chunk * CHUNK
        else:
            offset = r % 8 * CHUNK + r // 8 * sbo + chunk * lbo
    indices: Indices = (swizzled(phase + offset, swizzle) // CHUNK).astype(np.intp)
    indices.setflags(write=False)
    return indices


def chunk_indices(descriptor: MatrixDescriptor, *, mn_major: bool, rows: int, size: int) -> Indices:
    """Return which 16-byte chunks of shared memory hold one instruction's operand.

    Parameters
    ----------
    descriptor : MatrixDescriptor
    mn_major : bool
        Whether neighbours in M or N are contiguous.
    rows : int
        Extent in M or N.
    size : int
        Bytes of an element; K is 32 bytes long.

    Returns
    -------
    ndarray of intp
        Shared addresses divided by 16: ``(rows, 2)`` if K-major, so that the bytes read in order
        are the matrix ``(rows, K)``; ``(K, rows * size // 16)`` if MN-major, bytes ``(K, rows)``.
    """
    d = descriptor
    phase = d.start & 1023
    pattern = _pattern(d.lbo, d.sbo, d.swizzle, phase, mn_major, rows, size)
    return pattern + (d.start - phase) // CHUNK
