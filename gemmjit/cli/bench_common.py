"""Arguments and helpers that the subcommands of ``gemmjit bench`` share."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from gemmjit.bench.cases import Pass
from gemmjit.bench.statistics import MIN_ROUNDS
from gemmjit.cli.choices import file_path
from gemmjit.cli.numbers import at_least, integer, names_in, positive, whole
from gemmjit.errors import GemmjitError, InvalidConfigError, InvalidProblemError

if TYPE_CHECKING:
    from gemmjit.bench.backend import Backend
    from gemmjit.bench.cell import Bench
    from gemmjit.config import Config
    from gemmjit.problem import Problem

__all__ = [
    "BACKENDS",
    "DTYPES",
    "LAYOUTS",
    "STATES",
    "accepted",
    "add_common",
    "add_timing",
    "command_of",
    "config_in",
    "config_of",
    "forms_in",
    "is_complete",
    "kernel_in",
    "kernels_in",
    "layouts_in",
    "names_of",
    "open_backend",
    "open_run",
    "origin_of",
    "require_tile",
    "say_drawn",
    "write_record",
]


#: Arguments that are said by their value alone.
_POSITIONAL = ("what", "action")

BACKENDS = ("auto", "torch", "cupy", "simulated")
DTYPES = ("bfloat16", "float16", "float32")
LAYOUTS = ("nn", "nt")
STATES = ("cool", "hot")

#: What an option takes, with commas.
forms_in = names_in(lambda: get_args(Pass))
layouts_in = names_in(lambda: LAYOUTS)
kernels_in = names_in(lambda: _kernels())


def add_common(parser: argparse.ArgumentParser) -> None:
    """Declare what every subcommand that measures takes."""
    parser.add_argument(
        "--json",
        dest="json_file",
        type=file_path,
        metavar="FILE",
        help="write all numbers to a file",
    )
    parser.add_argument(
        "--backend",
        default="auto",
        choices=BACKENDS,
        help="arrays and graphs: torch where it sees a GPU, else CuPy (default: auto)",
    )
    parser.add_argument("--device", type=whole(0), default=0, help="CUDA device (default: 0)")
    parser.add_argument(
        "--commit", help="commit of these sources, where they are no git checkout (x or x-dirty)"
    )


def add_timing(parser: argparse.ArgumentParser, *, rounds: int = MIN_ROUNDS) -> None:
    """Declare what every subcommand that times contenders takes."""
    add_common(parser)
    parser.add_argument(
        "--state",
        type=names_in(lambda: STATES),
        default="cool,hot",
        help="power states, in order: cool, hot (default: cool,hot)",
    )
    parser.add_argument(
        "--rounds",
        type=positive,
        default=rounds,
        help=f"rounds of a cell (default: {rounds}; under {MIN_ROUNDS} is no result)",
    )
    parser.add_argument(
        "--budget",
        type=at_least(0, open_end=True),
        metavar="SECONDS",
        help="do fewer rounds to end in this time",
    )
    parser.add_argument(
        "--warmup",
        type=at_least(0),
        default=1.0,
        help="seconds of load before the hot state (default: 1)",
    )
    parser.add_argument("--seed", type=whole(0), default=0, help="of data and orders (default: 0)")
    parser.add_argument(
        "--dtype",
        default="bfloat16",
        choices=DTYPES,
        help="element type of the operands (default: bfloat16)",
    )
    parser.add_argument(
        "--plot",
        type=file_path,
        metavar="DIR",
        help="draw pictures into this directory (needs matplotlib)",
    )


def open_run(arguments: argparse.Namespace, workloads: int) -> Bench:
    """Return what the cells of a run share; workloads times states is their number."""
    from gemmjit.bench.cell import say
    from gemmjit.bench.protocol import Protocol, states_of
    from gemmjit.bench.setup import open_bench

    states = states_of(names_of(arguments.state))
    protocol = Protocol(
        rounds=arguments.rounds, warmup_seconds=arguments.warmup, seed=arguments.seed
    )
    backend = open_backend(arguments)
    return open_bench(backend, protocol, states, workloads * len(states), arguments.budget, say)


def open_backend(arguments: argparse.Namespace) -> Backend:
    """Return the backend that was asked for.

    Raises
    ------
    GemmjitError
        If there is no GPU, or no framework that can use it. That is no wrong value of an
        argument: ``--backend`` takes names of backends alone.
    """
    from gemmjit.bench.setup import choose_backend

    try:
        return choose_backend(arguments.backend, arguments.device)
    except InvalidProblemError as error:
        raise GemmjitError(str(error)) from error


def origin_of(arguments: argparse.Namespace, bench: Bench) -> dict[str, Any]:
    """Return the head of a result file: device, sources, versions, protocol."""
    from gemmjit.bench.provenance import provenance

    return {
        **provenance(bench.backend, bench.provider, command_of(arguments), arguments.commit),
        "protocol": {
            **bench.protocol.to_dict(),
            "states": list(bench.states),
            "budget_seconds": arguments.budget,
        },
    }


def command_of(arguments: argparse.Namespace) -> list[str]:
    """Return what was asked, without the places of files on this machine."""
    found = ["gemmjit", arguments.command]
    given = vars(arguments)
    found += [given[name] for name in _POSITIONAL if name in given]
    for name, value in sorted(given.items()):
        if name in ("command", *_POSITIONAL) or value is None or value is False or callable(value):
            continue
        if f"{name}_file" in given:  # said as a path
            continue
        shown = value.name if isinstance(value, Path) else str(value)
        found.append(f"--{name.removesuffix('_file').replace('_', '-')}={shown}")
    return found


def is_complete(results: Sequence[dict[str, Any]], peer: str) -> bool:
    """Return whether a peer was timed in every cell."""
    return all(
        result["states"] and all(peer in state["best"] for state in result["states"].values())
        for result in results
    )


def write_record(arguments: argparse.Namespace, record: dict[str, Any]) -> None:
    """Write the result file, if one was asked for."""
    if arguments.json_file:
        from gemmjit.bench.report import write_json

        write_json(arguments.json_file, record)


def say_drawn(paths: Sequence[Path]) -> None:
    """Say which pictures were drawn."""
    for path in paths:
        print(f"drawn: {path}", file=sys.stderr)


def config_of(text: str) -> Config:
    """Return the config that ``k1:block_m=64,num_stages=3`` stands for."""
    from gemmjit.kernels import kernel

    name, colon, fields = text.partition(":")
    found = kernel(name)
    values: dict[str, object] = found.default_config.to_dict()
    parts = names_of(fields)
    if not all("=" in part for part in parts) or (colon and not parts):
        raise InvalidConfigError(
            f"config: expected a kernel and fields, as in k1:block_m=64,num_stages=3; got {text!r}"
        )
    for part in parts:
        key, _, value = part.partition("=")
        values[key] = _value(value)
    return found.config_type.from_dict(values)


def _value(text: str) -> object:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return integer(text)
    except ValueError:
        return text


def require_tile(config: Config, problems: Iterable[Problem]) -> None:
    """Check that a tile can serve problems on some architecture; on the device's, others look.

    Raises
    ------
    InvalidConfigError
        If it cannot; with the reasons.
    """
    from gemmjit.kernels import KERNELS
    from gemmjit.ops.dispatch import default_arch
    from gemmjit.selection.admission import reasons_against

    kernel = KERNELS[config.kernel]
    archs = [default_arch(), kernel.max_arch or kernel.min_arch, kernel.min_arch]
    for problem in problems:
        reasons = [reasons_against(kernel, config, problem, arch) for arch in archs]
        if all(reasons):
            raise InvalidConfigError(
                f"config: expected a tile that can serve {problem.form} of {problem.in_dtype}; got "
                f"{config}: {'; '.join(reasons[0])}. Correct the fields"
            )


def accepted(check: Callable[[str], object]) -> Callable[[str], str]:
    """Return what passes on a text that `check` takes, for argparse, which names the option."""

    def read(text: str) -> str:
        try:
            check(text)
        except GemmjitError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        return text

    return read


def kernel_in(text: str) -> str:
    """Check the name of a kernel, for argparse."""
    from gemmjit.kernels import kernel

    return accepted(kernel)(text)


#: A tile, as `config_of` takes it.
config_in = accepted(lambda text: config_of(text))


def _kernels() -> list[str]:
    from gemmjit.kernels import KERNELS

    return list(KERNELS)


def names_of(text: str) -> list[str]:
    """Return the names of a list with commas."""
    return [name.strip() for name in text.split(",") if name.strip()]
