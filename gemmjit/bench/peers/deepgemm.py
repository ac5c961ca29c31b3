"""DeepGEMM's grouped products, where it can be imported.

On Hopper its contiguous layout wants every group padded to a multiple of 128 rows; its gradients of
weights accumulate into FP32 and want the group sizes on the host as well. Packing is not timed, and
padded rows never count as work (they do in the library's own benchmark).
"""

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
from gemmjit.dtypes import BF16, F32

__all__ = ["DeepGemm"]

_ALIGNMENT = 128  # rows, on Hopper


class DeepGemm(Peer):
    """`deep_gemm.m_grouped_bf16_gemm_*_contiguous` and its k-grouped sibling."""

    name: ClassVar = "deepgemm"
    title: ClassVar = "DeepGEMM, contiguous layout, groups padded to 128 rows"

    def available(self, backend: Backend) -> str | None:
        """Return a reason if it is not installed or the arrays are not torch's."""
        return needs_torch(backend) or missing_module("deep_gemm")

    def contenders(self, workload: Workload, backend: Backend) -> Sequence[Contender]:
        """Return one contender per layout of the weights; none but for bfloat16."""
        if workload.dtype is not BF16:
            return []
        if workload.form == "wgrad":
            note = "adds into FP32; groups padded to 128 rows, packing not timed"
            return [Contender("deepgemm", self.name, _prepare_wgrad, note=note)]
        note = "groups padded to 128 rows, packing not timed"
        return [
            Contender(f"deepgemm {layout}", self.name, _prepare(layout), layout=layout, note=note)
            for layout in ("nt", "nn")
        ]

    def version(self) -> str | None:
        """Return the version of the package."""
        return _version("deep_gemm", "deep-gemm")


class _Padding:
    """Where each group's rows lie once every group is padded."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = tuple(sizes)
        self.padded = [-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes]
        self.starts = [e - s for e, s in zip(accumulate(sizes), sizes, strict=True)]
        self.padded_starts = [
            e - p for e, p in zip(accumulate(self.padded), self.padded, strict=True)
        ]
        self.rows = sum(self.padded)

    def pack(self, source: Any, target: Any) -> None:
        """Copy rows to where they lie padded; the rest becomes zero."""
        target.zero_()
        for size, start, to in zip(self.sizes, self.starts, self.padded_starts, strict=True):
            target[to : to + size] = source[start : start + size]

    def unpack(self, source: Any, target: Any) -> Any:
        """Copy rows back."""
        for size, start, at in zip(self.sizes, self.starts, self.padded_starts, strict=True):
            target[start : start + size] = source[at : at + size]
        return target


def _prepare(layout: str) -> Callable[[Operands], Prepared]:
    def prepare(operands: Operands) -> Prepared:
        torch = import_module("torch")
        library = import_module("deep_gemm")
        function = getattr(library, f"m_grouped_bf16_gemm_{layout}_contiguous")
        work, backend = operands.workload, operands.backend
        padding = _Padding(operands.group_sizes)
        packed = backend.empty((padding.rows, work.contraction), work.dtype)
        out = backend.empty((padding.rows, work.columns), work.dtype)
        owners = torch.full((padding.rows,), -1, dtype=torch.int32)
        for group, (start, size) in enumerate(
            zip(padding.padded_starts, padding.sizes, strict=True)
        ):
            owners[start : start + size] = group
        owners = owners.to(packed.device)
        weights = operands.mat_b(layout)
        stored = backend.swap_last(weights) if layout == "nt" else weights

        def refresh() -> None:
            padding.pack(operands.mat_a, packed)

        def call() -> Any:
            function(packed, stored, out, owners)
            return out

        def result(array: Any) -> Any:
            return padding.unpack(array, backend.empty(work.result_shape, work.dtype))

        refresh()
        return Prepared(call, result=result, refresh=refresh)

    return prepare


def _prepare_wgrad(operands: Operands) -> Prepared:
    torch = import_module("torch")
    function = import_module("deep_gemm").k_grouped_bf16_gemm_tn_contiguous
    work, backend = operands.workload, operands.backend
    padding = _Padding(operands.group_sizes)
    left = backend.empty((padding.rows, work.case.k), work.dtype)
    right = backend.empty((padding.rows, work.case.n), work.dtype)
    out = backend.empty(work.result_shape, F32)
    out.zero_()
    sizes = torch.tensor(padding.padded, dtype=torch.int32).to(left.device)

    def refresh() -> None:
        padding.pack(backend.swap_last(operands.mat_a), left)
        padding.pack(operands.mat_b(), right)

    def call() -> Any:
        function(left, right, out, padding.padded, sizes, out)
        return out

    refresh()
    return Prepared(call, refresh=refresh, accumulates=True, dtype=F32)


def _version(*names: str) -> str | None:
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None
