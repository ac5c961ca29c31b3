"""The named cases of the measurements: what stands behind each name in a table."""

from __future__ import annotations

from figures.records import Results, markdown
from gemmjit.bench.cases import CASES

__all__ = ["table"]


def table(results: Results) -> str:
    """Return rows, groups and sizes of every named case; no result is needed for that."""
    rows = []
    for case in CASES.values():
        low, high = min(case.group_sizes), max(case.group_sizes)
        sizes = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        rows.append(
            [case.name, f"{case.rows:,}", str(case.num_groups), sizes, str(case.k), str(case.n)]
        )
    return markdown(("case", "rows", "groups", "rows of a group", "K", "N"), rows)
