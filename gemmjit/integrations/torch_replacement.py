"""`torch.nn.functional.grouped_mm`, computed by gemmjit: same arguments, same four forms."""

from __future__ import annotations

from typing import Any

import torch

from gemmjit.errors import GemmjitError
from gemmjit.ops.grouped_mm import grouped_mm as multiply

__all__ = ["grouped_mm"]

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def grouped_mm(
    mat_a: torch.Tensor,
    mat_b: torch.Tensor,
    *,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Multiply group by group, in the place of `torch.nn.functional.grouped_mm`.

    ============= ============= ============================= =========
    mat_a         mat_b         offs cuts                     result
    ============= ============= ============================= =========
    (M, K)        (G, K, N)     rows of mat_a                 (M, N)
    (M, K)        (K, N)        the contraction K             (G, M, N)
    (G, M, K)     (K, N)        columns of mat_b              (M, N)
    (G, M, K)     (G, K, N)     nothing; it must be None      (G, M, N)
    ============= ============= ============================= =========

    What torch refuses because of an argument's meaning is refused here. What it refuses because its
    kernels cannot do it (strides and addresses off the 16-byte grid) works. Rows or columns past
    ``offs[-1]`` are zero here and undefined there; the result is contiguous, or for the third form
    its transpose is, where torch pads rows to 16 bytes.

    Parameters
    ----------
    mat_a, mat_b : torch.Tensor
        bfloat16, float16 or float32, of one type.
    offs : torch.Tensor, shape (G,), optional
        End offsets, int32.
    bias : None
        Not taken, as by torch; `gemmjit.grouped_mm` takes one.
    out_dtype : torch.dtype, optional
        That of `mat_a`, as in torch; `gemmjit.grouped_mm` takes others.

    Raises
    ------
    RuntimeError
        Where torch raises it.
    TypeError
        If an argument is no tensor.
    """
    for name, value in (("mat_a", mat_a), ("mat_b", mat_b), ("offs", offs), ("bias", bias)):
        if not isinstance(value, torch.Tensor) and (value is not None or name.startswith("mat")):
            raise TypeError(f"{name}: expected a torch.Tensor; got {type(value).__name__}")
    _check(mat_a, mat_b, offs, bias, out_dtype)
    if offs is None:
        return torch.bmm(mat_a, mat_b)
    try:
        if mat_a.dim() == 3:
            swapped = multiply(mat_b.mT, mat_a.mT, offs=offs)
            return swapped.mT
        return multiply(mat_a, mat_b, offs=offs)
    except GemmjitError as error:
        if isinstance(error, RuntimeError):
            raise
        raise RuntimeError(str(error)) from error


def _check(a: Any, b: Any, offs: Any, bias: Any, out_dtype: Any) -> None:
    """Raise for what torch's function raises for."""
    if a.dim() not in (2, 3) or b.dim() not in (2, 3):
        raise RuntimeError(
            f"mat_a, mat_b: expected two or three dimensions; got {tuple(a.shape)} and "
            f"{tuple(b.shape)}"
        )
    if a.dtype not in _DTYPES or b.dtype != a.dtype:
        raise RuntimeError(
            f"mat_a, mat_b: expected bfloat16, float16 or float32, both the same; got {a.dtype} "
            f"and {b.dtype}"
        )
    if (offs is None) != (a.dim() == b.dim() == 3):
        raise RuntimeError(
            "offs: expected offsets if an operand has two dimensions, and none if both have three; "
            f"got {'none' if offs is None else 'some'} for {tuple(a.shape)} and {tuple(b.shape)}"
        )
    if a.shape[-1] != b.shape[-2]:
        raise RuntimeError(
            f"mat_b: expected K = mat_a.shape[-1] = {a.shape[-1]} in its last dimension but one; "
            f"got {tuple(b.shape)}"
        )
    if bias is not None:
        raise RuntimeError("bias: expected None, as in torch; gemmjit.grouped_mm takes a bias")
    if out_dtype is not None and out_dtype != a.dtype:
        raise RuntimeError(
            f"out_dtype: expected {a.dtype}, like mat_a, as in torch; got {out_dtype}. "
            "gemmjit.grouped_mm takes float32"
        )
    if offs is None:
        if a.shape[0] != b.shape[0]:
            raise RuntimeError(
                f"mat_b: expected {a.shape[0]} matrices, like mat_a; got {tuple(b.shape)}"
            )
        return
    if offs.dim() != 1 or offs.dtype != torch.int32:
        raise RuntimeError(
            f"offs: expected int32 of one dimension; got {offs.dtype} of {tuple(offs.shape)}"
        )
    batched = a if a.dim() == 3 else b if b.dim() == 3 else None
    if batched is not None and batched.shape[0] != offs.shape[0]:
        raise RuntimeError(
            f"offs: expected {batched.shape[0]} end offsets, one per matrix; got {offs.shape[0]}"
        )
