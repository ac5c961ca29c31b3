"""Element types: how wide they are and what NumPy, CUDA, PTX and the TMA unit call them.

A type is described in bits, because 4-bit and 6-bit types are on the way. The table is closed:
what is not in it has no kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from gemmjit.errors import InvalidDtypeError

__all__ = ["BF16", "F16", "F32", "F64", "I32", "I64", "U8", "DType", "dtype_of", "served_names"]


@dataclass(frozen=True, slots=True, eq=False)
class DType:
    """One element type. Types are singletons: they compare, hash and pickle by identity.

    Attributes
    ----------
    name : str
        Canonical name, as in ``bfloat16``.
    short : str
        Short name used in kernel names, as in ``bf16``.
    bits : int
        Width of one element in bits.
    cuda : str
        Spelling in templates (``templates/core/types.cuh`` defines it).
    numpy_type : type
        NumPy scalar type (from ``ml_dtypes`` where NumPy has none).
    """

    name: str
    short: str
    bits: int
    cuda: str
    numpy_type: type

    @property
    def itemsize(self) -> int:
        """Bytes of one element; defined for whole-byte types only."""
        if self.bits % 8:
            raise InvalidDtypeError(f"{self.name} has {self.bits} bits and no size in bytes")
        return self.bits // 8

    @property
    def numpy(self) -> np.dtype:
        """The NumPy dtype."""
        return np.dtype(self.numpy_type)

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return dtype_of, (self.name,)

    def __str__(self) -> str:
        return self.name


BF16 = DType("bfloat16", "bf16", 16, "bf16_t", ml_dtypes.bfloat16)
F16 = DType("float16", "f16", 16, "f16_t", np.float16)
F32 = DType("float32", "f32", 32, "float", np.float32)
F64 = DType("float64", "f64", 64, "double", np.float64)
I32 = DType("int32", "i32", 32, "int", np.int32)
I64 = DType("int64", "i64", 64, "long long", np.int64)
U8 = DType("uint8", "u8", 8, "unsigned char", np.uint8)

_ALL = (BF16, F16, F32, F64, I32, I64, U8)
_BY_NAME = {spelling: d for d in _ALL for spelling in (d.name, d.short)}
_BY_NUMPY = {d.numpy: d for d in _ALL}


def served_names(argument: str) -> str:
    """Return the names of the types that an argument may have, for the text of an error.

    The table above has more: what tensors are stored in, or offsets, but no kernel multiplies.
    """
    return ", ".join(d.name for d in ((I32, I64) if argument == "offs" else (BF16, F16, F32)))


def dtype_of(spec: object, argument: str = "dtype") -> DType:
    """Return the `DType` that a name, a NumPy dtype, a torch dtype or a `DType` stands for.

    Parameters
    ----------
    spec : DType, str, numpy.dtype, type or torch.dtype
        What to look up; torch dtypes are recognised by their printed name.
    argument : str
        What the message calls it.

    Returns
    -------
    DType

    Raises
    ------
    InvalidDtypeError
        If the type has no place in gemmjit.
    """
    if isinstance(spec, DType):
        return spec
    if isinstance(spec, str) and spec in _BY_NAME:
        return _BY_NAME[spec]
    text = str(spec)
    if text.startswith("torch.") and text[6:] in _BY_NAME:
        return _BY_NAME[text[6:]]
    try:
        found = _BY_NUMPY.get(np.dtype(spec))  # type: ignore[call-overload]
    except TypeError:
        found = None
    if found is None:
        raise InvalidDtypeError(
            f"{argument}: expected one of {served_names(argument)}; got {text}. "
            "Cast it, or pass another type"
        )
    return found
