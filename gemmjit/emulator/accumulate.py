"""How a tensor core adds: FP32 sums, or the published model of the hardware's adder.

`matrix_product` computes ``a @ b + c`` for batches of small matrices whose elements are exact in
float32. Two models:

- ``fp32`` (default): products exact, sums in float32 in the order of the BLAS library.
- ``tensor_core``: products exact; products and addend are aligned to the largest exponent,
  truncated to a number of fraction bits, added exactly, and the sum is truncated to float32 (or
  rounded to nearest even for an f16 result). Exponents are those of the operands: a product of
  two significands stays un-normalised in [1, 4). The fraction bits were measured by Xie et al.,
  "MMA-Sim: Bit-Accurate Reference Model of Tensor Cores and Matrix Cores", arXiv:2511.10909 and
  github.com/microsoft/MMA-Sim: 24 on Ampere and Ada, which also split the longest K in halves, 25
  on Hopper and Blackwell, 13 for FP8 on Ada and in Hopper's wgmma (results then carry 13 bits).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemmjit.emulator.formats import FORMATS
from gemmjit.errors import EmulatorError

__all__ = [
    "CANONICAL_NAN",
    "MODELS",
    "Accumulation",
    "accumulation_model",
    "add_saturating",
    "canonical",
    "exponents",
    "matrix_product",
    "toward_zero",
]

Floats = NDArray[np.float32]

#: The NaN that tensor cores write, as bits of a float32.
CANONICAL_NAN = 0x7FFFFFFF

#: Names that `accumulation_model` takes.
MODELS = ("fp32", "tensor_core")


@dataclass(frozen=True, slots=True)
class Accumulation:
    """The parameters of the ``tensor_core`` model.

    Attributes
    ----------
    fraction_bits : int
        Bits kept below the largest exponent before the terms are added.
    output_bits : int
        Fraction bits of a float32 result: 23, or 13 with FP8 on Ada and in Hopper's wgmma.
    split_k : int
        Parts of K that are added one after the other.
    """

    fraction_bits: int
    output_bits: int = 23
    split_k: int = 1


def accumulation_model(
    model: str, arch_number: int, instruction: str, a_type: str, k: int
) -> Accumulation | None:
    """Return the adder's parameters for an instruction, or None for plain FP32 sums.

    Parameters
    ----------
    model : {"fp32", "tensor_core"}
    arch_number : int
        Ten times the compute capability: 80, 89, 90, 100.
    instruction : {"mma", "wgmma", "tcgen05"}
    a_type : str
        Element type of A as PTX spells it.
    k : int
        The instruction's K.

    Raises
    ------
    EmulatorError
        If the model is unknown.
    """
    if model == "fp32":
        return None
    if model != "tensor_core":
        raise EmulatorError(f"numerics: expected one of {', '.join(MODELS)}; got {model!r}")
    is_fp8 = a_type in ("e4m3", "e5m2")
    if is_fp8 and (instruction == "wgmma" or arch_number == 89):
        split = 2 if instruction == "mma" and k == 32 else 1
        return Accumulation(13, 13, split)
    if arch_number >= 90:
        return Accumulation(25)
    if arch_number < 80:
        return Accumulation(24 if arch_number >= 75 else 23)
    longest = {"tf32": 8, "f16": 16, "bf16": 16, "e4m3": 32, "e5m2": 32}
    return Accumulation(24, split_k=2 if longest.get(a_type) == k else 1)


def matrix_product(
    a: Floats,
    b: Floats,
    c: Floats,
    *,
    a_type: str,
    b_type: str,
    accumulation: Accumulation | None = None,
    half_result: bool = False,
) -> Floats:
    """Return ``a @ b + c`` for a batch of matrices.

    Parameters
    ----------
    a : ndarray of float32, (batch, m, k)
    b : ndarray of float32, (batch, k, n)
    c : ndarray of float32, (batch, m, n)
    a_type, b_type : str
        Formats of the elements; the ``tensor_core`` model needs their smallest exponents.
    accumulation : Accumulation, optional
        Parameters of the ``tensor_core`` model; None means FP32 sums.
    half_result : bool
        The result goes to f16 (rounded to nearest even, once), not to f32.

    Returns
    -------
    ndarray of float32, (batch, m, n)
        NaN is the canonical NaN of the tensor cores.
    """
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        if accumulation is None:
            d = np.matmul(a, b)
            d += c
        else:
            d = c
            step = a.shape[2] // accumulation.split_k
            for k0 in range(0, a.shape[2], step):
                part = slice(k0, k0 + step)
                d = _fused(
                    a[:, :, part], b[:, part, :], d, a_type, b_type, accumulation, half_result
                )
    return canonical(d)


def canonical(d: Floats) -> Floats:
    """Replace every NaN by the tensor cores' NaN, in place."""
    if np.isnan(d.min(initial=0)):  # one quick pass: a minimum propagates NaN
        d.view(np.uint32)[np.isnan(d)] = CANONICAL_NAN
    return d


