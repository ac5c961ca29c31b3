"""From the arguments of `grouped_mm` to a `Problem`, with an error for every broken rule."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gemmjit.arrays import CPU, ArrayView, contiguous_strides
from gemmjit.dtypes import BF16, F16, F32, I32, I64, DType, dtype_of
from gemmjit.epilogue import chain_of
from gemmjit.errors import InvalidDtypeError, InvalidProblemError
from gemmjit.offsets import to_host, validate
from gemmjit.problem import Problem, Strides, pointer_alignment
from gemmjit.variant import MAX_SHAPE, Form

__all__ = [
    "check_dtypes",
    "check_num_groups",
    "check_out",
    "form_of",
    "host_group_sizes",
    "problem_of",
    "result_shape",
]

_OPERAND_DTYPES = (BF16, F16, F32)
_MAX_EXTENT = MAX_SHAPE

Shape = tuple[int, ...]

_REVERSED = ".T of three dimensions reverses them all, use .mT"


class Describes(Protocol):
    """What `problem_of` asks of the steps of an epilogue; see `gemmjit.ops.fused`."""

    def describe(
        self, form: Form, a: ArrayView, b: ArrayView, num_groups: int
    ) -> tuple[str, tuple[Shape, ...]]:
        """Return the name of the chain and the strides of its operands."""

    def check_apart(self, out: ArrayView) -> None:
        """Raise if the result lies over an operand."""


def form_of(a: Shape, b: Shape) -> Form:
    """Return the form that two shapes ask for.

    Raises
    ------
    InvalidProblemError
        If the shapes have no grouped product, or do not match.
    """
    if len(a) == 3:
        raise InvalidProblemError(
            f"mat_a: expected two dimensions; got shape {a}. For a batch of equal products call "
            "matmul; for groups along the columns transpose both operands and the result"
        )
    if len(a) != 2 or len(b) not in (2, 3):
        raise InvalidProblemError(
            "mat_a, mat_b: expected shapes (M, K) and (G, K, N), or (K, M) and (M, N); "
            f"got {a} and {b}. Reshape them, or call matmul for a single product"
        )
    if len(b) == 3:
        if a[1] != b[1]:
            hint = "Pass operands with one K"
            if a[1] == b[2]:
                hint = "mat_b seems to be (G, N, K): pass its transpose, mat_b.mT"
            elif a[1] == b[0]:
                hint = f"mat_b seems to have its groups last: {_REVERSED}"
            raise InvalidProblemError(
                f"mat_b: expected shape (G, K, N) with K = mat_a.shape[1] = {a[1]}; got {b}. {hint}"
            )
        return "ragged_m"
    if a[1] != b[0]:
        hint = "Pass operands with one M; a weight has three dimensions, (G, K, N)"
        if a[0] == b[0]:
            hint = "Rows are the first dimension of both: pass mat_a transposed, mat_a.T"
        raise InvalidProblemError(
            f"mat_b: expected shape (M, N) with M = mat_a.shape[1] = {a[1]}; got {b}. {hint}"
        )
    return "ragged_k"


def result_shape(form: Form, a: Shape, b: Shape, num_groups: int, folds: int = 1) -> Shape:
    """Return the shape of the result, of which `folds` columns of the product make one."""
    return (a[0], b[2] // folds) if form == "ragged_m" else (num_groups, a[0], b[1] // folds)


def host_group_sizes(offs: Any, rows: int) -> npt.NDArray[np.int64]:
    """Return rows per group for offsets on the host, after validation."""
    ends = to_host(offs)
    validate(ends, rows)
    sizes: npt.NDArray[np.int64] = np.diff(ends, prepend=0)
    return sizes


def check_out(out: ArrayView, shape: Shape, dtype: DType | None, inputs: list[ArrayView]) -> None:
    """Check a caller's result array.

    Raises
    ------
    InvalidProblemError
        If its shape is wrong, elements overlap each other, or it overlaps an input.
    InvalidDtypeError
        If `dtype` is given and differs.
    """
    if out.shape != shape:
        raise InvalidProblemError(
            f"out: expected shape {shape}; got {out.shape}. Allocate it so, or pass none"
        )
    if dtype is not None and out.dtype is not dtype:
        raise InvalidDtypeError(
            f"out: expected {dtype}, as out_dtype says; got {out.dtype}. Pass one of the two"
        )
    if _overlaps_itself(out):
        raise InvalidProblemError(
            f"out: expected distinct elements; strides {out.strides} let some coincide. "
            "Pass an array of its own, not an expanded view"
        )
    check_overlap(out, inputs)


def check_overlap(
    out: ArrayView,
    inputs: list[ArrayView],
    names: tuple[str, ...] = ("mat_a", "mat_b", "offs"),
) -> None:
    """Raise if a result shares memory with inputs: `mat_a`, `mat_b`, `offs`, or those of `names`.

    Views of one buffer that interleave without sharing a byte are allowed.
    """
    low, high = out.byte_range()
    for name, view in zip(names, inputs, strict=False):
        other_low, other_high = view.byte_range()
        if low < other_high and other_low < high and _share_memory(out, view):
            raise InvalidProblemError(
                f"out: expected memory that {name} does not use; they overlap between bytes "
                f"{max(low, other_low):#x} and {min(high, other_high):#x}. Pass another array"
            )


def _share_memory(one: ArrayView, other: ArrayView) -> bool:
    """Return whether two views share a byte; True where that is too hard to decide."""
    try:
        # NumPy's stub admits only two values of max_work.
        return np.shares_memory(_Shadow(one), _Shadow(other), max_work=100_000)  # type: ignore
    except np.exceptions.TooHardError:
        return True


class _Shadow:
    """The layout of a view for NumPy to reason about; its memory is never touched."""

    def __init__(self, view: ArrayView) -> None:
        size = view.dtype.itemsize
        self.__array_interface__ = {
            "version": 3,
            "data": (view.pointer, True),
            "shape": view.shape,
            "strides": tuple(s * size for s in view.strides),
            "typestr": f"|V{size}",
        }


def _overlaps_itself(view: ArrayView) -> bool:
    """Return whether strides may make elements coincide (sufficient rule, dimensions sorted)."""
    if 0 in view.shape:  # NumPy gives such arrays strides of 0
        return False
    reach = 0
    pairs = zip(view.shape, view.strides, strict=True)
    for stride, size in sorted((abs(stride), size) for size, stride in pairs if size > 1):
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def problem_of(
    a: ArrayView,
    b: ArrayView,
    offs: ArrayView | None,
    num_groups: int,
    out: ArrayView | None,
    out_dtype: Any,
    accumulate: bool,
    fused: Describes | None = None,
) -> Problem:
    """Build the problem of a call.

    Parameters
    ----------
    a, b : ArrayView
        Operands as passed.
    offs : ArrayView or None
        Offsets in device memory, or None where they are known on the host.
    num_groups : int
        Length of the offsets.
    out : ArrayView or None
        The caller's result array.
    out_dtype : object
        As passed.
    accumulate : bool
        As passed.
    fused : FusedViews, optional
        Steps of the epilogue, `accumulate` among them.
    """
    form = form_of(a.shape, b.shape)
    check_dtypes(a, b, offs)
    check_num_groups(form, b.shape, num_groups)
    for name, view in (("mat_a", a), ("mat_b", b)):
        if any(size > _MAX_EXTENT for size in view.shape):
            raise InvalidProblemError(
                f"{name}: expected dimensions up to {_MAX_EXTENT}; got {view.shape}. "
                "Split the call by groups"
            )
    asked = dtype_of(out_dtype, "out_dtype") if out_dtype is not None else None
    epilogue = "accumulate" if accumulate else "store"
    operand_strides: tuple[Shape, ...] = ()
    if fused is not None:
        epilogue, operand_strides = fused.describe(form, a, b, num_groups)
    shape = result_shape(form, a.shape, b.shape, num_groups, chain_of(epilogue).folds)
    if out is not None:
        if out.device != a.device:
            raise InvalidProblemError(
                f"out: expected an array on {device_name(a.device)}, like mat_a; "
                f"got one on {device_name(out.device)}. Allocate it there, or pass none"
            )
        check_out(out, shape, asked, [a, b] + ([offs] if offs is not None else []))
        if fused is not None:
            fused.check_apart(out)
    dtype = out.dtype if out is not None else asked or a.dtype
    if dtype not in _OPERAND_DTYPES:
        names = ", ".join(d.name for d in _OPERAND_DTYPES)
        name = "out_dtype" if out is None else "out"
        raise InvalidDtypeError(
            f"{name}: expected one of {names}; got {dtype}. Take float32 and convert the result"
        )
    if accumulate and out is None:
        raise InvalidProblemError(
            "accumulate: expected out= to add into; got none. Pass it, zeroed for a first sum"
        )
    if accumulate and dtype is not F32:
        raise InvalidDtypeError(
            f"accumulate: expected out= of float32, so that nothing is lost; got {dtype}. "
            "Accumulate in float32 and convert at the end"
        )
    ragged_m = form == "ragged_m"
    rows = a.shape[0] if ragged_m else a.shape[1]
    am, ak = _strides(a.shape, a.strides)
    b_strides = _strides(b.shape, b.strides)
    d_strides = _strides(shape, out.strides if out is not None else contiguous_strides(shape))
    return Problem(
        form=form,
        num_groups=num_groups,
        rows=rows,
        m=a.shape[0],
        n=b.shape[-1],
        k=a.shape[1],
        in_dtype=a.dtype,
        out_dtype=dtype,
        strides=Strides(
            am=am,
            ak=ak,
            bg=b_strides[0] if ragged_m else 0,
            bk=b_strides[-2],
            bn=b_strides[-1],
            dg=0 if ragged_m else d_strides[0],
            dm=d_strides[-2],
            dn=d_strides[-1],
        ),
        a_alignment=pointer_alignment(a.pointer),
        b_alignment=pointer_alignment(b.pointer),
        d_alignment=pointer_alignment(out.pointer) if out is not None else 16,
        schedule="scan" if offs is not None else "list",
        epilogue=epilogue,
        operand_strides=operand_strides,
        zero_tail=out is None,
    ).settled


def device_name(device: int) -> str:
    """Return a device number in words."""
    return "the CPU" if device == CPU else f"cuda:{device}"


def check_num_groups(form: Form, b: Shape, num_groups: int) -> None:
    """Raise if there is not one end offset for each group of `mat_b`."""
    if form == "ragged_m" and b[0] != num_groups:
        if b[2] == num_groups:
            raise InvalidProblemError(
                f"mat_b: expected shape (G, K, N) with G = {num_groups}, one group for each end "
                f"offset of offs; got {b}, which seems to have its groups last: {_REVERSED}"
            )
        raise InvalidProblemError(
            f"offs: expected {b[0]} end offsets, one per group of mat_b {b}; "
            f"got {num_groups}. Rows of experts that live elsewhere belong to the tail, past "
            "offs[-1]"
        )


def check_dtypes(a: ArrayView, b: ArrayView, offs: ArrayView | None) -> None:
    """Check types and devices of the operands, and the offsets' type, rank and stride."""
    if a.dtype not in _OPERAND_DTYPES:
        names = ", ".join(d.name for d in _OPERAND_DTYPES)
        raise InvalidDtypeError(f"mat_a: expected one of {names}; got {a.dtype}. Cast it")
    if b.dtype is not a.dtype:
        raise InvalidDtypeError(
            f"mat_b: expected {a.dtype}, like mat_a; got {b.dtype}. Cast one of them"
        )
    if b.device != a.device:
        raise InvalidProblemError(
            f"mat_b: expected an array on {device_name(a.device)}, like mat_a; "
            f"got one on {device_name(b.device)}. Move it there"
        )
    if offs is None:
        return
    if offs.dtype not in (I32, I64) or len(offs.shape) != 1:
        raise InvalidDtypeError(
            f"offs: expected int32 or int64 of one dimension; got {offs.dtype} of {offs.shape}. "
            "Pass the end offset of each group, shape (G,)"
        )
    if offs.shape[0] > 1 and offs.strides[0] != 1:
        raise InvalidProblemError(
            f"offs: expected contiguous offsets; got stride {offs.strides[0]}. Copy them"
        )


def _strides(shape: Shape, strides: Shape) -> Shape:
    """Return strides in which a dimension of length 1 (or 0) has none."""
    return tuple(s if size > 1 else 0 for size, s in zip(shape, strides, strict=True))
