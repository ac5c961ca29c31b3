"""The NumPy executor: what the kernels compute, group by group, in FP32."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from gemmjit.dtypes import F32
from gemmjit.epilogue import Chain
from gemmjit.problem import Problem

__all__ = ["run"]


def run(
    problem: Problem,
    a: Any,
    b: Any,
    group_sizes: npt.NDArray[np.int64],
    out: Any,
    operands: Mapping[str, Any] | None = None,
) -> None:
    """Compute a grouped GEMM into `out`.

    Parameters
    ----------
    problem : Problem
    a, b : numpy.ndarray
        Operands as passed to the call.
    group_sizes : numpy.ndarray, shape (G,)
        Rows of each group.
    out : numpy.ndarray
        Result; rows of the tail become zeros if the problem says so, or stay as they are.
    operands : mapping of str to numpy.ndarray, optional
        What the steps of the epilogue read, by their keywords.
    """
    chain, read = problem.chain, operands or {}
    ends = np.cumsum(group_sizes)
    starts = ends - group_sizes
    ragged_m = problem.form == "ragged_m"
    for g, (start, end) in enumerate(zip(starts, ends, strict=True)):
        if start == end and (ragged_m or chain.accumulates):
            continue
        rows = slice(int(start), int(end))
        if ragged_m:
            where, product = out[rows], _product(a[rows], b[g])
            product = _applied(product, chain, read, g, rows)
        else:
            where, product = out[g], _product(a[:, rows], b[rows])
        if chain.accumulates:
            product += where.astype(F32.numpy)
        with np.errstate(over="ignore"):  # float16 overflows to infinity, as on a GPU
            where[...] = product.astype(out.dtype)
    if ragged_m and problem.zero_tail:
        out[int(ends[-1]) if ends.size else 0 :] = 0


def _applied(
    x: npt.NDArray[np.float32], chain: Chain, read: Mapping[str, Any], group: int, rows: slice
) -> npt.NDArray[np.float32]:
    """Return a group's product after the steps in front of the store, in FP32."""
    with np.errstate(all="ignore"):
        if "bias" in read:
            x = x + np.asarray(read["bias"][group], np.float32)
        if chain.gate:
            split = chain.gate == "split"
            half = x.shape[1] // 2
            gate, up = (x[:, :half], x[:, half:]) if split else (x[:, ::2], x[:, 1::2])
            lowest = np.finfo(np.float32).min  # -Inf times 0 would be NaN
            x = np.maximum(gate, lowest) / (1 + np.exp(-gate)) * up
        if "row_scale" in read:
            x = x * np.asarray(read["row_scale"][rows], np.float32)[:, None]
    return x


def _product(a: Any, b: Any) -> npt.NDArray[np.float32]:
    """Return the FP32 product; a contraction of length 0 gives zeros."""
    with np.errstate(all="ignore"):  # NaN and Inf in the data are the caller's
        product: npt.NDArray[np.float32] = np.matmul(
            np.asarray(a, np.float32), np.asarray(b, np.float32)
        )
    return product
