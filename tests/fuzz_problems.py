"""Problems of the fuzz: what is compiled (a cell), and what runs through it.

A problem is plain data: it can be kept as JSON, and run again anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from itertools import accumulate
from typing import Any

import fuzz_faults
import makers
from makers import Layout

from gemmjit.config import Config
from gemmjit.kernels import KERNELS

GROUP_PADDED = Layout(name="group_padded", outer_swapped=True, pad=5)
ALL_SWAPPED = Layout(name="all_swapped", swapped=True, outer_swapped=True)
UNIT = Layout(name="unit", unit_stride=1001)
TO_GRID = Layout(name="to_grid")  # padded to the next 16 bytes, whatever the row
LAYOUTS = {
    layout.name: layout
    for layout in (
        *makers.LAYOUTS, makers.OUTER_SWAPPED, GROUP_PADDED, ALL_SWAPPED, UNIT, TO_GRID,
    )
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One way to compile a kernel, or to have one chosen.

    Attributes
    ----------
    kernel : str
        ``k0`` to ``k3``, or ``default``.
    tile : dict or None
        Fields of the config; None for no config.
    a, b, out, bias : str
        Names of layouts; an empty `out` is a fresh result.
    n_kind, k_kind : str
        ``blocks`` of 64, on the ``grid`` of 8, or ``any``.
    listed : bool
        Whether the offsets are on the host.
    chain : str
        Name of the epilogue, but for accumulate.
    """

    kernel: str = "default"
    tile: Mapping[str, object] | None = None
    form: str = "ragged_m"
    dtype: str = "bfloat16"
    out_dtype: str = "bfloat16"
    a: str = "plain"
    b: str = "plain"
    out: str = ""
    n_kind: str = "grid"
    k_kind: str = "grid"
    listed: bool = False
    chain: str = "store"
    bias: str = "plain"
    accumulate: bool = False

    @property
    def config(self) -> Config | None:
        """The config to pass."""
        if self.tile is None:
            return None
        return KERNELS[self.kernel].config_type.from_dict(dict(self.tile))

    @property
    def gate(self) -> str:
        """Layout of SwiGLU's gates, or empty."""
        parts = [part for part in self.chain.split("+") if part.startswith("swiglu_")]
        return parts[0].removeprefix("swiglu_") if parts else ""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One call.

    Attributes
    ----------
    cell : Cell
    sizes : tuple of int
        Rows of each group.
    tail : int
        Rows behind the last group.
    n, k : int
        As in the call.
    offs : str
        ``list``, or the type of offsets in an array.
    wrong_ends : tuple of int or None
        What the offsets hold instead, on a device; clamped.
    values : str
        ``integers`` (compared exactly), ``normal``, or ``foreign``: NaN and Inf in one group.
    seed : int
        Of the values.
    repeat : bool
        Whether the call is made twice: the second time it is remembered.
    fault : str
        What is wrong with the call, which must be refused; see `fuzz_faults`.
    policy, numerics : str
        Of the emulator.
    """

    cell: Cell
    sizes: tuple[int, ...] = (5, 0, 9)
    tail: int = 0
    n: int = 8
    k: int = 8
    offs: str = "int32"
    wrong_ends: tuple[int, ...] | None = None
    values: str = "integers"
    seed: int = 0
    repeat: bool = False
    fault: str = ""
    policy: str = "eager"
    numerics: str = "fp32"

    @property
    def rows(self) -> int:
        """Length of the ragged dimension."""
        return sum(self.sizes) + self.tail

    @property
    def ends(self) -> tuple[int, ...]:
        """End offsets, right ones."""
        return tuple(accumulate(self.sizes))

    @property
    def is_sound(self) -> bool:
        """Whether what is said to be wrong is: offsets, the argument of a fault."""
        ends = list(self.wrong_ends or ())
        if ends and ends == sorted(ends) and ends[0] >= 0 and ends[-1] <= self.rows:
            return False
        return not self.fault or fuzz_faults.FAULTS[self.fault].possible(self)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-compatible data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Problem:
        """Return the problem of `to_dict`."""
        given = dict(values)
        given["cell"] = Cell(**given["cell"])
        for name in ("sizes", "wrong_ends"):
            if given.get(name) is not None:
                given[name] = tuple(given[name])
        return cls(**given)

    def __str__(self) -> str:
        c, plain = self.cell, Problem(cell=Cell())
        parts = [c.kernel, str(c.config or ""), c.form, f"sizes={self.sizes[:12]}"]
        parts += [f"G={len(self.sizes)}"] if len(self.sizes) > 12 else []
        parts += [
            f"{f.name}={getattr(of, f.name)}"
            for of, usual in ((c, plain.cell), (self, plain))
            for f in fields(of)
            if f.name not in ("cell", "kernel", "tile", "form", "sizes")
            and getattr(of, f.name) != getattr(usual, f.name)
        ]
        return " ".join(filter(None, parts))


def layout_of(name: str, columns: int, itemsize: int) -> Layout:
    """Return a layout by its name, for rows of so many columns."""
    if name != "to_grid":
        return LAYOUTS[name]
    grid = 16 // itemsize
    return replace(TO_GRID, pad=-columns % grid or grid)
