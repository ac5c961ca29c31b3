"""One kind of call on a GPU, made ready once and run many times."""

from __future__ import annotations

from collections.abc import Callable
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
from gemmjit.ops.dispatch import (
    LadderKernel,
    host_schedule,
    must_compile,
    plan_for,
    spec_for,
    spec_with,
)
from gemmjit.ops.fused import Fused
from gemmjit.ops.planning import operands_of
from gemmjit.ops.validation import check_overlap, problem_of, result_shape

__all__ = ["GpuCall"]

Launch = Callable[[tuple[int, ...], int, int, Frontend], None]


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
    fused : Fused, optional
        Steps of the epilogue; `run` is given the addresses of what they read behind the others.

    Raises
    ------
    CaptureError
        If a kernel would have to be compiled or loaded while the stream is captured.
    """

    __slots__ = (
        "_allocate",
        "_checks",
        "_frontend",
        "_launch",
        "_ordinal",
        "_pointer",
        "_reaches",
        "_read_stream",
        "_rows",
    )

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
        fused: Fused | None = None,
    ) -> None:
        a, b = frontend.view(mat_a), frontend.view(mat_b)
        f = frontend.view(offs) if offs is not None else None
        o = frontend.view(out) if out is not None else None
        num_groups = f.shape[0] if f is not None else len(sizes if sizes is not None else ())
        steps = fused.views(frontend) if fused is not None else None
        problem = problem_of(a, b, f, num_groups, o, out_dtype, accumulate, steps)
        if kernel is not None and f is None:
            problem = replace(problem, schedule=host_schedule(kernel))
        shape = result_shape(problem.form, a.shape, b.shape, num_groups, problem.chain.folds)
        # Callables that take no argument of ours: each step between two calls costs as they do.
        self._allocate = frontend.allocator(shape, problem.out_dtype, a.device)
        self._read_stream = frontend.stream_reader(a.device)
        self._pointer = frontend.pointer
        self._launch: Launch | None = None
        self._frontend = frontend
        self._ordinal = a.device
        self._rows = problem.rows
        self._checks = env.flag("GEMMJIT_CHECK")
        views = [v for v in (a, b, f, o) if v is not None] if o is not None else []
        self._reaches = [_reach(view) for view in views]
        if problem.is_empty:
            return
        where = device(a.device)
        if kernel is not None:
            spec, kernel = spec_with(problem, kernel)
        else:
            spec = spec_for(problem, where.arch, config, gpu=where.name)
        handle = frontend.current_stream(a.device)
        if stream is not None:
            handle = executor.stream_handle(stream)
        if must_compile(spec, kernel) and executor.is_capturing(handle, a.device):
            raise _forbidden("compiled")
        plan = plan_for(
            problem,
            spec,
            num_sms=where.num_sms,
            offs_is_int64=f is not None and f.dtype.bits == 64,
            group_sizes=sizes,
            kernel=kernel,
        )
        if not executor.ready(plan, a.device) and executor.is_capturing(handle, a.device):
            raise _forbidden("loaded")
        if plan.launches:
            self._launch = executor.BoundPlan(plan, operands_of(problem), a.device).runner()

    def run(self, offs: Any, inputs: tuple[int, ...], stream: Any = None) -> Any:
        """Run on arrays like those that the call was made with, into a new result array.

        Parameters
        ----------
        offs : array or None
            Offsets on the device.
        inputs : tuple of int
            Addresses of what the call reads, in the order of `INPUTS`.
        stream
            As passed to the call.
        """
        if self._checks and offs is not None:
            check_offsets(offs, self._rows)
        out = self._allocate()
        launch = self._launch
        if launch is None:
            return out
        if stream is None:
            launch(inputs, self._pointer(out), self._read_stream(), self._frontend)
        else:
            self._run_on(stream, launch, inputs, self._pointer(out))
        return out

    def run_into(
        self,
        out: Any,
        pointer_out: int,
        mat_a: Any,
        mat_b: Any,
        offs: Any,
        inputs: tuple[int, ...],
        stream: Any = None,
    ) -> Any:
        """Run on arrays like those that the call was made with, into one of the caller's."""
        if self._checks and offs is not None:
            check_offsets(offs, self._rows)
        # Addresses differ from call to call. What reaches as far is looked at element by element.
        *reaches, (low, high) = self._reaches
        for pointer, (other_low, other_high) in zip(inputs, reaches, strict=False):
            if (
                pointer_out + low < pointer + other_high
                and pointer + other_low < pointer_out + high
            ):
                view = self._frontend.view
                arrays = (mat_a, mat_b) if offs is None else (mat_a, mat_b, offs)
                check_overlap(view(out), [view(array) for array in arrays])
                break
        launch = self._launch
        if launch is None:
            return out
        if stream is None:
            launch(inputs, pointer_out, self._read_stream(), self._frontend)
        else:
            self._run_on(stream, launch, inputs, pointer_out)
        return out

    def _run_on(self, stream: Any, launch: Launch, inputs: tuple[int, ...], out: int) -> None:
        """Launch on a stream of the caller's choice.

        Operands, result and workspaces belong to the current stream: it goes first, and waits.
        """
        now = self._read_stream()
        handle = executor.stream_handle(stream)
        if handle == now:
            launch(inputs, out, now, self._frontend)
            return
        executor.order_streams(now, handle, self._ordinal)
        launch(inputs, out, handle, self._frontend)
        executor.order_streams(handle, now, self._ordinal)


def _reach(view: ArrayView) -> tuple[int, int]:
    """Return the bytes that an array spans, counted from its first element."""
    low, high = view.byte_range()
    return low - view.pointer, high - view.pointer


def _forbidden(what: str) -> CaptureError:
    return CaptureError(
        "grouped_mm: expected a call of a kind that has run before, since the stream is captured "
        f"into a CUDA graph; got the first of its kind, whose kernel must be {what}. Call it once "
        "before the capture, or gemmjit.prepare(problem)"
    )
