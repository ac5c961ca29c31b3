"""One cuBLAS product per group: what a program does that has no grouped product."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import accumulate
from typing import Any, ClassVar

from gemmjit.bench.backend import Backend
from gemmjit.bench.cases import Workload
from gemmjit.bench.inputs import Operands
from gemmjit.bench.peers.peer import Contender, Peer, Prepared
from gemmjit.bench.peers.torch_grouped import needs_torch

__all__ = ["CublasLoop"]


class CublasLoop(Peer):
    """`torch.mm` for each group that has rows, with group sizes known to the host."""

    name: ClassVar = "cublas"
    title: ClassVar = "torch.mm per group (cuBLAS)"

    def available(self, backend: Backend) -> str | None:
        """Return a reason if the arrays are not torch's."""
        return needs_torch(backend)

    def contenders(self, workload: Workload, backend: Backend) -> Sequence[Contender]:
        """Return the loop, in the layout that training gives the weights."""
        layout = "nt" if workload.form == "dgrad" else "nn"
        note = "group sizes are read by the host beforehand; empty groups cost nothing"
        return [Contender("cublas", self.name, _prepare(layout), layout=layout, note=note)]


def _prepare(layout: str) -> Callable[[Operands], Prepared]:
    def prepare(operands: Operands) -> Prepared:
        torch = import_module("torch")
        a, b = operands.mat_a, operands.mat_b(layout)
        work = operands.workload
        out = operands.backend.empty(work.result_shape, work.dtype)
        ends = list(accumulate(operands.group_sizes))
        products: list[tuple[Any, Any, Any]] = []
        empty: list[Any] = []
        for group, (end, size) in enumerate(zip(ends, operands.group_sizes, strict=True)):
            rows = slice(end - size, end)
            if work.form == "wgrad":
                if size:
                    products.append((a[:, rows], b[rows], out[group]))
                else:
                    empty.append(out[group])
            elif size:
                products.append((a[rows], b[group], out[rows]))

        def call() -> Any:
            for left, right, result in products:
                torch.mm(left, right, out=result)
            for result in empty:
                result.zero_()
            return out

        return Prepared(call)

    return prepare
