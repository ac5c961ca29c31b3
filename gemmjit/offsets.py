"""Offsets of groups: converters between the ways to describe a grouping, and their check.

``offs (G,)`` holds inclusive end offsets: group g owns the rows ``offs[g-1]`` to ``offs[g]``, the
first group starts at 0. Converters call the array's own methods, so the data stays on its device
and nothing waits for it.
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
    """
    return _as_int32(_as_array(group_sizes, "group_sizes").cumsum(0))


def from_indptr(indptr: Any) -> Any:
    """Return end offsets for row pointers with a leading zero, shape ``(G + 1,)``."""
    return _as_int32(_as_array(indptr, "indptr")[1:])


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
    """Return rows per group for end offsets."""
    ends = _as_array(offs, "offs")
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
    # Compared, not subtracted: differences of wild values would wrap.
    falls = ends < np.concatenate([[0], ends[:-1]])
    if falls.any():
        at = int(falls.argmax())
        before = int(ends[at - 1]) if at else 0
        raise InvalidProblemError(
            f"offs: expected end offsets that never fall, from 0 on; got offs[{at}] = "
            f"{int(ends[at])} after {before}. For rows per group, convert with "
            "gemmjit.offsets.from_group_sizes"
        )
    if ends[-1] > rows:
        at = int(np.argmax(ends > rows))
        raise InvalidProblemError(
            f"offs: expected offsets up to {rows}, the length of the ragged dimension; "
            f"got offs[{at}] = {int(ends[at])}. Offsets count rows of mat_a (of mat_b in the "
            "ragged-K form); the last may be smaller than their number, not larger"
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
    array = np.asarray(value) if isinstance(value, Sequence) else value
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
