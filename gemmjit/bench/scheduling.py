"""``gemmjit bench scheduling``: ways to find tiles on the device, against each other.

For every number of groups, with few rows and with many, each also in a buffer with room for far
more rows than are routed. Contenders are configs of one kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, get_args, get_type_hints

from gemmjit import config as configs
from gemmjit.arch import Arch
from gemmjit.bench.cases import Case, Workload
from gemmjit.bench.cell import Bench, Entry, measure_cell
from gemmjit.bench.grouped import workload_to_dict
from gemmjit.bench.peers.own import own_contender
from gemmjit.bench.report import cell_to_dict
from gemmjit.config import Config
from gemmjit.dtypes import BF16, DType
from gemmjit.ops.dispatch import resolve
from gemmjit.workloads import power_law

__all__ = ["Sizes", "run_scheduling", "scheduling_cases", "scheduling_configs"]

#: The field of a config that says how tiles are found on the device.
_FIELD = "schedule"


@dataclass(frozen=True)
class Sizes:
    """What the cases are made of.

    Attributes
    ----------
    groups : tuple of int
    few, many : int
        Rows per group on average.
    k, n : int
    skew : float
        Of the routing with many rows.
    capacity : int
        Rows of the buffer over routed rows, for the cases with a capacity; 1 for none.
    """

    groups: tuple[int, ...] = (8, 64, 256, 1024)
    few: int = 4
    many: int = 128
    k: int = 512
    n: int = 512
    skew: float = 0.8
    capacity: int = 4


def scheduling_cases(sizes: Sizes) -> list[Case]:
    """Return for every number of groups a case with few rows and one with many, skewed."""
    found = []
    for groups in sizes.groups:
        for name, rows, skew in (("few", sizes.few, 0.0), ("many", sizes.many, sizes.skew)):
            split = power_law(groups * rows, groups, skew)
            found.append(Case(f"E{groups}-{name}", tuple(split.tolist()), sizes.k, sizes.n))
    return found


def scheduling_configs(config: Config) -> dict[str, Config]:
    """Return a config once for each schedule that it can have, by a name.

    A config without that field stands alone.
    """
    if _FIELD not in {field.name for field in fields(config)}:
        return {str(config): config}
    hints = get_type_hints(type(config), vars(configs))
    choices = [choice for choice in get_args(hints[_FIELD]) if choice]
    return {choice: replace(config, **{_FIELD: choice}) for choice in choices}


def run_scheduling(
    bench: Bench,
    cases: Sequence[Case],
    finished: Callable[[dict[str, Any]], None],
    *,
    capacity: int = 1,
    kernel: str | None = None,
    extra: Sequence[Config] = (),
    dtype: DType = BF16,
) -> list[dict[str, Any]]:
    """Measure schedules on cases.

    Parameters
    ----------
    bench : Bench
    cases : sequence of Case
    finished : callable
        Given each result as soon as it is there.
    capacity : int
        If above 1, every config also runs in a buffer with so many times the routed rows, timed
        beside the other: the ratio is what unused rows cost.
    kernel : str, optional
        Kernel whose default tile is used; by default what gemmjit chooses for the case.
    extra : sequence of Config
        Further contenders.
    dtype : DType
    """
    arch = Arch.parse(bench.backend.facts.arch)
    results = []
    for case in cases:
        work = Workload(case, "fprop", dtype)
        _, chosen = resolve(work.problem(), arch, kernel)
        candidates = {"default": chosen, **scheduling_configs(chosen)}
        candidates |= {f"extra {number}: {config}": config for number, config in enumerate(extra)}
        entries = [_entry(bench, work, candidates)]
        if capacity > 1:
            roomy = Workload(case.with_spare((capacity - 1) * case.rows), "fprop", dtype)
            entries.append(_entry(bench, roomy, candidates, "capacity "))
        cell = measure_cell(bench, case.name, entries)
        result = {
            **workload_to_dict(work),
            **cell_to_dict(cell, "default"),
            "capacity": capacity,
            "configs": {name: config.to_dict() for name, config in candidates.items()},
        }
        results.append(result)
        finished(result)
    return results


def _entry(bench: Bench, work: Workload, configs: Mapping[str, Config], prefix: str = "") -> Entry:
    """Return every config as a contender that writes into a buffer of the caller's."""
    contenders = [
        own_contender(name, work, bench.backend, config=config, peer=f"{prefix}{name}", into=True)
        for name, config in configs.items()
    ]
    return Entry(work, tuple(contenders), prefix=prefix)
