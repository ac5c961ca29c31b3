"""``gemmjit::grouped_mm`` as an operator of torch: what everything that traces or transforms takes.

A plain call on plain tensors does not come here; see `gemmjit.integrations.torch`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.flop_counter import flop_registry, register_flop_formula

from gemmjit.arrays import CPU, ArrayView
from gemmjit.config import Config
from gemmjit.dtypes import dtype_of
from gemmjit.errors import InvalidDtypeError, InvalidProblemError
from gemmjit.integrations.config_text import from_text, to_text
from gemmjit.integrations.torch import FROM_TORCH, TO_TORCH, is_plain
from gemmjit.integrations.torch_autograd import (
    apply,
    bias_of,
    check_tensors,
    refuse,
    wants_gradient,
)
from gemmjit.ops.grouped_mm import grouped_mm
from gemmjit.ops.validation import check_dtypes, check_num_groups, form_of, result_shape

__all__ = ["call"]

_LIBRARY = torch.library.Library("gemmjit", "DEF")
#: The memory order of an operand decides which kernel runs: a compiler must keep it.
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order)
_LIBRARY.define(
    "grouped_mm(Tensor mat_a, Tensor mat_b, Tensor offs, Tensor? bias=None, "
    "ScalarType? out_dtype=None, str? config=None) -> Tensor",
    tags=_TAGS,
)
_LIBRARY.define(
    "grouped_mm_out(Tensor mat_a, Tensor mat_b, Tensor offs, Tensor? bias, Tensor(a!) out, "
    "bool accumulate=False, str? config=None) -> ()",
    tags=_TAGS,
)
_OPERATOR = torch.ops.gemmjit.grouped_mm.default
_INTO = torch.ops.gemmjit.grouped_mm_out.default


def call(
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
    """Run `gemmjit.grouped_mm` as an operator; its parameters are those.

    Raises
    ------
    InvalidProblemError
        For what the operator does not have: `stream`, and an `epilogue` other than a bias.
    """
    check_tensors(mat_a=mat_a, mat_b=mat_b)
    if offs is None:
        form_of(tuple(mat_a.shape), tuple(mat_b.shape))  # says more, if it is that
        raise InvalidProblemError(
            "offs: expected the end offset of each group, shape (G,); got none. "
            "For rows per group, convert with gemmjit.offsets.from_group_sizes"
        )
    if stream is not None:
        raise refuse("stream", "Call under torch.cuda.stream(stream)")
    bias = bias_of(bias, epilogue)
    if not isinstance(offs, torch.Tensor):
        offs = torch.as_tensor(offs, dtype=torch.int64)
    text = to_text(config)
    if out is None:
        if accumulate:
            raise InvalidProblemError(
                "accumulate: expected out= to add into; got none. Pass it, zeroed for a first sum"
            )
        if out_dtype is not None and not isinstance(out_dtype, torch.dtype):
            out_dtype = TO_TORCH[dtype_of(out_dtype, "out_dtype")]
        return _OPERATOR(mat_a, mat_b, offs, bias, out_dtype, text)
    if torch.is_grad_enabled() and wants_gradient(mat_a, mat_b, bias, out):
        raise refuse("out", "Leave it out, or call under torch.no_grad()")
    if out_dtype is not None and out.dtype != out_dtype:
        raise InvalidProblemError(
            f"out_dtype: expected that of out, {out.dtype}; got {out_dtype}. Pass one of the two"
        )
    _INTO(mat_a, mat_b, offs, bias, out, accumulate, text)
    return out


def _plain(tensor: Any) -> Any:
    """Return a tensor without what a subclass adds; here, below the dispatcher, it has no say."""
    return tensor if tensor is None or is_plain(tensor) else tensor.as_subclass(torch.Tensor)


def _run(
    mat_a: Any, mat_b: Any, offs: Any, bias: Any = None, out_dtype: Any = None, config: Any = None
) -> Any:
    return grouped_mm(
        _plain(mat_a),
        _plain(mat_b),
        offs=_plain(offs),
        bias=_plain(bias),
        out_dtype=out_dtype,
        config=from_text(config),
    )


def _run_into(
    mat_a: Any,
    mat_b: Any,
    offs: Any,
    bias: Any,
    out: Any,
    accumulate: bool = False,
    config: Any = None,
) -> None:
    grouped_mm(
        _plain(mat_a),
        _plain(mat_b),
        offs=_plain(offs),
        bias=_plain(bias),
        out=_plain(out),
        accumulate=accumulate,
        config=from_text(config),
    )


def _resolve_signs(
    mat_a: Any, mat_b: Any, offs: Any, bias: Any, out: Any, *more: Any, **named: Any
) -> None:
    """Run on operands whose signs are not pending; torch's own way stumbles over no bias."""
    if out.is_neg():
        raise InvalidProblemError(
            "out: expected a strided tensor whose memory holds its values; got one whose sign is "
            "pending. Pass out.resolve_neg()"
        )
    a, b, f = (tensor.resolve_neg() for tensor in (mat_a, mat_b, offs))
    _INTO(a, b, f, None if bias is None else bias.resolve_neg(), out, *more, **named)


