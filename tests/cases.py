"""Groupings, shapes and targets that the unit, emulator and GPU tests share."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
from makers import PLAIN, Layout, Maker, Placed

import gemmjit
from gemmjit.errors import InvalidConfigError
from gemmjit.kernels import KERNELS

#: Executors that NumPy calls are tested with (GEMMJIT_EXECUTOR).
EXECUTORS = ("reference", "emulator")

#: Kernels that serve a part of the contract; the default choice has the rest.
BY_TMA = [kernel.name for kernel in KERNELS.values() if kernel.loads_by_tma]

#: Rows per group, by name; every edge that a grouping can have.
GROUPINGS: dict[str, tuple[int, ...]] = {
    "one_group": (37,),
    "even": (16, 16, 16, 16),
    "odd": (5, 7, 9, 11),
    "first_empty": (0, 8, 5),
    "inner_and_last_empty": (8, 0, 8, 0),
    "all_empty": (0, 0, 0),
    "single_rows": (1,) * 40,
    "over_a_tile": (130, 3, 0, 257),
    "beyond_a_window": (0,) * 31 + (3, 0, 2) + (0,) * 31 + (70, 1),
}

#: Rows per expert of a real routing step.
REAL_EXPERTS = (
    4, 1026, 1799, 166, 694, 753, 0, 16, 0, 240, 1119, 19, 6, 0, 46, 659,
    10, 0, 112, 808, 181, 0, 28, 22, 90, 0, 176, 0, 37, 5, 10, 22,
)  # fmt: skip


def ends_of(sizes: tuple[int, ...] | list[int]) -> list[int]:
    """Return end offsets for rows per group."""
    return list(accumulate(sizes))


def integers(shape: tuple[int, ...], seed: int, limit: int = 3) -> np.ndarray:
    """Return whole numbers in [-limit, limit] as float64: products and sums of them are exact."""
    rng = np.random.default_rng(seed)
    return rng.integers(-limit, limit + 1, shape).astype(np.float64)


@dataclass(frozen=True)
class Target:
    """Who computes: an array framework, a way to pass offsets, and perhaps a fixed kernel."""

    maker: Maker
    offs: str = "list"  # "list" on the host, or the dtype of offsets on the device
    config: Any = None
    arguments: dict[str, Any] = field(default_factory=dict)

    def offsets(self, ends: list[int]) -> Any:
        """Return end offsets in this target's form."""
        if self.offs == "list":
            return list(ends)
        return self.maker.array(np.asarray(ends, self.offs), self.offs)

    def grouped_mm(self, a: Any, b: Any, ends: list[int], **keywords: Any) -> Any:
        """Call the operator, with end offsets in this target's form."""
        array = a.array if isinstance(a, Placed) else a
        config = self.config
        if config == "k1" and self.maker.dtype_name(array) == "float32":
            config = None  # k1 multiplies 16-bit elements
        keywords.setdefault("config", config)
        if isinstance(keywords.get("out"), Placed):
            keywords["out"] = keywords["out"].array
        operands = (array, b.array if isinstance(b, Placed) else b)
        call = partial(gemmjit.grouped_mm, *operands, offs=self.offsets(ends), **self.arguments)
        if self.config not in BY_TMA or keywords["config"] != self.config:
            return call(**keywords)
        try:
            return call(**keywords)
        except InvalidConfigError:  # what TMA cannot load, or a form that the kernel has not
            return call(**{**keywords, "config": None})

    def place(self, values: np.ndarray, layout: Layout = PLAIN, dtype: str = "bfloat16") -> Placed:
        """Return an operand between NaN."""
        return self.maker.place(values, dtype, layout)

    def out(self, values: np.ndarray, layout: Layout = PLAIN, dtype: str = "bfloat16") -> Placed:
        """Return a result array that holds `values`, between sevens."""
        return self.maker.place(values, dtype, layout, poison=7.0)

    def read(self, array: Any) -> np.ndarray:
        """Return a result in float64, after checking that it is the framework's own and plain."""
        assert self.maker.owns(array), f"expected a {self.maker.name} array, got {type(array)}"
        return self.maker.read(array)

    def __str__(self) -> str:
        return f"{self.maker.name}-{self.offs}-{self.config or 'auto'}"
