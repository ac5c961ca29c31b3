"""What a fuzz has run, in counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import fuzz_faults
from fuzz_problems import Problem

__all__ = ["Seen"]


@dataclass
class Seen:
    """What was run.

    Attributes
    ----------
    counts : dict of Counter
        Problems by what they were.
    worst : dict
        Largest error over what is allowed, by kernel.
    kernels : set of str
        Entries of the kernels that were launched.
    """

    counts: dict[str, Counter[str]] = field(default_factory=dict)
    worst: dict[str, float] = field(default_factory=dict)
    kernels: set[str] = field(default_factory=set)

    def count(self, what: str, value: object) -> None:
        """Count a problem under one of its properties."""
        self.counts.setdefault(what, Counter())[str(value)] += 1

    def add(self, problem: Problem, launched: list[Any]) -> None:
        """Count a problem that was right, and the kernels that its call resolved to."""
        cell = problem.cell
        refusal = fuzz_faults.refusal(problem)
        if refusal is not None:
            self.count("refused", problem.fault or "operands that TMA cannot load")
            self.count("refused_error", refusal[0].__name__)
            return
        spec = launched[0] if launched else None
        kernel = spec.name if spec else f"{cell.kernel}: nothing to do, or remembered"
        self.count("kernel_form", f"{kernel} {cell.form}")
        self.count("asked", f"{cell.kernel} {cell.form}")
        self.count("dtype", f"{cell.dtype} -> {cell.out_dtype}")
        self.count("epilogue", cell.chain + ("+accumulate" if cell.accumulate else ""))
        self.count("offs", "wrong " + problem.offs if problem.wrong_ends else problem.offs)
        self.count("values", problem.values)
        for name in ("a", "b"):
            self.count(f"layout_{name}", getattr(cell, name))
        self.count("layout_out", cell.out or "fresh")
        groups = len(problem.sizes)
        for limit in (0, 1, 8, 64, 10**9):
            if groups <= limit:
                self.count("groups", f"up to {limit}" if limit < 10**9 else "more")
                break
        if spec is not None:
            self.kernels.add(spec.entry)
