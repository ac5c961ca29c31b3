"""The autotuner: measures tiles with the protocol of the benchmarks and records the fastest."""

from __future__ import annotations

from gemmjit.tuning.check import checked, is_within
from gemmjit.tuning.measure import Tuner
from gemmjit.tuning.storage import Storage
from gemmjit.tuning.tasks import Task, random_tasks, tasks_of, tasks_of_manifest

__all__ = [
    "Storage",
    "Task",
    "Tuner",
    "checked",
    "is_within",
    "random_tasks",
    "tasks_of",
    "tasks_of_manifest",
]
