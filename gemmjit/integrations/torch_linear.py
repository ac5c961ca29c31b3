"""A linear layer per group, as expert layers have it: weights in the order of `torch.nn.Linear`."""

from __future__ import annotations

from typing import Any

import torch

from gemmjit.errors import InvalidDtypeError, InvalidProblemError
from gemmjit.integrations.torch_autograd import grad_of_bias, loadable
from gemmjit.ops.grouped_mm import grouped_mm

__all__ = ["grouped_linear"]


def grouped_linear(
    x: Any,
    weight: Any,
    offs: Any,
    bias: Any = None,
    *,
    accumulate_main_grad: bool = False,
) -> Any:
    """Apply a linear layer of each group to its rows: ``y[r] = x[r] @ weight[g].T + bias[g]``.

    Under ``torch.autocast`` x, weight and bias are cast to its type first, as those of
    ``torch.nn.functional.linear`` are.

    Parameters
    ----------
    x : torch.Tensor, shape (M, K)
        Rows, sorted by group.
    weight : torch.Tensor, shape (G, N, K)
    offs : torch.Tensor or sequence of int, shape (G,)
        End offsets, as for `gemmjit.grouped_mm`.
    bias : torch.Tensor, shape (G, N), optional
    accumulate_main_grad : bool
        Add the weight's gradient to ``weight.main_grad``, a float32 tensor of the weight's shape
        that the caller keeps, instead of putting it into ``weight.grad``. The sum is formed by the
        kernel: the gradient of one call is neither stored nor rounded. Where the weight has the
        attribute ``grad_added_to_main_grad``, as under Megatron-LM, it is set, and autograd is
        given a tensor of the weight's shape without meaning, so that hooks on the weight run.

    Returns
    -------
    torch.Tensor, shape (M, N)
        Rows past ``offs[-1]`` are zero.

    Raises
    ------
    InvalidProblemError
        Shapes; or a main gradient that is missing, or of another shape.
    InvalidDtypeError
        Types of the operands; or a main gradient that is not float32.
    """
    if torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
        x = x.to(dtype)
        bias = bias.to(dtype) if bias is not None else None
    else:
        dtype = weight.dtype
    if not accumulate_main_grad or not (weight.requires_grad and torch.is_grad_enabled()):
        return grouped_mm(x, weight.to(dtype).mT, offs=offs, bias=bias)
    main_grad = getattr(weight, "main_grad", None)
    if main_grad is None or main_grad.shape != weight.shape:
        got = "none" if main_grad is None else f"shape {tuple(main_grad.shape)}"
        raise InvalidProblemError(
            f"weight.main_grad: expected a tensor of shape {tuple(weight.shape)} to add into; "
            f"got {got}. Set it: weight.main_grad = torch.zeros_like(weight, dtype=torch.float32)"
        )
    if main_grad.dtype != torch.float32:
        raise InvalidDtypeError(
            f"weight.main_grad: expected float32, so that nothing is lost; got {main_grad.dtype}. "
            "Make it so"
        )
    return _LinearMainGrad.apply(x, weight, main_grad, offs, bias, dtype)


class _LinearMainGrad(torch.autograd.Function):  # type: ignore[misc]
    """The layer whose weight gradient goes where the caller says."""

    @staticmethod
    def forward(
        ctx: Any, x: Any, weight: Any, main_grad: Any, offs: Any, bias: Any, dtype: Any
    ) -> Any:
        """Multiply; the weight itself is kept, since its attributes are looked at afterwards."""
        ctx.weight, ctx.main_grad = weight, main_grad
        cast = weight.to(dtype)
        on_host = not isinstance(offs, torch.Tensor)
        ctx.offs = offs if on_host else None
        ctx.bias_dtype = bias.dtype if bias is not None else None
        kept = cast if ctx.needs_input_grad[0] else None
        ctx.save_for_backward(x, kept, None if on_host else offs)
        return grouped_mm(x, cast.mT, offs=offs, bias=bias)

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, dy: Any) -> Any:
        """Return the gradients of x and bias; the weight's is added to its main gradient."""
        x, weight, offs = ctx.saved_tensors
        offs = ctx.offs if offs is None else offs
        wants_x, _, _, _, wants_bias, _ = ctx.needs_input_grad
        dy = loadable(dy)
        dx = grouped_mm(dy, weight, offs=offs) if wants_x else None
        dbias = grad_of_bias(dy, offs, ctx.bias_dtype) if wants_bias else None
        grouped_mm(dy.mT, x, offs=offs, out=ctx.main_grad, accumulate=True)
        return dx, _marker(ctx.weight), None, None, dbias, None


def _marker(weight: Any) -> Any:
    """Return what autograd gets for a weight whose gradient is already where it belongs."""
    if not hasattr(weight, "grad_added_to_main_grad"):
        return None
    weight.grad_added_to_main_grad = True
    made = torch.zeros_like if getattr(weight, "zero_out_wgrad", False) else torch.empty_like
    return made(weight)
