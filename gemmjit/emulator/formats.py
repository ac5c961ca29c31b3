"""Floating-point formats of PTX: bits to values, values to bits, with the roundings of `cvt`.

Every format is described by one `Format`; decoding is a table look-up for eight bits and less,
and encoding is one exact algorithm for all formats and roundings, with quick ways for the common
ones. Sources: PTX ISA 9.1, section 5.2.3 (alternate formats) and 9.7.9.21 (`cvt`); OCP Microscaling
Formats 1.0 for the 4-bit, 6-bit and scale formats.

Bits are the low bits of unsigned integers: ``tf32`` is 32 bits wide (its low 13 bits are zero),
``e2m3``/``e3m2`` use the low 6 and ``e2m1`` the low 4 bits of a byte.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemmjit.errors import EmulatorError

__all__ = ["FORMATS", "Format", "decode", "encode", "format_of", "truncate_tf32"]

Bits = NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True, slots=True)
class Format:
    """One binary floating-point format.

    Attributes
    ----------
    name : str
        Name as PTX spells it.
    bits, exponent_bits, mantissa_bits : int
        Widths; the sign bit, where there is one, is on top.
    bias : int
        Exponent bias.
    signed : bool
        Whether there is a sign bit.
    specials : str
        What the top exponent holds: ``"ieee"`` (infinities and NaN), ``"nan"`` (only the
        all-ones code is NaN), ``"none"`` (all codes are numbers).
    shift : int
        Unused low bits of the container (13 for tf32, else 0).
    """

    name: str
    bits: int
    exponent_bits: int
    mantissa_bits: int
    bias: int
    signed: bool = True
    specials: str = "ieee"
    shift: int = 0

    @property
    def min_exponent(self) -> int:
        """Exponent of the smallest normal number (of the smallest number for ue8m0)."""
        return 1 - self.bias if self.mantissa_bits else -self.bias

    @property
    def container(self) -> type[np.unsignedinteger[Any]]:
        """The unsigned type that holds one value."""
        if self.bits <= 8:
            return np.uint8
        return np.uint16 if self.bits <= 16 else np.uint32

    @property
    def sign(self) -> int:
        """The sign bit within the unshifted code, or 0."""
        return 1 << (self.exponent_bits + self.mantissa_bits) if self.signed else 0

    @property
    def max_code(self) -> int:
        """Unshifted code of the largest finite number."""
        top = (1 << (self.exponent_bits + self.mantissa_bits)) - 1
        if self.specials == "ieee":
            return top - (1 << self.mantissa_bits)
        return top - 1 if self.specials == "nan" else top

    @property
    def nan_code(self) -> int:
        """Unshifted code of the canonical NaN; formats without one saturate instead."""
        top = (1 << (self.exponent_bits + self.mantissa_bits)) - 1
        return top if self.specials != "none" else self.max_code

    @property
    def inf_code(self) -> int:
        """Unshifted code that an overflow gives without ``satfinite``."""
        if self.specials == "ieee":
            return self.max_code + 1
        return self.nan_code if self.specials == "nan" else self.max_code


#: All formats by their PTX name.
FORMATS: dict[str, Format] = {
    f.name: f
    for f in (
        Format("f16", 16, 5, 10, 15),
        Format("bf16", 16, 8, 7, 127),
        Format("tf32", 32, 8, 10, 127, shift=13),
        Format("f32", 32, 8, 23, 127),
        Format("e4m3", 8, 4, 3, 7, specials="nan"),
        Format("e5m2", 8, 5, 2, 15),
        Format("e2m1", 4, 2, 1, 1, specials="none"),
        Format("e2m3", 6, 2, 3, 1, specials="none"),
        Format("e3m2", 6, 3, 2, 3, specials="none"),
        Format("ue8m0", 8, 8, 0, 127, signed=False, specials="nan"),
        Format("ue4m3", 8, 4, 3, 7, signed=False, specials="nan"),
    )
}


def format_of(name: str) -> Format:
    """Return the format that PTX calls ``name``.

    Raises
    ------
    EmulatorError
        If there is none.
    """
    try:
        return FORMATS[name]
    except KeyError:
        raise EmulatorError(f"format: expected one of {', '.join(FORMATS)}; got {name!r}") from None


@cache
def _table(name: str) -> NDArray[np.float32]:
    """Values of all codes of a format of at most eight bits, indexed by the whole byte."""
    f = FORMATS[name]
    code = np.arange(256, dtype=np.int64) & ((1 << f.bits) - 1)
    magnitude = code & ((1 << (f.exponent_bits + f.mantissa_bits)) - 1)
    exponent = magnitude >> f.mantissa_bits
    mantissa = magnitude & ((1 << f.mantissa_bits) - 1)
    if f.mantissa_bits == 0:
        value = np.ldexp(1.0, exponent - f.bias)
    else:
        leading = (exponent > 0).astype(np.int64) << f.mantissa_bits
        value = np.ldexp(
            (leading + mantissa).astype(np.float64),
            np.maximum(exponent, 1) - f.bias - f.mantissa_bits,
        )
    if f.specials == "ieee":
        value = np.where(magnitude == f.inf_code, np.inf, value)
        value = np.where(magnitude > f.inf_code, np.nan, value)
    elif f.specials == "nan":
        value = np.where(magnitude == f.nan_code, np.nan, value)
    value = np.where(code & f.sign, -value, value)
    table: NDArray[np.float32] = value.astype(np.float32)
    table.setflags(write=False)
    return table


def truncate_tf32(bits: NDArray[np.uint32]) -> NDArray[np.float32]:
    """Return the values that a tf32 multiplier reads: the low 13 bits are ignored.

    PTX ISA 9.7.15.5.2 says so for wgmma; `mma.sync` reads its operands the same way.
    """
    return (bits & np.uint32(0xFFFFE000)).view(np.float32)


def decode(name: str, bits: Bits) -> NDArray[np.float32]:
    """Return the exact values of codes.

    Parameters
    ----------
    name : str
        Format.
    bits : ndarray of an unsigned type, any shape
        Codes in the low bits (``tf32``: 32 bits, of which the low 13 are ignored).

    Returns
    -------
    ndarray of float32, same shape
        Exact: every format here is a subset of float32 (2^-127 of ue8m0 is subnormal there).
    """
    f = format_of(name)
    if f.bits <= 8:
        return _table(name)[bits.astype(np.uint8, copy=False)]
    if name == "bf16":
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if name == "f16":
        return bits.astype(np.uint16, copy=False).view(np.float16).astype(np.float32)
    if name == "tf32":
        return truncate_tf32(bits.astype(np.uint32, copy=False))
    return bits.astype(np.uint32, copy=False).view(np.float32)


def encode(
    name: str,
    values: NDArray[Any],
    rounding: str = "rn",
    *,
    satfinite: bool = False,
    relu: bool = False,
) -> Bits:
    """Round values to a format, as `cvt` does.

    Parameters
    ----------
    name : str
        Destination format.
    values : ndarray of float16, float32, float64 or an integer type, any shape
        Exact source values (decode bf16 and the like first).
    rounding : {"rn", "rna", "rz", "rm", "rp"}
        Nearest even, nearest with ties away, toward zero, down, up.
    satfinite : bool
        Overflow and infinities give the largest finite number of that sign instead of infinity.
        The formats without infinity or NaN (e2m1, e2m3, e3m2) always saturate.
    relu : bool
        Negative results become +0 (NaN stays NaN, canonical).

    Returns
    -------
    ndarray of uint8, uint16 or uint32, same shape
        Codes in the low bits.

    Notes
    -----
    NaN gives the canonical NaN of the format (``0x7fff`` for f16 and bf16, ``0x7f`` for e4m3 and
    e5m2, ``0xff`` for ue8m0), and the largest positive number where there is no NaN. The sign is
    ignored by ue8m0 and clamped to zero by ue4m3.
    """
    f = format_of(name)
    values = np.asarray(values)
    if not (relu or satfinite) and values.dtype == np.float32:
        quick = _encode_quick(name, values, rounding)
        if quick is not None:
            return quick
    with np.errstate(invalid="ignore"):  # signalling NaN are legal inputs
        return _encode_exact(f, values, rounding, satfinite, relu)


def _encode_quick(name: str, values: NDArray[np.float32], rounding: str) -> Bits | None:
    """Return bf16 and f16 codes by integer arithmetic or NumPy's own cast, where that serves."""
    if name == "bf16" and rounding in ("rn", "rz"):
        bits = np.ascontiguousarray(values).view(np.uint32)
        is_nan = np.isnan(values)
        if rounding == "rn":
            half = ((bits >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF)
            bits = bits + half
        out = (bits >> np.uint32(16)).astype(np.uint16)
        if is_nan.any():
            out = np.where(is_nan, np.uint16(0x7FFF), out)
        return out
    if name == "f16" and rounding == "rn":
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            out = values.astype(np.float16).view(np.uint16)
        is_nan = np.isnan(values)
        if is_nan.any():
            out = np.where(is_nan, np.uint16(0x7FFF), out)
        return out
    return None


def _as_float64(values: NDArray[Any]) -> NDArray[np.float64]:
    """Convert to float64 so that any later rounding to 24 bits or fewer stays exact.

    Integers beyond 2^53 keep their top bits and a sticky bit, which decides ties correctly.
    """
    if values.dtype.kind == "f":
        return values.astype(np.float64)
    if values.dtype.itemsize < 8:
        return values.astype(np.float64)
    negative = values < 0
    magnitude = values.astype(np.uint64)
    magnitude = np.where(negative, np.uint64(0) - magnitude, magnitude)
    sticky = ((magnitude & np.uint64(0x7FF)) != 0).astype(np.uint64)
    large = (((magnitude >> np.uint64(11)) | sticky) << np.uint64(11)).astype(np.float64)
    small = magnitude.astype(np.float64)
    out = np.where(magnitude >> np.uint64(53), large, small)
    return np.where(negative, -out, out)


def _round_quotient(
    q: NDArray[np.float64], negative: NDArray[np.bool_], rounding: str
) -> NDArray[np.float64]:
    """Round non-negative quotients to integers; ``negative`` is the sign of the value."""
    if rounding == "rn":
        return np.rint(q)
    down = np.floor(q)
    if rounding == "rz":
        return down
    if rounding == "rna":
        return down + (q - down >= 0.5)
    if rounding in ("rm", "rp"):
        away = negative if rounding == "rm" else ~negative
        return np.where(away, np.ceil(q), down)
    raise EmulatorError(f"rounding: expected rn, rna, rz, rm or rp; got {rounding!r}")


def _encode_exact(
    f: Format, values: NDArray[Any], rounding: str, satfinite: bool, relu: bool
) -> Bits:
    """Encode by scaling to units in the last place, exact for every format and rounding."""
    x = _as_float64(values)
    is_nan = np.isnan(x)
    negative = np.signbit(x)
    magnitude = np.where(is_nan, 0.0, np.abs(x))
    is_inf = np.isinf(magnitude)
    finite = np.where(is_inf, 0.0, magnitude)
    if not f.signed:
        if f.name == "ue4m3":
            finite = np.where(negative, 0.0, finite)
            is_inf &= ~negative
        negative = np.zeros_like(negative)
    # frexp gives [0.5, 1), so that the exponent of the leading bit is one less.
    exponent = np.where(finite == 0, f.min_exponent, np.frexp(finite)[1].astype(np.int64) - 1)
    exponent = np.maximum(exponent, f.min_exponent)
    quotient = np.ldexp(finite, f.mantissa_bits - exponent)
    quotient = _round_quotient(quotient, negative, rounding)
    code = quotient.astype(np.int64) + ((exponent - f.min_exponent) << f.mantissa_bits)
    if f.mantissa_bits == 0:
        # A scale has no zero: quotients 0 and 1 at the lowest exponent are both code 0.
        code = np.maximum(code - 1, 0)
    overflow = (code > f.max_code) | is_inf
    if overflow.any():
        toward_zero = {
            "rz": np.ones_like(negative),
            "rm": ~negative,
            "rp": negative,
        }.get(rounding, np.zeros_like(negative))
        saturate = np.bool_(satfinite) | (toward_zero & ~is_inf)
        code = np.where(overflow, np.where(saturate, f.max_code, f.inf_code), code)
    code = np.where(negative, code | f.sign, code)
    if relu:
        code = np.where(negative, 0, code)
    code = np.where(is_nan, f.nan_code, code)
    return (code << f.shift).astype(f.container)
