"""Everything that the default choice may pick for calls of which not every size is known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from gemmjit.arch import Arch
from gemmjit.config import Config
from gemmjit.constraints import variant_for
from gemmjit.kernels import KERNELS, Kernel
from gemmjit.problem import Problem
from gemmjit.selection import records
from gemmjit.selection.admission import reasons_against
from gemmjit.selection.buckets import corners, kind_of
from gemmjit.selection.choice import choose
from gemmjit.selection.heuristic import MEAN_ROWS_BOUNDS, rivals
from gemmjit.variant import Variant

__all__ = ["ANY_ROWS", "Choice", "empty_sizes", "every_choice", "sample_sizes"]

#: Rows of a call when nothing is known; more change no choice.
ANY_ROWS = (1, 2**20)


class Choice(NamedTuple):
    """A kernel with its tile, and the variant that a call needs of it."""

    kernel: Kernel
    config: Config
    variant: Variant


def sample_sizes(num_groups: int | None, rows: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Yield groups and rows of calls between which the default choice can change.

    Parameters
    ----------
    num_groups : int or None
        Groups of every call, or None if any number may come.
    rows : tuple of int
        Smallest and largest number of rows of a call.

    Notes
    -----
    The choice changes with the mean rows of a group, where a taller tile fills, and with a
    dimension of length 1, whose stride says nothing. It also changes with how many waves the tiles
    make: that is not sampled, see `heuristic.rivals`.
    """
    low, high = max(rows[0], 1), max(rows[1], 1)
    means = [1, *(mean for bound in MEAN_ROWS_BOUNDS for mean in (bound, bound + 1))]
    if num_groups is not None:
        groups = {max(num_groups, 1)}
    else:
        groups = {1, 2} | {-(-bound // mean) for bound in (low, high) for mean in means}
    for count in sorted(groups):
        # A single row has no stride; so the next number of rows can need another variant.
        for size in sorted({low, low + 1, high, *(count * mean for mean in means)}):
            if low <= size <= high:
                yield count, size


def empty_sizes(num_groups: int | None, rows: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Yield groups and rows of calls in which nothing is multiplied.

    A rank may be without tokens, or without experts: its result is zeros, written by a kernel. The
    choice is that of `Problem.settled`. Parameters are those of `sample_sizes`.
    """
    if rows[0] <= 1:
        for count in sorted({1, 2} if num_groups is None else {max(num_groups, 1)}):
            yield count, 0
    if not num_groups:
        for _, length in sample_sizes(1, rows):
            yield 0, length


def every_choice(
    describe: Callable[[int, int], Problem],
    arch: Arch,
    *,
    num_groups: int | None = None,
    rows: tuple[int, int] = ANY_ROWS,
) -> list[Choice]:
    """Return every kernel, tile and variant that calls of one kind may need on a device.

    Parameters
    ----------
    describe : callable
        Returns the problem of a call with a number of groups and of rows.
    arch : Arch
        The device's architecture.
    num_groups, rows
        As for `sample_sizes`.
    """
    found: dict[Choice, None] = {}

    def add(problem: Problem, gpu: str = "") -> None:
        if not problem.is_empty:
            kernel, config = choose(problem, arch, gpu)
            found[Choice(kernel, config, variant_for(problem, kernel, config))] = None

    def settled(*size: int) -> Problem:
        return describe(*size).settled

    sizes = list(sample_sizes(num_groups, rows))
    for size in sizes:
        problem = settled(*size)
        add(problem)
        if num_groups is None or rows[0] != rows[1]:
            for config in rivals(problem):
                kernel = KERNELS[config.kernel]
                if not problem.is_empty and not reasons_against(kernel, config, problem, arch):
                    found[Choice(kernel, config, variant_for(problem, kernel, config))] = None
    for size in empty_sizes(num_groups, rows):
        add(settled(*size))
    tuned = records.current()
    if tuned is None:
        return list(found)
    # Within a bucket a record's tile is the choice or refused; a dimension of length 1, whose
    # stride says nothing, is at a corner.
    low_high = max(rows[0], 1), max(rows[1], 1)
    groups = None if num_groups is None else max(num_groups, 1)
    for kind in {kind_of(settled(*size)) for size in sizes}:
        for gpu, bucket in tuned.buckets_of(kind):
            for size in corners(bucket, groups, low_high):
                add(settled(*size), gpu)
    return list(found)
