"""Groups padded to one capacity and multiplied as a batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import accumulate
from typing import Any, ClassVar

from gemmjit.bench.backend import Backend
from gemmjit.bench.cases import Case, Workload
from gemmjit.bench.inputs import Operands
from gemmjit.bench.peers.peer import Contender, Peer, Prepared
from gemmjit.bench.peers.torch_grouped import needs_torch

__all__ = ["PaddedBmm", "capacity_of"]

#: Rows of a padded group over the mean.
CAPACITY_FACTOR = 1.25


class PaddedBmm(Peer):
    """`torch.bmm` on groups padded to 1.25 times their mean size.

    Rows that exceed the capacity would be dropped, so that only routings which fit are measured.
    Packing and unpacking are not timed, and padded rows never count as work.
    """

    name: ClassVar = "padded"
    title: ClassVar = f"torch.bmm on groups padded to capacity {CAPACITY_FACTOR}"

    def available(self, backend: Backend) -> str | None:
        """Return a reason if the arrays are not torch's."""
        return needs_torch(backend)

    def contenders(self, workload: Workload, backend: Backend) -> Sequence[Contender]:
        """Return the batch, or nothing if a group exceeds the capacity."""
        if max(workload.case.group_sizes) > capacity_of(workload.case):
            return []
        layout = "nt" if workload.form == "dgrad" else "nn"
        note = f"capacity {CAPACITY_FACTOR}; packing and unpacking are not timed"
        return [Contender("padded", self.name, _prepare(layout), layout=layout, note=note)]


def capacity_of(case: Case) -> int:
    """Return the rows of a padded group."""
    return math.ceil(CAPACITY_FACTOR * case.rows / case.num_groups)


def _prepare(layout: str) -> Callable[[Operands], Prepared]:
    def prepare(operands: Operands) -> Prepared:
        torch = import_module("torch")
        work, backend = operands.workload, operands.backend
        groups, capacity = work.case.num_groups, capacity_of(work.case)
        sizes = operands.group_sizes
        starts = [end - size for end, size in zip(accumulate(sizes), sizes, strict=True)]
        wgrad = work.form == "wgrad"
        width = work.case.k if wgrad else work.contraction
        left = backend.empty((groups, capacity, width), work.dtype)
        right = backend.empty((groups, capacity, work.case.n), work.dtype) if wgrad else None

        def pack() -> None:
            a = backend.swap_last(operands.mat_a) if wgrad else operands.mat_a
            left.zero_()
            if right is not None:
                right.zero_()
            for group, (start, size) in enumerate(zip(starts, sizes, strict=True)):
                left[group, :size] = a[start : start + size]
                if right is not None:
                    right[group, :size] = operands.mat_b()[start : start + size]

        pack()
        if right is not None:
            transposed = backend.swap_last(left)
            return Prepared(lambda: torch.bmm(transposed, right), refresh=pack)
        weights = operands.mat_b(layout)

        def unpack(padded: Any) -> Any:
            rows = work.result_shape[0]
            out = backend.empty((rows, work.columns), work.dtype)
            for group, (start, size) in enumerate(zip(starts, sizes, strict=True)):
                out[start : start + size] = padded[group, :size]
            return out

        return Prepared(lambda: torch.bmm(left, weights), result=unpack, refresh=pack)

    return prepare
