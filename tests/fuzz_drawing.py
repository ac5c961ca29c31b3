"""Drawing problems for the fuzz.

A drawing asks a `Chooser`, so that Hypothesis and a plain generator draw the same way.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import fuzz_faults
import makers
from fuzz_problems import LAYOUTS, UNIT, Cell, Problem

from gemmjit.kernels import KERNELS

T = TypeVar("T")

_MATRIX = tuple(layout.name for layout in (*makers.LAYOUTS, UNIT))
_STACK = (*_MATRIX, "outer_swapped", "group_padded", "all_swapped")
_OUT = ("", "", *(n for n in _MATRIX if LAYOUTS[n].expanded_axis is None), "to_grid")
_CHAINS = (
    "store", "store", "store", "bias", "bias_f32", "row_scale", "row_scale_f32", "swiglu_split",
    "swiglu_interleaved", "bias+row_scale_f32", "bias+swiglu_split+row_scale_f32",
    "bias_f32+swiglu_interleaved+row_scale",
)  # fmt: skip

#: Kernel and form of each cell in turn; "default" leaves the choice to gemmjit.
TURNS = (
    ("k3", "ragged_m"), ("k3", "ragged_k"), ("k2", "ragged_m"), ("k1", "ragged_m"),
    ("k1", "ragged_k"), ("k0", "ragged_m"), ("k0", "ragged_k"),
    ("default", "ragged_m"), ("default", "ragged_k"),
)  # fmt: skip


class Chooser(Protocol):
    """Where the choices of a drawing come from."""

    def integer(self, low: int, high: int) -> int:
        """Return a whole number, both ends included; low is the simplest."""

    def choice(self, options: Sequence[T]) -> T:
        """Return one of several; the first is the simplest."""


class RandomChooser:
    """Choices of a seeded generator."""

    def __init__(self, seed: object) -> None:
        self._random = random.Random(str(seed))

    def integer(self, low: int, high: int) -> int:
        return self._random.randint(low, high)

    def choice(self, options: Sequence[T]) -> T:
        return self._random.choice(options)


class DrawChooser:
    """Choices of Hypothesis, which shrinks them."""

    def __init__(self, draw: Callable[[Any], Any], strategies: Any) -> None:
        self._draw, self._strategies = draw, strategies

    def integer(self, low: int, high: int) -> int:
        return self._draw(self._strategies.integers(low, high))

    def choice(self, options: Sequence[T]) -> T:
        return self._draw(self._strategies.sampled_from(options))


# -- drawing --------------------------------------------------------------------------------


def draw_cells(count: int, seed: int) -> list[Cell]:
    """Return cells that take `TURNS` in turn, so that none is left out."""
    chooser = RandomChooser(f"cells {seed}")
    decks = {turn: chooser.integer(0, 99) for turn in TURNS}
    cells = []
    for i in range(count):
        turn = TURNS[i % len(TURNS)]
        decks[turn] += 1
        cells.append(draw_cell(chooser, *turn, number=decks[turn]))
    return cells


def draw_cell(chooser: Chooser, kernel: str, form: str, number: int) -> Cell:
    """Draw a cell; shipped tiles and element types come in turn, by its number."""
    shipped = KERNELS[kernel].shipped_configs() if kernel != "default" else ()
    tile: dict[str, object] | None = None
    by_tma = kernel in ("k2", "k3")
    if shipped:
        schedule = chooser.choice(("", "", "compact", "bounded"))
        tile = replace(shipped[number % len(shipped)], schedule=schedule).to_dict()  # type: ignore[arg-type]
    dtypes = ("bfloat16", "float16", "float32") if kernel in ("k0", "default") else (
        "bfloat16", "float16",
    )  # fmt: skip
    dtype = dtypes[number // max(len(shipped), 1) % len(dtypes)]
    chain = chooser.choice(_CHAINS) if form == "ragged_m" else "store"
    add = chooser.integer(0, 3) == 3
    out_dtype = "float32" if add else chooser.choice((dtype, dtype, "float32", "float16"))
    out = chooser.choice(_OUT)
    cell = Cell(
        kernel=kernel, tile=tile, form=form, dtype=dtype, out_dtype=out_dtype,
        out=(out or "plain") if add else out, listed=chooser.integer(0, 3) == 3,
        chain=chain, accumulate=add,
        bias=chooser.choice(("plain", "plain", "padded", "stepped", "expanded_outer"))
        if "bias" in chain else "plain",
    )  # fmt: skip
    if by_tma or (kernel == "default" and chooser.integer(0, 1) == 1):
        b = chooser.choice(("plain", "padded", "swapped", "outer_swapped"))
        if form == "ragged_k":
            b = "padded" if b == "padded" else "plain"
        cell = replace(
            cell,
            a="swapped" if form == "ragged_k" else chooser.choice(("plain", "padded")), b=b,
            n_kind=chooser.choice(("grid", "blocks")), k_kind=chooser.choice(("grid", "blocks")),
        )  # fmt: skip
        if by_tma and chooser.integer(0, 11) == 11:  # what TMA cannot load must be refused
            name = chooser.choice(("a", "b"))
            layouts = ("odd_pad", "misaligned", "half_aligned", "stepped", "reversed_rows")
            cell = replace(cell, **{name: chooser.choice(layouts)})  # type: ignore[arg-type]
        return cell
    kinds = ("any", "any", "grid", "blocks")
    return replace(
        cell,
        a=chooser.choice(_MATRIX), b=chooser.choice(_STACK if form == "ragged_m" else _MATRIX),
        n_kind=chooser.choice(kinds), k_kind=chooser.choice(kinds),
    )  # fmt: skip


def draw_problem(chooser: Chooser, cell: Cell, small: bool, on_gpu: bool = False) -> Problem:
    """Draw shapes, offsets and values for a cell.

    Parameters
    ----------
    chooser : Chooser
    cell : Cell
    small : bool
        Whether the emulator must do it in a fraction of a second.
    on_gpu : bool
        Whether arrays can be of a framework that is not NumPy.
    """
    sizes = _draw_sizes(chooser, 60 if small else 1500)
    tail = chooser.choice((0, 3, 70, 300)) if len(sizes) < 200 and not small else 3
    extent = 150 if small else 600
    n, k = (_draw_extent(chooser, kind, extent) for kind in (cell.n_kind, cell.k_kind))
    n, k = _fitted(cell, sizes, tail, n, k, small)
    if cell.gate:
        n += n % 2
        if cell.kernel in ("k2", "k3") and cell.gate == "split":
            n += n % 16  # half of N begins on the 16-byte grid
    problem = Problem(
        cell=cell, sizes=sizes, tail=tail, n=n, k=k,
        offs="list" if cell.listed else chooser.choice(("int32", "int64")),
        values=chooser.choice(("integers", "normal", "foreign")),
        seed=chooser.integer(0, 2**31), repeat=chooser.integer(0, 4) == 4,
        policy=chooser.choice(("eager", "lazy", "random")),
        numerics=chooser.choice(("fp32", "tensor_core")),
    )  # fmt: skip
    if chooser.integer(0, 11) == 11:
        faults = fuzz_faults.possible(problem, on_gpu)
        if faults:
            return replace(problem, fault=chooser.choice(faults))
    wrong = problem.offs != "list" and len(sizes) > 0 and cell.chain == "store"
    if wrong and chooser.integer(0, 4) == 4 and fuzz_faults.refusal(problem) is None:
        return replace(problem, wrong_ends=_draw_wrong_ends(chooser, problem))
    return problem


def _draw_extent(chooser: Chooser, kind: str, limit: int) -> int:
    if kind == "blocks":
        return 64 * chooser.integer(1, max(limit // 64, 1))
    if kind == "grid":
        return 8 * chooser.integer(1, limit // 8)
    size = chooser.integer(1, limit)
    return chooser.choice((size, size, 1, size | 1, 0 if chooser.integer(0, 7) == 7 else size))


#: Elements of all arrays of a call, for a GPU.
_ELEMENTS = 500_000
#: Multiplications that the emulator does of a kernel, padded to whole tiles.
_EMULATED = {"k0": 4e5, "default": 4e5, "k1": 3e6, "k2": 6e6, "k3": 1.2e7}


def _fitted(
    cell: Cell, sizes: tuple[int, ...], tail: int, n: int, k: int, small: bool
) -> tuple[int, int]:
    """Return n and k, halved until a call of them takes a few milliseconds (emulated: 0.3 s)."""
    rows, groups = sum(sizes) + tail, len(sizes)
    tall = sum(-(-size // 64) * 64 for size in (*sizes, tail))

    def fits() -> bool:
        if not small:
            return rows * (n + k) + groups * n * k <= _ELEMENTS
        wide, deep = (-(-size // 64) * 64 for size in (n, k))
        if cell.form == "ragged_m":
            return tall * wide * max(k, 16) <= _EMULATED[cell.kernel]
        return wide * deep * (tall // 4 + 16 * groups) <= _EMULATED[cell.kernel]

    grids = [{"blocks": 64, "grid": 8}.get(kind, 1) for kind in (cell.n_kind, cell.k_kind)]
    while not fits() and (n > grids[0] or k > grids[1]):
        if n > grids[0] and (n >= k or k <= grids[1]):
            n = max(n // 2 // grids[0], 1) * grids[0]
        else:
            k = max(k // 2 // grids[1], 1) * grids[1]
    return n, k


def _draw_sizes(chooser: Chooser, limit: int) -> tuple[int, ...]:
    """Draw rows of each group: none, one, few, dozens or thousands of groups, with holes."""
    kind = chooser.integer(0, 99)
    if kind < 2:
        return ()
    if kind > 97:
        count, step = chooser.integer(300, 2500 if limit > 200 else 400), chooser.integer(2, 4)
        shift = chooser.integer(0, 100)
        return tuple(((i + shift) * 7919) % step if limit > 200 else ((i + shift) * 7919) % 97 // 95
                     for i in range(count))  # fmt: skip
    count = (
        1
        if kind < 12
        else chooser.integer(2, 8)
        if kind < 75
        else chooser.integer(9, 60 if limit > 200 else 20)
    )
    way = chooser.choice(("few", "even", "ones", "any", "giant", "empty"))
    if way == "giant":
        sizes = [chooser.integer(0, 3) for _ in range(count)]
        sizes[chooser.integer(0, count - 1)] = chooser.integer(limit // 2, 2 * limit)
    else:
        most = {"few": 3, "even": 16, "ones": 1, "empty": 0}.get(way, max(2 * limit // count, 1))
        sizes = [chooser.integer(0, most) if way != "ones" else 1 for _ in range(count)]
        if way == "even":
            sizes = [8 * (size // 2) for size in sizes]
    for hole in chooser.choice(((), (), (0,), (-1,), (0, -1), (count // 2,))):
        sizes[hole] = 0
    return tuple(sizes)


def _draw_wrong_ends(chooser: Chooser, problem: Problem) -> tuple[int, ...]:
    """Draw offsets that fall, are negative or lie beyond the rows."""
    rows = problem.rows
    far = (2**31 - 1, -(2**31))
    if problem.offs == "int64":
        half = rows // 2  # the low words of these look right
        far += (2**32 + half, -(2**32) + half, 2**40, -(2**40), 2**63 - 1, -(2**63))
    ends = list(problem.ends)
    for _ in range(chooser.integer(1, 3)):
        value = chooser.choice((rows + 1, -1, 0, rows, chooser.integer(-5, rows + 5), *far))
        ends[chooser.integer(0, len(ends) - 1)] = value
    if not replace(problem, wrong_ends=tuple(ends)).is_sound:
        ends[-1] = rows + 1
    return tuple(ends)


def problem_at(index: int, cells: Sequence[Cell], seed: int, small: bool, on_gpu: bool) -> Problem:
    """Return the problem of a number: the same one wherever it is asked for."""
    chooser = RandomChooser(f"{seed} {index}")
    return draw_problem(chooser, cells[index % len(cells)], small, on_gpu)
