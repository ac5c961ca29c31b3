"""Matrix products whose operands carry one scale a block of K: `(A * SFA) @ (B * SFB) + C`.

The two models of :mod:`gemmjit.emulator.accumulate`:

- ``fp32``: products and scales exact, the sum with the addend in float64, rounded once to float32.
- ``tensor_core``: with 32 elements of K, the terms are aligned to the largest exponent, scales
  included, and truncated to 25 fraction bits. With 64 (4-bit elements) every 16 products are added
  exactly, multiplied by their scales, and aligned to the largest sum of scale exponents with 35
  fraction bits. The sum is truncated to float32. From Xie et al., arXiv:2511.10909 and
  github.com/microsoft/MMA-Sim.

A scale that is NaN (0xFF of ue8m0, 0x7F of ue4m3) makes its whole block NaN, and so the result
(OCP Microscaling Formats 1.0, sections 5.1 and 6.3).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gemmjit.emulator.accumulate import Accumulation, canonical, exponents, toward_zero
from gemmjit.emulator.formats import FORMATS

__all__ = ["scaled_accumulation", "scaled_product"]

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

#: Products of 4-bit elements that are added exactly before they are scaled.
_GROUP = 16


def scaled_accumulation(model: str, k: int) -> Accumulation | None:
    """Return the adder's parameters of a block-scaled product, or None for plain sums.

    Parameters
    ----------
    model : {"fp32", "tensor_core"}
    k : {32, 64}
        The instruction's K.
    """
    return None if model == "fp32" else Accumulation(35 if k == 64 else 25)


def scaled_product(
    a: Floats,
    b: Floats,
    c: Floats,
    scale_a: Floats,
    scale_b: Floats,
    *,
    types: tuple[str, str, str],
    accumulation: Accumulation | None = None,
) -> Floats:
    """Return ``(a * scale_a) @ (b * scale_b) + c`` for a batch of matrices.

    Parameters
    ----------
    a : ndarray of float32, (batch, m, k)
    b : ndarray of float32, (batch, k, n)
    c : ndarray of float32, (batch, m, n)
    scale_a : ndarray of float32, (batch, m, blocks)
        Each scales k / blocks neighbours.
    scale_b : ndarray of float32, (batch, blocks, n)
    types : tuple of str
        Formats of A, B and the scales; the ``tensor_core`` model needs their smallest exponents.
    accumulation : Accumulation, optional
        Parameters of the ``tensor_core`` model; None means plain sums.

    Returns
    -------
    ndarray of float32, (batch, m, n)
        NaN is the canonical NaN of the tensor cores.
    """
    size = a.shape[2] // scale_a.shape[2]
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        wide_a = a * np.repeat(scale_a.astype(np.float64), size, axis=2)
        wide_b = b * np.repeat(scale_b.astype(np.float64), size, axis=1)
        plain: Doubles = np.matmul(wide_a, wide_b) + c
        if accumulation is None:
            return canonical(plain.astype(np.float32))
        out = np.empty_like(c)
        model = _in_groups if a.shape[2] == 64 else _in_one
        for i in range(len(out)):
            value = model(a[i], b[i], c[i], scale_a[i], scale_b[i], types, accumulation)
            finite = np.isfinite(plain[i])
            rounded = toward_zero(np.where(finite, value, 0.0), accumulation.output_bits)
            out[i] = np.where(finite, rounded, plain[i].astype(np.float32))
    return canonical(out)


def _exponents_of(values: Floats, name: str) -> NDArray[np.int64]:
    wide = values.astype(np.float64)
    return exponents(np.where(np.isfinite(wide), wide, 0.0), FORMATS[name].min_exponent)


def _in_one(
    a: Floats, b: Floats, c: Floats, scale_a: Floats, scale_b: Floats,
    types: tuple[str, str, str], accumulation: Accumulation,
) -> Doubles:  # fmt: skip
    """One block: every product is a term."""
    a_exp, b_exp = _exponents_of(a, types[0]), _exponents_of(b, types[1])
    offset = _exponents_of(scale_a, types[2]) + _exponents_of(scale_b, types[2])
    largest = _exponents_of(c, "f32")
    for k in range(a.shape[1]):
        largest = np.maximum(largest, a_exp[:, k, None] + b_exp[None, k, :] + offset)
    shift = accumulation.fraction_bits - largest
    scale = scale_a.astype(np.float64) * scale_b
    total = np.trunc(np.ldexp(c.astype(np.float64), shift))
    for k in range(a.shape[1]):
        term = a[:, k, None].astype(np.float64) * b[None, k, :] * scale
        total += np.trunc(np.ldexp(term, shift))
    result: Doubles = np.ldexp(total, -shift)
    return result


def _in_groups(
    a: Floats, b: Floats, c: Floats, scale_a: Floats, scale_b: Floats,
    types: tuple[str, str, str], accumulation: Accumulation,
) -> Doubles:  # fmt: skip
    """Four groups of 16 products: every scaled sum is a term."""
    count = a.shape[1] // _GROUP
    sa = np.repeat(scale_a.astype(np.float64), count // scale_a.shape[1], axis=1)
    sb = np.repeat(scale_b.astype(np.float64), count // scale_b.shape[0], axis=0)
    sa_exp = _exponents_of(sa.astype(np.float32), types[2])
    sb_exp = _exponents_of(sb.astype(np.float32), types[2])
    largest = _exponents_of(c, "f32")
    for g in range(count):
        largest = np.maximum(largest, sa_exp[:, g, None] + sb_exp[None, g, :])
    shift = accumulation.fraction_bits - largest
    total = np.trunc(np.ldexp(c.astype(np.float64), shift))
    for g in range(count):
        part = slice(_GROUP * g, _GROUP * (g + 1))
        exact = a[:, part].astype(np.float64) @ b[part].astype(np.float64)
        total += np.trunc(np.ldexp(exact * sa[:, g, None] * sb[None, g, :], shift))
    result: Doubles = np.ldexp(total, -shift)
    return result
