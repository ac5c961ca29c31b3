"""The command line: one module per command, imported only when that command is used.

A command's module offers ``add_arguments(parser)`` and ``run(arguments) -> int``, the exit status:
0 success, 1 the work failed, or a file cannot be used, 2 wrong usage: an option, or a value of one
or of an environment variable, that the command does not take; argparse's own, and what gemmjit
refuses.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from gemmjit import __version__
from gemmjit.cli.parsing import Parser
from gemmjit.errors import (
    GemmjitError,
    InvalidConfigError,
    InvalidDtypeError,
    InvalidEnvironmentError,
    InvalidProblemError,
    UnsupportedArchError,
)

__all__ = ["COMMANDS", "main"]

#: Every command and what ``gemmjit --help`` says of it; the module has the same name.
COMMANDS = {
    "demo": "compile the kernels, run a ragged problem and check it",
    "doctor": "show versions, driver and paths, and what is missing",
    "inspect": "show a kernel's source, PTX, SASS or resources, or which one serves a problem",
    "explain": "predict the time of every tile for a problem, and say why; needs no GPU",
    "prewarm": "compile kernels into the cache; needs no GPU",
    "cache": "list, verify, move and shrink the kernels on disk",
    "emulate": "run a kernel's PTX on the CPU: result, races, deadlocks, counts, a timeline",
    "bench": "measure gemmjit beside other libraries: interleaved, verified, hot and cool",
    "tune": "measure tiles for given problems, and let grouped_mm take the fastest",
}

_FAILED, _WRONG_USAGE = 1, 2
_INTERRUPTED = 130  # what a shell reports for a process that SIGINT ended

#: What is wrong with an argument or an environment variable, not with the work.
_WRONG_VALUES = (
    InvalidConfigError,
    InvalidDtypeError,
    InvalidEnvironmentError,
    InvalidProblemError,
)

_STATUSES = (
    "exit status: 0 success; 1 the work failed, or a file cannot be used; 2 wrong usage: an "
    "unknown option, or a value that an argument, or an environment variable that is read, does "
    "not take; 130 interrupted"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments without the program's name; by default those of the process.

    Returns
    -------
    int
        Exit status.
    """
    given = sys.argv[1:] if argv is None else list(argv)
    named = next((word for word in given if not word.startswith("-")), None)
    parser = Parser(
        prog="gemmjit",
        description="A JIT kernel toolkit for grouped GEMM. gemmjit COMMAND --help says more of a "
        "command.",
        epilog=_STATUSES,
    )
    parser.add_argument("--version", action="version", version=f"gemmjit {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    module = None
    for name, text in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=sentence(text), epilog=_STATUSES)
        if name == named:
            module = import_module(f"gemmjit.cli.{name}")
            module.add_arguments(command)
    arguments = parser.parse_args(given)
    assert module is not None  # argparse has refused every other command
    try:
        status: int = module.run(arguments)
        sys.stdout.flush()
    except GemmjitError as error:
        return _failed(arguments, error)
    except BrokenPipeError:  # the reader, head for example, has seen enough
        sys.stderr.close()
        return 0
    except OSError as error:
        if error.filename is None:  # no file that an argument names
            raise
        print(f"gemmjit {named}: {error.filename}: {error.strerror}", file=sys.stderr)
        return _FAILED
    except MemoryError as error:  # sizes that a kernel could serve, but not this machine
        print(f"gemmjit {named}: not enough memory: {error}. Use smaller sizes", file=sys.stderr)
        return _FAILED
    except KeyboardInterrupt:
        return _INTERRUPTED
    return status


def sentence(text: str) -> str:
    """Return a help text as a sentence; names of programs keep their small letters."""
    first = text if text.startswith(("gemmjit", "ncu")) else text[:1].upper() + text[1:]
    return f"{first}."


def _failed(arguments: argparse.Namespace, error: GemmjitError) -> int:
    from gemmjit.cli.output import print_json

    text = str(error).removeprefix(f"{arguments.command}: ")  # which is said already
    print(f"gemmjit {arguments.command}: {text}", file=sys.stderr)
    if getattr(arguments, "json", False):
        print_json({"error": {"type": type(error).__name__, "message": str(error)}})
    wrong = isinstance(error, _WRONG_VALUES)
    if isinstance(error, UnsupportedArchError):  # of an argument, or of the GPU that is there
        wrong = bool(getattr(arguments, "arch", None) or os.environ.get("GEMMJIT_ARCH"))
    return _WRONG_USAGE if wrong else _FAILED
