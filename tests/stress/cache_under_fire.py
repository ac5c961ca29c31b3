"""Many processes on one cache directory, and processes that are killed while they write to it.

    python tests/stress/cache_under_fire.py [--processes 16] [--trials 100] [--kills 200] [--json]

Four figures come out of it:

* cold starts: processes that start together on an empty directory. How many compiled the kernel
  (one should), how many failed (none), whether all hold the same bytes.
* cold starts without locks: the same on a file system that refuses to lock. More than one may
  compile; none may fail, and all hold the same bytes.
* cold starts with late visibility: the same where what another process has put in place cannot be
  seen for a second, as on some network file systems.
* kills: a process that does nothing but publish entries is killed with SIGKILL at a random moment.
  How often it died in the middle of a write, and whether anything that can be seen afterwards is
  damaged (nothing should be), locked (nothing) or in the way of the next build (nothing).

It needs NVRTC and no GPU. The exit code is 1 if a figure is not as it should be.
"""

from __future__ import annotations

import argparse
import errno
import fcntl
import hashlib
import json
import logging
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from gemmjit import templating
from gemmjit.arch import Arch
from gemmjit.build import build, clear_memory
from gemmjit.cache import Store, current_layers, stats

FORK = multiprocessing.get_context("fork")

TEMPLATE = """\
extern "C" __global__ void __launch_bounds__(128) ${ entry }(float* x) {
  x[threadIdx.x] *= ${ factor };
}
"""


@dataclass(frozen=True)
class Scale:
    """A specification of the smallest kernel there is."""

    factor: int
    target: Arch = field(default_factory=lambda: Arch(90, "a"))
    template: str = "scale.cu.j2"
    smem_bytes: int = 0
    threads: int = 128
    options: tuple[str, ...] = ()
    name: str = "scale"
    config: str = ""
    variant: str = ""
    prewarm_command: str = "gemmjit prewarm"

    @property
    def entry(self) -> str:
        return f"scale_by_{self.factor}"

    @property
    def variables(self) -> dict[str, object]:
        return {"entry": self.entry, "factor": self.factor}


