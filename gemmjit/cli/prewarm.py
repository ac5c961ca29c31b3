"""``gemmjit prewarm``: compile kernels into the cache, without a GPU."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gemmjit.build import find_first
from gemmjit.cache import current_layers, max_bytes
from gemmjit.cli import choices
from gemmjit.cli.numbers import positive
from gemmjit.cli.output import add_json, bytes_text, counted, print_json, print_table
from gemmjit.cli.parsing import SETTING
from gemmjit.cli.progress import progress
from gemmjit.errors import InvalidConfigError, ManifestError
from gemmjit.manifest import KernelEntry, Manifest, Wanted, load, read_log, to_toml
from gemmjit.prewarm import Outcome, environment, num_cpus, prewarm, shard

__all__ = ["add_arguments", "run"]

_LOG_LINES = 20  # of the compiler's log of a kernel that failed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--shapes", metavar="FILE", help="manifest of problems and kernels (TOML)")
    source.add_argument("--kernel", help="one kernel by its name, as in k1, or tile_list")
    source.add_argument(
        "--from-log",
        metavar="FILE",
        help="log of a run with GEMMJIT_LOG_LEVEL=info; - for standard input",
    )
    parser.add_argument(
        "--arch",
        type=choices.architectures,
        help="architectures, as in sm_90a,sm_100f; needed with --kernel, otherwise instead of "
        "those that the manifest names",
    )
    for name, of in (("config", "tile"), ("variant", "variant")):
        parser.add_argument(
            f"--{name}",
            type=choices.setting,
            action="append",
            metavar=SETTING,
            help=f"with --kernel: fields of the {of} that differ from the defaults, or one JSON "
            "object",
        )
    parser.add_argument(
        "--jobs", type=positive, help="processes that compile at a time (default: one a processor)"
    )
    parser.add_argument(
        "--shard", type=_shard, metavar="I/N", help="only part I of N of the kernels, as in 1/4"
    )
    parser.add_argument(
        "--cache-dir",
        type=choices.directory,
        metavar="DIR",
        help="directory to fill, instead of GEMMJIT_CACHE_DIR",
    )
    parser.add_argument("--dry-run", action="store_true", help="list the kernels, compile nothing")
    parser.add_argument(
        "--write", metavar="FILE", help="write the kernels as a manifest, compile nothing"
    )
    parser.add_argument(
        "--allow-spills", action="store_true", help="do not fail if a shipped tile spills"
    )
    add_json(parser)
    parser.set_defaults(wrong=parser.error)


def run(arguments: argparse.Namespace) -> int:
    """Compile what is missing; return 1 if a kernel failed."""
    _check(arguments)
    with environment(arguments.cache_dir):
        status = _work(arguments)
    if arguments.cache_dir is None and arguments.write is None and not arguments.dry_run:
        _warn_of_size()
    return status


def _work(arguments: argparse.Namespace) -> int:
    manifest, unreadable = _manifest(arguments)
    archs = choices.arch_list(arguments.arch or "")
    try:
        wanted = manifest.wanted(archs)
    except ManifestError as error:
        if arguments.kernel is None:
            raise
        # No manifest was given: what is wrong is an argument.
        told = str(error).removeprefix(f"{manifest.name}, kernels[0] ")
        raise InvalidConfigError(told) from None
    if arguments.shard is not None:
        mine = shard((one.key for one in wanted), *arguments.shard)
        wanted = [one for one in wanted if one.key in mine]
    for line in unreadable:
        print(f"{manifest.name}, line {line}: the command is not whole", file=sys.stderr)
    if arguments.write is not None:
        return _write(arguments, manifest, wanted, unreadable)
    if arguments.dry_run:
        return _list(arguments, wanted, unreadable)
    return _prewarm(arguments, wanted, unreadable)


def _check(arguments: argparse.Namespace) -> None:
    for option in ("config", "variant"):
        if getattr(arguments, option) is not None and arguments.kernel is None:
            arguments.wrong(f"argument --{option}: not allowed without --kernel")
    if arguments.kernel is not None and not arguments.arch:
        arguments.wrong("argument --kernel: expected --arch too, as in --arch sm_90a")
    if arguments.from_log is not None and arguments.arch:
        arguments.wrong(
            "argument --arch: not allowed with --from-log, whose kernels were chosen for the "
            "architecture of that run; for others write their problems into a manifest"
        )


def _manifest(arguments: argparse.Namespace) -> tuple[Manifest, list[int]]:
    if arguments.shapes is not None:
        return load(arguments.shapes), []
    if arguments.from_log is not None:
        name, text = _read(arguments.from_log)
        return read_log(text, name)
    config = choices.merged(arguments.config or [])
    variant = choices.merged(arguments.variant or [])
    entry = KernelEntry(kernel=arguments.kernel, config=config, variant=variant)
    return Manifest(kernels=(entry,), name="command line"), []


def _read(path: str) -> tuple[str, str]:
    if path == "-":
        return "standard input", sys.stdin.read()
    try:
        return path, Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ManifestError(
            f"{path}: expected the log of a run; got {error.strerror}. Check the path"
        ) from error


def _write(
    arguments: argparse.Namespace, manifest: Manifest, wanted: list[Wanted], unreadable: list[int]
) -> int:
    comment = f"from {Path(manifest.name).name}, by gemmjit prewarm"
    text = to_toml((KernelEntry.of(one.spec) for one in wanted), comment)
    try:
        Path(arguments.write).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ManifestError(
            f"--write: expected a file that can be written; got {arguments.write}: "
            f"{error.strerror}. Choose another"
        ) from error
    if arguments.json:
        print_json({"written": arguments.write, "kernels": len(wanted)})
    else:
        print(f"{counted(len(wanted), 'kernel')} written to {arguments.write}.")
    return 1 if unreadable else 0


def _list(arguments: argparse.Namespace, wanted: list[Wanted], unreadable: list[int]) -> int:
    rows = [
        {
            "arch": str(one.arch),
            "target": str(one.spec.target),
            "entry": one.spec.entry,
            "status": "missing" if find_first([one.spec]) is None else "present",
            "identity": one.key.identity,
        }
        for one in wanted
    ]
    missing = sum(row["status"] == "missing" for row in rows)
    if arguments.json:
        print_json({"kernels": rows, "missing": missing, "unreadable_lines": unreadable})
    else:
        names = ("target", "entry", "status")
        print_table(names, [[row[name] for name in names] for row in rows])
        print(f"{counted(len(rows), 'kernel')}, {missing} to compile.")
    return 1 if unreadable else 0


def _prewarm(arguments: argparse.Namespace, wanted: list[Wanted], unreadable: list[int]) -> int:
    started = time.monotonic()
    with progress(len(wanted), "kernels") as step:
        outcomes = prewarm(
            [one.spec for one in wanted],
            jobs=arguments.jobs or num_cpus(),
            report=lambda outcome: step(f"{outcome.spec.name} for {outcome.spec.target}"),
        )
    seconds = time.monotonic() - started
    rows = [_row(one, done) for one, done in zip(wanted, outcomes, strict=True)]
    if not arguments.allow_spills:
        for one, row in zip(wanted, rows, strict=True):
            if row["spill_bytes"] and one.is_shipped:
                row["error"] = (
                    f"{row['entry']} for {row['target']}: expected no spills of a tile that is "
                    f"shipped; got {row['spill_bytes']} bytes. Lower min_blocks_per_sm, or accept "
                    "them with --allow-spills"
                )
    failed = [row for row in rows if row["error"]]
    sound = [row for row in rows if not row["error"]]  # one that spills counts as failed alone
    total = {
        "compiled": sum(row["status"] == "compiled" for row in sound),
        "present": sum(row["status"] == "present" for row in sound),
        "failed": len(failed),
        "spilling": sum(row["spill_bytes"] > 0 for row in rows),
        "unreadable_lines": unreadable,
        "seconds": round(seconds, 2),
    }
    if arguments.json:
        print_json({"kernels": rows, **total})
    else:
        _print(rows, total)
    for row in failed:
        _complain(row)
    return 1 if failed or unreadable else 0


def _row(one: Wanted, done: Outcome) -> dict[str, Any]:
    return {
        "arch": str(one.arch),
        "target": str(one.spec.target),
        "entry": one.spec.entry,
        "registers": done.registers,
        "spill_bytes": done.spills,
        "compile_ms": round(done.seconds * 1e3, 1),
        "status": done.status,
        "from_cache": done.status == "present",
        "nvrtc": done.nvrtc_version,
        "identity": one.key.identity,
        "error": done.error,
        "log": done.log,
    }


def _print(rows: Sequence[dict[str, Any]], total: dict[str, Any]) -> None:
    head = ("target", "kernel", "registers", "spills B", "ms", "status")
    names = ("target", "entry", "registers", "spill_bytes", "compile_ms", "status")
    unknown = dict.fromkeys(names[2:5])  # of a kernel that there is not
    shown = [row | unknown if row["status"] == "failed" else row for row in rows]
    print_table(head, [[row[name] for name in names] for row in shown])
    print(
        f"{counted(len(rows), 'kernel')} in {total['seconds']:.1f} s: "
        f"{total['compiled']} compiled, {total['present']} there already, "
        f"{total['failed']} failed; "
        f"{total['spilling'] or 'none'} of them spill{'s' if total['spilling'] == 1 else ''}."
    )


def _complain(row: dict[str, Any]) -> None:
    print(f"gemmjit prewarm: {row['error']}", file=sys.stderr)
    lines = [line for line in row["log"].splitlines() if line.strip() and line not in row["error"]]
    for line in lines[:_LOG_LINES]:
        print(f"  {line}", file=sys.stderr)


def _warn_of_size() -> None:
    user = current_layers().user
    if user is not None and user.size() > max_bytes():
        print(
            f"gemmjit prewarm: {user.root} holds {bytes_text(user.size())}, more than "
            f"{bytes_text(max_bytes())}; a run that compiles there removes the oldest. Raise "
            "GEMMJIT_CACHE_MAX_SIZE, or name the directory in GEMMJIT_CACHE_PATH",
            file=sys.stderr,
        )


def _shard(text: str) -> tuple[int, int]:
    match = re.fullmatch("([0-9]+)/([0-9]+)", text)
    index, count = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= index <= count:
        raise argparse.ArgumentTypeError(
            f"expected part and number of parts, as in 1/4, counted from 1; got {text!r}"
        )
    return index, count
