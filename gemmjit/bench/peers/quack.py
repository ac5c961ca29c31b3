"""QuACK's products of variable length, where it can be imported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module, metadata
from itertools import accumulate
from typing import Any, ClassVar

from gemmjit.bench.backend import Backend
from gemmjit.bench.cases import Workload
from gemmjit.bench.inputs import Operands
from gemmjit.bench.peers.peer import Contender, Peer, Prepared, missing_module
from gemmjit.bench.peers.torch_grouped import needs_torch

__all__ = ["Quack"]


class Quack(Peer):
    """`quack.gemm_interface.gemm` with ``cu_seqlens_m`` or ``cu_seqlens_k``, autotuned."""

    name: ClassVar = "quack"
    title: ClassVar = "QuACK, autotuned"

    def available(self, backend: Backend) -> str | None:
        """Return a reason if it is not installed or the arrays are not torch's."""
        return needs_torch(backend) or missing_module("quack")

    def contenders(self, workload: Workload, backend: Backend) -> Sequence[Contender]:
        """Return one contender per layout of the weights."""
        layouts = ("nn",) if workload.form == "wgrad" else ("nn", "nt")
        note = "autotuned beforehand on the same operands"
        return [
            Contender(f"quack {layout}", self.name, _prepare(layout), layout=layout, note=note)
            for layout in layouts
        ]

    def version(self) -> str | None:
        """Return the version of the package."""
        try:
            return metadata.version("quack-kernels")
        except metadata.PackageNotFoundError:
            return None


def _prepare(layout: str) -> Callable[[Operands], Prepared]:
    def prepare(operands: Operands) -> Prepared:
        gemm = import_module("quack.gemm_interface").gemm
        work, backend = operands.workload, operands.backend
        out = backend.empty(work.result_shape, work.dtype)
        # Offsets from row 0 on: a leading zero before the end of each group.
        starts = backend.upload_ends([0, *accumulate(operands.group_sizes)])
        a, b = operands.mat_a, operands.mat_b(layout)
        key = "cu_seqlens_k" if work.form == "wgrad" else "cu_seqlens_m"

        def call() -> Any:
            gemm(a, b, out=out, **{key: starts})
            return out

        return Prepared(call)

    return prepare
