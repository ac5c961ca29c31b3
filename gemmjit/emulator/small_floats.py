"""Elements of 4, 6 and 8 bits as Blackwell's matrix instructions hold them.

Three forms (PTX ISA 9.7.14.5.10 and 9.7.16.10.4; CUTLASS for the places that only figures show):

- *containers*: one byte each. 6-bit elements are the low 6 bits, e2m1 is in bits 5 to 2.
- *padded*: 16 elements in 16 bytes, of which the first 8 (4-bit) or 12 (6-bit) hold them, low bits
  first. 8-bit elements fill all.
- *packed*: two 4-bit elements a byte, the low one first.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gemmjit.emulator.formats import decode

__all__ = [
    "SMALL_FLOATS",
    "expand",
    "from_containers",
    "from_nibbles",
    "from_packed",
    "from_padded",
    "padding_of",
]

Octets = NDArray[np.uint8]
Floats = NDArray[np.float32]

#: The formats of the kinds f8f6f4 and mxf8f6f4.
SMALL_FLOATS = ("e4m3", "e5m2", "e3m2", "e2m3", "e2m1")

_BITS = {"e4m3": 8, "e5m2": 8, "e3m2": 6, "e2m3": 6, "e2m1": 4}
_PADDING = {8: 0x00, 6: 0xC0, 4: 0xC3}


def padding_of(name: str) -> int:
    """Return the bits of a container that hold no part of the element."""
    return _PADDING[_BITS[name]]


def from_containers(name: str, octets: Octets) -> Floats:
    """Return the values in byte containers; the padding bits are ignored.

    Parameters
    ----------
    name : str
        One of `SMALL_FLOATS`.
    octets : ndarray of uint8, any shape

    Returns
    -------
    ndarray of float32, same shape
    """
    if _BITS[name] == 8:
        return decode(name, octets)
    codes = octets >> 2 & 15 if name == "e2m1" else octets & 63
    return decode(name, codes.astype(np.uint8))


def expand(bits: int, chunks: Octets) -> Octets:
    """Return the codes in padded chunks, one a byte, in its low bits.

    Parameters
    ----------
    bits : {4, 6, 8}
    chunks : ndarray of uint8, (..., 16)

    Returns
    -------
    ndarray of uint8, (..., 16)
    """
    if bits == 8:
        return chunks
    if bits == 4:
        return from_nibbles(chunks[..., :8])
    triples = chunks[..., :12].reshape(*chunks.shape[:-1], 4, 3).astype(np.uint32)
    words = triples[..., 0] | triples[..., 1] << 8 | triples[..., 2] << 16
    codes = np.stack([words >> (6 * i) & 63 for i in range(4)], axis=-1)
    return codes.reshape(chunks.shape).astype(np.uint8)


def from_padded(name: str, chunks: Octets) -> Floats:
    """Return the values in padded chunks, (..., 16) to (..., 16)."""
    return decode(name, expand(_BITS[name], chunks))


def from_nibbles(octets: Octets) -> Octets:
    """Return the 4-bit codes of bytes, low one first: (..., n) to (..., 2 n)."""
    return np.stack([octets & 15, octets >> 4], axis=-1).reshape(*octets.shape[:-1], -1)


def from_packed(octets: Octets) -> Floats:
    """Return the values of packed e2m1, (..., n) to (..., 2 n)."""
    return decode("e2m1", from_nibbles(octets))
