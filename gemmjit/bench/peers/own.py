"""gemmjit itself, on whatever arrays the backend has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import gemmjit
from gemmjit.arch import Arch
from gemmjit.bench.backend import Backend
from gemmjit.bench.cases import Workload
from gemmjit.bench.inputs import Operands
from gemmjit.bench.peers.peer import Contender, Peer, Prepared
from gemmjit.build import build
from gemmjit.config import Config
from gemmjit.dtypes import DType
from gemmjit.ops.dispatch import spec_for

__all__ = ["Gemmjit", "describe", "own_contender"]


class Gemmjit(Peer):
    """`gemmjit.grouped_mm` with its own choice of kernel."""

    name: ClassVar = "gemmjit"
    title: ClassVar = "gemmjit.grouped_mm"

    def available(self, backend: Backend) -> str | None:
        """Return None: it runs everywhere."""
        return None

    def contenders(self, workload: Workload, backend: Backend) -> Sequence[Contender]:
        """Return one contender per layout of the weights."""
        layouts = ("nn",) if workload.form == "wgrad" else ("nn", "nt")
        return [
            own_contender(f"gemmjit {layout}", workload, backend, layout=layout)
            for layout in layouts
        ]

    def version(self) -> str | None:
        """Return gemmjit's version."""
        return gemmjit.__version__


def own_contender(
    name: str,
    workload: Workload,
    backend: Backend,
    *,
    config: Config | str | None = None,
    layout: str = "nn",
    peer: str = "gemmjit",
    into: bool = False,
) -> Contender:
    """Return gemmjit with a given config as a contender.

    Parameters
    ----------
    name, peer : str
    workload : Workload
    backend : Backend
    config : Config or str, optional
        As for `gemmjit.grouped_mm`.
    layout : {"nn", "nt"}
        Of the weights.
    into : bool
        Write into an array that exists (``out=``), so that rows behind the last group are left
        alone, instead of a new one for each call.
    """

    def prepare(operands: Operands) -> Prepared:
        a, b, ends = operands.mat_a, operands.mat_b(layout), operands.ends
        out = backend.empty(operands.workload.result_shape, workload.dtype) if into else None

        def call() -> Any:
            return gemmjit.grouped_mm(a, b, offs=ends, out=out, config=config)

        return Prepared(call)

    details = describe(workload, backend, config, layout)
    return Contender(name, peer, prepare, layout=layout, details=details)


def describe(
    workload: Workload,
    backend: Backend,
    config: Config | str | None,
    layout: str,
    epilogue: str = "store",
    out_dtype: DType | None = None,
) -> dict[str, Any]:
    """Return kernel, tile and resources of a contender; only the reason where it has none."""
    try:
        arch, gpu = Arch.parse(backend.facts.arch), backend.facts.name
        spec = spec_for(workload.problem(layout, epilogue, out_dtype), arch, config, gpu=gpu)
        kernel = build(spec)
    except Exception as error:  # the contender itself will fail with it, and be reported
        return {"error": f"{type(error).__name__}: {error}"}
    return {
        "kernel": spec.name,
        "config": spec.config.to_dict(),
        "tile": str(spec.config),
        "entry": spec.entry,
        "target": str(spec.target),
        "registers": kernel.registers,
        "spill_bytes": kernel.spills,
        "smem_bytes": kernel.smem_bytes + kernel.resources.smem_bytes,
        "resident_blocks": kernel.occupancy,
        "nvrtc": kernel.nvrtc_version,
    }
