"""Which problems share a tuned record: equal but for groups and mean rows, which lie close."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from gemmjit.errors import InvalidProblemError
from gemmjit.problem import Problem
from gemmjit.variant import MAX_SHAPE

__all__ = [
    "MAX_LOG2",
    "Bucket",
    "Kind",
    "bucket_of",
    "corners",
    "kind_of",
    "log2_range",
    "mean_rows",
]

#: Buckets end at 2**20 groups and 2**20 rows a group; what is larger counts as that.
MAX_LOG2 = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What problems of a bucket have in common exactly.

    Attributes
    ----------
    form, in_dtype, out_dtype, epilogue : str
    n : int
        Columns of the result.
    k : int
        Contraction of the ragged-M form; rows of each group's result in the ragged-K form.
    a_k_major, b_k_major : bool
        Whether the contraction is the contiguous dimension.
    """

    form: str
    in_dtype: str
    out_dtype: str
    epilogue: str
    n: int
    k: int
    a_k_major: bool
    b_k_major: bool


@dataclass(frozen=True, slots=True)
class Bucket:
    """A kind of problems, and powers of two between which groups and mean rows lie.

    Attributes
    ----------
    kind : Kind
    groups_log2, rows_log2 : int
        Groups from ``2**groups_log2`` to below the next power; mean rows of a group likewise.
    """

    kind: Kind
    groups_log2: int
    rows_log2: int

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, those of the kind among them, as a JSON-compatible mapping."""
        return {
            **asdict(self.kind),
            "groups_log2": self.groups_log2,
            "rows_log2": self.rows_log2,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Bucket:
        """Build a bucket from what `to_dict` returned.

        Raises
        ------
        InvalidProblemError
            If a name is missing, unknown, or has a value of another type or out of range.
        """
        types = {f.name: {"int": int, "bool": bool, "str": str}[str(f.type)] for f in fields(Kind)}
        types |= {"groups_log2": int, "rows_log2": int}
        if set(values) != set(types) or any(type(values[k]) is not t for k, t in types.items()):
            raise InvalidProblemError(
                f"bucket: expected {', '.join(types)} with their types; got {dict(values)}"
            )
        ranges = {"n": MAX_SHAPE, "k": MAX_SHAPE, "groups_log2": MAX_LOG2, "rows_log2": MAX_LOG2}
        for name, most in ranges.items():
            if not 0 <= values[name] <= most:
                raise InvalidProblemError(f"bucket: expected {name} from 0 to {most}; got another")
        kind = Kind(**{f.name: values[f.name] for f in fields(Kind)})
        return cls(kind, values["groups_log2"], values["rows_log2"])

    def __str__(self) -> str:
        kind = self.kind
        order = ("" if kind.a_k_major == (kind.form == "ragged_m") else " a^T") + (
            " b^T" if kind.b_k_major else ""
        )
        added = "" if kind.epilogue == "store" else f" {kind.epilogue}"
        groups, rows = log2_range(self.groups_log2), log2_range(self.rows_log2)
        return (
            f"{kind.form} {kind.in_dtype} n={kind.n} k={kind.k}{order}{added}, "
            f"{groups[0]} to {groups[1]} groups of {rows[0]} to {rows[1]} rows"
        )


def mean_rows(problem: Problem) -> int:
    """Return the mean rows of a group, rounded up."""
    return -(-problem.rows // max(problem.num_groups, 1))


def kind_of(problem: Problem) -> Kind:
    """Return what a problem shares with all others of its buckets."""
    s = problem.strides
    return Kind(
        form=problem.form,
        in_dtype=problem.in_dtype.name,
        out_dtype=problem.out_dtype.name,
        epilogue=str(problem.epilogue),
        n=problem.n,
        k=problem.k if problem.form == "ragged_m" else problem.m,
        a_k_major=s.ak == 1,
        b_k_major=s.bk == 1,
    )


def bucket_of(problem: Problem) -> Bucket:
    """Return the bucket of a problem."""
    return Bucket(kind_of(problem), _log2(problem.num_groups), _log2(mean_rows(problem)))


def log2_range(exponent: int) -> tuple[int, int]:
    """Return the smallest and the largest number of a bucket; the last one has no end."""
    return 2**exponent, 2 ** (exponent + 1) - 1 if exponent < MAX_LOG2 else 2**31 - 1


def corners(
    bucket: Bucket, num_groups: int | None, rows: tuple[int, int]
) -> Iterator[tuple[int, int]]:
    """Yield groups and rows of calls of a bucket, within what is known of them.

    None if no such call is possible; else the calls with fewest and most groups, each with fewest
    and most rows.

    Parameters
    ----------
    bucket : Bucket
    num_groups : int or None
        Groups of every call, or None if any number may come.
    rows : tuple of int
        Smallest and largest number of rows of a call.
    """
    low, high = rows
    mean_low, mean_high = log2_range(bucket.rows_log2)
    first, last = log2_range(bucket.groups_log2)
    if num_groups is not None:
        first, last = max(first, num_groups), min(last, num_groups)
    # mean_low <= ceil(rows / groups) <= mean_high for some rows from low to high
    first = max(first, -(-low // mean_high))
    if mean_low > 1:
        last = min(last, (high - 1) // (mean_low - 1))
    if first > last:
        return
    for groups in sorted({first, last}):
        fewest = max(low, groups * (mean_low - 1) + 1)
        most = min(high, groups * mean_high)
        for size in sorted({fewest, most}):
            if fewest <= most:
                yield groups, size


def _log2(number: int) -> int:
    return min(max(number, 1).bit_length() - 1, MAX_LOG2)
