"""``gemmjit bench epilogues``: what each epilogue costs over the plain store.

All are contenders of one cell, timed in turns on the same operands. Ratios are over the plain store
of the same layout of the weights and type of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gemmjit
from gemmjit.bench.backend import Backend
from gemmjit.bench.cases import Workload
from gemmjit.bench.cell import Bench, Entry, measure_cell
from gemmjit.bench.grouped import workload_to_dict
from gemmjit.bench.inputs import Operands
from gemmjit.bench.peers.own import describe
from gemmjit.bench.peers.peer import Contender, Prepared
from gemmjit.bench.report import cell_to_dict
from gemmjit.config import Config
from gemmjit.dtypes import F32
from gemmjit.epilogue import Chain, RowScale, SwiGLU, chain_of

__all__ = ["EPILOGUES", "epilogue_contender", "run_epilogues"]

#: What is measured; the plain store comes first.
EPILOGUES = (
    "store",
    "bias",
    "row_scale_f32",
    "swiglu_interleaved",
    "swiglu_split",
    "bias+swiglu_split+row_scale_f32",
)


def run_epilogues(
    bench: Bench,
    workloads: Sequence[Workload],
    finished: Callable[[dict[str, Any]], None],
    *,
    epilogues: Sequence[str] = EPILOGUES,
    layouts: Sequence[str] = ("nn", "nt"),
    config: Config | str | None = None,
) -> list[dict[str, Any]]:
    """Measure epilogues on workloads.

    Parameters
    ----------
    bench : Bench
    workloads : sequence of Workload
        fprop or dgrad.
    finished : callable
        Given each result as soon as it is there.
    epilogues : sequence of str
        Names of chains that do not accumulate, beside the plain store.
    layouts : sequence of {"nn", "nt"}
        Of the weights; each is a cell of its own.
    config : Config or str, optional
        As for `gemmjit.grouped_mm`.
    """
    names = tuple(dict.fromkeys(("store", *epilogues)))
    results = []
    for work in workloads:
        for layout in layouts:
            contenders = tuple(
                epilogue_contender(name, work, bench.backend, layout=layout, config=config)
                for name in names
            )
            label = f"{work.label} {layout}"
            cell = measure_cell(bench, label, [Entry(work, contenders)])
            result = {
                **workload_to_dict(work),
                **cell_to_dict(cell, "store"),
                "layout": layout,
            }
            results.append(result)
            finished(result)
    return results


def epilogue_contender(
    name: str,
    workload: Workload,
    backend: Backend,
    *,
    layout: str = "nn",
    config: Config | str | None = None,
) -> Contender:
    """Return `gemmjit.grouped_mm` with an epilogue as a contender.

    Parameters
    ----------
    name : str
        Of the chain.
    workload : Workload
    backend : Backend
    layout : {"nn", "nt"}
        Of the weights.
    config : Config or str, optional
        As for `gemmjit.grouped_mm`.
    """
    chain = chain_of(name)

    def prepare(operands: Operands) -> Prepared:
        a, b, ends = operands.mat_a, operands.mat_b(layout), operands.ends
        read = _draw(chain, workload, backend)
        steps: list[Any] = [SwiGLU(chain.gate)] if chain.gate else []
        if "row_scale" in read:
            steps.append(RowScale(read["row_scale"]))
        bias, epilogue = read.get("bias"), tuple(steps) or None

        def call() -> Any:
            return gemmjit.grouped_mm(a, b, offs=ends, bias=bias, epilogue=epilogue, config=config)

        finish = _finish(chain, read, backend) if chain.steps else None
        return Prepared(call, finish=finish)

    details = describe(workload, backend, config, layout, epilogue=name)
    return Contender(name, name, prepare, layout=layout, details=details)


def _draw(chain: Chain, workload: Workload, backend: Backend) -> dict[str, Any]:
    """Return random arrays for the steps that read one, by their keywords."""
    case = workload.case
    shapes = {
        "bias": (case.num_groups, workload.columns),
        "row_scale": (case.rows + case.spare_rows,),
    }
    found = {}
    for number, step in enumerate(chain.operands):
        keyword = step.kind.keyword
        dtype = F32 if step.option.startswith("f32") else workload.dtype
        found[keyword] = backend.empty(shapes[keyword], dtype)
        backend.draw(found[keyword], 1.0, seed=number + 1)
    return found


def _finish(
    chain: Chain, read: dict[str, Any], backend: Backend
) -> Callable[[int, slice, Any], Any]:
    """Return what the steps make of a group's product, in float64."""

    def finish(group: int, rows: slice, product: Any) -> Any:
        x = product
        if "bias" in read:
            x = x + backend.upcast(read["bias"])[group]
        if chain.gate:
            half = x.shape[1] // 2
            split = chain.gate == "split"
            gate, up = (x[:, :half], x[:, half:]) if split else (x[:, ::2], x[:, 1::2])
            # e to the power of an array, in any framework; gates here are a few units large.
            x = gate / (1 + 2.718281828459045 ** (-gate)) * up
        if "row_scale" in read:
            x = x * backend.upcast(read["row_scale"])[rows][:, None]
        return x

    return finish
