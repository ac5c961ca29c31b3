"""What is asked: one grouped GEMM, without its data.

Roles, not argument names: D = A B with rows m, columns n and contraction k. In the ragged-M form
(fprop, dgrad) groups cut the rows of A and D; in the ragged-K form (wgrad) they cut the
contraction, and A is the first argument as it stands: ``mat_a (K, M)`` has rows m = K there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd
from numbers import Integral
from typing import NamedTuple, get_args

import numpy as np

from gemmjit.dtypes import BF16, F32, DType, dtype_of
from gemmjit.epilogue import Chain, chain_of
from gemmjit.errors import InvalidConfigError, InvalidDtypeError, InvalidProblemError
from gemmjit.pickles import NamedFields
from gemmjit.variant import Form, Schedule

__all__ = ["LARGEST", "MAX_ALIGNMENT", "Problem", "Strides", "pointer_alignment"]

#: The longest dimension, and most groups: kernels count in 32 bits.
LARGEST = 2**31 - 1

#: No kernel profits from more alignment than this, in bytes.
MAX_ALIGNMENT = 16


class Strides(NamedTuple):
    """Strides of the three operands in elements; a group stride is 0 where there is none."""

    am: int
    ak: int
    bg: int
    bk: int
    bn: int
    dg: int
    dm: int
    dn: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(NamedFields):
    """One grouped GEMM.

    Attributes
    ----------
    form : {"ragged_m", "ragged_k"}
        ragged_m: ``(rows, k) @ (G, k, n) -> (rows, n)``.
        ragged_k: ``(m, rows) @ (rows, n) -> (G, m, n)``.
    num_groups : int
        Number of groups G.
    rows : int
        Length of the ragged dimension, rows of the tail included.
    m : int
        Rows of each group's result in the ragged-K form; equal to `rows` otherwise.
    n : int
        Columns of the product; of the result too, unless the epilogue folds them.
    k : int
        Length of the contraction in the ragged-M form; equal to `rows` otherwise.
    in_dtype, out_dtype : DType
        Element types of the operands and of the result.
    strides : Strides
        In elements; 0 for a dimension of length 1, whose stride says nothing.
    a_alignment, b_alignment, d_alignment : int
        Largest power of two, at most 16, that divides each base pointer, in bytes.
    schedule : {"list", "scan"}
        Whether the offsets are known on the host (list) or only on the device (scan).
    epilogue : str
        Name of a chain of steps; see `gemmjit.epilogue`.
    operand_strides : tuple of tuple of int
        Strides of what each step with an operand reads, in the order of the steps; in elements.
    zero_tail : bool
        Whether rows behind the last group become zeros or stay untouched.
    """

    form: Form
    num_groups: int
    rows: int
    m: int
    n: int
    k: int
    in_dtype: DType
    out_dtype: DType
    strides: Strides
    a_alignment: int = MAX_ALIGNMENT
    b_alignment: int = MAX_ALIGNMENT
    d_alignment: int = MAX_ALIGNMENT
    schedule: Schedule = "scan"
    epilogue: str = "store"
    operand_strides: tuple[tuple[int, ...], ...] = ()
    zero_tail: bool = True

    @classmethod
    def contiguous(
        cls,
        form: Form = "ragged_m",
        *,
        num_groups: int,
        rows: int,
        n: int,
        k: int,
        dtype: DType | str = BF16,
        out_dtype: DType | str | None = None,
        a_k_major: bool | None = None,
        b_k_major: bool = False,
        schedule: Schedule = "scan",
        epilogue: str = "store",
    ) -> Problem:
        """Describe a call on aligned arrays without gaps.

        Parameters
        ----------
        form : {"ragged_m", "ragged_k"}
            In the ragged-K form the call is ``(k, rows) @ (rows, n) -> (G, k, n)``.
        num_groups, rows, n, k : int
            Sizes, named as in the call.
        dtype, out_dtype : DType or str
            Element types; the result's defaults to the operands'.
        a_k_major, b_k_major : bool
            Whether the contraction is the contiguous dimension of A (of B). A's default is what
            training has: True for ragged_m, False for ragged_k (a transposed activation).
        schedule, epilogue
            As the attributes.

        Raises
        ------
        InvalidProblemError
            If a size is no whole number from 0 to 2**31 - 1, n is odd where two columns make one
            of the result, there is no such form or schedule, or a memory order is no bool.
        InvalidDtypeError
            If there is no such type, or the result is not of float32 where it is added up.
        InvalidConfigError
            If there is no such epilogue.
        """
        for argument, value, known in (
            ("form", form, get_args(Form)),
            ("schedule", schedule, ("list", "scan")),
        ):
            if not isinstance(value, str) or value not in known:
                raise InvalidProblemError(
                    f"{argument}: expected one of {', '.join(known)}; got {value!r}. Pick one"
                )
        for argument, order in (("a_k_major", a_k_major), ("b_k_major", b_k_major)):
            if order is None and argument == "a_k_major":
                continue
            if not isinstance(order, bool | np.bool_):  # a text such as "no" would count as yes
                raise InvalidProblemError(
                    f"{argument}: expected True or False; got {order!r}. Pass one of the two, on "
                    f"a command line as {argument}=true"
                )
        if not isinstance(epilogue, str):
            raise InvalidConfigError(
                f"epilogue: expected a name, as in bias+row_scale; got {epilogue!r}. Pass a text"
            )
        chain = chain_of(epilogue)
        for name, size in (("num_groups", num_groups), ("rows", rows), ("n", n), ("k", k)):
            if not is_whole(size) or not 0 <= size <= LARGEST:
                raise InvalidProblemError(
                    f"{name}: expected a whole number from 0 to {LARGEST}; got {size!r}. "
                    "Larger calls are split"
                )
        if n % chain.folds:
            raise InvalidProblemError(
                f"n: expected a multiple of {chain.folds} for {epilogue}; got {n}. A gate and its "
                "factor make one column of the result"
            )
        columns = n // chain.folds
        in_dtype = dtype_of(dtype)
        result = dtype_of(out_dtype, "out_dtype") if out_dtype is not None else in_dtype
        if chain.accumulates and result is not F32:
            raise InvalidDtypeError(
                f"out_dtype: expected float32 for {epilogue}, as the call does; got {result}. "
                "Accumulate in float32"
            )
        if a_k_major is None:
            a_k_major = form == "ragged_m"
        m, contraction = (rows, k) if form == "ragged_m" else (k, rows)
        am, ak = (contraction, 1) if a_k_major else (1, m)
        bk, bn = (1, contraction) if b_k_major else (n, 1)
        return cls(
            form=form,
            num_groups=num_groups,
            rows=rows,
            m=m,
            n=n,
            k=contraction,
            in_dtype=in_dtype,
            out_dtype=result,
            strides=Strides(
                am=am if m > 1 else 0,
                ak=ak if contraction > 1 else 0,
                bg=contraction * n if form == "ragged_m" and num_groups > 1 else 0,
                bk=bk if contraction > 1 else 0,
                bn=bn if n > 1 else 0,
                dg=m * columns if form == "ragged_k" and num_groups > 1 else 0,
                dm=columns if m > 1 else 0,
                dn=1 if columns > 1 else 0,
            ),
            schedule=schedule,
            epilogue=epilogue,
            operand_strides=tuple(
                (n, 1) if len(step.kind.operand.dims) == 2 else (1,)
                for step in chain.operands
                if step.kind.operand is not None
            ),
        )

    @property
    def chain(self) -> Chain:
        """The steps of the epilogue."""
        return chain_of(self.epilogue)

    @property
    def columns(self) -> int:
        """Columns of the result."""
        return self.n // self.chain.folds

    @property
    def flops(self) -> int:
        """Floating-point operations if every row belongs to a group: 2 m n k."""
        return 2 * self.m * self.n * self.k

    @property
    def is_empty(self) -> bool:
        """Whether the result has no elements, so that there is nothing to launch."""
        if self.form == "ragged_m":
            return self.rows == 0 or self.n == 0
        return self.num_groups == 0 or self.m == 0 or self.n == 0

    @property
    def settled(self) -> Problem:
        """The same; where nothing is multiplied, with operands that lie as they usually do.

        They are never read then, and arrays without elements have strides that say nothing. So one
        kernel serves all such calls. Of what the epilogue reads that holds where there are no
        groups, so that all rows are tail; a contraction of length 0 still has a bias added.
        """
        if self.has_products:
            return self
        unread = self.num_groups == 0 or self.rows == 0
        epilogue = self.chain.dense.name if unread else self.epilogue
        usual = Problem.contiguous(
            self.form,
            num_groups=self.num_groups,
            rows=self.rows,
            n=self.n,
            k=self.m if self.form == "ragged_k" else self.k,
            dtype=self.in_dtype,
            out_dtype=self.out_dtype,
            epilogue=epilogue,
        )
        strides = self.strides._replace(
            **{name: getattr(usual.strides, name) for name in ("am", "ak", "bg", "bk", "bn")}
        )
        return replace(
            self,
            strides=strides,
            a_alignment=MAX_ALIGNMENT,
            b_alignment=MAX_ALIGNMENT,
            epilogue=epilogue,
            operand_strides=usual.operand_strides if unread else self.operand_strides,
        )

    @property
    def has_products(self) -> bool:
        """Whether there is anything to multiply; if not, the result is zeros or stays as it is."""
        return self.num_groups > 0 and self.k > 0 and self.rows > 0


def is_whole(value: object) -> bool:
    """Return whether a value is a whole number: of Python or NumPy, and no bool."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def pointer_alignment(pointer: int) -> int:
    """Return the largest power of two, at most 16, that divides a pointer."""
    return gcd(pointer, MAX_ALIGNMENT)
