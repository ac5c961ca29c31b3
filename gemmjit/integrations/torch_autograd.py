"""Gradients of the grouped product: products of the same two forms, by the same kernels.

With dy the gradient of the result, group by group::

    y[r] = a[r] @ b[g] + bias[g]    da[r] = dy[r] @ b[g]^T         the form of y
                                    db[g] = a[rows]^T @ dy[rows]   ragged K
                                    dbias[g] = ones @ dy[rows]     ragged K
    y[g] = a[:, rows] @ b[rows]     da[:, r] = dy[g] @ b[r]^T      ragged M, transposed
                                    db[r] = a[:, r]^T @ dy[g]      ragged M

Transposes are views. Rows past the last group have no part in a result and get zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gemmjit.epilogue import Bias, Epilogue
from gemmjit.errors import InvalidDtypeError, InvalidProblemError
from gemmjit.ops.fused import steps_of
from gemmjit.ops.grouped_mm import grouped_mm

__all__ = [
    "GroupedMM",
    "apply",
    "bias_of",
    "check_tensors",
    "grad_of_bias",
    "loadable",
    "record",
    "refuse",
    "wants_gradient",
]


def wants_gradient(*tensors: Any) -> bool:
    """Return whether one of the arguments that are tensors asks for a gradient."""
    return any(isinstance(t, torch.Tensor) and t.requires_grad for t in tensors)


def _run(mat_a: Any, mat_b: Any, offs: Any, bias: Any, out_dtype: Any, config: Any) -> Any:
    return grouped_mm(mat_a, mat_b, offs=offs, bias=bias, out_dtype=out_dtype, config=config)


class GroupedMM(torch.autograd.Function):  # type: ignore[misc]
    """The product and its gradients.

    What a gradient does not need is neither kept nor computed. The gradient of a result wider than
    the operands is rounded to their type first.
    """

    @staticmethod
    def forward(
        ctx: Any,
        run: Callable[..., Any],
        mat_a: Any,
        mat_b: Any,
        offs: Any,
        bias: Any,
        out_dtype: Any,
        config: Any,
    ) -> Any:
        """Multiply, with `run`, and keep what the gradients need."""
        _, wants_a, wants_b, _, wants_bias, _, _ = ctx.needs_input_grad
        ctx.set_materialize_grads(False)
        on_host = not isinstance(offs, torch.Tensor)
        ctx.offs = offs if on_host else None
        ctx.bias_dtype = bias.dtype if wants_bias else None
        ctx.in_dtype = mat_a.dtype
        ctx.ragged_m = mat_b.dim() == 3
        # The gradient of an operand is written in the operand's own memory order, since autograd
        # would copy it into that order.
        ctx.swapped_b = ctx.ragged_m and mat_b.stride(1) == 1 and mat_b.stride(2) != 1
        ctx.save_for_backward(
            mat_a if wants_b else None, mat_b if wants_a else None, None if on_host else offs
        )
        return run(mat_a, mat_b, offs, bias, out_dtype, config)

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        """Return the gradients of `mat_a`, `mat_b` and `bias` that are wanted."""
        if dy is None:
            return (None,) * 7
        mat_a, mat_b, offs = ctx.saved_tensors
        if offs is None:
            offs = ctx.offs
        _, wants_a, wants_b, _, wants_bias, _, _ = ctx.needs_input_grad
        dy = loadable(dy.to(ctx.in_dtype))
        da = db = dbias = None
        if ctx.ragged_m:
            if wants_a:
                da = grouped_mm(dy, mat_b.mT, offs=offs)
            if wants_b and ctx.swapped_b:
                db = grouped_mm(dy.mT, mat_a, offs=offs).mT
            elif wants_b:
                db = grouped_mm(mat_a.mT, dy, offs=offs)
            if wants_bias:
                dbias = grad_of_bias(dy, offs, ctx.bias_dtype)
        else:
            if wants_a:
                da = grouped_mm(mat_b, dy.mT, offs=offs).mT
            if wants_b:
                db = grouped_mm(mat_a.mT, dy, offs=offs)
        return None, da, db, None, dbias, None, None


#: `GroupedMM.apply` without its look at functorch: plain tensors are no wrappers of its own, and
#: those that come to the operator are recorded one level at a time.
apply: Callable[..., Any] = super(torch.autograd.Function, GroupedMM).apply


def record(
    mat_a: Any,
    mat_b: Any,
    *,
    offs: Any = None,
    bias: Any = None,
    out_dtype: Any = None,
    out: Any = None,
    accumulate: bool = False,
    epilogue: Any = None,
    config: Any = None,
    stream: Any = None,
) -> Any:
    """Run `gemmjit.grouped_mm` on plain tensors, recorded; no dispatcher is involved.

    Raises
    ------
    InvalidProblemError
        For what has no gradient: `out`, `stream`, and an `epilogue` other than a bias.
    """
    if not isinstance(mat_b, torch.Tensor):  # mat_a is one: its frontend is why this is called
        check_tensors(mat_b=mat_b)
    if out is not None:
        raise refuse("out", "Leave it out, or call under torch.no_grad()")
    if stream is not None:
        raise refuse("stream", "Call under torch.cuda.stream(stream)")
    if epilogue is not None:
        bias = bias_of(bias, epilogue)
    if accumulate:  # without out=: the call itself says what is wrong
        return grouped_mm(mat_a.detach(), mat_b.detach(), offs=offs, accumulate=True)
    return apply(_run, mat_a, mat_b, offs, bias, out_dtype, config)


def bias_of(bias: Any, epilogue: Any) -> Any:
    """Return the bias, of whichever argument it is given by.

    Raises
    ------
    InvalidProblemError
        If there is any other step.
    """
    steps = epilogue if isinstance(epilogue, list | tuple) else (epilogue,)
    for step in steps:
        if isinstance(step, Bias) and bias is None:
            bias = step.values
        elif isinstance(step, Epilogue) and not isinstance(step, Bias):
            raise InvalidProblemError(
                "epilogue: expected none where a gradient is wanted, or the call is traced or "
                f"transformed, but a Bias; got {step!r}. Apply it to the result, or call under "
                "torch.no_grad(), outside of torch.compile"
            )
        elif step is not None:
            steps_of(bias, epilogue, False)  # says what is wrong
    return bias


def refuse(argument: str, mend: str) -> InvalidProblemError:
    """Return the error for an argument that neither autograd nor a tracer can take."""
    return InvalidProblemError(
        f"{argument}: expected none where a gradient is wanted, or the call is traced or "
        f"transformed; got one. {mend}"
    )


def check_tensors(**arrays: Any) -> None:
    """Raise for an operand that is no tensor, by the name of its argument."""
    for argument, array in arrays.items():
        if not isinstance(array, torch.Tensor):
            raise InvalidDtypeError(
                f"{argument}: expected a torch array, like the others; got "
                f"{type(array).__name__}. Convert it with torch.as_tensor"
            )


def loadable(dy: Any) -> Any:
    """Return a gradient with one dimension that lies without gaps, and no pending sign.

    Sums and means give one number, expanded, whose strides no fast kernel takes.
    """
    dy = dy.resolve_neg()  # of an imaginary part
    return dy if dy.stride(-1) == 1 or dy.stride(-2) == 1 else dy.contiguous()


def grad_of_bias(dy: Any, offs: Any, dtype: Any) -> Any:
    """Return the sum of each group's rows, shape (G, N), added up in FP32."""
    ones = dy.new_ones((1, dy.shape[0]))
    return grouped_mm(ones, dy, offs=offs, out_dtype=dtype).squeeze(1)
