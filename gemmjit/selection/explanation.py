"""``gemmjit.explain``: every tile that can serve a problem, with its predicted time and why."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any

import numpy as np

from gemmjit.arch import Arch
from gemmjit.config import Config
from gemmjit.errors import InvalidConfigError, InvalidProblemError
from gemmjit.kernels import KERNELS
from gemmjit.problem import Problem
from gemmjit.selection.admission import reasons_against
from gemmjit.selection.hardware import gpu_for
from gemmjit.selection.heuristic import choose
from gemmjit.selection.model import Prediction, predict
from gemmjit.selection.work import Sizes
from gemmjit.workloads import power_law

__all__ = ["Explanation", "Refusal", "explain"]

_MAX_GROUPS = 2**20  # where buckets end too; a prediction takes memory for each group


@dataclass(frozen=True, slots=True)
class Refusal:
    """A tile that cannot serve the problem, and why."""

    kernel: str
    tile: str
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """Predictions for one problem on one architecture, fastest first.

    Attributes
    ----------
    arch : str
    gpu, source : str
        GPU whose rates were used, and where they come from.
    problem : str
        The problem in words.
    assumption : str
        What was taken for the rows of each group.
    predictions : tuple of Prediction
    refused : tuple of Refusal
    chosen : tuple of str
        Kernel and tile that `gemmjit.grouped_mm` takes by default, tuned records apart.
    """

    arch: str
    gpu: str
    source: str
    problem: str
    assumption: str
    predictions: tuple[Prediction, ...]
    refused: tuple[Refusal, ...]
    chosen: tuple[str, str]

    @property
    def best(self) -> Prediction:
        """The fastest by the model.

        Raises
        ------
        InvalidConfigError
            If no tile can serve the problem.
        """
        if not self.predictions:
            raise InvalidConfigError(
                "explain: expected a tile that can serve the problem; got none. "
                "Look at the reasons in `refused`"
            )
        return self.predictions[0]

    def to_dict(self) -> dict[str, Any]:
        """Return the explanation as a JSON-compatible mapping."""
        return {
            "arch": self.arch,
            "gpu": self.gpu,
            "source": self.source,
            "problem": self.problem,
            "assumption": self.assumption,
            "chosen": {"kernel": self.chosen[0], "tile": self.chosen[1]},
            "predictions": [{**one.to_dict(), "reason": one.reason} for one in self.predictions],
            "refused": [
                {"kernel": one.kernel, "tile": one.tile, "reasons": list(one.reasons)}
                for one in self.refused
            ],
        }

    def rows(self) -> list[list[str]]:
        """Return the cells of the table; its head is `HEAD`."""
        return [
            [
                "->" if (one.kernel, one.tile) == self.chosen else "",
                one.kernel,
                one.tile,
                f"{one.us:.1f}",
                f"{one.hot_us:.1f}",
                f"{one.cool_us:.1f}",
                str(one.num_tiles),
                f"{one.waves - 1 + one.last_wave_fill:.2f}",
                f"{one.eta:.3f}",
                f"{one.mma_us:.0f}",
                f"{one.overhead_us:.0f}",
                f"{one.dram_us:.0f}",
                f"{one.l2_us:.0f}",
                f"{one.launch_us:.0f}",
                one.reason,
            ]
            for one in self.predictions
        ]

    def __str__(self) -> str:
        lines = [f"{self.problem} on {self.arch}; {self.assumption}", f"rates: {self.source}", ""]
        table = [list(HEAD), *self.rows()]
        widths = [max(len(row[i]) for row in table) for i in range(len(HEAD))]
        for row in table:
            cells = [
                cell.rjust(width) if 3 <= i < len(HEAD) - 1 else cell.ljust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            lines.append("  ".join(cells).rstrip())
        lines += [
            f"{one.kernel} {one.tile}: refused: {'; '.join(one.reasons)}" for one in self.refused
        ]
        return "\n".join(lines)


#: Head of the table; times in microseconds. ``fixed`` is what a call costs whatever its size.
HEAD = (
    *("", "kernel", "tile", "us", "hot", "cool", "tiles", "waves", "eta"),
    *("mma", "between", "dram", "l2", "fixed", "why"),
)


def explain(
    problem: Problem,
    arch: Arch | str,
    *,
    group_sizes: Sequence[int] | None = None,
    configs: Iterable[Config] = (),
) -> Explanation:
    """Predict the time of every tile that can serve a problem, and say what the time is made of.

    No driver, CuPy or torch is needed. The host knows rows and groups, not the rows of one group:
    unless `group_sizes` says them, the model assumes groups of equal size, as the default choice
    does.

    Parameters
    ----------
    problem : Problem
    arch : Arch or str
        As in ``sm_90a``. Only the H200's rates (sm_90) are measured; for others the table says
        "not measured", and ranks at best.
    group_sizes : sequence of int, shape (G,), optional
        True rows of each group.
    configs : iterable of Config
        Candidates beside those that are shipped.

    Returns
    -------
    Explanation
        ``print`` shows a table; `Explanation.to_dict` is JSON-compatible.

    Raises
    ------
    InvalidProblemError
        If the group sizes do not fit the problem, or there are more than 2**20 groups.
    InvalidConfigError
        If one of `configs` is none.

    Examples
    --------
    >>> problem = Problem.contiguous(num_groups=64, rows=16384, n=2688, k=1024)
    >>> explain(problem, "sm_90a").best.tile
    'pp128x192x64_s5c1r8_claimed'
    """
    if not isinstance(problem, Problem):
        raise InvalidProblemError(
            f"problem: expected a gemmjit.Problem; got {type(problem).__name__}. "
            "Make one, as with Problem.contiguous"
        )
    added = _configs(configs)
    device = Arch.parse(arch)
    gpu = gpu_for(device)
    sizes, assumption = _sizes(problem, group_sizes)
    kernel, config = choose(problem, device)
    offered = dict.fromkeys(c for k in KERNELS.values() for c in k.shipped_configs())
    offered[config] = None  # it may split groups, as no tile of the list does
    found: list[Prediction] = []
    refused: list[Refusal] = []
    for one in (*offered, *(c for c in added if c not in offered)):
        reasons = reasons_against(KERNELS[one.kernel], one, problem, device)
        if reasons:
            refused.append(Refusal(one.kernel, str(one), tuple(reasons)))
        elif problem.is_empty:
            continue
        else:
            found.append(predict(problem, one, gpu, sizes))
    return Explanation(
        arch=str(device),
        gpu=gpu.name,
        source=gpu.source,
        problem=_in_words(problem),
        assumption=assumption,
        predictions=tuple(sorted(found, key=lambda one: one.us)),
        refused=tuple(refused),
        chosen=(kernel.name, str(config)),
    )


def _configs(given: Iterable[Config]) -> list[Config]:
    found: list[Any] = [None]
    if isinstance(given, Iterable):
        found = list(given)
    for one in found:
        if not isinstance(one, Config) or one.kernel not in KERNELS:
            raise InvalidConfigError(
                "configs: expected a sequence of configs, as in [gemmjit.Sm90WgmmaConfig()]; "
                f"got {given!r}. Put one alone into a list"
            )
    return found


def _sizes(problem: Problem, given: Sequence[int] | None) -> tuple[Sizes, str]:
    groups = problem.num_groups
    if groups > _MAX_GROUPS:
        raise InvalidProblemError(
            f"num_groups: expected at most {_MAX_GROUPS} to explain; got {groups}. "
            "Fewer say the same"
        )
    if given is None:
        if groups == 0:
            return np.zeros(0, np.int64), "no groups"
        sizes = power_law(problem.rows, groups, 0.0)
        return sizes, f"assuming {groups} groups of equal size"
    told = f"{groups} whole numbers >= 0 with a sum of at most {problem.rows}"
    try:
        numbers = [index(one) for one in given if not isinstance(one, bool | np.bool_)]
        length = len(given)
    except TypeError:
        raise InvalidProblemError(
            f"group_sizes: expected {told}; got {given!r}. Pass the rows of each group"
        ) from None
    # Added up as Python's integers, which do not wrap.
    low, total = min(numbers, default=0), sum(numbers)
    if not length == len(numbers) == groups or low < 0 or total > problem.rows:
        raise InvalidProblemError(
            f"group_sizes: expected {told}; got {length} with a sum of {total} and {low} as the "
            "smallest. Pass the rows of each group"
        )
    sizes = np.array(numbers, np.int64)
    return sizes, "rows of each group as given"


def _in_words(problem: Problem) -> str:
    inner = problem.k if problem.form == "ragged_m" else problem.m
    return (
        f"{problem.form}, {problem.num_groups} groups, {problem.rows} rows, n={problem.n}, "
        f"k={inner}, {problem.in_dtype}"
    )
