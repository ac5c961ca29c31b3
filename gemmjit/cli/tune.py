"""``gemmjit tune``: measure tiles, record the fastest, show and move the records."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemmjit.bench.cases import CASES, passes_of
from gemmjit.bench.statistics import MIN_ROUNDS
from gemmjit.cli.bench_common import (
    BACKENDS,
    DTYPES,
    LAYOUTS,
    STATES,
    forms_in,
    names_of,
    open_run,
    origin_of,
    write_record,
)
from gemmjit.cli.choices import directory, file_path
from gemmjit.cli.numbers import at_least, names, names_in, positive, whole
from gemmjit.cli.output import counted, print_json, print_table
from gemmjit.cli.progress import progress
from gemmjit.errors import CacheError, GemmjitError

if TYPE_CHECKING:
    from gemmjit.tuning import Storage, Task

__all__ = ["add_arguments", "run"]

_INTERRUPTED = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "action",
        nargs="?",
        default="run",
        choices=tuple(_ACTIONS),
        help="run (the default): measure; ls: show records; export, import: move them in a FILE; "
        "clear: remove them",
    )
    parser.add_argument(
        "file", nargs="?", type=file_path, metavar="FILE", help="to export to, or to import from"
    )
    what = parser.add_argument_group("what is measured")
    what.add_argument(
        "--case",
        type=names,
        help="names, or sizes as in rows=4096:groups=32:k=1024:n=2048:skew=1.2 "
        f"(default: {', '.join(CASES)})",
    )
    passes, layouts = forms_in, names_in(lambda: LAYOUTS, or_none=True)
    what.add_argument(
        "--form",
        type=passes,
        default="fprop,dgrad,wgrad",
        help="products (default: fprop,dgrad,wgrad)",
    )
    what.add_argument(
        "--layout",
        type=layouts,
        default="",
        help="of the weights: nn (G, k, n), nt (G, n, k) (default: as in training)",
    )
    what.add_argument("--shapes", metavar="FILE", help="a manifest's problems, as prewarm takes it")
    what.add_argument("--random", type=positive, metavar="N", help="N products of random sizes")
    what.add_argument(
        "--dtype", default="bfloat16", choices=DTYPES, help="element type (default: bfloat16)"
    )
    kernels = names_in(_kernels, or_none=True)
    what.add_argument(
        "--kernel", type=kernels, default="", help="these kernels only, as in k2,k3 (default: all)"
    )
    what.add_argument(
        "--within",
        type=at_least(1),
        default=1.5,
        help="leave out tiles that should take this many times the best (default: 1.5)",
    )
    what.add_argument("--again", action="store_true", help="measure what is recorded too")
    what.add_argument(
        "--check",
        action="store_true",
        help="compare the picks of model and heuristic with the fastest; exit with 1 if the "
        "model's is not within its limit",
    )
    how = parser.add_argument_group("how it is measured")
    states = names_in(lambda: STATES)
    how.add_argument(
        "--state", type=states, default="cool,hot", help="power states (default: cool,hot)"
    )
    how.add_argument(
        "--rounds", type=positive, default=MIN_ROUNDS, help=f"of each tile (default: {MIN_ROUNDS})"
    )
    seconds = at_least(0, open_end=True)
    how.add_argument(
        "--budget", type=seconds, metavar="SECONDS", help="do fewer rounds to end in this time"
    )
    how.add_argument(
        "--warmup",
        type=at_least(0),
        default=1.0,
        help="seconds of load before the hot state (default: 1)",
    )
    how.add_argument(
        "--seed", type=whole(0), default=0, help="of data, orders and random sizes (default: 0)"
    )
    how.add_argument("--device", type=whole(0), default=0, help="CUDA device (default: 0)")
    how.add_argument(
        "--backend",
        default="auto",
        choices=BACKENDS,
        help="arrays and graphs: torch where it sees a GPU, else CuPy (default: auto)",
    )
    how.add_argument("--commit", help="commit of these sources, where they are no git checkout")
    parser.add_argument("--gpu", help="ls, export: records of this GPU only")
    parser.add_argument(
        "--records",
        type=directory,
        metavar="DIR",
        help="directory of the records, instead of the user's; without it nothing is kept of a "
        "simulated device",
    )
    parser.add_argument(
        "--json",
        nargs="?",
        const="-",
        metavar="FILE",
        help="print one JSON object; with run and a FILE, write all numbers there",
    )
    parser.set_defaults(wrong=parser.error)


def _kernels() -> list[str]:
    from gemmjit.kernels import KERNELS

    return list(KERNELS)


def run(arguments: argparse.Namespace) -> int:
    """Run one action."""
    with_file = arguments.action in ("export", "import")
    if arguments.action != "run" and arguments.json not in (None, "-"):
        if not with_file or arguments.file is not None:
            arguments.wrong(f"argument --json: expected no FILE with {arguments.action}")
        # The word after --json, which takes none here.
        arguments.file, arguments.json = file_path(arguments.json), "-"
    if with_file is not (arguments.file is not None):
        arguments.wrong(
            f"{arguments.action}: expected {'a FILE' if with_file else 'no FILE'} with it"
        )
    if arguments.shapes is not None and (arguments.case or arguments.random):
        arguments.wrong("argument --shapes: not allowed with --case and --random")
    status: int = _ACTIONS[arguments.action](arguments)
    return status


def _run(arguments: argparse.Namespace) -> int:
    from gemmjit.tuning import Tuner, checked, is_within
    from gemmjit.tuning.check import LIMIT, LIMIT_DRAWN

    tasks = _tasks(arguments)
    printed = arguments.json == "-"
    arguments.json_file = None if arguments.json is None or printed else Path(arguments.json)
    bench = open_run(arguments, len(tasks))
    kernels = names_of(arguments.kernel)
    storage = None
    if arguments.records is not None or not bench.backend.facts.simulated:
        storage = _storage(arguments)
    tuner = Tuner(bench, storage, arguments.within, kernels, arguments.again)
    record: dict[str, Any] = {**origin_of(arguments, bench), "kind": "tune", "results": []}
    failed: list[str] = []
    said = bench.say
    interrupted = False
    with progress(len(tasks), "products") as step:
        if sys.stderr.isatty():
            bench.say = lambda text: None  # the bar says it

        def finished(task: Task, found: Mapping[str, Any] | None, now: bool) -> None:
            step(task.label + ("" if now else ", recorded before"))
            if found is None:
                failed.append(task.label)
                return
            record["results"].append({"measured_now": now, "check": checked(found), **found})
            write_record(arguments, record)

        try:
            tuner.run(tasks, finished)
        except KeyboardInterrupt:
            interrupted = True
    rows = [result["check"] for result in record["results"]]
    if printed:
        print_json(record)
    else:
        print_table(_HEAD, [_row(row) for row in rows])
    if storage is None:
        said("simulated times are recorded nowhere; --records DIR keeps them in a directory")
    for label in failed:
        said(f"{label}: nothing was timed")
    if interrupted:
        said(f"interrupted: {len(rows)} of {len(tasks)} products are done; run it again for others")
        return _INTERRUPTED
    if arguments.check and not is_within(rows, "model"):
        said(f"a pick of the model is above its limit, {LIMIT:g} ({LIMIT_DRAWN:g} at random sizes)")
        return 1
    return 1 if failed else 0


def _tasks(arguments: argparse.Namespace) -> list[Task]:
    from gemmjit.dtypes import dtype_of
    from gemmjit.manifest import load
    from gemmjit.tuning import random_tasks, tasks_of, tasks_of_manifest

    if arguments.shapes is not None:
        return tasks_of_manifest(load(arguments.shapes))
    forms, dtype = passes_of(names_of(arguments.form)), dtype_of(arguments.dtype)
    found: list[Task] = []
    if arguments.case is not None or not arguments.random:
        cases = names_of(arguments.case) if arguments.case else list(CASES)
        found += tasks_of(cases, forms, names_of(arguments.layout), dtype)
    if arguments.random:
        found += random_tasks(arguments.random, arguments.seed, forms, dtype)
    return found


_HEAD = (
    *("case", "form", "fastest", "hot us", "cool us", "model's pick", "/fastest"),
    *("heuristic's", "/fastest"),
)


def _row(row: Mapping[str, Any]) -> list[object]:
    cells: list[object] = [row["case"], f"{row['form']} {row['layout']}", row["best"]]
    cells += [_us(row["best_us"].get(state)) for state in ("hot", "cool")]
    for pick in ("model", "heuristic"):
        found = row[pick]
        cells += ["-", "-"] if found is None else [found["tile"], f"{found['ratio']:.3f}"]
    return cells


def _us(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _list(arguments: argparse.Namespace) -> int:
    from gemmjit.selection.buckets import Bucket
    from gemmjit.selection.records import check_times, kernels_digest

    storage, entries = _entries(arguments)
    rows = []
    for entry in entries:
        try:
            bucket, config = Bucket.from_dict(entry["bucket"]), entry["candidates"][0]
            check_times(entry)
            counts = entry["digest"] == kernels_digest()
            rows.append(
                [
                    entry["gpu"],
                    str(bucket),
                    f"{config['kernel']} {config['tile']}",
                    f"{config['mean_us']:.1f}",
                    str(entry["date"])[:10],
                    "yes" if counts else "no: other kernels",
                ]
            )
        except (GemmjitError, KeyError, TypeError, IndexError, AttributeError):
            rows.append([str(entry.get("gpu")), "-", "-", "-", "-", "no: broken"])
    if arguments.json:
        print_json({"file": str(storage.path), "records": entries})
        return 0
    if rows:
        print_table(("gpu", "problems", "tile", "us", "date", "counts"), rows)
    print(f"{counted(len(rows), 'record')} in {storage.path}")
    return 0


def _export(arguments: argparse.Namespace) -> int:
    from gemmjit.tuning.storage import write_file

    storage, entries = _entries(arguments)
    if not entries:
        of = "" if arguments.gpu is None else f" of {arguments.gpu!r}"
        raise CacheError(
            f"tune: expected records to export; got none{of} in {storage.path}. Measure some with "
            "gemmjit tune"
        )
    if arguments.file.exists():
        raise CacheError(f"tune: expected a new file; {arguments.file} exists. Name another")
    write_file(arguments.file, entries)
    return _told(arguments, "exported", len(entries))


def _import(arguments: argparse.Namespace) -> int:
    from gemmjit.selection.records import kernels_digest
    from gemmjit.tuning.storage import read_file

    entries = read_file(arguments.file)
    others = sum(entry.get("digest") != kernels_digest() for entry in entries)
    if others:
        print(
            f"gemmjit tune: of other kernels, so that they do not count for this gemmjit: {others} "
            f"of {counted(len(entries), 'record')}",
            file=sys.stderr,
        )
    return _told(arguments, "imported", _storage(arguments).add(entries, keep_newer=True))


def _clear(arguments: argparse.Namespace) -> int:
    return _told(arguments, "removed", _storage(arguments).clear())


def _entries(arguments: argparse.Namespace) -> tuple[Storage, list[Mapping[str, Any]]]:
    storage = _storage(arguments)
    entries = storage.listed()
    return storage, [e for e in entries if arguments.gpu in (None, e.get("gpu"))]


def _storage(arguments: argparse.Namespace) -> Storage:
    from gemmjit.tuning import Storage

    return Storage(None if arguments.records is None else Path(arguments.records))


def _told(arguments: argparse.Namespace, what: str, number: int) -> int:
    if arguments.json:
        print_json({what: number})
    else:
        print(f"{counted(number, 'record')} {what}.")
    return 0


_ACTIONS = {"run": _run, "ls": _list, "export": _export, "import": _import, "clear": _clear}
