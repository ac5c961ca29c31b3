"""Edge cases of the contract as data, for any kernel, tile, policy and array framework."""

from __future__ import annotations

from dataclasses import dataclass

import makers
import references
from cases import GROUPINGS, Target, ends_of, integers
from makers import PADDED, PLAIN, SWAPPED, Layout
from references import assert_same, rounded

from gemmjit.kernels import Kernel

NAN = float("nan")


@dataclass(frozen=True, kw_only=True)
class Edge:
    """One problem.

    Attributes
    ----------
    sizes : tuple of int
        Rows of each group.
    n, k : int
        Columns and contraction (ragged K: columns, and rows of the result).
    tail : int
        Rows of no group; they hold NaN.
    out : Layout or None
        Where the result goes; None for a fresh one, whose tail is zero.
    by_tma : bool
        Whether kernels that load by TMA can serve it.
    """

    sizes: tuple[int, ...] = (5, 0, 70)
    n: int = 72
    k: int = 40
    tail: int = 3
    form: str = "ragged_m"
    dtype: str = "bfloat16"
    out_dtype: str = "bfloat16"
    accumulate: bool = False
    a: Layout = PLAIN
    b: Layout = PLAIN
    out: Layout | None = None
    offs: str = "int32"
    by_tma: bool = True


_G = GROUPINGS

EDGES = {
    "first group empty": Edge(sizes=_G["first_empty"]),
    "inner and last group empty": Edge(sizes=_G["inner_and_last_empty"]),
    "all groups empty": Edge(sizes=_G["all_empty"], tail=5),
    "all groups empty, own result": Edge(sizes=_G["all_empty"], tail=5, out=PLAIN),
    "one row": Edge(sizes=(1,), tail=0),
    "single rows": Edge(sizes=_G["single_rows"]),
    "odd sizes": Edge(sizes=_G["odd"]),
    "over a tile": Edge(sizes=_G["over_a_tile"], tail=70),
    "beyond a window of groups": Edge(sizes=_G["beyond_a_window"]),
    "no groups": Edge(sizes=(), tail=7, by_tma=False),
    "tail of a fresh result": Edge(tail=300),
    "tail of an own result": Edge(tail=300, out=PLAIN),
    "result with gaps": Edge(out=PADDED),
    "result off the 16-byte grid": Edge(out=makers.MISALIGNED),
    "result with columns first": Edge(out=SWAPPED),
    "one short tile": Edge(sizes=(3,), n=8, k=8),
    "columns over a tile": Edge(n=264),
    "contraction over a round of stages": Edge(k=328),
    "contraction of one": Edge(k=1, by_tma=False),
    "no contraction": Edge(k=0, by_tma=False),
    "odd columns and contraction": Edge(n=33, k=31, by_tma=False),
    "K-major B": Edge(b=SWAPPED),
    "operands with gaps": Edge(a=PADDED, b=PADDED),
    "misaligned A": Edge(a=makers.MISALIGNED, by_tma=False),
    "misaligned B": Edge(b=makers.MISALIGNED, by_tma=False),
    "float16": Edge(dtype="float16", out_dtype="float16"),
    "float32 result": Edge(out_dtype="float32"),
    "accumulate": Edge(out_dtype="float32", accumulate=True, out=PLAIN),
    "accumulate with gaps": Edge(out_dtype="float32", accumulate=True, out=PADDED, b=SWAPPED),
    "offsets on the host": Edge(offs="list"),
    "wgrad": Edge(form="ragged_k", a=SWAPPED),
    "wgrad, empty groups": Edge(form="ragged_k", a=SWAPPED, sizes=_G["beyond_a_window"]),
    "wgrad, long groups": Edge(form="ragged_k", a=SWAPPED, sizes=(130, 0, 257), tail=70),
    "wgrad, accumulate": Edge(
        form="ragged_k", a=SWAPPED, out_dtype="float32", accumulate=True, out=PLAIN
    ),
    "wgrad, own result": Edge(form="ragged_k", a=SWAPPED, out=PADDED),
    "wgrad, A as it is": Edge(form="ragged_k", by_tma=False),
    "wgrad, odd sizes": Edge(form="ragged_k", a=SWAPPED, n=33, k=31, by_tma=False),
}


def serves(kernel: Kernel, edge: Edge) -> bool:
    """Return whether a kernel takes an edge; others refuse a config of it."""
    return edge.form in kernel.forms and (edge.by_tma or not kernel.loads_by_tma)


def check(target: Target, edge: Edge) -> None:
    """Run an edge and compare every element, and every byte around the result."""
    ends, used, rows = ends_of(edge.sizes), sum(edge.sizes), sum(edge.sizes) + edge.tail
    if edge.form == "ragged_m":
        a, b = integers((rows, edge.k), seed=1), integers((len(ends), edge.k, edge.n), seed=2)
        a[used:] = NAN
        shape: tuple[int, ...] = (rows, edge.n)
        reference = references.fprop
    else:
        a, b = integers((edge.k, rows), seed=1), integers((rows, edge.n), seed=2)
        a[:, used:], b[used:] = NAN, NAN
        shape = (len(ends), edge.k, edge.n)
        reference = references.wgrad
    placed_a = target.place(a, edge.a, edge.dtype)
    placed_b = target.place(b, edge.b, edge.dtype)
    want = reference(placed_a.read(), placed_b.read(), ends)
    if edge.out is None:
        target.maker.poison_pool(shape, edge.out_dtype)
        got = target.grouped_mm(placed_a, placed_b, ends, out_dtype=edge.out_dtype)
        assert_same(target.read(got), rounded(want, edge.out_dtype))
    else:
        start = integers(shape, seed=5)
        out = target.out(start, edge.out, edge.out_dtype)
        target.grouped_mm(placed_a, placed_b, ends, out=out, accumulate=edge.accumulate)
        if edge.accumulate:
            want = want + start
        elif edge.form == "ragged_m":
            want[used:] = start[used:]
        assert_same(out.read(), rounded(want, edge.out_dtype))
        out.assert_only_elements_changed()
    placed_a.assert_unchanged()
    placed_b.assert_unchanged()
