"""The ragged problem of ``gemmjit demo``: a real routing, random data, a float64 reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gemmjit.arch import Arch, targets_for
from gemmjit.config import Config
from gemmjit.constraints import violations
from gemmjit.dtypes import BF16
from gemmjit.kernels import KERNELS, Variant

__all__ = ["GROUP_SIZES", "Case", "cases", "ends", "tiles", "transfers"]

#: Rows per expert of one batch of a trained router with 32 experts.
GROUP_SIZES = (
    *(4, 1026, 1799, 166, 694, 753, 0, 16, 0, 240, 1119, 19, 6, 0, 46, 659),
    *(10, 0, 112, 808, 181, 0, 28, 22, 90, 0, 176, 0, 37, 5, 10, 22),
)

_Floats = npt.NDArray[np.float64]

_BF16_ROUNDING = 2.0**-8  # relative: half a unit in the last of 8 significant bits
_FP32_STEP = 2.0**-23  # of an addition that truncates, as tensor cores do


@dataclass(frozen=True)
class Case:
    """One of the products of training.

    Attributes
    ----------
    name : str
    mat_a, mat_b : numpy.ndarray
        Operands as they lie in memory.
    view : callable
        What turns the stored `mat_b` into the argument of the call.
    """

    name: str
    mat_a: Any
    mat_b: Any
    view: Callable[[Any], Any]

    def compare(self, *results: Any) -> list[tuple[float, float]]:
        """Return of each result its largest error, and its largest ratio of error to bound.

        The reference is float64. The bound is one rounding to bfloat16 of a sum whose FP32
        additions each lose at most a unit in the last place:
        ``|error| <= u |d| + (1 + u) K e sum |a b|``.
        """
        found = [(0.0, 0.0)] * len(results)
        for where, a, b in self._groups():
            exact, magnitude = a @ b, np.abs(a) @ np.abs(b)
            summed = a.shape[1] * _FP32_STEP * magnitude
            bound = _BF16_ROUNDING * (np.abs(exact) + summed) + summed
            for i, result in enumerate(results):
                error, ratio = _distance(np.asarray(result[where], np.float64), exact, bound)
                found[i] = max(found[i][0], error), max(found[i][1], ratio)
        return found

    def _groups(self) -> Iterator[tuple[Any, _Floats, _Floats]]:
        a, b = self.mat_a, self.view(self.mat_b)
        start = 0
        for group, end in enumerate(ends().tolist()):
            rows = slice(start, end)
            start = end
            if b.ndim == 3:
                yield rows, a[rows].astype(np.float64), b[group].astype(np.float64)
            else:
                yield group, a[:, rows].astype(np.float64), b[rows].astype(np.float64)


def _distance(got: _Floats, exact: _Floats, bound: _Floats) -> tuple[float, float]:
    """Return the largest error and the largest ratio to the bound, which may be 0."""
    wrong = np.abs(got - exact)
    error = float(wrong.max(initial=0.0))
    if not np.isfinite(got).all() or (wrong[bound == 0] > 0).any():
        return error, float("inf")
    ratio = np.divide(wrong, bound, out=np.zeros_like(wrong), where=bound > 0)
    return error, float(ratio.max(initial=0.0))


def ends() -> npt.NDArray[np.int32]:
    """Return the end offset of each group."""
    return np.cumsum(GROUP_SIZES).astype(np.int32)


def cases(k: int, n: int) -> Iterator[Case]:
    """Yield fprop, dgrad and wgrad of one layer, on random data."""
    random = np.random.default_rng(0)
    rows, groups = sum(GROUP_SIZES), len(GROUP_SIZES)

    def draw(*shape: int) -> Any:
        return random.standard_normal(shape, dtype=np.float32).astype(BF16.numpy)

    x, w, dy = draw(rows, k), draw(groups, k, n), draw(rows, n)
    yield Case("fprop", x, w, lambda weights: weights)
    yield Case("dgrad", dy, w, lambda weights: weights.swapaxes(1, 2))
    yield Case("wgrad", x.T, dy, lambda gradient: gradient)


def tiles(arch: Arch) -> Iterator[tuple[str, Config]]:
    """Yield the name of each kernel of an architecture with each of its shipped tiles."""
    for kernel in KERNELS.values():
        targets = targets_for(arch, kernel.accelerated)
        for config in kernel.shipped_configs():
            if targets and not violations(kernel, config, Variant(), targets[0]):
                yield kernel.name, config


def transfers(on_gpu: bool) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Return what brings an array to the device, and back."""
    if not on_gpu:
        return (lambda array: array), (lambda array: array)
    import cupy

    def upload(array: Any) -> Any:
        if not array.flags.c_contiguous:  # as it lies, not as a copy in another order
            return upload(array.T).T
        if array.dtype != BF16.numpy:
            return cupy.asarray(array)
        # As bits: no kernel of CuPy's own is compiled for this.
        return cupy.asarray(array.view(np.uint16)).view(BF16.numpy)

    return upload, lambda array: array.get()
