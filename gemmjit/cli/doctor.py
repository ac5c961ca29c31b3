"""``gemmjit doctor``: what is installed, what is missing, and the command that fixes it."""

from __future__ import annotations

import argparse
from typing import Any

from gemmjit.cli.environment import report
from gemmjit.cli.finding import Finding
from gemmjit.cli.numbers import positive
from gemmjit.cli.output import add_json, counted, print_json, print_table

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "--startup",
        action="store_true",
        help="measure instead: from the start of a process to its first result",
    )
    parser.add_argument(
        "--runs", type=positive, default=5, help="with --startup: number of processes (default: 5)"
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Report; return 2 for a variable with a wrong value, 1 if no kernel can be compiled."""
    if arguments.startup:
        from gemmjit.cli import startup

        return startup.run(arguments.runs, arguments.json)
    facts, problems = report()
    blocked = any(problem.blocks_compiling for problem in problems)
    if arguments.json:
        told = [{"what": p.what, "mend": p.mend, "needed_to": p.needed_to} for p in problems]
        print_json({"ok": not blocked, **facts, "problems": told})
    else:
        _print(facts, problems)
        _print_problems(problems)
    if any(problem.of_variable for problem in problems):
        return 2
    return 1 if blocked else 0


def _print(facts: dict[str, Any], problems: list[Finding]) -> None:
    print(f"gemmjit {facts['gemmjit']['version']} in {facts['gemmjit']['location']}")
    print(f"Python {facts['python']['version']} ({facts['python']['executable']})")
    print(f"{facts['platform']}\n")
    rows = [
        [p["name"], p["installed"], p["required"] or "optional"]
        for p in facts["packages"]
        if p["installed"] or p["required"]
    ]
    print_table(("package", "installed", "required"), rows)
    nvrtc, driver, cache, templates = (
        facts[name] for name in ("nvrtc", "driver", "cache", "templates")
    )
    lines = [
        ("NVRTC", f"{nvrtc['version']} in {nvrtc['library']}" if nvrtc else "cannot be used"),
        ("targets", " ".join(nvrtc["targets"]) if nvrtc else "none"),
        ("driver", _driver_line(driver, problems)),
        *(("GPU", f"{gpu['name']}, {gpu['arch']}, {gpu['num_sms']} SMs") for gpu in facts["gpus"]),
        ("cache", _cache_line(cache["user"], cache["max_bytes"])),
        *(("", _cache_line(layer, None)) for layer in cache["shared"]),
        ("templates", f"{templates['root']} ({templates['count']} files)"),
        *(("", f"{path} takes precedence") for path in templates["overrides"]),
    ]
    print()
    for head, text in lines:
        print(f"{head:<10} {text}")
    print()
    rows = [[v["name"], v["value"] or f"({v['default']})"] for v in facts["environment"]]
    print_table(("variable", "value"), rows)


def _driver_line(driver: dict[str, Any] | None, problems: list[Finding]) -> str:
    if driver is None:
        if any(problem.what.startswith("driver") for problem in problems):
            return "cannot be used"
        return "no driver (needed only to run on a GPU)"
    return f"CUDA {driver['cuda']}, release {driver['release']}"


def _cache_line(layer: dict[str, Any] | None, max_bytes: int | None) -> str:
    if layer is None:
        return "none, kernels stay in memory"
    state = "writable" if layer["writable"] else "only read"
    limit = "" if max_bytes is None else f" of {max_bytes // 2**20} MiB"
    size = f"{counted(layer['num_entries'], 'kernel')}, {layer['num_bytes'] / 2**20:.1f} MiB{limit}"
    return f"{layer['path']} ({state}, {size})"


def _print_problems(problems: list[Finding]) -> None:
    if not problems:
        print("\nNothing is missing.")
        return
    print("\nMissing or wrong:")
    for problem in problems:
        print(f"  * {problem.what} (needed to {problem.needed_to})")
        print(f"    {problem.mend}")
