"""Gradients of the grouped product by autograd of a float64 loop, and how far one may be off."""

from __future__ import annotations

import torch

#: Half the distance of the smallest numbers, which matters for float16 alone.
SMALLEST = {torch.float32: 2.0**-150, torch.bfloat16: 2.0**-134, torch.float16: 2.0**-25}
#: Half a unit in the last place of 1.
ROUNDOFF = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


def loop(a, b, ends, bias=None):
    """Either form, group by group."""
    firsts = [0, *ends[:-1]]
    if b.dim() == 2:
        return torch.stack([a[:, i:j] @ b[i:j] for i, j in zip(firsts, ends, strict=True)])
    rows = [a[i:j] @ b[g] for g, (i, j) in enumerate(zip(firsts, ends, strict=True))]
    if bias is not None:
        rows = [part + bias[g] for g, part in enumerate(rows)]
    return torch.cat([*rows, a.new_zeros(a.shape[0] - ends[-1], b.shape[2])])


def in_double(tensors, ends, dy, change=lambda t: t):
    """Return the loop's result and the gradients of all its arguments, in float64."""
    leaves = [None if t is None else change(t.detach().double()).requires_grad_() for t in tensors]
    a, b, *bias = leaves
    y = loop(a, b, ends, *bias)
    given = [leaf for leaf in leaves if leaf is not None]
    found = torch.autograd.grad(y, given, change(dy.double()))
    return [y.detach(), *found]


def bounds(tensors, ends, dy, steps: int, dtype):
    """Return how far result and gradients may be from the loop's.

    A sum of n products in FP32 is off by at most (n + 2) u times the sum of their magnitudes, in
    any order (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 3.1, with
    slack for the second order); u = 2^-24. Rounding to `dtype` adds its own u times the value, and
    for numbers below the normal ones half their distance.
    """
    magnitudes = in_double(tensors, ends, dy, torch.abs)
    exact = in_double(tensors, ends, dy)
    fp32 = (steps + 2) * ROUNDOFF[torch.float32]
    return [
        (e, fp32 * m + ROUNDOFF[dtype] * (e.abs() + fp32 * m) + SMALLEST[dtype])
        for e, m in zip(exact, magnitudes, strict=True)
    ]


def assert_close(found, tensors, ends, dy, dtype):
    """Fail unless result and gradients (None where none was wanted) are within the bounds."""
    steps = max(max(t.shape) for t in tensors if t is not None)
    for i, (got, (want, bound)) in enumerate(
        zip(found, bounds(tensors, ends, dy, steps, dtype), strict=True)
    ):
        if got is not None:
            assert got.shape == want.shape
            off = (got.detach().double() - want).abs()
            assert (off <= bound).all(), (
                f"number {i} is off by {(off / bound).max():.2f} times the bound"
            )
