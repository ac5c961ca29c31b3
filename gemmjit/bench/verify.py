"""Whether a contender computed the product at all, and rightly.

A result is compared group by group with a float64 product of the same operands. Two measures must
both hold: the norm of the error over the norm of the product, and the largest error of a single
element over what its own rounding and that of the sum may cost. A NaN passes neither, so that an
output which was filled with NaN before the replay shows what was never written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from gemmjit.bench.backend import Backend
from gemmjit.bench.inputs import Operands
from gemmjit.dtypes import BF16, F16, F32, DType

__all__ = ["Check", "agrees", "check_result", "poison"]

#: Unit roundoff of each result type: half a unit in the last of 8 (11) significant bits. For FP32
#: it is what a sum of thousands of terms may lose, whose additions truncate.
_ROUNDOFF = {BF16: 2.0**-8, F16: 2.0**-11, F32: 2.0**-16}

#: Allowed norm of the error, in units of roundoff. One rounding of normally distributed results
#: gives 0.43; the rest is for libraries that round partial sums too.
_NORM = 1.0

#: Allowed error of one element, in units of roundoff, relative to its own size plus the root mean
#: square of its group: its rounding, and an error of the sum that does not shrink where terms
#: cancel. A wrong element is off by about the root mean square, a hundred times as much in bf16.
_ELEMENT = 2.0

_SAMPLE = 4096
_REPEATED = 2.0**-6  # between calls on the same operands, whose order of summation may differ


@dataclass(frozen=True)
class Check:
    """What the comparison of one result said.

    Attributes
    ----------
    relative_error : float
        Largest over all groups of ``|out - ref| / |ref|`` in the Euclidean norm.
    worst_element : float
        Largest error of an element over what is allowed.
    ok : bool
    reason : str
        Why not, or empty.
    """

    relative_error: float
    worst_element: float
    ok: bool
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a JSON-compatible mapping; a number that is not finite as text."""
        return {
            "relative_error": _json(self.relative_error),
            "worst_element": _json(self.worst_element),
            "ok": self.ok,
            "reason": self.reason,
        }

    def worse(self, other: Check) -> Check:
        """Return the worse of two checks."""
        if self.ok != other.ok:
            return other if self.ok else self
        return max((self, other), key=lambda c: (c.worst_element, c.relative_error))


def poison(backend: Backend, array: Any, accumulates: bool) -> None:
    """Overwrite an output so that what is not computed anew cannot pass.

    With NaN; with zeros for a contender that adds to its output.
    """
    backend.fill(array, 0.0 if accumulates else math.nan)


def check_result(
    operands: Operands,
    result: Any,
    layout: str = "nn",
    dtype: DType | None = None,
    times: int = 1,
    finish: Callable[[int, slice, Any], Any] | None = None,
) -> Check:
    """Compare a result with the float64 product of the operands that it was computed from.

    Parameters
    ----------
    operands : Operands
    result : array
        In the shape of the workload's result; rows behind the last group are not looked at.
    layout : {"nn", "nt"}
        Layout of the weights that the contender was given.
    dtype : DType, optional
        Element type of the result; by default the workload's.
    times : int
        How often the product was added into the result.
    finish : callable, optional
        As `gemmjit.bench.peers.Prepared.finish`. The result may have fewer columns then.
    """
    backend = operands.backend
    expected = tuple(operands.workload.result_shape)
    if finish is not None:
        expected = (*expected[:-1], result.shape[-1])
    if tuple(result.shape) != expected:
        return Check(
            math.inf, math.inf, False, f"shape {tuple(result.shape)} instead of {expected}"
        )
    roundoff = _ROUNDOFF[dtype or operands.workload.dtype]
    total = Check(0.0, 0.0, True)
    for group, part, exact in _references(operands, result, layout, finish):
        total = total.worse(_compare_group(backend.upcast(part) / times, exact, group, roundoff))
    return total


def agrees(backend: Backend, result: Any, checked: Any) -> Check:
    """Compare a sample of a result with one of the same operands that was checked in full."""
    pairs = zip(backend.sample(result, _SAMPLE), backend.sample(checked, _SAMPLE), strict=True)
    worst = 0.0
    for got, want in pairs:
        error = abs(got - want)
        if not math.isfinite(error):
            return Check(math.inf, math.inf, False, "a repeated call did not write its result")
        worst = max(worst, error / (_REPEATED * (abs(want) + 1.0)))
    if worst > 1.0:
        return Check(math.inf, worst, False, "a repeated call gave another result")
    return Check(0.0, worst, True)


def _compare_group(got: Any, exact: Any, group: int, roundoff: float) -> Check:
    difference = abs(got - exact)
    square = float((exact * exact).sum())
    size = max(math.prod(exact.shape), 1)
    norm = math.sqrt(float((difference * difference).sum()))
    if square == 0.0:
        # An empty group of wgrad, whose gradient is exactly zero.
        ok = norm == 0.0
        return Check(norm, norm, ok, "" if ok else f"group {group}: not zero, though it is empty")
    relative = norm / math.sqrt(square)
    scale = math.sqrt(square / size)
    allowed = _ELEMENT * roundoff * (abs(exact) + scale)
    worst = float((difference / allowed).max())
    if not (math.isfinite(relative) and math.isfinite(worst)):
        reason = f"group {group}: elements that were not written, or not finite"
        return Check(math.inf, math.inf, False, reason)
    if relative > _NORM * roundoff or worst > 1.0:
        reason = f"group {group}: error {relative:.1e}, worst element {worst:.1f} times the limit"
        return Check(relative, worst, False, reason)
    return Check(relative, worst, True)


def _references(
    operands: Operands,
    result: Any,
    layout: str,
    finish: Callable[[int, slice, Any], Any] | None,
) -> Iterator[tuple[int, Any, Any]]:
    """Yield group, its part of the result, and what it must be, in float64."""
    up = operands.backend.upcast
    a, b = operands.mat_a, operands.mat_b(layout)
    ragged_k = operands.workload.form == "wgrad"
    start = 0
    for group, size in enumerate(operands.group_sizes):
        rows = slice(start, start + size)
        start += size
        if ragged_k:
            yield group, result[group], up(a[:, rows]) @ up(b[rows])
        elif size:
            product = up(a[rows]) @ up(b[group])
            yield group, result[rows], finish(group, rows, product) if finish else product


def _json(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