def _shape_of_result(mat_a: Any, mat_b: Any, offs: Any) -> tuple[int, ...]:
    """Return the shape of the result, after the checks that need neither memory nor values."""
    a, b, f = (_without_memory(tensor) for tensor in (mat_a, mat_b, offs))
    form = form_of(a.shape, b.shape)
    check_dtypes(a, b, f)
    check_num_groups(form, b.shape, f.shape[0])
    return result_shape(form, a.shape, b.shape, f.shape[0])


def _without_memory(tensor: Any) -> ArrayView:
    where = tensor.device.index if tensor.device.type == "cuda" else CPU
    dtype = FROM_TORCH.get(tensor.dtype)
    if dtype is None:
        raise InvalidDtypeError(
            f"grouped_mm: expected operands of one of {', '.join(map(str, FROM_TORCH))}; "
            f"got {tensor.dtype}. Cast it"
        )
    return ArrayView(0, tuple(tensor.shape), tensor.stride(), dtype, where)


def _fake(
    mat_a: Any, mat_b: Any, offs: Any, bias: Any = None, out_dtype: Any = None, config: Any = None
) -> Any:
    shape = _shape_of_result(mat_a, mat_b, offs)
    return mat_a.new_empty(shape, dtype=out_dtype or mat_a.dtype)


def _fake_into(
    mat_a: Any,
    mat_b: Any,
    offs: Any,
    bias: Any,
    out: Any,
    accumulate: bool = False,
    config: Any = None,
) -> None:
    _shape_of_result(mat_a, mat_b, offs)


def _autograd(keyset: Any, *arguments: Any) -> Any:
    """Record the product if a gradient is wanted, and go on below autograd."""
    missing = [None] * (6 - len(arguments))  # defaults are left out
    mat_a, mat_b, offs, bias, out_dtype, config = list(arguments) + missing
    below = keyset & torch._C._after_autograd_keyset
    if not (torch.is_grad_enabled() and wants_gradient(mat_a, mat_b, bias)):
        return _OPERATOR.redispatch(below, mat_a, mat_b, offs, bias, out_dtype, config)

    def run(*operands: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return _OPERATOR.redispatch(below, *operands)

    functorch = torch._C._functorch
    if functorch.maybe_current_level() is None:
        return apply(run, mat_a, mat_b, offs, bias, out_dtype, config)
    # A transform, such as grad, comes here once for each of its levels, and recording this level
    # is what is wanted. torch's own operators need not say so.
    before = functorch.get_single_level_autograd_function_allowed()
    functorch.set_single_level_autograd_function_allowed(True)
    try:
        return apply(run, mat_a, mat_b, offs, bias, out_dtype, config)
    finally:
        functorch.set_single_level_autograd_function_allowed(before)


def _flops(a_shape: Any, b_shape: Any, *arguments: Any, **more: Any) -> int:
    """Count a multiplication and an addition for each product, tail rows included."""
    return int(2 * a_shape[0] * a_shape[1] * b_shape[-1])


_LIBRARY.impl("grouped_mm", _run, "CompositeExplicitAutograd")
_LIBRARY.impl("grouped_mm_out", _run_into, "CompositeExplicitAutograd")
_LIBRARY.impl("grouped_mm_out", _resolve_signs, "Negative")
_LIBRARY.impl("grouped_mm", _autograd, "Autograd", with_keyset=True)
torch.library.register_fake("gemmjit::grouped_mm", _fake, lib=_LIBRARY)
torch.library.register_fake("gemmjit::grouped_mm_out", _fake_into, lib=_LIBRARY)
_PACKETS = [torch.ops.gemmjit.grouped_mm, torch.ops.gemmjit.grouped_mm_out]
register_flop_formula(_PACKETS)(_flops)
# A counter copies the formulas when it is made, and one that counts now may be why this is loaded.
for _mode in _get_current_dispatch_mode_stack():
    _formulas = getattr(getattr(_mode, "counter", None), "flop_registry", {})
    _formulas.update({packet: flop_registry[packet] for packet in _PACKETS})
