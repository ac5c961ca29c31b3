"""The problem of ``gemmjit emulate``: random whole numbers, and their product in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gemmjit.dtypes import F32, DType
from gemmjit.epilogue import Bias, Step
from gemmjit.errors import InvalidProblemError
from gemmjit.problem import Problem
from gemmjit.workloads import power_law

__all__ = ["EmulatedCase", "make_case"]

Array = npt.NDArray[Any]

#: Operands are in [-3, 3]; so many products of them sum exactly in FP32, in any order.
_LIMIT = 3
_MAX_CONTRACTION = 2**24 // _LIMIT**2

_SIZES = {"rows": 200, "groups": 4, "n": 128, "k": 256}
_OTHERS = ("tail", "skew", "dtype", "out_dtype", "a_k_major", "b_k_major", "schedule", "epilogue")


@dataclass(frozen=True)
class EmulatedCase:
    """Operands, offsets and what must come out.

    Attributes
    ----------
    problem : Problem
    sizes : tuple of int
        Rows of each group; rows beyond their sum are the tail, and hold NaN.
    mat_a, mat_b : numpy.ndarray
        As for `gemmjit.grouped_mm`.
    offs : numpy.ndarray or list of int
        An array stands for offsets on the device, a list for offsets on the host.
    start : numpy.ndarray or None
        What `out` holds before the call, if the result is added to it.
    read : dict of str to numpy.ndarray
        What the steps of the epilogue read, by their keywords.
    expected : numpy.ndarray of float64
        The product, rounded once to the result's type.
    """

    problem: Problem
    sizes: tuple[int, ...]
    mat_a: Array
    mat_b: Array
    offs: Array | list[int]
    start: Array | None
    read: dict[str, Array]
    expected: npt.NDArray[np.float64]

    @property
    def usual(self) -> Problem:
        """The problem, or one with the usual length for each side of the result that has none.

        It is what a kernel is built for: where the result has no elements nothing is launched, and
        operands without rows or columns have strides that say nothing.
        """
        p = self.problem
        k = p.k if p.form == "ragged_m" else p.m
        if p.n and (k or p.form == "ragged_m"):
            return p
        return Problem.contiguous(
            p.form,
            num_groups=p.num_groups,
            rows=p.rows,
            n=p.n or _SIZES["n"],
            k=k if p.form == "ragged_m" else k or _SIZES["k"],
            dtype=p.in_dtype,
            out_dtype=p.out_dtype,
            schedule=p.schedule,
            epilogue=p.epilogue,
        )

    def compare(self, result: Array) -> dict[str, Any]:
        """Return how a result differs: wrong elements, the largest error, the first place."""
        got = result.astype(np.float64)
        wrong = ~(got == self.expected)
        places = np.argwhere(wrong)
        error = np.abs(got - self.expected)[wrong]
        first = tuple(int(i) for i in places[0]) if len(places) else None
        return {
            "elements": int(got.size),
            "wrong": len(places),
            # NaN where it has no business counts as an infinite error.
            "max_abs_error": float(np.nan_to_num(error, nan=np.inf).max()) if len(error) else 0.0,
            "first_wrong": None if first is None else list(first),
            "first_got": None if first is None else float(got[first]),
            "first_expected": None if first is None else float(self.expected[first]),
        }


def make_case(
    given: dict[str, Any], sizes: tuple[int, ...] | None, form: str, seed: int
) -> EmulatedCase:
    """Return a case.

    Parameters
    ----------
    given : dict
        ``--problem``: rows, groups, n, k, tail (rows of no group), skew, and fields of
        `Problem.contiguous`.
    sizes : tuple of int, optional
        Rows of each group, instead of rows and groups.
    form : {"ragged_m", "ragged_k"}
    seed : int
        Of the random numbers.

    Raises
    ------
    InvalidProblemError
        If a name is unknown, a size is no whole number, or sums could be inexact.
    """
    values = dict(given)
    numbers = {name: values.pop(name, default) for name, default in _SIZES.items()}
    unknown = sorted(set(values) - set(_OTHERS))
    if unknown:
        raise InvalidProblemError(
            f"problem: unknown name {', '.join(unknown)}; there are "
            + ", ".join((*_SIZES, *_OTHERS))
        )
    tail, skew = values.pop("tail", 0), values.pop("skew", 1.0)
    for name, value in (*numbers.items(), ("tail", tail)):
        if type(value) is not int or value < 0:
            raise InvalidProblemError(f"problem: {name}: expected a whole number; got {value!r}")
    if type(skew) not in (int, float) or not 0 <= skew < math.inf:
        raise InvalidProblemError(f"problem: skew: expected a number of at least 0; got {skew!r}")
    if sizes is None:
        groups = numbers["groups"]
        sizes = tuple(power_law(numbers["rows"], groups, skew).tolist()) if groups else ()
    rows = sum(sizes) + tail
    longest = numbers["k"] if form == "ragged_m" else max(sizes, default=0)
    if longest > _MAX_CONTRACTION:
        raise InvalidProblemError(
            f"problem: expected a contraction of at most {_MAX_CONTRACTION}, whose sums are exact; "
            f"got {longest}. Use a smaller one"
        )
    values.setdefault("schedule", "scan")
    problem = Problem.contiguous(
        form,  # type: ignore[arg-type]
        num_groups=len(sizes), rows=rows, n=numbers["n"], k=numbers["k"], **values,
    )  # fmt: skip
    if problem.chain.gate or "strided" in problem.epilogue:
        raise InvalidProblemError(
            f"problem: epilogue: expected bias, row_scale, accumulate; got {problem.epilogue}. The "
            "result is compared for equality, of contiguous operands, and SiLU is approximate"
        )
    if form == "ragged_k" and problem.epilogue not in ("store", "accumulate"):
        raise InvalidProblemError(
            "problem: epilogue: expected store or accumulate, all that ragged_k (wgrad) takes; got "
            f"{problem.epilogue}. Use --form ragged_m, or leave it out"
        )
    return _filled(problem, sizes, seed)


def _filled(problem: Problem, sizes: tuple[int, ...], seed: int) -> EmulatedCase:
    rng = np.random.default_rng(seed)

    def whole(*shape: int) -> npt.NDArray[np.float64]:
        return rng.integers(-_LIMIT, _LIMIT + 1, shape).astype(np.float64)

    p, used = problem, sum(sizes)
    ends = np.cumsum(sizes).astype(np.int32)
    if p.form == "ragged_m":
        a, b = whole(p.rows, p.k), whole(p.num_groups, p.k, p.n)
        product = np.zeros((p.rows, p.n))
        for group, end in enumerate(ends.tolist()):
            part = slice(end - sizes[group], end)
            product[part] = a[part] @ b[group]
        a[used:] = np.nan
    else:
        a, b = whole(p.m, p.rows), whole(p.rows, p.n)
        product = np.zeros((p.num_groups, p.m, p.n))
        for group, end in enumerate(ends.tolist()):
            part = slice(end - sizes[group], end)
            product[group] = a[:, part] @ b[part]
        a[:, used:], b[used:] = np.nan, np.nan
    read = {step.kind.keyword: _read(step, p, whole) for step in p.chain.operands}
    if "bias" in read:
        groups = np.repeat(np.arange(p.num_groups), sizes)
        product[:used] += read["bias"][groups]
    if "row_scale" in read:
        product[:used] *= read["row_scale"][:used, None].astype(np.float64)
        read["row_scale"][used:] = np.nan
    start = whole(*product.shape) if p.chain.accumulates else None
    if start is not None:
        product += start
    return EmulatedCase(
        problem=p,
        sizes=sizes,
        mat_a=_laid(a, p.in_dtype, last=p.strides.ak == 1 or p.strides.am != 1),
        mat_b=_laid(b, p.in_dtype, last=p.strides.bn == 1 or p.strides.bk != 1),
        offs=ends.tolist() if p.schedule == "list" else ends,
        start=None if start is None else start.astype(p.out_dtype.numpy),
        read=read,
        expected=product.astype(p.out_dtype.numpy).astype(np.float64),
    )


def _read(step: Step, problem: Problem, whole: Callable[..., npt.NDArray[np.float64]]) -> Array:
    """Return whole numbers for a step to read."""
    shape = (problem.num_groups, problem.n) if step.kind is Bias else (problem.rows,)
    dtype = F32 if step.option.startswith("f32") else problem.in_dtype
    return whole(*shape).astype(dtype.numpy)


def _laid(values: npt.NDArray[np.float64], dtype: DType, last: bool) -> Array:
    """Return a matrix (or several) with its last or its last but one dimension contiguous."""
    if last:
        return np.ascontiguousarray(values.astype(dtype.numpy))
    return np.ascontiguousarray(values.swapaxes(-1, -2).astype(dtype.numpy)).swapaxes(-1, -2)
