"""What torch.compile knows tensors by, to know the operands of a repeated call in one step.

To read shape, strides, type and device of three tensors is a dozen steps of the interpreter, most
of what a repeated call costs beside the launch and the result. torch has a function that compares
all of them with what was seen before. It is internal to torch, so it is tried first, and done
without where it does not tell apart what must be told apart.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

__all__ = ["Known", "check_for", "works"]

#: What makes a check, or None where this torch has none.
_Guards: Any = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
_Guards = getattr(_Guards, "TensorGuards", None)

#: A check, what stands for tensors that pass it, and whether an operand asks for a gradient.
Known = tuple[Callable[..., bool], object, bool]


def check_for(*tensors: Any) -> Callable[..., bool]:
    """Return a function that says whether tensors are like these.

    They are if each has the type, shape, strides, element type, device and flag ``requires_grad``
    of its counterpart, and the same of torch's dispatch keys, which say whether a sign or a
    conjugation is pending, a mode is on, or a transform wraps a tensor. Addresses do not count.
    Where one tensor is there twice, the answer is always no.
    """
    sizes = [list(tensor.shape) for tensor in tensors]
    strides = [list(tensor.stride()) for tensor in tensors]
    guards = _Guards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
    return guards.check  # type: ignore[no-any-return]


def works() -> bool | None:
    """Return whether `check_for`, which is internal to torch, tells tensors apart as it says.

    None where a mode of torch is on: it would have a say in the tensors that are made to find out.
    """
    if torch.overrides.has_torch_function_variadic(0) or torch._C._len_torch_dispatch_stack():
        return None
    return _tells_apart()


@cache
def _tells_apart() -> bool:
    try:
        with torch.inference_mode(False):
            a, b = (torch.empty((4, 6), dtype=torch.float16, device="cpu") for _ in range(2))
            check = check_for(a, b)
            if not check(a, b) or not check(torch.empty_like(a), torch.empty_like(a)):
                return False
            others = (
                a[:2],
                a[None],
                a.view(6, 4).T,
                a.to(torch.bfloat16),
                torch.empty_like(a, device="meta"),
                torch._neg_view(a),
                torch.empty_like(a, requires_grad=True),
                torch.nn.Parameter(a, requires_grad=False),
            )
            return not any(check(other, b) or check(a, other) for other in others)
    except (AttributeError, RuntimeError, SystemError, TypeError):
        return False
