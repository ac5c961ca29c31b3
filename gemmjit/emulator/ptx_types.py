"""The fundamental types of PTX and the NumPy types that hold their bits.

Types without a NumPy counterpart (bf16, tf32, fp8, packed pairs) are held as unsigned integers; the
instruction that knows their meaning decodes them (:mod:`gemmjit.emulator.formats`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["PTX_TYPES", "PtxType", "unsigned"]


@dataclass(frozen=True, slots=True)
class PtxType:
    """One PTX type.

    Attributes
    ----------
    name : str
        Spelling in PTX without the dot.
    kind : str
        `"b"` untyped bits, `"u"`, `"s"`, `"f"` floats, `"p"` predicate.
    bits : int
        Width.
    dtype : numpy.dtype
        Holder of the bits; for `f16`, `f32`, `f64` and integers also of the value.
    """

    name: str
    kind: str
    bits: int
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        """Size in bytes (1 for a predicate)."""
        return max(self.bits // 8, 1)


def _types() -> dict[str, PtxType]:
    plain = {
        f"{kind}{bits}": PtxType(f"{kind}{bits}", kind, bits, np.dtype(f"{code}{bits // 8}"))
        for kind, code in (("b", "u"), ("u", "u"), ("s", "i"))
        for bits in (8, 16, 32, 64)
    }
    plain |= {
        f"f{bits}": PtxType(f"f{bits}", "f", bits, np.dtype(f"f{bits // 8}"))
        for bits in (16, 32, 64)
    }
    held = {
        "bf16": 16, "tf32": 32, "f16x2": 32, "bf16x2": 32, "f32x2": 64,
        "u16x2": 32, "s16x2": 32, "e4m3x2": 16, "e5m2x2": 16, "e4m3x4": 32, "e5m2x4": 32,
        "e2m1x2": 8, "e2m3x2": 16, "e3m2x2": 16, "ue8m0x2": 16, "e4m3": 8, "e5m2": 8,
    }  # fmt: skip
    plain |= {
        name: PtxType(name, "f" if "u16" not in name and "s16" not in name else "b", bits,
                      np.dtype(f"u{bits // 8}"))
        for name, bits in held.items()
    }  # fmt: skip
    plain["b128"] = PtxType("b128", "b", 128, np.dtype([("lo", "u8"), ("hi", "u8")]))
    plain["pred"] = PtxType("pred", "p", 1, np.dtype(np.bool_))
    return plain


PTX_TYPES: dict[str, PtxType] = _types()


def unsigned(nbytes: int) -> np.dtype[Any]:
    """Unsigned NumPy type of `nbytes` bytes (1, 2, 4 or 8)."""
    return np.dtype(f"u{nbytes}")
