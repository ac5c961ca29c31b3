"""One kind of call on a GPU, made ready once and run many times."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gemmjit import env
from gemmjit.arrays import ArrayView, Frontend
from gemmjit.config import Config
from gemmjit.cuda import executor
from gemmjit.cuda.device import device
from gemmjit.errors import CaptureError
from gemmjit.offsets import check_offsets
from gemmjit.ops.dispatch import LadderKernel, plan_for, spec_for, spec_with
from gemmjit.ops.validation import check_out, problem_of, result_shape

__all__ = ["GpuCall"]


class GpuCall:
    """A validated problem with its plan bound to a device.

    Parameters
    ----------
    frontend : Frontend
    a, b : ArrayView
        Operands; shapes, strides, types, device and alignment count, not the addresses.
    f : ArrayView or None
        Offsets on the device.
    sizes : numpy.ndarray, shape (G,), or None
        Rows per group, where the offsets are on the host.
    o : ArrayView or None
        The caller's result array.
    out_dtype, accumulate, config, stream
        As passed to the call.
    kernel : LadderKernel, optional
        Compiled kernel to use instead of the default choice.

    Raises
    ------
    CaptureError
        If a kernel would have to be compiled or loaded while the stream is captured.
    """

    __slots__ = ("_bound", "_checks", "_dtype", "_ordinal", "_rows", "_shape")

    def __init__(
        self,
        frontend: Frontend,
        a: ArrayView,
        b: ArrayView,
        f: ArrayView | None,
        sizes: npt.NDArray[np.int64] | None,
        o: ArrayView | None,
        out_dtype: Any,
        accumulate: bool,
        config: Config | str | None,
        stream: Any,
        kernel: LadderKernel | None = None,
    ) -> None:
        num_groups = f.shape[0] if f is not None else len(sizes if sizes is not None else ())
        problem = problem_of(a, b, f, num_groups, o, out_dtype, accumulate)
        if kernel is not None and f is None:
            problem = replace(problem, schedule=kernel.spec.variant.schedule)
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
        plan = plan_for(
            problem,
            spec,
            num_sms=where.num_sms,
            offs_is_int64=f is not None and f.dtype.bits == 64,
            group_sizes=sizes,
            kernel=kernel,
        )
        if executor.is_capturing(handle) and not executor.ready(plan, a.device):
            raise CaptureError(_CAPTURE)
        if plan.launches:
            self._bound = executor.BoundPlan(plan, a.device)

    def check_out(self, o: ArrayView, a: ArrayView, b: ArrayView, f: ArrayView | None) -> None:
        """Check that the result's memory is its own; addresses differ from call to call."""
        check_out(o, self._shape, None, [a, b] + ([f] if f is not None else []))

    def run(
        self,
        frontend: Frontend,
        a: ArrayView,
        b: ArrayView,
        f: ArrayView | None,
        offs: Any,
        out: Any,
        o: ArrayView | None,
        stream: Any,
    ) -> Any:
        """Run on arrays like those that the call was made with; returns the result array."""
        if self._checks and f is not None:
            check_offsets(offs, self._rows)
        if o is None:
            out = frontend.empty(self._shape, self._dtype, self._ordinal)
            pointer = frontend.view(out).pointer
        else:
            pointer = o.pointer
        if self._bound is None:
            return out
        addresses = {
            "mat_a": a.pointer,
            "mat_b": b.pointer,
            "out": pointer,
            "offs": f.pointer if f is not None else 0,
        }
        now = frontend.current_stream(self._ordinal)
        if stream is None:
            self._bound.run(addresses, now, frontend)
            return out
        handle = executor.stream_handle(stream)
        if handle == now:
            self._bound.run(addresses, now, frontend)
            return out
        # Operands, result and workspaces belong to the current stream: it goes first, and waits.
        executor.order_streams(now, handle, self._ordinal)
        self._bound.run(addresses, handle, frontend)
        executor.order_streams(handle, now, self._ordinal)
        return out


_CAPTURE = (
    "grouped_mm: the first call of this kind compiles or loads a kernel, which a CUDA graph "
    "capture forbids. Call it once before the capture, or gemmjit.prepare(problem)"
)
