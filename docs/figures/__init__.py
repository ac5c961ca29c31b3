"""Tables, sentences and pictures of the documentation that say what was measured.

Every number comes from a file in ``docs/benchmarks``; where a file is missing, the text says so.
"""

from __future__ import annotations

from collections.abc import Callable

from figures import (
    cases,
    counters,
    epilogues,
    findings,
    grouped,
    ladder,
    scheduling,
    summary,
    training,
    tuning,
)
from figures.records import Results, read

__all__ = ["BLOCKS", "Results", "read"]

#: Marked blocks by name; each is made from all results.
BLOCKS: dict[str, Callable[[Results], str]] = {
    "figures": summary.summary,
    "cases": cases.table,
    "ladder-origin": ladder.origin_block,
    "ladder-resources": ladder.resources,
    "ladder-times": ladder.times,
    "ladder-goal": ladder.goal,
    "ladder-skew": ladder.skew,
    "ladder-tensor-cores": ladder.step_tensor_cores,
    "ladder-height": ladder.step_height,
    "ladder-fragments": ladder.step_fragments,
    "ladder-tma": ladder.step_tma,
    "ladder-stages": ladder.step_stages,
    "ladder-wgmma": ladder.step_wgmma,
    "ladder-tiles": scheduling.tiles,
    "ladder-counters": counters.table,
    "ladder-findings": findings.table,
    "ladder-reasons": findings.reasons,
    "scheduling-origin": scheduling.origin_block,
    "scheduling-table": scheduling.table,
    "scheduling-capacity": scheduling.capacity,
    "scheduling-verdict": scheduling.verdict,
    "k3-origin": grouped.origin_block,
    "k3-table": grouped.table,
    "k3-pictures": grouped.pictures,
    "k3-few-rows": grouped.few_rows,
    "k3-epilogues": epilogues.table,
    "k3-counters": counters.by_workload,
    "training-setup": training.setup,
    "training-steps": training.steps,
    "training-curves": training.curves,
    "tune-origin": tuning.origin_block,
    "tune-table": tuning.table,
    "invariance-table": tuning.fixed_table,
}
