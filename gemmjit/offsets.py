"""Offsets of groups: converters between the ways to describe a grouping, and their check.

``offs (G,)`` holds inclusive end offsets: group g owns the rows ``offs[g-1]`` to ``offs[g]``, the
first group starts at 0. Converters call the array's own methods, so the data stays on its device
and nothing waits for it. What they are given on the host they check; on a device they cannot.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gemmjit.errors import InvalidProblemError

__all__ = [
    "check_offsets",
    "from_group_sizes",
    "from_indptr",
    "from_row_ids",
    "to_group_sizes",
    "to_host",
]

_MOST_ROWS = 2**31 - 1  # what int32 holds
_FROM_SIZES = "For rows per group, convert with gemmjit.offsets.from_group_sizes"


def from_group_sizes(group_sizes: Any) -> Any:
    """Return end offsets for rows per group.

    Parameters
    ----------
    group_sizes : array of int, shape (G,)
        NumPy, CuPy or torch.

    Returns
    -------
    array of int32, shape (G,)
        Same framework, same device.

    Raises
    ------
    InvalidProblemError
        If a size on the host is negative, or there are more rows than int32 counts.
    """
    sizes = _as_array(group_sizes, "group_sizes")
    values = _values_on_host(sizes)
    if values is not None and values.size:
        at = int(values.argmin())
        if values[at] < 0:
            raise InvalidProblemError(
                f"group_sizes: expected rows per group, at least 0; got group_sizes[{at}] = "
                f"{int(values[at])}. For end offsets no conversion is needed"
            )
        # In float64, which wild sizes do not wrap, and which counts exactly far beyond int32.
        _check_count(int(values.sum(dtype=np.float64)), "group_sizes")
    return _as_int32(sizes.cumsum(0))


def from_indptr(indptr: Any) -> Any:
    """Return end offsets for row pointers with a leading zero, shape ``(G + 1,)``.

    Raises
    ------
    InvalidProblemError
        If there is no pointer; or one on the host is smaller than the one before, the first is not
        0, or the last is larger than int32 holds.
    """
    pointers = _as_array(indptr, "indptr")
    if pointers.shape[0] == 0:
        raise InvalidProblemError(
            "indptr: expected row pointers with a leading zero, shape (G + 1,); got none. "
            "For no groups pass [0]"
        )
    values = _values_on_host(pointers)
    if values is not None:
        if values[0] != 0:
            raise InvalidProblemError(
                f"indptr: expected row pointers with a leading zero, shape (G + 1,); got indptr[0] "
                f"= {int(values[0])}. End offsets, shape (G,), need no conversion"
            )
        _check_rising(values, "indptr", "Pass pointers in order, or sizes to from_group_sizes")
    return _as_int32(pointers[1:])


def from_row_ids(row_ids: Any, num_groups: int) -> Any:
    """Return end offsets for the group number of each row.

    Rows must be sorted by group. Numbers outside ``[0, num_groups)`` count as rows of no group and
    must come after all others. On the host this is checked. On a device it cannot be without
    waiting for it, and no later check can see it either: ends of unsorted rows are valid ends, of
    groups that get each other's rows.

    Parameters
    ----------
    row_ids : array of int, shape (M,)
        NumPy, CuPy or torch.
    num_groups : int

    Returns
    -------
    array of int32, shape (G,)
        Same framework, same device.

    Raises
    ------
    InvalidProblemError
        If `row_ids` is on the host and not sorted.
    """
    ids = _as_array(row_ids, "row_ids")
    if not isinstance(num_groups, int | np.integer) or num_groups < 0:
        raise InvalidProblemError(f"num_groups: expected a number >= 0; got {num_groups}")
    _check_sorted(ids, int(num_groups))
    # Comparing with every group needs no scatter and no host round trip, on any framework.
    groups = _arange_like(ids, num_groups)
    member = (ids[:, None] <= groups[None, :]) & (ids[:, None] >= 0)
    return _as_int32(member.sum(0))


def to_group_sizes(offs: Any) -> Any:
    """Return rows per group for end offsets.

    Raises
    ------
    InvalidProblemError
        If an offset on the host is negative, or smaller than the one before.
    """
    ends = _as_array(offs, "offs")
    values = _values_on_host(ends)
    if values is not None:
        _check_rising(values, "offs", _FROM_SIZES)
    sizes = ends + 0  # a copy, on any framework
    sizes[1:] -= ends[:-1]
    return _as_int32(sizes)


def check_offsets(offs: Any, rows: int) -> None:
    """Validate offsets, reading them back from the device if they are there.

    Parameters
    ----------
    offs : array of int or sequence of int, shape (G,)
    rows : int
        Length of the ragged dimension.

    Raises
    ------
    InvalidProblemError
        If an offset is negative, smaller than the one before, or larger than `rows`.
    """
    validate(to_host(offs), rows)


def validate(ends: npt.NDArray[np.int64], rows: int) -> None:
    """Raise for end offsets that do not describe a grouping of `rows` rows."""
    if ends.size == 0:
        return
    _check_falls(ends, "offs", _FROM_SIZES)
    if ends[-1] > rows:
        at = int(np.argmax(ends > rows))
        raise InvalidProblemError(
            f"offs: expected offsets up to {rows}, the length of the ragged dimension; "
            f"got offs[{at}] = {int(ends[at])}. Offsets count rows of mat_a (of mat_b in the "
            "ragged-K form); the last may be smaller than their number, not larger"
        )


def _check_rising(values: npt.NDArray[np.integer[Any]], name: str, mend: str) -> None:
    """Raise for offsets or pointers that fall, or that int32 cannot hold."""
    if values.size:
        _check_falls(values, name, mend)
        _check_count(int(values[-1]), name)


def _check_falls(values: npt.NDArray[np.integer[Any]], name: str, mend: str) -> None:
    # Compared, not subtracted: differences of wild values would wrap.
    falls = values[1:] < values[:-1]
    at = int(falls.argmax()) + 1 if falls.any() else 0
    if at or values[0] < 0:
        what = "end offsets" if name == "offs" else "row pointers"
        raise InvalidProblemError(
            f"{name}: expected {what} that never fall, from 0 on; got {name}[{at}] = "
            f"{int(values[at])} after {int(values[at - 1]) if at else 0}. {mend}"
        )


def _check_count(rows: int, name: str) -> None:
    if rows > _MOST_ROWS:
        raise InvalidProblemError(
            f"{name}: expected at most {_MOST_ROWS} rows; got {rows}. Split the call by groups"
        )


def to_host(offs: Any) -> npt.NDArray[np.int64]:
    """Return offsets as a NumPy array; waits for the device if they are there."""
    if hasattr(offs, "detach"):  # torch; NumPy lacks some of its types
        _check_torch(offs)
        offs = offs.detach().cpu()
        offs = offs.double().numpy() if offs.is_floating_point() else offs.numpy()
    elif hasattr(offs, "get") and hasattr(offs, "dtype"):  # CuPy
        offs = offs.get()
    if isinstance(offs, np.ma.MaskedArray):
        raise InvalidProblemError(
            "offs: expected offsets without a mask, which would be ignored; got a masked array. "
            "Fill it, as with offs.filled()"
        )
    try:
        array = np.asarray(offs)
    except ValueError:  # rows of different lengths
        array = np.empty((0, 0))
    if array.dtype.kind == "u" and array.size and int(array.max()) >= 2**63:
        raise InvalidProblemError(
            f"offs: expected offsets below 2^63; got {int(array.max())}. Pass the end offset of "
            "each group, as int32 or int64"
        )
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise InvalidProblemError(
            f"offs: expected one dimension of whole numbers; got shape {array.shape} "
            f"of {array.dtype}. Pass the end offset of each group, shape (G,), as int32 or int64"
        )
    return array.astype(np.int64)


def _check_torch(offs: Any) -> None:
    """Raise for a tensor that torch cannot give to NumPy as it is."""
    mend = ""
    if offs.is_nested:
        mend = "a nested one. Join its parts, with torch.cat(offs.unbind())"
    elif not str(offs.layout).endswith("strided"):
        mend = f"one of layout {offs.layout}. Pass offs.to_dense()"
    elif offs.is_neg():
        mend = "one whose sign is pending. Pass offs.resolve_neg()"
    if mend:
        raise InvalidProblemError(
            f"offs: expected a strided tensor whose memory holds its values; got {mend}"
        )


def _check_sorted(ids: Any, num_groups: int) -> None:
    """Raise for group numbers on the host that are not in order."""
    values = _values_on_host(ids)
    if values is None:
        return
    # The number of a row of no group counts as one past the last, whatever it is.
    stranger = (values < 0) | (values >= num_groups)
    ranks = np.where(stranger, num_groups, values).astype(np.int64)
    falls = ranks[1:] < ranks[:-1]
    if falls.any():
        at = int(falls.argmax()) + 1
        raise InvalidProblemError(
            f"row_ids: expected rows sorted by group, those of no group last; got row_ids[{at}] = "
            f"{int(values[at])} after {int(values[at - 1])}. Sort the rows of the operand, as with "
            "order = numpy.argsort(row_ids, kind='stable'), and pass row_ids[order]"
        )


def _values_on_host(array: Any) -> npt.NDArray[np.integer[Any]] | None:
    """Return what the host can read without waiting; None for devices and for what is traced."""
    if isinstance(array, np.ndarray):
        return array
    if not hasattr(array, "detach"):  # CuPy
        return None
    torch: Any = sys.modules["torch"]  # whose tensor it is; to import it is the integration's
    if torch.compiler.is_compiling() or type(array) is not torch.Tensor:
        return None
    # Under a mode (fake tensors, tracing) or a transform (vmap) a tensor may have no values.
    hidden = torch._C._len_torch_dispatch_stack() or torch._C._functorch.maybe_current_level()
    if hidden or array.device.type != "cpu":
        return None
    values: npt.NDArray[np.integer[Any]] = array.numpy()
    return values


def _as_array(value: Any, name: str) -> Any:
    array = value
    if isinstance(value, Sequence):
        array = np.asarray(value, np.int32 if len(value) == 0 else None)
    if getattr(array, "ndim", None) != 1:
        raise InvalidProblemError(
            f"{name}: expected an array of one dimension; got {type(value).__name__} of shape "
            f"{tuple(getattr(array, 'shape', ()))}"
        )
    kind = str(array.dtype).removeprefix("torch.")
    if not kind.startswith(("int", "uint")):
        raise InvalidProblemError(
            f"{name}: expected whole numbers; got {kind}. Cast them, as to int32"
        )
    return array


def _as_int32(array: Any) -> Any:
    return array.int() if hasattr(array, "detach") else array.astype(np.int32)


def _arange_like(array: Any, count: int) -> Any:
    """Return 0 to count - 1 beside `array`, in 64 bits: its own type may be too narrow."""
    if hasattr(array, "new_ones"):  # torch
        return array.new_ones(count).cumsum(0) - 1
    if hasattr(array, "get"):  # CuPy
        import cupy

        return cupy.arange(count, dtype=np.int64)
    return np.arange(count, dtype=np.int64)
