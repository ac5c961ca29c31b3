"""What is to be tuned: products of cases, of a manifest's problems, or drawn at random."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gemmjit.bench.cases import Case, Pass, Workload, case_of
from gemmjit.dtypes import BF16, DType
from gemmjit.errors import ManifestError
from gemmjit.manifest import Manifest, ProblemEntry
from gemmjit.problem import Problem
from gemmjit.selection.buckets import MAX_LOG2, Bucket, bucket_of, corners
from gemmjit.workloads import power_law

__all__ = ["Task", "random_tasks", "tasks_of", "tasks_of_manifest"]

_RANDOM_FLOPS = 2e12
_RANDOM_BYTES = 4e9


@dataclass(frozen=True)
class Task:
    """One product that is measured, and stands for its bucket.

    Attributes
    ----------
    workload : Workload
    layout : {"nn", "nt"}
        Whether the columns or the contraction of the weights are contiguous.
    drawn : bool
        Whether its sizes were drawn at random.
    """

    workload: Workload
    layout: str = "nn"
    drawn: bool = False

    @property
    def problem(self) -> Problem:
        """The problem of its calls."""
        return self.workload.problem(self.layout)

    @property
    def bucket(self) -> Bucket:
        """The bucket that it stands for."""
        return bucket_of(self.problem)

    @property
    def label(self) -> str:
        """Case, form and layout."""
        return f"{self.workload.label} {self.layout}"


def tasks_of(
    cases: Sequence[str], forms: Sequence[Pass], layouts: Sequence[str], dtype: DType = BF16
) -> list[Task]:
    """Return the products of cases; weights lie as they do in training unless `layouts` says more.

    Parameters
    ----------
    cases : sequence of str
        As `gemmjit.bench.cases.case_of` takes them.
    forms : sequence of str
        fprop, dgrad, wgrad.
    layouts : sequence of str
        ``nn``, ``nt``; none for ``nn`` in fprop and the same weights, ``nt``, in dgrad.
    dtype : DType
    """
    found = []
    for text in cases:
        case = case_of(text)
        for form in forms:
            own = "nt" if form == "dgrad" else "nn"
            wanted = ["nn"] if form == "wgrad" else list(layouts) or [own]
            found += [Task(Workload(case, form, dtype), layout) for layout in wanted]
    return found


def random_tasks(number: int, seed: int, forms: Sequence[Pass], dtype: DType = BF16) -> list[Task]:
    """Return products of random layers and routings, the same for the same seed."""
    rng = random.Random(seed)
    found: list[Task] = []
    while len(found) < number:
        groups = rng.choice((4, 8, 16, 32, 60, 64, 128, 256))
        mean = round(2 ** rng.uniform(1, 12))
        k, n = (64 * rng.randint(8, 112) for _ in range(2))
        text = f"rows={groups * mean}:groups={groups}:k={k}:n={n}:skew={rng.choice((0, 0.4, 1.2))}"
        form = forms[len(found) % len(forms)]
        work = Workload(case_of(text), form, dtype)
        if work.flops <= _RANDOM_FLOPS and work.buffer_bytes <= _RANDOM_BYTES:
            found.append(Task(work, "nt" if form == "dgrad" else "nn", drawn=True))
    return found


def tasks_of_manifest(manifest: Manifest) -> list[Task]:
    """Return one product for every bucket that a manifest's problems fall into.

    Groups are of equal size, in the middle of the bucket. Left out are calls that name a kernel,
    since nothing is chosen for them, and what the benchmarks cannot run: epilogues, results of
    another type, and operands in other orders than training has.

    Raises
    ------
    ManifestError
        If there is no problem to tune, or one does not say how many groups it has.
    """
    found: dict[Bucket, Task] = {}
    for number, entry in enumerate(manifest.problems):
        if entry.kernel is not None or not _can_be_measured(entry):
            continue
        if entry.num_groups is None:
            raise ManifestError(
                f"{manifest.name}, problems[{number}].num_groups: expected the number of groups "
                "to measure with; got none. Write it into the entry, or give sizes with --case"
            )
        for task in _tasks_of_entry(entry, entry.num_groups):
            found.setdefault(task.bucket, task)
    if not found:
        raise ManifestError(
            f"{manifest.name}: expected problems whose kernel is chosen, that store what they "
            "compute in the type of their operands; got none. Kernels named exactly need no "
            "tuning; other problems cannot be measured yet"
        )
    return list(found.values())


def _can_be_measured(entry: ProblemEntry) -> bool:
    return (
        entry.epilogue == "store"
        and entry.out_dtype in (None, entry.dtype)
        and entry.a_k_major in (None, entry.form == "ragged_m")
        and not (entry.form == "ragged_k" and entry.b_k_major)
    )


def _tasks_of_entry(entry: ProblemEntry, groups: int) -> Iterator[Task]:
    low, high = max(entry.rows[0], 1), entry.rows[1]
    layout = "nt" if entry.b_k_major else "nn"
    form: Pass = "fprop" if entry.form == "ragged_m" else "wgrad"
    for exponent in range(MAX_LOG2 + 1):
        middle = round(groups * 2 ** (exponent + 0.5))
        rows = min(max(middle, low), high)
        sizes = tuple(power_law(rows, groups, 0.0).tolist())
        name = f"rows={rows}:groups={groups}:k={entry.k}:n={entry.n}"
        task = Task(Workload(Case(name, sizes, entry.k, entry.n), form, entry.dtype), layout)
        bucket = task.bucket
        reached = bucket.rows_log2 == exponent
        if reached and any(corners(bucket, groups, (low, high))):
            yield task
