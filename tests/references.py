"""What a grouped GEMM is, in float64 and plain loops. Independent of gemmjit on purpose."""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numpy as np

_ROUNDING = {
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
    "float32": np.dtype(np.float32),
}


def clamp(ends: Sequence[int], rows: int) -> list[int]:
    """Return end offsets with each one clamped to [the one before, rows]."""
    clamped = []
    previous = 0
    for end in ends:
        previous = min(max(int(end), previous), rows)
        clamped.append(previous)
    return clamped


def fprop(
    a: np.ndarray, b: np.ndarray, ends: Sequence[int], start: np.ndarray | None = None
) -> np.ndarray:
    """(M, K) @ (G, K, N) -> (M, N).

    Rows of no group are zero, or what `start` holds. `start` is not added to anything.
    """
    out = np.zeros((a.shape[0], b.shape[2])) if start is None else start.astype(np.float64)
    first = 0
    for group, end in enumerate(ends):
        for row in range(first, end):
            # Row by row: no other row can have a say.
            out[row] = _product(a[row : row + 1], b[group])[0]
        first = end
    return out


def wgrad(a: np.ndarray, b: np.ndarray, ends: Sequence[int]) -> np.ndarray:
    """(K, M) @ (M, N) -> (G, K, N)."""
    out = np.zeros((len(ends), a.shape[0], b.shape[1]))
    first = 0
    for group, end in enumerate(ends):
        out[group] = _product(a[:, first:end], b[first:end])
        first = end
    return out


def rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    """Return float64 values rounded once to a type (to nearest even), as float64.

    The values must be exact in float32, for which one rounding is all that happens.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        single = values.astype(np.float32)
        same = (single == values) | np.isnan(values)
        assert same.all(), "the reference is not exact in float32; use smaller integers"
        return single.astype(_ROUNDING[dtype]).astype(np.float64)


def assert_same(got: np.ndarray, want: np.ndarray) -> None:
    """Fail unless two arrays are equal in every element; NaN equals NaN."""
    assert got.shape == want.shape, f"shape {got.shape}, expected {want.shape}"
    wrong = ~((got == want) | (np.isnan(got) & np.isnan(want)))
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise AssertionError(
            f"{int(wrong.sum())} of {wrong.size} elements are wrong; "
            f"first {at}: got {got[at]}, expected {want[at]}"
        )


def _product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.matmul(a.astype(np.float64), b.astype(np.float64))
