"""Arguments and helpers that the subcommands of ``gemmjit bench`` share."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemmjit.bench.statistics import MIN_ROUNDS
from gemmjit.errors import InvalidProblemError

if TYPE_CHECKING:
    from gemmjit.bench.cell import Bench

__all__ = [
    "add_common",
    "add_timing",
    "command_of",
    "config_of",
    "integers_of",
    "is_complete",
    "names_of",
    "open_run",
    "origin_of",
    "say_drawn",
    "write_record",
]


#: Arguments that are said by their value alone.
_POSITIONAL = ("what", "action")


def add_common(parser: argparse.ArgumentParser) -> None:
    """Declare what every subcommand that measures takes."""
    parser.add_argument(
        "--json", dest="json_file", type=Path, metavar="FILE", help="write all numbers to a file"
    )
    parser.add_argument(
        "--backend",
        default="auto",
        choices=("auto", "torch", "cupy", "simulated"),
        help="arrays and graphs: torch where it sees a GPU, else CuPy (default: auto)",
    )
    parser.add_argument("--device", type=int, default=0, help="CUDA device (default: 0)")
    parser.add_argument(
        "--commit", help="commit of these sources, where they are no git checkout (x or x-dirty)"
    )


def add_timing(parser: argparse.ArgumentParser, *, rounds: int = MIN_ROUNDS) -> None:
    """Declare what every subcommand that times contenders takes."""
    add_common(parser)
    parser.add_argument(
        "--state", default="cool,hot", help="power states, in order: cool, hot (default: cool,hot)"
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=rounds,
        help=f"rounds of a cell (default: {rounds}; under {MIN_ROUNDS} is no result)",
    )
    parser.add_argument(
        "--budget", type=float, metavar="SECONDS", help="do fewer rounds to end in this time"
    )
    parser.add_argument(
        "--warmup",
        type=float,
        default=1.0,
        help="seconds of load before the hot state (default: 1)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of data and orders (default: 0)")
    parser.add_argument(
        "--dtype", default="bfloat16", help="element type of the operands (default: bfloat16)"
    )
    parser.add_argument(
        "--plot",
        type=Path,
        metavar="DIR",
        help="draw pictures into this directory (needs matplotlib)",
    )


def open_run(arguments: argparse.Namespace, workloads: int) -> Bench:
    """Return what the cells of a run share; workloads times states is their number."""
    from gemmjit.bench.cell import say
    from gemmjit.bench.protocol import Protocol, states_of
    from gemmjit.bench.setup import choose_backend, open_bench

    if arguments.rounds < 1:
        raise InvalidProblemError(f"rounds: expected at least 1; got {arguments.rounds}")
    states = states_of(names_of(arguments.state))
    protocol = Protocol(
        rounds=arguments.rounds, warmup_seconds=arguments.warmup, seed=arguments.seed
    )
    backend = choose_backend(arguments.backend, arguments.device)
    return open_bench(backend, protocol, states, workloads * len(states), arguments.budget, say)


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


def config_of(text: str) -> Any:
    """Return the config that ``k1:block_m=64,num_stages=3`` stands for."""
    from gemmjit.kernels import kernel

    name, _, fields = text.partition(":")
    found = kernel(name)
    values: dict[str, object] = found.default_config.to_dict()
    for part in names_of(fields):
        key, _, value = part.partition("=")
        values[key] = _value(value)
    return found.config_type.from_dict(values)


def _value(text: str) -> object:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return int(text)
    except ValueError:
        return text


def integers_of(name: str, text: str) -> list[int]:
    """Return the whole numbers of a list with commas."""
    try:
        return [int(part) for part in names_of(text)]
    except ValueError as error:
        raise InvalidProblemError(f"{name}: expected whole numbers; got {text!r}") from error


def names_of(text: str) -> list[str]:
    """Return the names of a list with commas."""
    return [name.strip() for name in text.split(",") if name.strip()]
