"""From a problem that fails to a small one that fails the same way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from fuzz_problems import Cell, Problem

__all__ = ["shrunk"]


def shrunk(problem: Problem, fails: Callable[[Problem], bool], seconds: float) -> Problem:
    """Return a problem that fails, of which no simpler neighbour does, or the time was over.

    Parameters
    ----------
    problem : Problem
        One that fails.
    fails : callable
        Says whether another fails too.
    seconds : float
        Budget.
    """
    end = time.monotonic() + seconds
    smaller = True
    while smaller and time.monotonic() < end:
        smaller = False
        for candidate in _simpler(problem):
            if time.monotonic() > end:
                break
            if candidate.is_sound and fails(candidate):
                problem, smaller = candidate, True
                break
    return problem


def _simpler(p: Problem) -> Iterator[Problem]:
    """Yield simpler neighbours, the boldest first."""
    yield from _with_fewer_groups(p)
    yield from _with_plainer_fields(p)
    for name in ("n", "k", "tail"):
        value = getattr(p, name)
        grid = {"n": _grid(p.cell.n_kind), "k": _grid(p.cell.k_kind)}.get(name, 1)
        for smaller in _smaller(value, grid, least=0 if name == "tail" else grid):
            yield replace(p, **{name: smaller})
    if p.wrong_ends is None:
        for i, size in enumerate(p.sizes[:16]):
            for smaller in _smaller(size, 1, least=0):
                yield replace(p, sizes=(*p.sizes[:i], smaller, *p.sizes[i + 1 :]))


def _with_fewer_groups(p: Problem) -> Iterator[Problem]:
    count = len(p.sizes)
    cuts = [(0, count // 2), (count // 2, count)] if count > 3 else []
    cuts += [(i, i + 1) for i in range(count)] if count <= 16 else []
    for first, last in cuts:
        sizes = p.sizes[:first] + p.sizes[last:]
        ends = p.wrong_ends and p.wrong_ends[:first] + p.wrong_ends[last:]
        if p.wrong_ends is None:
            yield replace(p, sizes=sizes)
        elif ends:  # the same rows, in the tail
            yield replace(p, sizes=sizes, wrong_ends=ends, tail=p.tail + sum(p.sizes[first:last]))


def _with_plainer_fields(p: Problem) -> Iterator[Problem]:
    plain = {"repeat": False, "policy": "eager", "numerics": "fp32", "values": "integers",
             "seed": 0, "tail": 0, "wrong_ends": None}  # fmt: skip
    for name, value in plain.items():
        if getattr(p, name) != value:
            yield replace(p, **{name: value})
    usual = Cell()
    for name in ("chain", "bias", "accumulate", "out", "a", "b", "dtype", "out_dtype"):
        value = getattr(usual, name)
        if name == "a" and p.cell.form == "ragged_k":
            value = "swapped"
        if getattr(p.cell, name) != value:
            cell = replace(p.cell, **{name: value})
            if cell.accumulate and (not cell.out or cell.out_dtype != "float32"):
                continue
            yield replace(p, cell=cell)


def _grid(kind: str) -> int:
    return {"blocks": 64, "grid": 8}.get(kind, 1)


def _smaller(value: int, grid: int, least: int) -> Iterator[int]:
    seen = {value}
    for candidate in (least, value // 4, value // 2, value * 3 // 4, value - grid):
        candidate = max(candidate // grid * grid, least)
        if candidate < value and candidate not in seen:
            seen.add(candidate)
            yield candidate
