"""What is measured: named routings and sizes, and the products that training makes of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from gemmjit.dtypes import BF16, DType
from gemmjit.errors import InvalidProblemError
from gemmjit.problem import Problem
from gemmjit.variant import MAX_SHAPE
from gemmjit.workloads import power_law

__all__ = ["CASES", "MAX_GROUPS", "Case", "Pass", "Workload", "case_of", "passes_of"]

#: A routing takes memory for each group.
MAX_GROUPS = 2**20

#: The three products of training a linear layer.
Pass = Literal["fprop", "dgrad", "wgrad"]


@dataclass(frozen=True)
class Case:
    """One layer and one routing.

    Attributes
    ----------
    name : str
    group_sizes : tuple of int
        Rows of each group.
    k, n : int
        Input and output features: the weights are G matrices of k x n.
    spare_rows : int
        Rows reserved behind the last group (a capacity-shaped buffer); no product counts them.
    """

    name: str
    group_sizes: tuple[int, ...]
    k: int
    n: int
    spare_rows: int = 0

    @property
    def rows(self) -> int:
        """Routed rows, the only ones that count as work."""
        return sum(self.group_sizes)

    @property
    def num_groups(self) -> int:
        """Number of groups G."""
        return len(self.group_sizes)

    def with_spare(self, rows: int) -> Case:
        """Return the same case in a buffer with `rows` more rows."""
        return replace(self, name=f"{self.name}+{rows}", spare_rows=rows)


@dataclass(frozen=True)
class Workload:
    """One product of one case.

    Attributes
    ----------
    case : Case
    form : {"fprop", "dgrad", "wgrad"}
        fprop: ``(rows, k) @ (G, k, n)``; dgrad: ``(rows, n) @ (G, n, k)``;
        wgrad: ``(k, rows) @ (rows, n)``.
    dtype : DType
        Element type of operands and result.
    """

    case: Case
    form: Pass
    dtype: DType = BF16

    @property
    def label(self) -> str:
        """Case and form, as in ``olmo-8k fprop``."""
        return f"{self.case.name} {self.form}"

    @property
    def contraction(self) -> int:
        """Length of the contraction of fprop and dgrad; k, the result's rows, for wgrad."""
        return self.case.n if self.form == "dgrad" else self.case.k

    @property
    def columns(self) -> int:
        """Columns of the result."""
        return self.case.k if self.form == "dgrad" else self.case.n

    @property
    def result_shape(self) -> tuple[int, ...]:
        """Shape of the result."""
        if self.form == "wgrad":
            return (self.case.num_groups, self.case.k, self.case.n)
        return (self.case.rows + self.case.spare_rows, self.columns)

    @property
    def flops(self) -> int:
        """Useful floating-point operations: 2 k n for each routed row, never for padding."""
        return 2 * self.case.rows * self.case.k * self.case.n

    @property
    def min_bytes(self) -> int:
        """Fewest bytes through device memory: each input read once, the result written once.

        Weights of empty groups are not read; their gradients must be written.
        """
        case = self.case
        used = sum(1 for size in case.group_sizes if size)
        weights = case.num_groups if self.form == "wgrad" else used
        elements = case.rows * (case.k + case.n) + weights * case.k * case.n
        return elements * self.dtype.itemsize

    @property
    def buffer_bytes(self) -> int:
        """Bytes of both operands and the result as they are allocated."""
        case = self.case
        rows = case.rows + case.spare_rows
        elements = rows * (case.k + case.n) + case.num_groups * case.k * case.n
        return elements * self.dtype.itemsize

    def problem(
        self, layout: str = "nn", epilogue: str = "store", out_dtype: DType | None = None
    ) -> Problem:
        """Return the problem that a call has, with device offsets.

        Parameters
        ----------
        layout : {"nn", "nt"}
            Whether the columns or the contraction of the weights are contiguous.
        epilogue : str
            Name of a chain of steps; see `gemmjit.epilogue`. wgrad has ``accumulate`` alone.
        out_dtype : DType, optional
            Element type of the result, if not the operands'.
        """
        rows = self.case.rows + self.case.spare_rows
        if self.form == "wgrad":
            return Problem.contiguous(
                "ragged_k",
                num_groups=self.case.num_groups,
                rows=rows,
                n=self.case.n,
                k=self.case.k,
                dtype=self.dtype,
                out_dtype=out_dtype,
                epilogue=epilogue,
            )
        return Problem.contiguous(
            num_groups=self.case.num_groups,
            rows=rows,
            n=self.columns,
            k=self.contraction,
            dtype=self.dtype,
            out_dtype=out_dtype,
            b_k_major=layout == "nt",
            epilogue=epilogue,
        )