class Count(logging.Handler):
    """Counts warnings, which stand for trouble that the library got over."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(record.getMessage().replace(os.environ["GEMMJIT_CACHE_DIR"], "<cache>"))


def start_cold(gate, results, factor: int) -> None:
    """Wait for the others, build one kernel, and tell what happened."""
    warnings = Count()
    logging.getLogger("gemmjit").addHandler(warnings)
    before = stats()
    gate.wait(60)
    try:
        kernel = build(Scale(factor))
        digest = hashlib.sha256(kernel.cubin + kernel.ptx.encode()).hexdigest()
        told = (stats().compiles - before.compiles, digest, "")
    except BaseException as error:
        told = (0, "", f"{type(error).__name__}: {error}")
    results.put((*told, warnings.seen))


def cold_starts(folder: Path, processes: int, trials: int) -> dict[str, object]:
    """Let processes start together on an empty directory, again and again."""
    compiles: list[int] = []
    failures: list[str] = []
    warnings: list[str] = []
    mixed = 0
    started = time.monotonic()
    for trial in range(trials):
        os.environ["GEMMJIT_CACHE_DIR"] = str(folder / f"trial-{trial}")
        gate, results = FORK.Barrier(processes), FORK.SimpleQueue()
        children = [
            FORK.Process(target=start_cold, args=(gate, results, 2 + trial))
            for _ in range(processes)
        ]
        for child in children:
            child.start()
        told = [results.get() for _ in children]
        for child in children:
            child.join()
        compiles.append(sum(count for count, *_ in told))
        failures += [error for _, _, error, _ in told if error]
        warnings += [text for *_, seen in told for text in seen]
        mixed += len({digest for _, digest, _, _ in told}) > 1
        damaged = Store(folder / f"trial-{trial}").verify()
        failures += [f"{stored.path}: {reason}" for stored, reason in damaged]
        shutil.rmtree(folder / f"trial-{trial}")
    return {
        "processes": processes,
        "trials": trials,
        "trials_that_compiled_once": compiles.count(1),
        "most_compiles_in_a_trial": max(compiles, default=0),
        "trials_with_different_bytes": mixed,
        "failures": failures,
        "warnings": sorted(set(warnings)),
        "seconds": round(time.monotonic() - started, 1),
    }


def without_locks(work: Callable[[], dict[str, object]]) -> dict[str, object]:
    """Do something on a file system that refuses to lock."""

    def refuse(*arguments: object, **more: object) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    real = fcntl.flock
    fcntl.flock = refuse
    try:
        return work()
    finally:
        fcntl.flock = real


def with_late_visibility(work: Callable[[], dict[str, object]]) -> dict[str, object]:
    """Do something on a file system where a new entry cannot be seen for a second."""
    real = Store._read

    def late(self: Store, path: Path) -> dict[str, bytes]:
        if time.time() - path.stat().st_mtime < 1:
            raise FileNotFoundError(path)
        return real(self, path)

    Store._read = late
    try:
        return work()
    finally:
        Store._read = real


def publish_for_ever(root: Path, entry, first: int, ready) -> None:
    """Publish entries that differ in a comment, each under its lock, until the end comes."""
    store = Store(root)
    ready.set()
    number = first
    while True:
        number += 1
        one = replace(entry, source=f"// {number}\n{entry.source}")
        with store.lock(one.key):
            store.publish(one)


def kills(folder: Path, count: int, seed: int) -> dict[str, object]:
    """Kill a process that publishes entries, again and again, on one directory."""
    root = folder / "killed"
    os.environ["GEMMJIT_CACHE_DIR"] = str(root)
    build(Scale(1))
    store = Store(root)
    (stored,) = store.entries()
    entry = store.read(stored)
    chance = random.Random(seed)
    warnings = Count()
    logging.getLogger("gemmjit").addHandler(warnings)
    in_a_write, published, failures = 0, 0, []
    started = time.monotonic()
    for number in range(count):
        ready = FORK.Event()
        child = FORK.Process(target=publish_for_ever, args=(root, entry, number * 10**6, ready))
        child.start()
        ready.wait(60)
        time.sleep(chance.uniform(0, 0.02))
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        aside = root / "v1" / ".tmp"
        in_a_write += any(True for _ in aside.glob("*/*"))
        shutil.rmtree(
            aside, ignore_errors=True
        )  # so that the next one's leftovers can be told apart
        for seen in list(store.entries()):
            if seen.path == stored.path:
                continue
            published += 1
            try:
                whole = store.read(seen)
                if store.load(whole.key, whole.nvrtc_version) != whole:
                    failures.append(f"{seen.path}: not what was published")
                with store.lock(whole.key, timeout_seconds=5) as locked:
                    if not locked:
                        failures.append(f"{seen.path}: still locked")
            except (OSError, ValueError) as error:
                failures.append(f"{seen.path}: {error}")
            store.remove(seen)
        clear_memory()
        if not build(Scale(1)).from_cache:
            failures.append(f"kill {number}: the first kernel was lost")
    logging.getLogger("gemmjit").removeHandler(warnings)
    return {
        "kills": count,
        "kills_in_the_middle_of_a_write": in_a_write,
        "entries_checked": published,
        "failures": failures + warnings.seen,
        "seconds": round(time.monotonic() - started, 1),
    }


def run(processes: int, trials: int, num_kills: int, seed: int) -> dict[str, dict[str, object]]:
    """Return the figures."""
    if current_layers().shared:
        raise SystemExit("unset GEMMJIT_CACHE_PATH: a layer that has the kernel spoils the figures")
    kept = os.environ.get("GEMMJIT_CACHE_DIR")
    with tempfile.TemporaryDirectory(prefix="gemmjit-stress-") as name:
        folder = Path(name)
        (folder / "templates").mkdir()
        (folder / "templates" / "scale.cu.j2").write_text(TEMPLATE)
        try:
            with templating.override(folder / "templates"):
                few = max(1, trials // 10)
                return {
                    "cold_starts": cold_starts(folder, processes, trials),
                    "cold_starts_without_locks": without_locks(
                        lambda: cold_starts(folder, processes, few)
                    ),
                    "cold_starts_with_late_visibility": with_late_visibility(
                        lambda: cold_starts(folder, processes, few)
                    ),
                    "kills": kills(folder, num_kills, seed),
                }
        finally:
            if kept is None:
                os.environ.pop("GEMMJIT_CACHE_DIR", None)
            else:
                os.environ["GEMMJIT_CACHE_DIR"] = kept


def as_it_should_be(figures: dict[str, dict[str, object]]) -> bool:
    """Return whether every figure is."""
    cold = figures["cold_starts"]
    return (
        cold["trials_that_compiled_once"] == cold["trials"]
        and not cold["warnings"]
        and not any(part["failures"] for part in figures.values())
        and not any(part.get("trials_with_different_bytes") for part in figures.values())
    )


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    chosen = parser.parse_args()
    figures = run(chosen.processes, chosen.trials, chosen.kills, chosen.seed)
    if chosen.json:
        print(json.dumps(figures, indent=1))
    else:
        for part, values in figures.items():
            print(part.replace("_", " "))
            for name, value in values.items():
                print(f"  {name.replace('_', ' '):36} {value if value != [] else 'none'}")
    return 0 if as_it_should_be(figures) else 1


if __name__ == "__main__":
    sys.exit(main())
