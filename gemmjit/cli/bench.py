"""``gemmjit bench``: measure gemmjit, its kernels and its peers on this machine's GPU."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from gemmjit.cli import bench_timing as timing
from gemmjit.cli import bench_tools as tools
from gemmjit.cli import sentence

__all__ = ["HELP", "NAME", "add_arguments", "run"]

NAME = "bench"
HELP = "measure gemmjit beside other libraries: interleaved, verified, hot and cool"

_Declare = Callable[[argparse.ArgumentParser], None]
_Run = Callable[[argparse.Namespace], int]

#: Subcommand -> what it is, what declares its arguments, and what runs it.
_SUBCOMMANDS: dict[str, tuple[str, _Declare, _Run]] = {
    "grouped": (
        "gemmjit beside other libraries, case by case",
        timing.declare_grouped,
        timing.run_grouped_command,
    ),
    "ladder": (
        "every kernel of gemmjit, on even and skewed group sizes",
        timing.declare_ladder,
        timing.run_ladder_command,
    ),
    "scheduling": (
        "ways to find tiles on the device",
        timing.declare_scheduling,
        timing.run_scheduling_command,
    ),
    "epilogues": (
        "what each epilogue costs over the plain store",
        timing.declare_epilogues,
        timing.run_epilogues_command,
    ),
    "host": (
        "what a call costs the host, and what the first call of a process does",
        tools.declare_host,
        tools.run_host_command,
    ),
    "profile": (
        "run products one after the other for a profiler",
        tools.declare_profile,
        tools.run_profile_command,
    ),
    "counters": (
        "summarise what ncu --csv printed",
        tools.declare_counters,
        tools.run_counters_command,
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands and their arguments."""
    parsers = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    for name, (text, declare, _) in _SUBCOMMANDS.items():
        declare(parsers.add_parser(name, help=text, description=sentence(text)))


def run(arguments: argparse.Namespace) -> int:
    """Run one subcommand; return 1 if something that was asked for is not in the result."""
    return _SUBCOMMANDS[arguments.what][2](arguments)
