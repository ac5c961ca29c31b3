"""torch's own grouped product."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module, metadata
from typing import Any, ClassVar

from gemmjit.bench.backend import Backend
from gemmjit.bench.cases import Workload
from gemmjit.bench.inputs import Operands
from gemmjit.bench.peers.peer import Contender, Peer, Prepared

__all__ = ["TorchGrouped", "needs_torch"]


class TorchGrouped(Peer):
    """`torch.nn.functional.grouped_mm`, with the weights in both layouts."""

    name: ClassVar = "torch"
    title: ClassVar = "torch.nn.functional.grouped_mm"

    def available(self, backend: Backend) -> str | None:
        """Return a reason if the arrays are not torch's or it has no such function."""
        return needs_torch(backend) or (
            None if _function() is not None else "this torch has no grouped_mm; 2.8 or newer has"
        )

    def contenders(self, workload: Workload, backend: Backend) -> Sequence[Contender]:
        """Return one contender per layout of the weights."""
        layouts = ("nn",) if workload.form == "wgrad" else ("nn", "nt")
        return [
            Contender(f"torch {layout}", self.name, _prepare(layout), layout=layout)
            for layout in layouts
        ]

    def version(self) -> str | None:
        """Return torch's version."""
        return metadata.version("torch")


def needs_torch(backend: Backend) -> str | None:
    """Return why a peer that takes torch tensors cannot run on a backend, or None."""
    if backend.framework == "torch":
        return None
    return f"needs torch tensors on a GPU; this run uses {backend.framework}"


def _prepare(layout: str) -> Callable[[Operands], Prepared]:
    def prepare(operands: Operands) -> Prepared:
        function = _function()
        assert function is not None
        a, b, ends = operands.mat_a, operands.mat_b(layout), operands.ends
        return Prepared(lambda: function(a, b, offs=ends))

    return prepare


def _function() -> Callable[..., Any] | None:
    torch = import_module("torch")
    public = getattr(torch.nn.functional, "grouped_mm", None)
    found: Callable[..., Any] | None = public or getattr(torch, "_grouped_mm", None)
    return found
