"""Times the candidates of one task after another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from statistics import geometric_mean
from typing import Any

import gemmjit
from gemmjit.arch import Arch
from gemmjit.bench.cell import Bench, Entry, measure_cell
from gemmjit.bench.grouped import workload_to_dict
from gemmjit.bench.peers.own import own_contender
from gemmjit.bench.statistics import median_interval
from gemmjit.config import Config
from gemmjit.errors import GemmjitError
from gemmjit.kernels import KERNELS
from gemmjit.selection import Prediction, explain
from gemmjit.selection.heuristic import choose
from gemmjit.selection.records import Record, kernels_digest
from gemmjit.tuning.check import checked
from gemmjit.tuning.storage import Storage
from gemmjit.tuning.tasks import Task

__all__ = ["Tuner", "candidates"]


def candidates(
    task: Task, arch: Arch, within: float, kernels: Sequence[str] = ()
) -> list[tuple[Config, Prediction]]:
    """Return the tiles worth measuring, fastest by the model first.

    Parameters
    ----------
    task : Task
    arch : Arch
    within : float
        Tiles that are predicted to take more than this many times the best are left out; the
        heuristic's is always among them.
    kernels : sequence of str
        Kernels to take; none for all.
    """
    found = explain(task.problem, arch)
    offered = [one for one in found.predictions if not kernels or one.kernel in kernels]
    kept = [
        one
        for one in offered
        if one.us <= within * offered[0].us or (one.kernel, one.tile) == found.chosen
    ]
    return [(KERNELS[one.kernel].config_type.from_dict(one.config), one) for one in kept]


@dataclass
class Tuner:
    """Measures tasks on a device and records what is fastest.

    Attributes
    ----------
    bench : Bench
        Device, protocol, power states, budget.
    storage : Storage or None
        Where records go and are looked up; None to keep none.
    within, kernels
        As for `candidates`.
    again : bool
        Measure also what is recorded.
    """

    bench: Bench
    storage: Storage | None
    within: float = 1.5
    kernels: Sequence[str] = field(default=())
    again: bool = False

    def run(
        self,
        tasks: Iterable[Task],
        finished: Callable[[Task, Mapping[str, Any] | None, bool], None],
    ) -> None:
        """Measure tasks; each is recorded as soon as it is measured.

        Parameters
        ----------
        tasks : iterable of Task
        finished : callable
            Given the task, its record, or None if nothing could be timed, and whether it was
            measured now.
        """
        for task in tasks:
            known = self._known(task)
            if known is not None:
                finished(task, known, False)
                continue
            record = self.measure(task)
            if record is not None and self.storage is not None:
                self.storage.add([record])
            finished(task, record, True)

    def measure(self, task: Task) -> dict[str, Any] | None:
        """Return the record of a task, or None if nothing could be timed."""
        backend, work = self.bench.backend, task.workload
        facts = backend.facts
        arch = Arch.parse(facts.arch)
        tiles = {
            f"{config.kernel} {config}": (config, predicted)
            for config, predicted in candidates(task, arch, self.within, self.kernels)
        }
        contenders = tuple(
            own_contender(name, work, backend, config=config, layout=task.layout)
            for name, (config, _) in tiles.items()
        )
        cell = measure_cell(self.bench, task.label, [Entry(work, contenders)])
        if set(cell.timings) != set(self.bench.states):
            return None
        timed: list[dict[str, Any]] = []
        for entrant in cell.entrants:
            config, predicted = tiles[entrant.name]
            us = {
                state: 1e6 * median_interval(timings.seconds[entrant.name]).median
                for state, timings in cell.timings.items()
            }
            timed.append(
                {
                    "kernel": config.kernel,
                    "tile": str(config),
                    "config": config.to_dict(),
                    "us": us,
                    "mean_us": geometric_mean(us.values()),
                    "predicted_us": predicted.us,
                }
            )
        timed.sort(key=lambda one: one["mean_us"])
        kernel, config = choose(task.problem, arch)
        return {
            "gpu": facts.name,
            "arch": facts.arch,
            "driver": facts.driver,
            "digest": kernels_digest(),
            "gemmjit": gemmjit.__version__,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "bucket": task.bucket.to_dict(),
            "layout": task.layout,
            "drawn": task.drawn,
            "workload": workload_to_dict(work),
            "rounds": {state: timings.rounds for state, timings in cell.timings.items()},
            "kernel": timed[0]["kernel"],
            "config": timed[0]["config"],
            "candidates": timed,
            "heuristic": {"kernel": kernel.name, "tile": str(config)},
            "rejected": [one.to_dict() for one in cell.rejected],
        }

    def _known(self, task: Task) -> Mapping[str, Any] | None:
        if self.storage is None or self.again:
            return None
        facts = self.bench.backend.facts
        found = self.storage.find(task, facts.name, facts.driver)
        try:
            if found is not None:
                Record.from_dict(found)
                checked(found)
        except (GemmjitError, LookupError, TypeError, ValueError, AttributeError):
            return None  # broken: measured again, which replaces it
        return found
