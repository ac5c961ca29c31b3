"""The grouped GEMM on arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from gemmjit.arrays import CPU, FRONTENDS, Frontend, frontend_of
from gemmjit.config import Config
from gemmjit.errors import InvalidDtypeError, InvalidProblemError
from gemmjit.ops.dispatch import LadderKernel
from gemmjit.ops.fused import Fused, check_flag, fused_of, steps_of
from gemmjit.ops.gpu_call import GpuCall
from gemmjit.ops.validation import device_name, form_of, host_group_sizes
from gemmjit.templating import overridden, paths

__all__ = ["grouped_mm"]

#: Calls remembered; one holds a plan and its packed arguments, a few kilobytes.
_MAX_CALLS = 1024

_calls: dict[Any, GpuCall] = {}


def grouped_mm(
    mat_a: Any,
    mat_b: Any,
    *,
    offs: Any = None,
    bias: Any = None,
    out_dtype: Any = None,
    out: Any = None,
    accumulate: bool = False,
    epilogue: Any = None,
    config: Config | str | None = None,
    stream: Any = None,
) -> Any:
    """Multiply matrices group by group, for groups of any size.

    Two forms, told apart by the dimensions of `mat_b`::

        (M, K) @ (G, K, N) -> (M, N)       out[r] = mat_a[r] @ mat_b[g] for the rows r of group g
        (K, M) @ (M, N) -> (G, K, N)       out[g] = mat_a[:, rows of g] @ mat_b[rows of g]

    The first is the forward pass and, with the weights transposed, dgrad; the second is wgrad.
    Group g owns rows ``offs[g-1]`` to ``offs[g]``; group 0 starts at row 0. Products accumulate in
    FP32 and are rounded once.

    On torch tensors, gradients are recorded, and what traces or transforms torch's functions finds
    an operator, ``gemmjit::grouped_mm``.

    Parameters
    ----------
    mat_a : array, shape (M, K) or (K, M)
        bfloat16, float16 or float32; NumPy, CuPy or torch. Any strides are right; K-major or
        M-major ones on the 16-byte grid are fast.
    mat_b : array, shape (G, K, N) or (M, N)
        Of the type and device of `mat_a`. A weight stored as (G, N, K) is passed transposed, as a
        view. Mind that no check can see a forgotten transpose where K equals N.
    offs : array or sequence of int, shape (G,)
        End offsets, never falling, the last at most M. On the device (int32 or int64) they are not
        read by the host, and the kernel clamps each to [previous, M]; on the host they are
        validated. Groups may be empty, and need no alignment.
    bias : array, shape (G, N), optional
        Added to the product of each group; of the type of `mat_a` or float32, any strides.
    epilogue : Epilogue or sequence of Epilogue, optional
        What else happens before the one rounding, in FP32: `gemmjit.SwiGLU`, then
        `gemmjit.RowScale`, or both in this order. The steps are: bias, SwiGLU, row scale,
        accumulate, round. With SwiGLU the result has N / 2 columns. Not for the second form.
    out_dtype : dtype, optional
        bfloat16, float16 or float32; by default that of `mat_a`, or of `out`.
    out : array, optional
        Where the result goes. Rows past ``offs[-1]`` stay as they are there; in a new result they
        are zero.
    accumulate : bool
        Add to `out`, which must be float32 then. An empty group leaves its part unchanged.
    config : Config or str, optional
        Tile to use instead of the default choice, or the name of a kernel.
    stream : int or object with ``__cuda_stream__``, optional
        Stream to run on; by default the framework's current one.

    Returns
    -------
    array
        Of the framework of `mat_a`, C-contiguous unless `out` is given; `out` itself then.

    Raises
    ------
    InvalidProblemError
        Shapes, offsets on the host, devices, overlapping or missing arguments.
    InvalidDtypeError
        Element types.
    InvalidConfigError
        A config that breaks a rule on this device.

    Examples
    --------
    >>> import numpy as np, gemmjit
    >>> a = np.ones((4, 8), np.float32)
    >>> w = np.stack([np.full((8, 2), 1, np.float32), np.full((8, 2), 2, np.float32)])
    >>> gemmjit.grouped_mm(a, w, offs=[1, 4])[:, 0].tolist()
    [8.0, 16.0, 16.0, 16.0]
    """
    if bias is not None or epilogue is not None:
        others = [step.array for step in steps_of(bias, epilogue, accumulate)]
        operator = frontend_of(mat_a, "mat_a").operator((mat_a, mat_b, offs, out, *others))
        if operator is not None:
            return operator(
                mat_a, mat_b, offs=offs, bias=bias, out_dtype=out_dtype, out=out,
                accumulate=accumulate, epilogue=epilogue, config=config, stream=stream,
            )  # fmt: skip
        return run_fused(
            mat_a, mat_b, offs, bias, out_dtype, out, accumulate, epilogue, config, stream
        )
    # What a call needs beyond its addresses is made once and remembered under the signatures of
    # its arrays, so that a repeated call is a lookup, the allocation of the result and a launch.
    # Only calls that passed every check are remembered: one that is found needs no other.
    frontend = FRONTENDS.get(type(mat_a))
    key: Any = None
    if frontend is not None and not (paths.ever_overridden and overridden()):
        known = frontend.identify(mat_a, mat_b, offs)
        if known is not None:
            signature, inputs = known
            if out is None:
                key = (signature, out_dtype, accumulate, config)
                try:
                    call = _calls.get(key)
                except TypeError:  # an argument that cannot be right; what follows says which
                    call = key = None
                if call is not None:
                    return call.run(offs, inputs, stream)
            elif FRONTENDS.get(type(out)) is frontend:
                try:
                    pointer_out = frontend.pointer(out)
                    place = (frontend.signature(out), pointer_out & 15)
                    key = (signature, out_dtype, accumulate, config, place)
                    call = _calls.get(key)
                except (RuntimeError, TypeError):  # torch's, of an array without memory; as above
                    call = key = None
                if call is not None:
                    return call.run_into(out, pointer_out, mat_a, mat_b, offs, inputs, stream)
    operator = frontend_of(mat_a, "mat_a").operator((mat_a, mat_b, offs, out))
    if operator is not None:
        return operator(
            mat_a, mat_b, offs=offs, out_dtype=out_dtype, out=out, accumulate=accumulate,
            config=config, stream=stream,
        )  # fmt: skip
    return run_first(mat_a, mat_b, offs, out_dtype, out, accumulate, config, stream, key=key)


def _traced(mat_a: Any, mat_b: Any, **arguments: Any) -> Any:
    """Do what `grouped_mm` does, for torch.compile to trace: it imports what it finds at once."""
    from gemmjit.integrations.torch_operator import call

    return call(mat_a, mat_b, **arguments)


# torch.compile looks for this attribute and traces what it finds there in the function's place.
# A question asked in every call would cost a tenth of a microsecond.
grouped_mm._torchdynamo_inline = _traced  # type: ignore[attr-defined]


def run_fused(
    mat_a: Any,
    mat_b: Any,
    offs: Any,
    bias: Any,
    out_dtype: Any,
    out: Any,
    accumulate: bool,
    epilogue: Any,
    config: Config | str | None,
    stream: Any,
    *,
    kernel: LadderKernel | None = None,
) -> Any:
    """Run a call with steps behind the product; remembered like the others, under them too."""
    frontend = frontend_of(mat_a, "mat_a")
    fused = fused_of(frontend, bias, epilogue, accumulate)
    key: Any = None
    if kernel is None and FRONTENDS.get(type(mat_a)) is frontend and not overridden():
        known = frontend.identify(mat_a, mat_b, offs)
        if known is not None and (out is None or FRONTENDS.get(type(out)) is frontend):
            signature, inputs = known
            try:
                pointer_out = frontend.pointer(out) if out is not None else 0
                place = (frontend.signature(out), pointer_out & 15) if out is not None else None
                key = (signature, out_dtype, config, place, fused.signature(frontend))
                read = (*inputs, *fused.pointers(frontend))
                call = _calls.get(key)
            except (RuntimeError, TypeError):  # as in grouped_mm
                key = call = None
            if call is not None:
                if out is None:
                    return call.run(offs, read, stream)
                fused.views(frontend).check_apart(frontend.view(out))
                return call.run_into(out, pointer_out, mat_a, mat_b, offs, read, stream)
    return run_first(
        mat_a, mat_b, offs, out_dtype, out, fused.accumulates, config, stream, key=key,
        kernel=kernel, fused=fused,
    )  # fmt: skip


def run_first(
    mat_a: Any,
    mat_b: Any,
    offs: Any,
    out_dtype: Any,
    out: Any,
    accumulate: bool,
    config: Config | str | None,
    stream: Any,
    *,
    key: Any = None,
    kernel: LadderKernel | None = None,
    fused: Fused | None = None,
) -> Any:
    """Run a call that is not remembered, after every check.

    Parameters
    ----------
    mat_a, mat_b, offs, out_dtype, out, accumulate, config, stream
        As for `grouped_mm`.
    key : hashable, optional
        What to remember the call under, if calls like it can be repeated.
    kernel : LadderKernel, optional
        Compiled kernel to run.
    fused : Fused, optional
        Steps of the epilogue, `accumulate` among them.
    """
    check_flag(accumulate)
    frontend = frontend_of(mat_a, "mat_a")
    _same_framework(frontend, mat_b, "mat_b")
    frontend.check_differentiable(mat_a, "mat_a")
    frontend.check_differentiable(mat_b, "mat_b")
    if out is not None:
        _same_framework(frontend, out, "out")
        frontend.check_writable(out, "out")
    _check_arrays(frontend, mat_a=mat_a, mat_b=mat_b, out=out)
    if fused is not None:
        fused.views(frontend)
    a, b = frontend.view(mat_a), frontend.view(mat_b)
    form = form_of(a.shape, b.shape)
    if offs is None:
        raise InvalidProblemError(
            "offs: expected the end offset of each group, shape (G,); got none. "
            "For rows per group, convert with gemmjit.offsets.from_group_sizes"
        )
    if a.device == CPU:
        # It brings the emulator, a third of what is imported; on a GPU nothing needs that.
        from gemmjit.ops.cpu_call import run_on_cpu

        return run_on_cpu(
            frontend, mat_a, mat_b, offs, out, out_dtype, accumulate, config, kernel, fused
        )
    inputs: tuple[int, ...] = (a.pointer, b.pointer)
    sizes = None
    if _is_beside(offs, frontend, a.device):
        inputs += (frontend.view(offs, "offs").pointer,)
    else:
        sizes = host_group_sizes(offs, a.shape[0] if form == "ragged_m" else a.shape[1])
        offs, key = None, None
        inputs += (0,)
    if fused is not None:
        inputs += fused.pointers(frontend)
    call = GpuCall(
        frontend, mat_a, mat_b, offs, sizes, out, out_dtype, accumulate, config, stream, kernel,
        fused,
    )  # fmt: skip
    if key is not None:
        _remember(key, call)
    if out is None:
        return call.run(offs, inputs, stream)
    return call.run_into(out, frontend.pointer(out), mat_a, mat_b, offs, inputs, stream)


def _remember(key: Any, call: GpuCall) -> None:
    """Keep a call; when there are too many, the oldest quarter goes."""
    if len(_calls) >= _MAX_CALLS:
        for old in list(_calls)[: _MAX_CALLS // 4]:
            _calls.pop(old, None)
    _calls[key] = call


def _same_framework(frontend: Frontend, array: Any, argument: str) -> None:
    other = frontend_of(array, argument)
    if other.name != frontend.name:
        raise InvalidDtypeError(
            f"{argument}: expected a {frontend.name} array, like mat_a; got a {other.name} one. "
            "Convert it without a copy through DLPack"
        )


def _check_arrays(frontend: Frontend, **arrays: Any) -> None:
    """Raise for an array that has no view, by the name of its argument."""
    for argument, array in arrays.items():
        if array is not None:
            frontend.view(array, argument)


def _is_beside(offs: Any, frontend: Frontend, device: int) -> bool:
    """Return whether offsets are on the operands' device; if not, they are on the host.

    Raises
    ------
    InvalidProblemError
        If they are on another device.
    InvalidDtypeError
        If they are on the device in an array of another framework.
    """
    if isinstance(offs, list | tuple | np.ndarray):
        return False
    theirs = frontend_of(offs, "offs")
    where = theirs.view(offs, "offs").device
    if where == CPU:
        return False
    if where != device:
        raise InvalidProblemError(
            f"offs: expected offsets on {device_name(device)}, like mat_a, or on the host; "
            f"got them on {device_name(where)}"
        )
    if theirs.name != frontend.name:
        raise InvalidDtypeError(
            f"offs: expected an array of the framework of mat_a; got a {theirs.name} one. "
            "Convert it without a copy through DLPack"
        )
    return True
