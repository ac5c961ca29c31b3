"""Fill a cache directory with many kernels: several processes, none compiled twice."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Literal

from gemmjit.build import CompiledKernel, Spec, build, clear_memory, find_first
from gemmjit.cache import Key, current_layers
from gemmjit.errors import CacheError, CompileError, GemmjitError

__all__ = ["Outcome", "environment", "num_cpus", "prewarm", "shard"]

Status = Literal["compiled", "present", "failed"]

#: Below this many kernels a process of their own costs more than it saves.
_WORTH_A_PROCESS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one kernel.

    Attributes
    ----------
    spec : Spec
    status : {"compiled", "present", "failed"}
    seconds : float
        What compiling took, by whomever; 0 if it failed.
    registers, spills : int
        Of a thread; bytes.
    nvrtc_version, identity : str
    error, log : str
        Why it failed, and the compiler's log.
    """

    spec: Spec
    status: Status
    seconds: float = 0.0
    registers: int = 0
    spills: int = 0
    nvrtc_version: str = ""
    identity: str = ""
    error: str = ""
    log: str = ""


def num_cpus() -> int:
    """Return the processors that this process may use."""
    return len(os.sched_getaffinity(0))


def shard(keys: Iterable[Key], index: int, count: int) -> set[Key]:
    """Return one of several parts of a list of kernels; the parts are disjoint and complete.

    Parameters
    ----------
    keys : iterable of Key
    index, count : int
        Part `index` of `count`, from 1. Machines that are given the same list agree on the parts.
    """
    ordered = sorted(set(keys), key=lambda key: (key.identity, key.target, key.entry))
    return set(ordered[index - 1 :: count])


@contextmanager
def environment(cache_dir: str | None = None) -> Iterator[None]:
    """Set the environment of this process and its children for filling a cache.

    Compiling is allowed, whatever ``GEMMJIT_DISABLE_JIT`` says, and nothing is evicted meanwhile.

    Parameters
    ----------
    cache_dir : str, optional
        Directory to fill; then what other directories hold does not count.
    """
    changes: dict[str, str | None] = {
        "GEMMJIT_DISABLE_JIT": None,
        "GEMMJIT_CACHE_MAX_SIZE": "1024T",
    }
    if cache_dir is not None:
        changes |= {"GEMMJIT_CACHE_DIR": cache_dir, "GEMMJIT_CACHE_PATH": None}
    kept = {name: os.environ.get(name) for name in changes}
    _set(changes)
    try:
        yield
    finally:
        _set(kept)


def _set(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def prewarm(
    specs: Sequence[Spec],
    *,
    jobs: int = 1,
    report: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """Compile what no directory has, and make sure that the cache has the results.

    Parameters
    ----------
    specs : sequence of Spec
        Each another kernel.
    jobs : int
        Processes that compile at a time. They are spawned: neither a driver nor threads of this
        process are in their way.
    report : callable
        Told of each outcome as soon as it is known.

    Returns
    -------
    list of Outcome
        In the order of `specs`. A kernel that fails does not stop the others.
    """
    found: dict[int, Outcome] = {}

    def tell(number: int, outcome: Outcome) -> None:
        found[number] = outcome
        report(outcome)

    clear_memory()  # what counts is what a directory has
    missing = []
    for number, spec in enumerate(specs):
        try:
            kernel = find_first([spec])
        except GemmjitError as error:
            tell(number, _failed(spec, error))
            continue
        if kernel is None:
            missing.append(number)
        else:
            tell(number, _one(spec))
    if jobs > 1 and len(missing) >= _WORTH_A_PROCESS:
        _in_processes(specs, missing, jobs, tell)
    else:
        for number in missing:
            tell(number, _one(specs[number]))
    return [found[number] for number in range(len(specs))]


def _in_processes(
    specs: Sequence[Spec], numbers: list[int], jobs: int, tell: Callable[[int, Outcome], None]
) -> None:
    pool = ProcessPoolExecutor(min(jobs, len(numbers)), mp_context=get_context("spawn"))
    try:
        pending: dict[Future[Outcome], int] = {
            pool.submit(_one, specs[number]): number for number in numbers
        }
        while pending:
            done, _ = wait(pending, return_when=FIRST_COMPLETED)
            for future in done:
                number = pending.pop(future)
                try:
                    outcome = future.result()
                except Exception as error:  # the process died, of too little memory perhaps
                    outcome = _failed(specs[number], error)
                tell(number, outcome)
    finally:
        pool.shutdown(cancel_futures=True)


def _one(spec: Spec) -> Outcome:
    try:
        kernel = build(spec)
        key = Key(kernel.target.name, kernel.entry, kernel.identity)
        layers = current_layers()
        kept = layers.find(key, kernel.nvrtc_version, any_version=True) is not None
        if not layers.settle() or not kept:
            raise CacheError(
                f"{kernel.entry} for {kernel.target} is compiled, but none of the cache "
                f"directories ({layers.describe()}) could keep it. Choose one with "
                "GEMMJIT_CACHE_DIR"
            )
    except GemmjitError as error:
        return _failed(spec, error)
    return _told(spec, kernel, "present" if kernel.from_cache else "compiled")


def _told(spec: Spec, kernel: CompiledKernel, status: Status) -> Outcome:
    return Outcome(
        spec=spec,
        status=status,
        seconds=kernel.seconds,
        registers=kernel.registers,
        spills=kernel.spills,
        nvrtc_version=kernel.nvrtc_version,
        identity=kernel.identity,
    )


def _failed(spec: Spec, error: Exception) -> Outcome:
    log = error.log if isinstance(error, CompileError) else ""
    text = str(error) if isinstance(error, GemmjitError) else f"{type(error).__name__}: {error}"
    return Outcome(spec=spec, status="failed", error=text, log=log)
