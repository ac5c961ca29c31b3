"""``gemmjit bench``: measure gemmjit, its kernels and its peers on this machine's GPU."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemmjit.bench.cases import CASES, case_of, passes_of
from gemmjit.bench.statistics import MIN_ROUNDS
from gemmjit.errors import InvalidProblemError

if TYPE_CHECKING:
    from gemmjit.bench.cell import Bench

__all__ = ["HELP", "NAME", "add_arguments", "run"]

NAME = "bench"
HELP = "measure gemmjit beside other libraries: interleaved, verified, hot and cool"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands and their arguments."""
    parsers = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    for name, (text, declare, _) in _SUBCOMMANDS.items():
        child = parsers.add_parser(name, help=text, description=text.capitalize() + ".")
        declare(child)


def run(arguments: argparse.Namespace) -> int:
    """Run one subcommand; return 1 if something that was asked for is not in the result."""
    status: int = _SUBCOMMANDS[arguments.what][2](arguments)
    return status


def _add_common(parser: argparse.ArgumentParser) -> None:
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


def _add_timing(parser: argparse.ArgumentParser, *, rounds: int = MIN_ROUNDS) -> None:
    _add_common(parser)
    parser.add_argument(
        "--state", default="cool,hot", help="power states, in order (default: cool,hot)"
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
    parser.add_argument("--warmup", type=float, default=1.0, help="seconds of load before hot")
    parser.add_argument("--seed", type=int, default=0, help="of data and orders")
    parser.add_argument("--dtype", default="bfloat16", help="element type (default: bfloat16)")
    parser.add_argument("--plot", type=Path, metavar="DIR", help="draw pictures (matplotlib)")


def _declare_grouped(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--case",
        default=",".join(CASES),
        help="names, or sizes as in rows=4096:groups=32:k=1024:n=2048:skew=1.2 "
        f"(default: {', '.join(CASES)})",
    )
    parser.add_argument("--form", default="fprop", help="fprop, dgrad, wgrad (default: fprop)")
    parser.add_argument(
        "--vs",
        default="torch,cublas,padded,deepgemm,quack",
        help="peers; the first that is there is the baseline",
    )
    parser.add_argument("--layout", default="nn,nt", help="of the weights: nn, nt or both")
    parser.add_argument("--list", action="store_true", help="list cases and peers, and end")
    _add_timing(parser)


def _run_grouped(arguments: argparse.Namespace) -> int:
    from gemmjit.bench.cases import Workload
    from gemmjit.bench.grouped import missing_peers, run_grouped
    from gemmjit.bench.peers import peers_of
    from gemmjit.bench.report import grouped_table
    from gemmjit.dtypes import dtype_of

    if arguments.list:
        return _list(arguments)
    dtype = dtype_of(arguments.dtype)
    forms = passes_of(_names(arguments.form))
    workloads = [
        Workload(case_of(name), form, dtype) for name in _names(arguments.case) for form in forms
    ]
    peers = peers_of(["gemmjit", *_names(arguments.vs)])
    bench = _open(arguments, len(workloads))
    missing = missing_peers(bench, peers)
    for peer in missing:
        bench.say(f"peer {peer['peer']} is missing: {peer['reason']}")
    gone = {peer["peer"] for peer in missing}
    baseline = next((n for n in _names(arguments.vs) if n not in gone), "gemmjit")
    record = {
        **_origin(arguments, bench),
        "kind": "grouped",
        "baseline": baseline,
        "missing": missing,
        "peers": {
            p.name: {"title": p.title, "version": p.version()} for p in _present(peers, gone)
        },
        "results": [],
    }

    def keep(result: dict[str, Any]) -> None:
        record["results"].append(result)
        _write(arguments, record)

    results = run_grouped(bench, workloads, peers, baseline, keep, layouts=_names(arguments.layout))
    print(grouped_table(results))
    for peer in missing:
        print(f"missing: {peer['peer']}: {peer['reason']}")
    if arguments.plot:
        from gemmjit.bench.plots import plot_grouped

        _drawn(plot_grouped(record, arguments.plot))
    return 0 if _complete(results, "gemmjit") else 1


def _list(arguments: argparse.Namespace) -> int:
    from gemmjit.bench.peers import PEERS
    from gemmjit.bench.report import text_table

    rows = [[c.name, str(c.rows), str(c.num_groups), str(c.k), str(c.n)] for c in CASES.values()]
    print("\n".join(text_table(("case", "rows", "groups", "k", "n"), rows)))
    print()
    print("\n".join(text_table(("peer", "what"), [[p.name, p.title] for p in PEERS.values()])))
    return 0


def _open(arguments: argparse.Namespace, workloads: int) -> Bench:
    from gemmjit.bench.cell import say
    from gemmjit.bench.protocol import Protocol, states_of
    from gemmjit.bench.setup import choose_backend, open_bench

    if arguments.rounds < 1:
        raise InvalidProblemError(f"rounds: expected at least 1; got {arguments.rounds}")
    states = states_of(_names(arguments.state))
    protocol = Protocol(
        rounds=arguments.rounds, warmup_seconds=arguments.warmup, seed=arguments.seed
    )
    backend = choose_backend(arguments.backend, arguments.device)
    return open_bench(backend, protocol, states, workloads * len(states), arguments.budget, say)


def _origin(arguments: argparse.Namespace, bench: Bench) -> dict[str, Any]:
    from gemmjit.bench.provenance import provenance

    return {
        **provenance(bench.backend, bench.provider, _command(arguments), arguments.commit),
        "protocol": {
            **bench.protocol.to_dict(),
            "states": list(bench.states),
            "budget_seconds": arguments.budget,
        },
    }


def _command(arguments: argparse.Namespace) -> list[str]:
    """Return what was asked, without the places of files on this machine."""
    found = ["gemmjit", "bench", arguments.what]
    for name, value in sorted(vars(arguments).items()):
        if name in ("command", "what") or value is None or value is False:
            continue
        shown = value.name if isinstance(value, Path) else str(value)
        found.append(f"--{name.removesuffix('_file').replace('_', '-')}={shown}")
    return found


def _complete(results: Sequence[dict[str, Any]], peer: str) -> bool:
    """Return whether a peer was timed in every cell."""
    return all(
        result["states"] and all(peer in state["best"] for state in result["states"].values())
        for result in results
    )


def _write(arguments: argparse.Namespace, record: dict[str, Any]) -> None:
    if arguments.json_file:
        from gemmjit.bench.report import write_json

        write_json(arguments.json_file, record)


def _drawn(paths: Sequence[Path]) -> None:
    for path in paths:
        print(f"drawn: {path}", file=sys.stderr)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


_Declare = Callable[[argparse.ArgumentParser], None]
_Run = Callable[[argparse.Namespace], int]

_SUBCOMMANDS: dict[str, tuple[str, _Declare, _Run]] = {
    "grouped": ("gemmjit beside its peers, case by case", _declare_grouped, _run_grouped),
}
