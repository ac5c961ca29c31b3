"""What a drawn problem gives in float64, and how far FP32 arithmetic may be off it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from fuzz_problems import Problem
from makers import Placed

from gemmjit.epilogue import chain_of

__all__ = ["Matmul", "expected"]

Matmul = Callable[[np.ndarray, np.ndarray], np.ndarray]

#: Below, the reciprocal of 1 + exp(-g) is no normal number any more, and is zero.
_GATE_OF_ZERO = -126 * np.log(2)


def expected(
    problem: Problem,
    ends: Sequence[int],
    a: Placed,
    b: Placed,
    bias: Placed | None,
    scale: Placed | None,
    matmul: Matmul,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the result before it is added or rounded, and the error allowed."""
    x, off = _products(problem, ends, a.read(), b.read(), matmul)
    chain, exact = chain_of(problem.cell.chain), problem.values == "integers"
    sizes = np.diff(np.asarray(ends, np.int64), prepend=0)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    used, half = sum(sizes), problem.n // 2
    cut = 0.0 if exact else 2.0**-24
    with np.errstate(all="ignore"):
        if bias is not None:
            x[:used] += bias.read()[owner]
            off += cut * abs(x)
        if chain.gate:
            split = chain.gate == "split"
            pairs = [
                (z[:, :half], z[:, half:]) if split else (z[:, 0::2], z[:, 1::2]) for z in (x, off)
            ]
            (g, u), (off_g, off_u) = pairs
            silu = g / (1 + np.exp(-g))
            x = silu * u
            # ex2.approx and rcp.approx: 2^-22 and 2^-23; the sum and three products: 2^-24 each;
            # the exponent: |g| (2^-24 + 1.4e-8). SiLU is nowhere steeper than 1.1.
            off = abs(x) * (2**-22 + 2**-23 + 4 * 2**-24 + abs(g) * 7.4e-8)
            off = off + 1.1 * off_g * (abs(u) + off_u) + abs(silu) * off_u
            off = np.where(g < _GATE_OF_ZERO, off + abs(x), off)
            cut = 2.0**-24
        if scale is not None:
            factors = scale.read()[:used, None]
            x[:used] *= factors
            off[:used] = off[:used] * abs(factors) + cut * abs(x[:used])
    return x, off


def _products(
    problem: Problem, ends: Sequence[int], a: np.ndarray, b: np.ndarray, matmul: Matmul
) -> tuple[np.ndarray, np.ndarray]:
    """Return the product, and how far sums of FP32 may be off it.

    A sum of k products: k * 2^-24 * sum |a||b| in any order of FP32 additions (Higham, Accuracy and
    Stability of Numerical Algorithms, section 3.1). An adder of a tensor core takes 16 products at
    a time, cuts each at 2^-25 of the largest and the sum at 2^-23 (`gemmjit.emulator.accumulate`);
    for contractions of fewer than five products that is more.
    """
    p, ragged_m = problem, problem.cell.form == "ragged_m"
    want = np.zeros((p.rows, p.n) if ragged_m else (len(p.sizes), p.k, p.n))
    off = np.zeros_like(want)
    first = 0
    with np.errstate(all="ignore"):
        for group, end in enumerate(ends):
            rows, first = slice(first, end), end
            if rows.start == rows.stop or 0 in (p.k, p.n):
                continue
            at = rows if ragged_m else group
            x, y = (a[rows], b[group]) if ragged_m else (a[:, rows], b[rows])
            want[at] = matmul(x, y)
            if p.values != "integers":
                k = x.shape[1]
                unit = max(k * 2.0**-24, k * 2.0**-25 + -(-k // 16) * 1.25 * 2.0**-23)
                off[at] = matmul(abs(x), abs(y)) * unit
    return want, off
