"""``gemmjit bench epilogues``: what each epilogue costs over the plain store.

All are contenders of one cell, timed in turns on the same operands. Ratios are over the plain store
of the same layout of the weights. A chain that accumulates has float32 results, which it reads too:
its ratio is over the plain store of float32, which is a contender as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gemmjit
from gemmjit.bench.backend import Backend
from gemmjit.bench.cases import Pass, Workload
from gemmjit.bench.cell import Bench, Entry, measure_cell
from gemmjit.bench.grouped import workload_to_dict
from gemmjit.bench.inputs import Operands
from gemmjit.bench.peers.own import describe
from gemmjit.bench.peers.peer import Contender, Prepared
from gemmjit.bench.report import cell_to_dict
from gemmjit.config import Config
from gemmjit.dtypes import F32
from gemmjit.epilogue import Chain, RowScale, SwiGLU, chain_of

__all__ = ["EPILOGUES", "STORE_F32", "epilogue_contender", "epilogue_names", "run_epilogues"]

#: The plain store of float32, into an array of the caller's: no chain has that name.
STORE_F32 = "store_f32"

#: What is measured; the plain store comes first.
EPILOGUES = (
    "store",
    "bias",
    "row_scale_f32",
    "swiglu_interleaved",
    "swiglu_split",
    "bias+swiglu_split+row_scale_f32",
    STORE_F32,
    "accumulate",
)


def epilogue_names(names: Sequence[str], form: Pass) -> tuple[str, ...]:
    """Return what is timed for one product: what is asked for, and what that is compared with.

    Parameters
    ----------
    names : sequence of str
        Of chains, or `STORE_F32`.
    form : {"fprop", "dgrad", "wgrad"}
        wgrad has no steps but ``accumulate``; chains with others are left out.

    Raises
    ------
    InvalidConfigError
        If a name is no chain's.
    """
    asked = [name if name == STORE_F32 else chain_of(name).name for name in names]
    if form == "wgrad":
        asked = [name for name in asked if name in ("store", STORE_F32, "accumulate")]
    plain = [name for name in asked if not _is_f32(name)]
    wide = [name for name in asked if _is_f32(name)]
    return tuple(dict.fromkeys(("store", *plain, *([STORE_F32] if wide else []), *wide)))


def _is_f32(name: str) -> bool:
    """Return whether the result is float32 whatever the operands are."""
    return name == STORE_F32 or chain_of(name).accumulates


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
        wgrad is timed with what it has of the chains; see `epilogue_names`.
    finished : callable
        Given each result as soon as it is there.
    epilogues : sequence of str
        Names of chains, or `STORE_F32`, beside the plain store.
    layouts : sequence of {"nn", "nt"}
        Of the weights; each is a cell of its own. wgrad reads no weights, and has one.
    config : Config or str, optional
        As for `gemmjit.grouped_mm`.
    """
    results = []
    for work in workloads:
        names = epilogue_names(epilogues, work.form)
        over = {name: STORE_F32 for name in names if _is_f32(name) and name != STORE_F32}
        for layout in ("nn",) if work.form == "wgrad" else layouts:
            contenders = tuple(
                epilogue_contender(name, work, bench.backend, layout=layout, config=config)
                for name in names
            )
            label = f"{work.label} {layout}"
            cell = measure_cell(bench, label, [Entry(work, contenders)])
            result = {
                **workload_to_dict(work),
                **cell_to_dict(cell, "store", over),
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
        Of the chain, or `STORE_F32`.
    workload : Workload
    backend : Backend
    layout : {"nn", "nt"}
        Of the weights.
    config : Config or str, optional
        As for `gemmjit.grouped_mm`.
    """
    chain = chain_of("store" if name == STORE_F32 else name)
    dtype = F32 if _is_f32(name) else None

    def prepare(operands: Operands) -> Prepared:
        a, b, ends = operands.mat_a, operands.mat_b(layout), operands.ends
        read = _draw(chain, workload, backend)
        steps: list[Any] = [SwiGLU(chain.gate)] if chain.gate else []
        if "row_scale" in read:
            steps.append(RowScale(read["row_scale"]))
        bias, epilogue = read.get("bias"), tuple(steps) or None
        out = None
        if dtype is not None:
            out = backend.empty(_result_shape(chain, workload), dtype)
            backend.fill(out, 0.0)  # sums of garbage may be no numbers, forever

        def call() -> Any:
            return gemmjit.grouped_mm(
                *(a, b),
                offs=ends,
                bias=bias,
                epilogue=epilogue,
                out=out,
                accumulate=chain.accumulates,
                config=config,
            )

        finish = _finish(chain, read, backend) if chain.operands or chain.gate else None
        return Prepared(call, accumulates=chain.accumulates, dtype=dtype, finish=finish)

    details = describe(workload, backend, config, layout, epilogue=chain.name, out_dtype=dtype)
    note = "" if dtype is None else "float32 result; rates and floor count the operands' type"
    return Contender(name, name, prepare, layout=layout, note=note, details=details)


def _result_shape(chain: Chain, workload: Workload) -> tuple[int, ...]:
    *rows, columns = workload.result_shape
    return (*rows, columns // chain.folds)


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