def exponents(x: NDArray[np.float64], min_exponent: int) -> NDArray[np.int64]:
    """Exponents of the leading bits, not below the format's; zero counts as 2^-126."""
    exponent = np.maximum(np.frexp(x)[1].astype(np.int64) - 1, min_exponent)
    return np.where(x == 0, -126, exponent)


def _fused(
    a: Floats,
    b: Floats,
    c: Floats,
    a_type: str,
    b_type: str,
    accumulation: Accumulation,
    half_result: bool,
) -> Floats:
    """One fused dot-product-add per element of ``c``; batches one at a time to bound memory."""
    out = np.empty_like(c)
    for i in range(c.shape[0]):
        out[i] = _fused_one(a[i], b[i], c[i], a_type, b_type, accumulation, half_result)
    return out


def _fused_one(
    a: Floats,
    b: Floats,
    c: Floats,
    a_type: str,
    b_type: str,
    accumulation: Accumulation,
    half_result: bool,
) -> Floats:
    a64, b64, c64 = a.astype(np.float64), b.astype(np.float64), c.astype(np.float64)
    # Whatever float64 finds to be infinite or NaN, the hardware finds too; a float64 sum of
    # products of these formats cannot overflow.
    plain = a64 @ b64 + c64
    a_exp = exponents(np.where(np.isfinite(a64), a64, 0.0), FORMATS[a_type].min_exponent)
    b_exp = exponents(np.where(np.isfinite(b64), b64, 0.0), FORMATS[b_type].min_exponent)
    c_format = "f16" if half_result else "f32"
    c_exp = exponents(np.where(np.isfinite(c64), c64, 0.0), FORMATS[c_format].min_exponent)
    largest = c_exp
    for k in range(a.shape[1]):
        largest = np.maximum(largest, a_exp[:, k, None] + b_exp[None, k, :])
    shift = accumulation.fraction_bits - largest
    total = np.trunc(np.ldexp(c64, shift))
    for k in range(a.shape[1]):
        total += np.trunc(np.ldexp(a64[:, k, None] * b64[None, k, :], shift))
    value = np.ldexp(total, -shift)
    rounded = _to_half(value) if half_result else toward_zero(value, accumulation.output_bits)
    return np.where(np.isfinite(plain), rounded, plain.astype(np.float32))


def _to_half(value: NDArray[np.float64]) -> Floats:
    return value.astype(np.float16).astype(np.float32)


def toward_zero(value: NDArray[np.float64], fraction_bits: int) -> Floats:
    """Truncate to a float32 with the given number of fraction bits; overflow gives infinity."""
    exponent = np.maximum(np.frexp(value)[1].astype(np.int64) - 1, -126)
    kept = np.trunc(np.ldexp(value, fraction_bits - exponent))
    rounded: Floats = np.ldexp(kept, exponent - fraction_bits).astype(np.float32)
    return rounded


def add_saturating(
    product: NDArray[Any], c: NDArray[np.int32], satfinite: bool
) -> NDArray[np.int32]:
    """Add integer products to 32-bit accumulators: clamped with ``satfinite``, else wrapped.

    Parameters
    ----------
    product : ndarray of float32 or int64
        Exact integer sums of products, below 2^24 in magnitude if float32.
    c : ndarray of int32
    satfinite : bool

    Returns
    -------
    ndarray of int32
    """
    total = product.astype(np.int64) + c
    if satfinite:
        np.clip(total, -(2**31), 2**31 - 1, out=total)
    return total.astype(np.int32)
