"""``gemmjit bench host``, ``profile`` and ``counters``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gemmjit.bench.cases import case_of, passes_of
from gemmjit.cli.bench_common import (
    add_common,
    command_of,
    config_of,
    names_of,
    write_record,
)
from gemmjit.cli.numbers import positive, whole

__all__ = [
    "declare_counters",
    "declare_host",
    "declare_profile",
    "run_counters_command",
    "run_host_command",
    "run_profile_command",
]


def declare_host(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``gemmjit bench host``."""
    add_common(parser)
    parser.add_argument(
        "--case",
        default="rows=60:groups=4:k=64:n=64",
        help="as for grouped; small, so that the device does not hold the host up (default: "
        "rows=60:groups=4:k=64:n=64)",
    )
    parser.add_argument(
        "--form", default="fprop,dgrad,wgrad", help="products (default: fprop,dgrad,wgrad)"
    )
    parser.add_argument(
        "--calls", type=positive, default=2000, help="of each contender (default: 2000)"
    )
    parser.add_argument(
        "--batch", type=positive, default=100, help="calls between two waits (default: 100)"
    )
    parser.add_argument("--no-first", action="store_true", help="leave out first calls")


def run_host_command(arguments: argparse.Namespace) -> int:
    """Run ``gemmjit bench host``; 1 if a call failed."""
    from gemmjit.bench.cell import say
    from gemmjit.bench.host_run import host_table, run_host
    from gemmjit.bench.provenance import provenance
    from gemmjit.bench.setup import choose_backend, open_telemetry

    backend = choose_backend(arguments.backend, arguments.device)
    provider = open_telemetry(backend, say)
    record = {
        **provenance(backend, provider, command_of(arguments), arguments.commit),
        "kind": "host",
        **run_host(
            backend,
            case_of(arguments.case),
            passes_of(names_of(arguments.form)),
            calls=arguments.calls,
            batch=arguments.batch,
            first=not arguments.no_first,
            device=arguments.device,
            say=say,
        ),
    }
    write_record(arguments, record)
    print(host_table(record))
    return 1 if record["failed"] else 0


def declare_profile(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``gemmjit bench profile``."""
    add_common(parser)
    parser.add_argument("--kernel", help="kernel (default: what gemmjit chooses)")
    parser.add_argument(
        "--config", help="kernel and tile instead, as in k1:block_m=64,num_stages=3"
    )
    parser.add_argument(
        "--case", default="seed1-16k-s0", help="as for grouped (default: seed1-16k-s0)"
    )
    parser.add_argument("--form", default="fprop", help="fprop, dgrad or wgrad (default: fprop)")
    parser.add_argument(
        "--layout", default="nn", choices=("nn", "nt"), help="of the weights (default: nn)"
    )
    parser.add_argument("--calls", type=positive, default=14, help="calls to make (default: 14)")
    parser.add_argument(
        "--skip", type=whole(0), default=11, help="calls that warm up (default: 11)"
    )
    parser.add_argument(
        "--print-ncu", action="store_true", help="print the command that profiles this, and end"
    )


def run_profile_command(arguments: argparse.Namespace) -> int:
    """Run ``gemmjit bench profile``."""
    from gemmjit.bench.profile_run import run_calls
    from gemmjit.bench.profiling import ncu_command

    if arguments.print_ncu:
        words = [w for w in sys.argv[1:] if w != "--print-ncu"]
        program = [sys.executable, "-m", "gemmjit.cli", *words]
        count = max(arguments.calls - arguments.skip, 1)
        print(ncu_command(program, skip=arguments.skip, count=count))
        return 0
    (form,) = passes_of([arguments.form])
    config = config_of(arguments.config) if arguments.config else arguments.kernel
    done = run_calls(
        arguments.backend,
        arguments.device,
        case_of(arguments.case),
        form,
        config,
        arguments.layout,
        arguments.calls,
    )
    write_record(arguments, done)
    print(f"{done['calls']} calls of {done['details'].get('entry', done['details'])}")
    return 0


def declare_counters(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``gemmjit bench counters``."""
    parser.add_argument("csv_file", type=Path, metavar="CSV", help="standard output of ncu --csv")
    parser.add_argument(
        "--json", dest="json_file", type=Path, metavar="FILE", help="write the fields to a file"
    )


def run_counters_command(arguments: argparse.Namespace) -> int:
    """Run ``gemmjit bench counters``; 1 if nothing was profiled."""
    from gemmjit.bench.profiling import counters, read_ncu
    from gemmjit.bench.report import text_table

    text = arguments.csv_file.read_text()
    found = [counters(launch) for launch in read_ncu(text)]
    write_record(arguments, {"kind": "counters", "launches": found})
    for launch in found:
        print(launch["kernel"])
        rows = [
            [field, "-" if value is None else f"{value:.2f}"]
            for field, value in launch.items()
            if field not in ("kernel", "stalls")
        ]
        rows += [[f"stall {name}", f"{value:.2f}"] for name, value in launch["stalls"].items()]
        print("\n".join(text_table(("counter", "value"), rows)))
    return 0 if found else 1
