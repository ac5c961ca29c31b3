"""``gemmjit bench``: the subcommands that time contenders against each other."""

from __future__ import annotations

import argparse
from typing import Any

from gemmjit.bench.cases import CASES, MAX_GROUPS, case_of, passes_of
from gemmjit.cli.bench_common import (
    accepted,
    add_timing,
    config_in,
    config_of,
    forms_in,
    is_complete,
    kernel_in,
    kernels_in,
    layouts_in,
    names_of,
    open_run,
    origin_of,
    require_tile,
    say_drawn,
    write_record,
)
from gemmjit.cli.numbers import at_least, integer, integers, names, whole
from gemmjit.errors import InvalidProblemError
from gemmjit.variant import MAX_SHAPE

__all__ = [
    "declare_epilogues",
    "declare_grouped",
    "declare_ladder",
    "declare_scheduling",
    "run_epilogues_command",
    "run_grouped_command",
    "run_ladder_command",
    "run_scheduling_command",
]


_size = whole(1, MAX_SHAPE)


def declare_grouped(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``gemmjit bench grouped``."""
    parser.add_argument(
        "--case",
        type=names,
        default=",".join(CASES),
        help="names, or sizes as in rows=4096:groups=32:k=1024:n=2048:skew=1.2 "
        f"(default: {', '.join(CASES)})",
    )
    parser.add_argument(
        "--form", type=forms_in, default="fprop", help="fprop, dgrad, wgrad (default: fprop)"
    )
    parser.add_argument(
        "--vs",
        default="torch,cublas,padded,deepgemm,quack",
        help="other libraries; the first that is there is the baseline (default: "
        "torch,cublas,padded,deepgemm,quack)",
    )
    parser.add_argument(
        "--layout",
        type=layouts_in,
        default="nn,nt",
        help="of the weights: nn (G, k, n), nt (G, n, k), or both (default: nn,nt)",
    )
    parser.add_argument("--list", action="store_true", help="list cases and peers, and end")
    add_timing(parser)


def run_grouped_command(arguments: argparse.Namespace) -> int:
    """Run ``gemmjit bench grouped``; 1 if gemmjit itself is missing in a cell."""
    from gemmjit.bench.cases import Workload
    from gemmjit.bench.grouped import missing_peers, run_grouped
    from gemmjit.bench.peers import peers_of
    from gemmjit.bench.report import grouped_table
    from gemmjit.dtypes import dtype_of

    if arguments.list:
        return _list(arguments)
    dtype = dtype_of(arguments.dtype)
    forms = passes_of(names_of(arguments.form))
    workloads = [
        Workload(case_of(name), form, dtype) for name in names_of(arguments.case) for form in forms
    ]
    peers = peers_of(["gemmjit", *names_of(arguments.vs)])
    bench = open_run(arguments, len(workloads))
    missing = missing_peers(bench, peers)
    for peer in missing:
        bench.say(f"peer {peer['peer']} is missing: {peer['reason']}")
    gone = {peer["peer"] for peer in missing}
    baseline = next((peer.name for peer in peers[1:] if peer.name not in gone), "gemmjit")
    record = {
        **origin_of(arguments, bench),
        "kind": "grouped",
        "baseline": baseline,
        "missing": missing,
        "peers": {
            peer.name: {"title": peer.title, "version": peer.version()}
            for peer in peers
            if peer.name not in gone
        },
        "results": [],
    }

    def keep(result: dict[str, Any]) -> None:
        record["results"].append(result)
        write_record(arguments, record)

    results = run_grouped(
        bench, workloads, peers, baseline, keep, layouts=names_of(arguments.layout)
    )
    print(grouped_table(results))
    for peer in missing:
        print(f"missing: {peer['peer']}: {peer['reason']}")
    if arguments.plot:
        from gemmjit.bench.plots import plot_grouped

        say_drawn(plot_grouped(record, arguments.plot))
    return 0 if is_complete(results, "gemmjit") else 1


def _list(arguments: argparse.Namespace) -> int:
    from gemmjit.bench.peers import PEERS
    from gemmjit.bench.report import text_table

    rows = [[c.name, str(c.rows), str(c.num_groups), str(c.k), str(c.n)] for c in CASES.values()]
    print("\n".join(text_table(("case", "rows", "groups", "k", "n"), rows)))
    print()
    print("\n".join(text_table(("peer", "what"), [[p.name, p.title] for p in PEERS.values()])))
    return 0


def declare_ladder(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``gemmjit bench ladder``."""
    parser.add_argument(
        "--case",
        type=names,
        help="as for grouped; the first whose groups are equal is the even one",
    )
    parser.add_argument(
        "--kernels", type=kernels_in, help="kernels to measure, as in k0,k1,k2 (default: all)"
    )
    add_timing(parser)


def run_ladder_command(arguments: argparse.Namespace) -> int:
    """Run ``gemmjit bench ladder``; 1 if a rung is missing."""
    from gemmjit.bench.ladder import LADDER_CASES, ladder_table, run_ladder
    from gemmjit.bench.peers import PEERS
    from gemmjit.dtypes import dtype_of
    from gemmjit.kernels import kernel

    cases = [case_of(name) for name in (names_of(arguments.case or "") or LADDER_CASES)]
    kernels = [kernel(name).name for name in names_of(arguments.kernels or "")] or None
    bench = open_run(arguments, 1)
    record = {
        **origin_of(arguments, bench),
        "kind": "ladder",
        **run_ladder(bench, cases, PEERS["torch"], dtype_of(arguments.dtype), kernels),
    }
    write_record(arguments, record)
    print(ladder_table(record))
    if arguments.plot:
        from gemmjit.bench.plots import plot_ladder

        say_drawn(plot_ladder(record, arguments.plot))
    return 0 if record["states"] and not record["rejected"] else 1


def declare_scheduling(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``gemmjit bench scheduling``."""
    parser.add_argument(
        "--groups",
        type=integers(1, MAX_GROUPS),
        default="8,64,256,1024",
        help="numbers of groups (default: 8,64,256,1024)",
    )
    parser.add_argument("--few", type=_size, default=4, help="rows per group, few (default: 4)")
    parser.add_argument(
        "--many", type=_size, default=128, help="rows per group, many (default: 128)"
    )
    parser.add_argument("--k", type=_size, default=512, help="input features (default: 512)")
    parser.add_argument("--n", type=_size, default=512, help="output features (default: 512)")
    parser.add_argument(
        "--skew", type=at_least(0), default=0.8, help="of the many rows (default: 0.8)"
    )
    parser.add_argument(
        "--capacity",
        type=_size,
        default=4,
        help="rows of the roomy buffer over routed rows; 1 for no such buffer (default: 4)",
    )
    parser.add_argument(
        "--kernel",
        type=kernel_in,
        help="kernel whose default tile is used (default: the choice)",
    )
    parser.add_argument(
        "--config",
        type=config_in,
        action="append",
        default=[],
        help="a further contender: k1:block_m=64,...",
    )
    add_timing(parser)


def run_scheduling_command(arguments: argparse.Namespace) -> int:
    """Run ``gemmjit bench scheduling``; 1 if the default is missing in a cell."""
    from gemmjit.bench.cases import Workload
    from gemmjit.bench.report import grouped_table
    from gemmjit.bench.scheduling import Sizes, run_scheduling, scheduling_cases
    from gemmjit.dtypes import dtype_of

    sizes = Sizes(
        groups=tuple(integer(part) for part in names_of(arguments.groups)),
        few=arguments.few,
        many=arguments.many,
        k=arguments.k,
        n=arguments.n,
        skew=arguments.skew,
    )
    rows = max(sizes.groups) * max(sizes.few, sizes.many) * arguments.capacity
    if rows > MAX_SHAPE:
        raise InvalidProblemError(
            "groups, few, many, capacity: expected at most "
            f"{MAX_SHAPE} rows in a buffer; got {rows}. Ask for fewer"
        )
    extra = [config_of(text) for text in arguments.config]
    cases = scheduling_cases(sizes)
    dtype = dtype_of(arguments.dtype)
    for config in extra:
        require_tile(config, [Workload(case, "fprop", dtype).problem() for case in cases])
    bench = open_run(arguments, len(cases))
    record = {**origin_of(arguments, bench), "kind": "scheduling", "results": []}

    def keep(result: dict[str, Any]) -> None:
        record["results"].append(result)
        write_record(arguments, record)

    results = run_scheduling(
        bench,
        cases,
        keep,
        capacity=arguments.capacity,
        kernel=arguments.kernel,
        extra=extra,
        dtype=dtype,
    )
    print(grouped_table(results))
    return 0 if is_complete(results, "default") else 1


def declare_epilogues(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``gemmjit bench epilogues``."""
    from gemmjit.bench.epilogues import EPILOGUES, epilogue_names

    parser.add_argument(
        "--case",
        type=names,
        default="seed1-16k-s0",
        help="as for grouped (default: seed1-16k-s0)",
    )
    parser.add_argument(
        "--form", type=forms_in, default="fprop", help="fprop, dgrad, wgrad (default: fprop)"
    )
    parser.add_argument(
        "--epilogues",
        type=accepted(lambda text: epilogue_names(names_of(names(text)), "fprop")),
        default=",".join(EPILOGUES),
        help=f"chains of steps beside store (default: {', '.join(EPILOGUES)})",
    )
    parser.add_argument(
        "--layout",
        type=layouts_in,
        default="nn,nt",
        help="of the weights: nn (G, k, n), nt (G, n, k), or both (default: nn,nt)",
    )
    parser.add_argument(
        "--kernel",
        type=kernel_in,
        help="kernel whose default tile is used (default: the choice)",
    )
    add_timing(parser)


def run_epilogues_command(arguments: argparse.Namespace) -> int:
    """Run ``gemmjit bench epilogues``; 1 if an epilogue is missing in a cell."""
    from gemmjit.bench.cases import Workload
    from gemmjit.bench.epilogues import epilogue_names, run_epilogues
    from gemmjit.bench.report import grouped_table
    from gemmjit.dtypes import dtype_of

    dtype = dtype_of(arguments.dtype)
    forms = passes_of(names_of(arguments.form))
    chains = names_of(arguments.epilogues)
    expected = {form: epilogue_names(chains, form) for form in forms}
    workloads = [
        Workload(case_of(name), form, dtype) for name in names_of(arguments.case) for form in forms
    ]
    layouts = names_of(arguments.layout)
    cells = sum(1 if work.form == "wgrad" else len(layouts) for work in workloads)
    bench = open_run(arguments, cells)
    record = {**origin_of(arguments, bench), "kind": "epilogues", "results": []}

    def keep(result: dict[str, Any]) -> None:
        record["results"].append(result)
        write_record(arguments, record)

    results = run_epilogues(
        bench, workloads, keep, epilogues=chains, layouts=layouts, config=arguments.kernel
    )
    print(grouped_table(results))
    complete = [
        is_complete([result], name) for result in results for name in expected[result["form"]]
    ]
    return 0 if all(complete) else 1
