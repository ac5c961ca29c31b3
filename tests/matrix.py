"""One matrix over what is compiled in and what is not, for any array framework.

A cell is one way to compile a kernel (tile, types, memory orders, schedule, epilogue); running it
takes every grouping and several shapes through it, and compares exactly with float64.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

import makers
import references
from cases import GROUPINGS, Target, ends_of, integers
from makers import PADDED, PLAIN, SWAPPED, Layout, Maker
from references import assert_same, rounded

from gemmjit.config import Config
from gemmjit.kernels import KERNELS, Kernel

NAN = float("nan")

#: Columns and contraction: aligned for vectors and TensorMaps, and not.
ALIGNED = ((40, 72), (136, 64), (8, 8))
ODD = ((33, 31), (130, 7), (1, 65), (65, 1))

GROUPS = ("odd", "inner_and_last_empty", "all_empty", "over_a_tile", "beyond_a_window")

VECTOR_A = (PLAIN, PADDED)
VECTOR_B = (PLAIN, SWAPPED, PADDED)
ANY = (
    PLAIN, SWAPPED, PADDED, makers.ODD_PAD, makers.MISALIGNED, makers.STEPPED, makers.SWAPPED_ODD,
    makers.EXPANDED_OUTER, makers.EXPANDED_INNER,
)  # fmt: skip
OUT = (None, PLAIN, PADDED, makers.ODD_PAD, SWAPPED, makers.MISALIGNED, makers.STEPPED)


@dataclass(frozen=True)
class Cell:
    """One kernel with one way to compile it."""

    kernel: str
    config: Config
    form: str
    dtype: str
    out_dtype: str
    a: Layout
    b: Layout
    out: Layout | None  # None: a fresh result
    offs: str
    accumulate: bool

    def __str__(self) -> str:
        parts = [
            self.kernel, str(self.config), self.config.schedule or "any", self.form, self.dtype,
            self.out_dtype, self.a.name, self.b.name, self.out.name if self.out else "fresh",
            self.offs, "add" if self.accumulate else "store",
        ]  # fmt: skip
        return "-".join(parts)


#: Cells of one tile of a kernel.
_CELLS = {"k0": 9, "k1": 3}
_CELLS_OF_OTHERS = 2


def cells() -> list[Cell]:
    """Return the cells: for each shipped tile some draws that together take every value."""
    found: list[Cell] = []
    for kernel in KERNELS.values():
        rng = random.Random(f"gemmjit {kernel.name}")
        axes = _axes(kernel)
        decks: dict[str, list[object]] = {name: [] for name in axes}
        for config in kernel.shipped_configs():
            for _ in range(_CELLS.get(kernel.name, _CELLS_OF_OTHERS)):
                drawn: dict[str, object] = {}
                for name, values in axes.items():
                    if name == "out_dtype" and drawn["accumulate"]:
                        drawn[name] = "float32"
                        continue
                    if not decks[name]:  # a shuffled deck, so that no value is left out
                        decks[name] = list(values)
                        rng.shuffle(decks[name])
                    drawn[name] = decks[name].pop()
                found.append(_cell(kernel, config, drawn))
    return found


def _axes(kernel: Kernel) -> dict[str, tuple[object, ...]]:
    by_tma = kernel.loads_by_tma
    return {
        "accumulate": (False, False, True),
        "form": kernel.forms,
        "dtype": tuple(d.name for d in kernel.in_dtypes),
        "out_dtype": tuple(d.name for d in kernel.out_dtypes),
        "a": VECTOR_A if by_tma else ANY,
        "b": VECTOR_B if by_tma else ANY,
        "out": OUT,
        "offs": ("list", "int32", "int64"),
        "schedule": ("", "compact", "bounded"),
    }


def _cell(kernel: Kernel, config: Config, drawn: dict[str, object]) -> Cell:
    schedule = drawn.pop("schedule")
    accumulate = bool(drawn.pop("accumulate"))
    if accumulate:
        drawn["out"] = drawn["out"] or PLAIN
    if drawn["form"] == "ragged_k" and kernel.loads_by_tma:
        drawn["a"] = SWAPPED  # a transposed activation
        drawn["b"] = PLAIN if drawn["b"] is SWAPPED else drawn["b"]
    return Cell(
        kernel=kernel.name,
        config=replace(config, schedule=schedule),  # type: ignore[arg-type]
        accumulate=accumulate,
        **drawn,  # type: ignore[arg-type]
    )


def shapes(cell: Cell) -> Iterator[tuple[str, int, int, int]]:
    """Yield grouping, columns, contraction and tail of the problems of a cell.

    Columns and contraction are the same for all, so that a cell is one compiled kernel.
    """
    by_tma = KERNELS[cell.kernel].loads_by_tma
    rng = random.Random(str(cell))
    n, k = rng.choice(ALIGNED if by_tma else ALIGNED + ODD)
    for name in GROUPS:
        # A fixed kernel that loads by TMA refuses arrays without elements; the default choice,
        # which the contract is tested with, takes another kernel for them.
        tails = (3, 70) if by_tma and name == "all_empty" else (0, 3, 70)
        yield name, n, k, rng.choice(tails)


def run_cell(maker: Maker, cell: Cell) -> int:
    """Run every problem of a cell, compare, and return how many there were."""
    target = Target(maker, cell.offs, cell.config)
    count = 0
    for name, n, k, tail in shapes(cell):
        _run(target, cell, GROUPINGS[name], n, k, tail)
        count += 1
    return count


def _run(target: Target, cell: Cell, sizes: tuple[int, ...], n: int, k: int, tail: int) -> None:
    ends, rows = ends_of(sizes), sum(sizes) + tail
    used = sum(sizes)
    if cell.form == "ragged_m":
        a, b = integers((rows, k), seed=n), integers((len(sizes), k, n), seed=k)
        if cell.a.expanded_axis is None:
            a[used:] = NAN
        shape: tuple[int, ...] = (rows, n)
    else:
        a, b = integers((k, rows), seed=n), integers((rows, n), seed=k)
        if cell.a.expanded_axis is None and cell.b.expanded_axis is None:
            a[:, used:] = NAN
            b[used:] = NAN
        shape = (len(sizes), k, n)
    placed_a = target.place(a, cell.a, cell.dtype)
    placed_b = target.place(b, cell.b, cell.dtype)
    reference = references.fprop if cell.form == "ragged_m" else references.wgrad
    want = reference(placed_a.read(), placed_b.read(), ends)

    if cell.out is None:
        target.maker.poison_pool(shape, cell.out_dtype)
        got = target.grouped_mm(placed_a, placed_b, ends, out_dtype=cell.out_dtype)
        assert target.maker.dtype_name(got) == cell.out_dtype
        assert_same(target.read(got), rounded(want, cell.out_dtype))
    else:
        start = integers(shape, seed=5)
        out = target.out(start, cell.out, cell.out_dtype)
        target.grouped_mm(placed_a, placed_b, ends, out=out, accumulate=cell.accumulate)
        if cell.accumulate:
            want = want + start
        elif cell.form == "ragged_m":
            want[used:] = start[used:]
        assert_same(out.read(), rounded(want, cell.out_dtype))
        out.assert_only_elements_changed()
    placed_a.assert_unchanged()
    placed_b.assert_unchanged()
