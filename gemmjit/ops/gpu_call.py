"""One kind of call on a GPU, made ready once and run many times."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gemmjit import env
from gemmjit.arrays import Frontend
from gemmjit.config import Config
from gemmjit.cuda import executor
from gemmjit.cuda.device import device
from gemmjit.errors import CaptureError
from gemmjit.offsets import check_offsets
from gemmjit.ops.dispatch import (
    LadderKernel,
    host_schedule,
    must_compile,
    plan_for,
    spec_for,
    spec_with,
)
from gemmjit.ops.planning import OPERANDS
from gemmjit.ops.validation import check_overlap, problem_of, result_shape

__all__ = ["GpuCall"]


class GpuCall:
    """A validated problem with its plan bound to a device.

    Parameters
    ----------
    frontend : Frontend
        Framework of the arrays.
    mat_a, mat_b : array
        Operands; shapes, strides, types, device and alignment count, not addresses or values.
    offs : array or None
        Offsets on the device.
    sizes : numpy.ndarray, shape (G,), or None
        Rows per group, where the offsets are on the host.
    out, out_dtype, accumulate, config, stream
        As passed to the call.
    kernel : LadderKernel, optional
        Compiled kernel to use instead of the default choice.

    Raises
    ------
    CaptureError
        If a kernel would have to be compiled or loaded while the stream is captured.
    """

    __slots__ = ("_bound", "_checks", "_dtype", "_frontend", "_ordinal", "_rows", "_shape")

    def __init__(
        self,
        frontend: Frontend,
        mat_a: Any,
        mat_b: Any,
        offs: Any,
        sizes: npt.NDArray[np.int64] | None,
        out: Any,
        out_dtype: Any,
        accumulate: bool,
        config: Config | str | None,
        stream: Any,
        kernel: LadderKernel | None = None,
    ) -> None:
        a, b = frontend.view(mat_a), frontend.view(mat_b)
        f = frontend.view(offs) if offs is not None else None
        o = frontend.view(out) if out is not None else None
        num_groups = f.shape[0] if f is not None else len(sizes if sizes is not None else ())
        problem = problem_of(a, b, f, num_groups, o, out_dtype, accumulate)
        if kernel is not None and f is None:
            problem = replace(problem, schedule=host_schedule(kernel))
        self._frontend = frontend
        self._shape = result_shape(problem.form, a.shape, b.shape, num_groups)
        self._dtype = problem.out_dtype
        self._ordinal = a.device
        self._rows = problem.rows
        self._checks = env.flag("GEMMJIT_CHECK")
        self._bound: executor.BoundPlan | None = None
        if problem.is_empty:
            return
        where = device(a.device)
        if kernel is not None:
            spec = spec_with(problem, kernel)
        else:
            spec = spec_for(problem, where.arch, config)
        handle = frontend.current_stream(a.device)
        if stream is not None:
            handle = executor.stream_handle(stream)
        if must_compile(spec, kernel) and executor.is_capturing(handle):
            raise _forbidden("compiled")
        plan = plan_for(
            problem,
            spec,
            num_sms=where.num_sms,
            offs_is_int64=f is not None and f.dtype.bits == 64,
            group_sizes=sizes,
            kernel=kernel,
        )
        if not executor.ready(plan, a.device) and executor.is_capturing(handle):
            raise _forbidden("loaded")
        if plan.launches:
            self._bound = executor.BoundPlan(plan, OPERANDS, a.device)

    def run(
        self,
        mat_a: Any,
        mat_b: Any,
        offs: Any,
        out: Any,
        pointer_a: int,
        pointer_b: int,
        pointer_out: int,
        stream: Any,
    ) -> Any:
        """Run on arrays like those that the call was made with; returns the result array."""
        frontend = self._frontend
        if self._checks and offs is not None:
            check_offsets(offs, self._rows)
        if out is None:
            out = frontend.empty(self._shape, self._dtype, self._ordinal)
            pointer_out = frontend.pointer(out)
        else:
            self._check_overlap(out, mat_a, mat_b, offs)
        bound = self._bound
        if bound is None:
            return out
        pointer_offs = 0 if offs is None else frontend.pointer(offs)
        pointers = (pointer_a, pointer_b, pointer_out, pointer_offs)
        now = frontend.current_stream(self._ordinal)
        handle = now if stream is None else executor.stream_handle(stream)
        if handle == now:
            bound.run(pointers, now, frontend)
            return out
        # Operands, result and workspaces belong to the current stream: it goes first, and waits.
        executor.order_streams(now, handle, self._ordinal)
        bound.run(pointers, handle, frontend)
        executor.order_streams(handle, now, self._ordinal)
        return out

    def _check_overlap(self, out: Any, mat_a: Any, mat_b: Any, offs: Any) -> None:
        """Check that the result's memory is its own; addresses differ from call to call."""
        view = self._frontend.view
        inputs = [view(mat_a), view(mat_b)]
        if offs is not None:
            inputs.append(view(offs))
        check_overlap(view(out), inputs)


def _forbidden(what: str) -> CaptureError:
    return CaptureError(
        "grouped_mm: expected a call of a kind that has run before, since the stream is captured "
        f"into a CUDA graph; got the first of its kind, whose kernel must be {what}. Call it once "
        "before the capture, or gemmjit.prepare(problem)"
    )
