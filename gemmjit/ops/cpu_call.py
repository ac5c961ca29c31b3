"""The same call on arrays in host memory."""

from __future__ import annotations

import ctypes
import logging
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gemmjit import env, reference
from gemmjit.arrays import CPU, ArrayView, Frontend
from gemmjit.config import Config
from gemmjit.dtypes import I32
from gemmjit.emulator import plan_executor
from gemmjit.emulator.settings import Settings
from gemmjit.emulator.settings import current as emulation_settings
from gemmjit.errors import InvalidProblemError
from gemmjit.ops.dispatch import (
    LadderKernel,
    default_arch,
    host_schedule,
    plan_for,
    spec_for,
    spec_with,
)
from gemmjit.ops.fused import Fused
from gemmjit.ops.validation import host_group_sizes, problem_of, result_shape
from gemmjit.problem import Problem

__all__ = ["run_on_cpu"]

_log = logging.getLogger("gemmjit.ops")


def run_on_cpu(
    frontend: Frontend,
    mat_a: Any,
    mat_b: Any,
    offs: Any,
    out: Any,
    out_dtype: Any,
    accumulate: bool,
    config: Config | str | None,
    kernel: LadderKernel | None = None,
    fused: Fused | None = None,
) -> Any:
    """Run `grouped_mm` on NumPy arrays or torch tensors in host memory.

    Parameters are those of the call. Offsets are validated; offsets in an array count as device
    offsets in the choice of the schedule, so that both schedules can be tried without a GPU.
    """
    a, b = frontend.view(mat_a, "mat_a"), frontend.view(mat_b, "mat_b")
    o = frontend.view(out, "out") if out is not None else None
    sizes = host_group_sizes(offs, a.shape[0] if b.ndim == 3 else a.shape[-1])
    ends = np.cumsum(sizes).astype(np.int32)
    f = None
    if not isinstance(offs, list | tuple):
        f = ArrayView(ends.ctypes.data, ends.shape, (1,), I32, CPU)
    steps = fused.views(frontend) if fused is not None else None
    problem = problem_of(a, b, f, len(sizes), o, out_dtype, accumulate, steps)
    read = dict(steps.views) if steps is not None else {}
    if o is not None:
        _check_offsets_apart(_ndarray(o), offs)
    shape = result_shape(problem.form, a.shape, b.shape, len(sizes), problem.chain.folds)
    if problem.is_empty:
        return out if o is not None else frontend.empty(shape, problem.out_dtype, CPU)
    # A config that could not run on the target is refused here too, whatever executes it.
    if kernel is not None:
        if f is None:
            problem = replace(problem, schedule=host_schedule(kernel))
        spec, kernel = spec_with(problem, kernel)
    else:
        spec = spec_for(problem, default_arch(), config)
    if o is None:
        out = frontend.empty(shape, problem.out_dtype, CPU)
        o = frontend.view(out)
    if _emulates(problem, spec.kernel.emulated_flops):
        plan = plan_for(
            problem,
            spec,
            num_sms=(emulation_settings() or Settings()).num_sms,
            offs_is_int64=False,
            group_sizes=None if f is not None else sizes,
            kernel=kernel,
        )
        views = {"mat_a": a, "mat_b": b, "out": o, **read}
        if f is not None:
            views["offs"] = f
        plan_executor.run(plan, views)
    else:
        arrays = {keyword: _ndarray(view) for keyword, view in read.items()}
        reference.run(problem, _ndarray(a), _ndarray(b), sizes, _ndarray(o), arrays)
    return out


def _check_offsets_apart(out: npt.NDArray[Any], offs: Any) -> None:
    """Raise if the result lies over the offsets, which must stay as they are."""
    given = offs.detach().numpy() if hasattr(offs, "detach") else offs
    if isinstance(given, np.ndarray) and np.may_share_memory(out, given):
        raise InvalidProblemError(
            "out: expected memory that offs does not use; they overlap. Pass another array"
        )


def _emulates(problem: Problem, limit: int) -> bool:
    """Return whether the emulator runs a problem, as GEMMJIT_EXECUTOR and its size say."""
    asked = env.choice("GEMMJIT_EXECUTOR") or "auto"
    if emulation_settings() is not None:
        return True
    if asked == "auto" and problem.flops > limit:
        _log.info(
            "grouped_mm on the CPU: %.1f GFLOP run in NumPy instead of the emulator; "
            "GEMMJIT_EXECUTOR=emulator runs the kernel itself",
            problem.flops / 1e9,
        )
        return False
    return asked != "reference"


def _ndarray(view: ArrayView) -> npt.NDArray[Any]:
    """Return a NumPy array over the memory of a view."""
    low, high = view.byte_range()
    if low == high:
        return np.empty(view.shape, view.dtype.numpy)
    itemsize = view.dtype.itemsize
    raw = memoryview((ctypes.c_char * (high - low)).from_address(low))
    array: npt.NDArray[Any] = np.ndarray(
        view.shape,
        view.dtype.numpy,
        buffer=raw,
        offset=view.pointer - low,
        strides=tuple(s * itemsize for s in view.strides),
    )
    return array
