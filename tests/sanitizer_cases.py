"""k3's ways to store, beside the plain one: small calls on whole numbers for compute-sanitizer.

Each part is a list of `Cell`: what a call is about, and the call. The kinds of a part come in
turns, and of a kind the ways that differ most come first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import numpy as np
import references
from additions import CONFIGS
from cases import Target, ends_of, integers
from epilogue_cases import EpilogueCase, check, epilogue_cases
from makers import ODD_PAD, PADDED, PLAIN, SWAPPED, Layout, Maker
from references import assert_same, rounded

from gemmjit import Sm90WgmmaConfig
from gemmjit.epilogue import chain_of

TAIL = 5


@dataclass(frozen=True)
class Cell:
    """One call: its kind, of which a short run takes a few, and how to run and check it."""

    kind: str
    name: str
    run: Callable[[Maker], None]


@dataclass(frozen=True)
class Product:
    """A product by k3 and where it goes.

    Attributes
    ----------
    form : {"fprop", "wgrad"}
    config : Sm90WgmmaConfig or None
        None: the default choice.
    sizes : tuple of int
        Rows of each group.
    k, n : int
        Columns of A (in wgrad: of its transpose) and of the result.
    out_dtype : str
    layout : Layout
        Of the result. Rows that are an odd number of elements apart lie off the grid of 16 bytes:
        such results are stored from registers.
    accumulate : bool
        Whether it is added to what the result holds.
    calls : int
        How often: counters in device memory must be left as they were found.
    """

    form: str
    config: Sm90WgmmaConfig | None
    sizes: tuple[int, ...]
    k: int = 72
    n: int = 136
    out_dtype: str = "float32"
    layout: Layout = PLAIN
    accumulate: bool = False
    calls: int = 1

    def __str__(self) -> str:
        what = f"{self.form} {self.config or 'auto'}, {len(self.sizes)} groups, {self.k}x{self.n}"
        added = "added" if self.accumulate else "stored"
        return f"{what}, {self.out_dtype}, {self.layout.name}, {added} {self.calls} times"


def check_product(maker: Maker, case: Product) -> None:
    """Compute it and compare every element; and every one between rows of the result."""
    target = Target(maker, "int32", case.config)
    used = sum(case.sizes)
    rows, ends = used + TAIL, ends_of(case.sizes)
    x = integers((rows, case.k), seed=1, limit=2)
    x[used:] = np.nan
    if case.form == "wgrad":
        y = integers((rows, case.n), seed=2, limit=2)
        y[used:] = np.nan
        a, b = target.place(x.T, SWAPPED), target.place(y)
        want = references.wgrad(x.T, y, ends)
    else:
        y = integers((len(case.sizes), case.k, case.n), seed=2, limit=2)
        a, b = target.place(x), target.place(y)
        want = references.fprop(x, y, ends)
    if not case.accumulate and case.layout is PLAIN:
        for _ in range(case.calls):
            got = target.grouped_mm(a, b, ends, out_dtype=case.out_dtype)
            assert_same(target.read(got), rounded(want, case.out_dtype))
        return
    start = integers(want.shape, seed=3)
    out = target.out(start, case.layout, case.out_dtype)
    for _ in range(case.calls):
        target.grouped_mm(a, b, ends, out=out, accumulate=case.accumulate)
    total = start + case.calls * want if case.accumulate else want
    if case.form == "fprop":
        total[used:] = start[used:]
    assert_same(out.read(), rounded(total, case.out_dtype))
    out.assert_only_elements_changed()


def parts() -> dict[str, list[Cell]]:
    """Return the cells of each part, by its name."""
    return {
        "epilogues": _in_turns(_epilogues()),
        "results": _in_turns(_products(_results())),
        "sums": _in_turns(_products(_sums())),
        "split": _in_turns(_products(_split())),
        "claims": _in_turns(_products(_claims())),
    }


def _in_turns(cells: Iterator[Cell]) -> list[Cell]:
    """Return one cell of each kind, then the next of each."""
    kinds: dict[str, list[Cell]] = defaultdict(list)
    for cell in cells:
        kinds[cell.kind].append(cell)
    longest = max(len(one) for one in kinds.values())
    return [one[i] for i in range(longest) for one in kinds.values() if i < len(one)]


def _products(cases: Iterator[tuple[str, Product]]) -> Iterator[Cell]:
    for kind, case in cases:
        yield Cell(kind, str(case), partial(check_product, case=case))


def epilogues_of_k3() -> Iterator[tuple[str, EpilogueCase]]:
    """Yield cases with epilogues, and the kinds that they are of."""
    found = [case for case in epilogue_cases() if case.config.kernel == "k3"]
    found = [case for case in found if chain_of(case.epilogue).keywords]
    # Neighbours differ in one thing: take every fifth, then those behind them, and so on.
    for first in range(5):
        for turn, case in enumerate(found[first::5]):
            yield _kind_of(case), case
            if first == 0 and turn % 2 == 0:  # the same off the grid of 16 bytes
                yield _kind_of(case), replace(case, into=True, out=ODD_PAD)


def _kind_of(case: EpilogueCase) -> str:
    chain = chain_of(case.epilogue)
    if not chain.gate:
        return "bias" if "bias" in chain.keywords else "row scale"
    gates = "chain" if chain.operands else f"{chain.gate} gates"
    if gates == "interleaved gates":
        return gates
    return f"{gates}, {'K' if case.b is SWAPPED else 'N'}-major B"


def _epilogues() -> Iterator[Cell]:
    for kind, case in epilogues_of_k3():
        yield Cell(kind, str(case), partial(check, case=case))


#: A consumer alone and two together; one store box and several.
_ALONE = Sm90WgmmaConfig(block_m=64, block_n=64, num_stages=3, store_boxes=2)
_TOGETHER = Sm90WgmmaConfig(
    block_m=128, block_n=128, num_stages=2, store_boxes=3, pingpong=False, order="claimed"
)
_WIDE = Sm90WgmmaConfig(block_m=128, block_n=192, num_stages=2, store_boxes=1, order="claimed")
_SIZES = (70, 0, 131, 1, 64)
#: Rows of a group from which on the default choice lets the TMA unit add.
LONG = 2049


def _results() -> Iterator[tuple[str, Product]]:
    """Results of 2 and 4 bytes that nothing is added to."""
    for form, config in product(("fprop", "wgrad"), (_ALONE, _WIDE, _TOGETHER)):
        case = Product(form, config, _SIZES, k=136, n=200)
        yield "FP32 by TMA", case
        yield "FP32 by TMA", replace(case, layout=PADDED)
        yield "from registers", replace(case, layout=ODD_PAD)
        yield "from registers", replace(case, layout=ODD_PAD, out_dtype="bfloat16")


def _sums() -> Iterator[tuple[str, Product]]:
    """Results that are added to, by each way that there is; see READS_D in the template."""
    default = Product("wgrad", None, _SIZES, k=72, n=192, accumulate=True)
    yield "added by TMA", replace(default, sizes=(LONG,))
    yield "boxes loaded", default
    yield "read from registers", replace(default, layout=ODD_PAD)
    for turn, config in enumerate(CONFIGS):
        k, n = ((136, 200), (192, 384), (72, 328))[turn % 3]
        for form in ("fprop", "wgrad"):
            loads = form == "wgrad" and config.store_boxes > 1
            case = Product(form, config, _SIZES, k, n, accumulate=True, calls=2)
            yield "boxes loaded" if loads else "added by TMA", case
            yield "boxes loaded" if loads else "added by TMA", replace(case, layout=PADDED)
            yield "read from registers", replace(case, layout=ODD_PAD)
    yield "added by TMA", Product("wgrad", _WIDE, (5, LONG), n=192, accumulate=True)
    yield "boxes loaded", Product("wgrad", _TOGETHER, (5, LONG), n=192, accumulate=True)


def _split() -> Iterator[tuple[str, Product]]:
    """wgrad in pieces: what is split comes first, last and between; ends beside a piece's end."""
    tiles = (
        replace(_ALONE, split_rows=64, order="claimed"),
        replace(_ALONE, block_m=128, store_boxes=3, split_rows=128),
        replace(_TOGETHER, split_rows=64),
        replace(_TOGETHER, block_m=256, order="listed", split_rows=192),
        replace(_WIDE, split_rows=64),
    )
    for turn, config in enumerate(tiles):
        sizes = ((100, 0, 3, 260, 64, 1), (500,), (65, 128, 129, 191))[turn % 3]
        case = Product("wgrad", config, sizes, k=136, n=200, calls=2)
        yield "stored", replace(case, out_dtype="bfloat16")
        yield "stored", case
        yield "added", replace(case, accumulate=True)
        if config.block_n <= 128:  # wider ones would spill
            yield "from registers", replace(case, layout=ODD_PAD)
            yield "from registers", replace(case, layout=ODD_PAD, accumulate=True)


def _claims() -> Iterator[tuple[str, Product]]:
    """Many groups, more tiles than blocks: listed from the host, claimed, sorted up to 512."""
    few = tuple(i % 3 for i in range(200))
    many = tuple(70 if i in (3, 530) else i % 7 == 0 for i in range(533))
    for config in (replace(_ALONE, order="claimed"), _TOGETHER):
        for form in ("fprop", "wgrad"):
            yield f"{form}, 200 groups", Product(form, config, few, 64, 64, calls=2)
        yield "wgrad, 533 groups", Product("wgrad", config, many, 64, 64)