def _even(name: str, rows: int, groups: int, k: int, n: int, skew: float = 0.0) -> Case:
    return Case(name, tuple(power_law(rows, groups, skew).tolist()), k, n)


#: Routings and layer sizes that results are published for. The first three are a study's of ragged
#: experts; the others have the sizes of models in use.
CASES: dict[str, Case] = {
    case.name: case
    for case in (
        _even("seed1-16k-s0", 16384, 64, 1024, 2688),
        _even("seed1-16k-s1.2", 16384, 64, 1024, 2688, 1.2),
        _even("seed1-2k-s0", 2048, 64, 1024, 2688),
        _even("olmo-1k", 1024, 16, 4096, 4096),
        _even("olmo-8k", 8192, 16, 4096, 4096),
        _even("olmo-64k", 65536, 16, 4096, 4096),
        _even("dsv3-32k", 32768, 8, 7168, 4096),
        _even("qwen3-up-64k", 65536, 128, 2048, 1536),
        _even("decode-256", 256, 128, 2048, 1536),
    )
}


def case_of(text: str) -> Case:
    """Return a case by its name, or build one from its sizes.

    Parameters
    ----------
    text : str
        A name from `CASES`, or ``rows=4096:groups=32:k=1024:n=2048`` with an optional ``skew=``
        and ``spare=``, or ``sizes=4/0/17:k=64:n=128``.

    Raises
    ------
    InvalidProblemError
        If it is neither, a size or the sum of rows is above `gemmjit.variant.MAX_SHAPE`, or there
        are more than `MAX_GROUPS` groups.
    """
    if text in CASES:
        return CASES[text]
    fields = dict(part.split("=", 1) for part in text.split(":") if part.count("=") == 1)
    try:
        spare = _size(fields.pop("spare", "0"))
        k, n = _size(fields.pop("k")), _size(fields.pop("n"))
        if "sizes" in fields:
            sizes = [_size(size) for size in fields.pop("sizes").split("/")]
        else:
            rows, groups = _size(fields.pop("rows")), _size(fields.pop("groups"))
            if groups > MAX_GROUPS:
                raise ValueError
            sizes = power_law(rows, groups, _number(fields.pop("skew", "0"))).tolist()
    except (KeyError, ValueError) as error:
        raise InvalidProblemError(_expected(text)) from error
    if fields or not k or not n or not 0 < sum(sizes) <= MAX_SHAPE - spare:
        raise InvalidProblemError(_expected(text))
    return Case(text, tuple(sizes), k, n, spare)


def _size(text: str) -> int:
    """Read ASCII digits; raise ValueError if they are none, or no dimension can be so long."""
    if not re.fullmatch("[0-9]+", text) or int(text) > MAX_SHAPE:
        raise ValueError(text)
    return int(text)


def _number(text: str) -> float:
    if "_" in text or not text.isascii():
        raise ValueError(text)
    return float(text)


def passes_of(names: Sequence[str]) -> tuple[Pass, ...]:
    """Return the passes that names stand for.

    Raises
    ------
    InvalidProblemError
        If one is unknown.
    """
    known = {str(form): form for form in get_args(Pass)}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise InvalidProblemError(f"form: expected some of {', '.join(known)}; got {unknown[0]!r}")
    return tuple(known[name] for name in names)


def _expected(text: str) -> str:
    return (
        f"case: expected one of {', '.join(CASES)}, or sizes as in "
        "rows=4096:groups=32:k=1024:n=2048:skew=1.2 or sizes=4/0/17:k=64:n=128, of one row or "
        f"more, none above {MAX_SHAPE}, at most {MAX_GROUPS} groups; got {text!r}"
    )
