"""Operands: random, several copies so that they exceed the L2 cache, redrawn before they count."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from gemmjit.bench.backend import Backend
from gemmjit.bench.cases import Workload
from gemmjit.errors import InvalidProblemError

__all__ = ["Inputs", "Operands", "copies_for", "require_random"]

#: All copies together are at least this many times the L2 cache.
_TIMES_L2 = 3
_MAX_COPIES = 64
_MIN_COPIES = 2

_SAMPLE = 4096
_MAX_ZEROS = 0.1  # of the sample
_MIN_DISTINCT = 64


class Operands:
    """One copy of the operands of a workload.

    Weights exist in the layouts that contenders ask for, with the same values in each.

    Parameters
    ----------
    backend : Backend
    workload : Workload
    ends : array, shape (G,), int32
        End offsets on the device.
    """

    def __init__(self, backend: Backend, workload: Workload, ends: Any) -> None:
        self.backend = backend
        self.workload = workload
        self.ends = ends
        case = workload.case
        self._rows = case.rows + case.spare_rows
        width = case.n if workload.form == "dgrad" else case.k
        self._left = backend.empty((self._rows, width), workload.dtype)
        self._right: dict[str, Any] = {}
        if workload.form == "wgrad":
            self._right["nn"] = backend.empty((self._rows, case.n), workload.dtype)
        self._seed = 0

    @property
    def group_sizes(self) -> tuple[int, ...]:
        """Rows of each group."""
        return self.workload.case.group_sizes

    @property
    def mat_a(self) -> Any:
        """First operand: ``(rows, contraction)``, or the transposed view ``(k, rows)`` of wgrad."""
        if self.workload.form == "wgrad":
            return self.backend.swap_last(self._left)
        return self._left

    def mat_b(self, layout: str = "nn") -> Any:
        """Return the second operand.

        Parameters
        ----------
        layout : {"nn", "nt"}
            For weights: whether their columns (nn) or the contraction (nt) are contiguous. Either
            way the shape is ``(G, contraction, columns)``. wgrad has ``(rows, n)`` and nn only.

        Raises
        ------
        InvalidProblemError
            If there is no such layout.
        """
        if layout not in ("nn", "nt") or (self.workload.form == "wgrad" and layout != "nn"):
            raise InvalidProblemError(
                f"layout: expected nn, or nt for weights; got {layout!r} for {self.workload.form}"
            )
        if layout not in self._right:
            work = self.workload
            shape = [work.case.num_groups, work.contraction, work.columns]
            if layout == "nt":
                shape[1:] = shape[2], shape[1]
            self._right[layout] = self.backend.empty(tuple(shape), work.dtype)
            self._draw_right(layout)
        stored = self._right[layout]
        return self.backend.swap_last(stored) if layout == "nt" else stored

    def redraw(self, seed: int) -> None:
        """Overwrite every array with new random values.

        Activations have unit variance; weights such that results have it too.
        """
        self._seed = seed
        self.backend.draw(self._left, 1.0, seed)
        for layout in self._right:
            self._draw_right(layout)

    def arrays(self) -> dict[str, Any]:
        """Return every array by a name, as it lies in memory."""
        return {"mat_a": self._left} | {f"mat_b ({k})": v for k, v in self._right.items()}

    def _draw_right(self, layout: str) -> None:
        weights = self.workload.form != "wgrad"
        scale = self.workload.contraction**-0.5 if weights else 1.0
        # A layout of its own has values of its own: contenders are compared with a product of the
        # very arrays that they were given.
        offset = 1 if layout == "nn" else 2
        self.backend.draw(self._right[layout], scale, self._seed + offset)


class Inputs:
    """All copies of the operands of a workload.

    Parameters
    ----------
    backend : Backend
    workload : Workload
    copies : int, optional
        By default `copies_for`.
    seed : int
        Of the first drawing.
    """

    def __init__(
        self, backend: Backend, workload: Workload, copies: int | None = None, seed: int = 0
    ) -> None:
        self.backend = backend
        self.workload = workload
        number = copies or copies_for(workload.buffer_bytes, backend.facts.l2_bytes)
        ends = backend.upload_ends(list(itertools.accumulate(workload.case.group_sizes)))
        self.copies = tuple(Operands(backend, workload, ends) for _ in range(number))
        self.redraw(seed)

    @property
    def nbytes(self) -> int:
        """Bytes of operands and results of all copies."""
        return len(self.copies) * self.workload.buffer_bytes

    @property
    def exceed_l2(self) -> bool:
        """Whether all copies together are larger than the L2 cache."""
        return self.nbytes > self.backend.facts.l2_bytes

    def redraw(self, seed: int) -> None:
        """Overwrite every copy with values of its own."""
        for number, operands in enumerate(self.copies):
            operands.redraw((seed * 1_000_003 + number) * 4)

    def require_random(self) -> None:
        """Check every array of every copy with `require_random`."""
        for operands in self.copies:
            for name, array in operands.arrays().items():
                require_random(self.backend, array, name)


def copies_for(nbytes: int, l2_bytes: int) -> int:
    """Return how many copies of operands make a rotation that the L2 cache cannot serve.

    At least two, so that no call finds what the one before it left, and 64 at most.
    """
    needed = -(-_TIMES_L2 * l2_bytes // max(nbytes, 1))
    return min(max(needed, _MIN_COPIES), _MAX_COPIES)


def require_random(backend: Backend, array: Any, name: str) -> None:
    """Refuse an array that does not look like random data.

    Zeros and constants draw less power and so run at higher clocks; they also hide wrong indexing.

    Raises
    ------
    InvalidProblemError
        If many of the elements are zero, few are distinct, or one is not finite.
    """
    values = [float(v) for v in backend.sample(array, _SAMPLE)]
    reason = _not_random(values, math.prod(array.shape))
    if reason:
        raise InvalidProblemError(
            f"{name}: expected random data for a measurement; got {reason}. "
            "Draw it from a normal distribution"
        )


def _not_random(values: Sequence[float], size: int) -> str:
    if any(v != v or abs(v) == float("inf") for v in values):
        return "a value that is not finite"
    zeros = sum(1 for v in values if v == 0.0)
    if zeros > _MAX_ZEROS * len(values):
        return f"{zeros} zeros among {len(values)} elements"
    distinct = len(set(values))
    if distinct < min(_MIN_DISTINCT, max(2, min(size, len(values)) // 8)):
        return f"{distinct} distinct values among {len(values)} elements"
    return ""
