"""Draws problems at length, in several processes, and records what was run.

    python tests/fuzz.py --problems 100000 --processes 13 --json fuzz_h200.json --commit abc1234
    python tests/fuzz.py --executor emulator --problems 200 --processes 1
    python tests/fuzz.py --replay '{"cell": {...}, ...}'

The problem of a number depends on `--seed`, `--cells` and the number alone. Needs neither pytest
nor Hypothesis. The exit status is 1 if a problem failed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import fuzz_worker  # noqa: E402

_HUNG_AFTER = 90.0  # seconds on one problem; a kernel may have to be compiled


def main(argv: list[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    arguments.size = arguments.size or ("large" if arguments.executor == "gpu" else "small")
    if arguments.replay:
        return fuzz_worker.replay(arguments.replay, arguments.executor)
    if arguments.worker is not None:
        return fuzz_worker.work(arguments)
    started = time.time()
    with tempfile.TemporaryDirectory(prefix="gemmjit-fuzz-") as folder:
        crashes = _supervise(arguments, Path(folder), started)
        parts = [json.loads(path.read_text()) for path in sorted(Path(folder).glob("part-*.json"))]
    record = _record(arguments, parts, crashes, time.time() - started)
    text = json.dumps(record, indent=1)
    if arguments.json:
        Path(arguments.json).parent.mkdir(parents=True, exist_ok=True)
        Path(arguments.json).write_text(text + "\n")
    shown = {k: v for k, v in record.items() if k not in ("counts", "failures")}
    print(json.dumps(shown, indent=1))
    print("by kernel and form:", json.dumps(record["counts"].get("kernel_form", {})))
    for failure in record["failures"][:20]:
        print("FAILED:", json.dumps(failure))
    print(f"{record['problems']} problems, {len(record['failures'])} failed")
    return 1 if record["failures"] else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--executor", choices=("gpu", "emulator", "reference"), default="gpu")
    parser.add_argument("--problems", type=int, default=1000)
    parser.add_argument("--size", choices=("small", "large"), default="", help="by executor")
    parser.add_argument("--first", type=int, default=0, help="number of the first problem")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cells", type=int, default=720, help="ways to compile; a multiple of 9")
    parser.add_argument("--seconds", type=float, default=540.0, help="after which no more is begun")
    parser.add_argument("--shrink-seconds", type=float, default=15.0, help="for each failure")
    parser.add_argument("--json", default="", help="file for the record")
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--replay", default="", help="one problem as JSON, or a file of it")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", default="", help=argparse.SUPPRESS)
    parser.add_argument("--after", type=int, default=-1, help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, default=0.0, help=argparse.SUPPRESS)
    parser.add_argument("--part", type=int, default=0, help=argparse.SUPPRESS)
    return parser


class _Worker:
    """A process with its share of the problems; begun again behind one that ended it."""

    def __init__(self, arguments: argparse.Namespace, number: int, folder: Path, end: float):
        self.arguments, self.number, self.folder, self.end = arguments, number, folder, end
        self.progress = folder / f"progress-{number}"
        self.parts, self.after = 0, -1
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        a = self.arguments
        given = {
            "--executor": a.executor, "--size": a.size, "--problems": a.problems,
            "--first": a.first,
            "--processes": a.processes, "--seed": a.seed, "--cells": a.cells,
            "--shrink-seconds": a.shrink_seconds, "--worker": self.number,
            "--folder": self.folder, "--after": self.after, "--until": self.end,
            "--part": self.parts,
        }  # fmt: skip
        command = [sys.executable, str(HERE / "fuzz.py")]
        for name, value in given.items():
            command += [name, str(value)]
        self.parts += 1
        self.changed = time.time()
        self.log = open(self.folder / f"log-{self.number}", "wb")  # noqa: SIM115
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(command, env=environment, stdout=self.log, stderr=self.log)

    def poll(self) -> dict[str, Any] | None:
        """Return what ended the process, if something did, and begin it again behind that."""
        hung = False
        if self.progress.exists():
            self.changed = max(self.changed, self.progress.stat().st_mtime)
        if self.process.poll() is None:
            hung = time.time() - self.changed > _HUNG_AFTER
            if not hung:
                return None
            self.process.kill()
            self.process.wait()
        self.log.close()
        if self.process.returncode == 0:
            return None
        index = int(self.progress.read_text() or -1) if self.progress.exists() else -1
        told = (self.folder / f"log-{self.number}").read_text(errors="replace")[-600:]
        reported = self.process.returncode == fuzz_worker.DEVICE_LOST
        crash = None
        if not reported:
            what = f"no end after {_HUNG_AFTER:.0f} s" if hung else (
                f"exit status {self.process.returncode}: {told}"
            )  # fmt: skip
            crash = {"index": index, "error": what}
        if index <= self.after and not reported:  # it does not get anywhere
            return crash
        self.after = index
        self.process = self._start()
        return crash

    @property
    def running(self) -> bool:
        return self.process.poll() is None


def _supervise(arguments: argparse.Namespace, folder: Path, started: float) -> list[dict[str, Any]]:
    """Run the processes to their end; return what ended one before that."""
    end = started + arguments.seconds
    crashes = []
    workers = [_Worker(arguments, i, folder, end) for i in range(arguments.processes)]
    while any(worker.running for worker in workers):
        time.sleep(0.2)
        for worker in workers:
            if (crash := worker.poll()) is not None:
                crashes.append(crash)
                if len(crashes) > 40:
                    for other in workers:
                        other.process.kill()
                    return crashes
    return crashes


def _record(
    arguments: argparse.Namespace, parts: list[dict[str, Any]], crashes: list[dict[str, Any]],
    seconds: float,
) -> dict[str, Any]:  # fmt: skip
    counts: dict[str, Counter[str]] = {}
    worst: dict[str, float] = {}
    kernels: set[str] = set()
    failures: list[dict[str, Any]] = []
    for part in parts:
        for name, values in part["counts"].items():
            counts.setdefault(name, Counter()).update(values)
        for name, value in part["worst"].items():
            worst[name] = max(worst.get(name, 0.0), value)
        kernels.update(part["kernels"])
        failures += part["failures"]
    for crash in crashes:
        problem = fuzz_worker.problem_of(arguments, crash["index"])
        failures.append({**crash, "problem": problem.to_dict(), "shrunk": None})
    refused = sum(counts.get("refused", {}).values())
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": arguments.commit,
        "executor": arguments.executor,
        "device": next((p["device"] for p in parts if p["device"]), {}),
        "python": platform.python_version(),
        "command": f"python tests/fuzz.py --executor {arguments.executor} --size {arguments.size} "
        f"--problems {arguments.problems} --processes {arguments.processes} "
        f"--seed {arguments.seed} --cells {arguments.cells}",
        "seconds": round(seconds, 1),
        "problems": sum(p["problems"] for p in parts) + len(crashes),
        "asked": arguments.problems,
        "refused": refused,
        "failed": len(failures),
        "kernels": len(kernels),
        "worst_error_over_limit": {k: round(v, 4) for k, v in sorted(worst.items())},
        "counts": {k: dict(sorted(v.items())) for k, v in sorted(counts.items())},
        "failures": failures,
    }


if __name__ == "__main__":
    sys.exit(main())
