"""``gemmjit bench host``, ``profile`` and ``counters``."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import Any

from gemmjit.bench.cases import case_of, passes_of
from gemmjit.cli.bench_common import (
    add_common,
    command_of,
    config_in,
    config_of,
    forms_in,
    kernel_in,
    names_of,
    open_backend,
    require_tile,
    write_record,
)
from gemmjit.cli.choices import file_path
from gemmjit.cli.numbers import at_least, names, positive, whole
from gemmjit.errors import ManifestError

__all__ = [
    "declare_counters",
    "declare_host",
    "declare_profile",
    "run_counters_command",
    "run_host_command",
    "run_profile_command",
]

#: What counters take over from the profile that they belong to.
_ORIGIN = ("schema", "date", "device", "source", "versions", "command")


def declare_host(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``gemmjit bench host``."""
    add_common(parser)
    parser.add_argument(
        "--case",
        default="rows=9000:groups=150:k=64:n=128",
        help="as for grouped; small, so that the device does not hold the host up, but with more "
        "tiles than multiprocessors, which are claimed (default: rows=9000:groups=150:k=64:n=128)",
    )
    parser.add_argument(
        "--form",
        type=forms_in,
        default="fprop,dgrad,wgrad",
        help="products (default: fprop,dgrad,wgrad)",
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
    from gemmjit.bench.setup import open_telemetry

    case = case_of(arguments.case)
    backend = open_backend(arguments)
    provider = open_telemetry(backend, say)
    record = {
        **provenance(backend, provider, command_of(arguments), arguments.commit),
        "kind": "host",
        **run_host(
            backend,
            case,
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
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--kernel", type=kernel_in, help="kernel (default: what gemmjit chooses)")
    what.add_argument(
        "--config", type=config_in, help="kernel and tile instead, as in k1:block_m=64,num_stages=3"
    )
    parser.add_argument(
        "--case", type=names, default="seed1-16k-s0", help="as for grouped, several with commas"
    )
    parser.add_argument(
        "--form", type=forms_in, default="fprop", help="fprop, dgrad, wgrad: all, of each case"
    )
    parser.add_argument("--layout", default="nn", choices=("nn", "nt"), help="of the weights")
    parser.add_argument("--calls", type=positive, default=14, help="calls of each (default: 14)")
    parser.add_argument("--skip", type=whole(0), default=11, help="of them warm up (default: 11)")
    parser.add_argument(
        "--budget",
        type=at_least(0, open_end=True),
        metavar="SECONDS",
        help="begin no product later than this",
    )
    parser.add_argument(
        "--print-ncu", action="store_true", help="print the commands that profile this, and end"
    )


def run_profile_command(arguments: argparse.Namespace) -> int:
    """Run ``gemmjit bench profile``; 1 if the time did not reach every product."""
    from gemmjit.bench.cases import Workload
    from gemmjit.bench.cell import say
    from gemmjit.bench.profile_run import Calls, run_profile
    from gemmjit.bench.provenance import provenance

    forms = passes_of(names_of(arguments.form))
    cases = [case_of(name) for name in names_of(arguments.case)]
    workloads = [Workload(case, form) for case in cases for form in forms]
    config: Any = arguments.kernel
    if arguments.config is not None:
        config = config_of(arguments.config)
        require_tile(config, [work.problem(arguments.layout) for work in workloads])
    calls = Calls(arguments.skip, arguments.calls - arguments.skip)
    if arguments.print_ncu:
        _print_ncu(arguments)
        return 0
    backend = open_backend(arguments)
    record = {
        **provenance(backend, None, command_of(arguments), arguments.commit),
        "kind": "profile",
        "products": [],
        "skipped": [],
    }

    def keep(product: dict[str, Any]) -> None:
        record["products"].append(product)
        write_record(arguments, record)
        kernels = ", ".join(launch["kernel"] for launch in product["launches"])
        print(f"{product['workload']}: {product['calls']} calls of {kernels}", flush=True)

    record["skipped"] = run_profile(
        backend,
        workloads,
        calls,
        keep,
        config=config,
        layout=arguments.layout,
        seconds=arguments.budget,
    )
    write_record(arguments, record)
    for name in record["skipped"]:
        say(f"{name}: skipped, the budget is spent")
    return 1 if record["skipped"] else 0


def _print_ncu(arguments: argparse.Namespace) -> None:
    """Print a line that profiles this command, and one that reads the profile."""
    from gemmjit.bench.profiling import ncu_command

    words = [word.removeprefix("--") for word in command_of(arguments)[3:]]
    given = [word for word in words if not word.startswith(("print-ncu=", "json="))]
    manifest = arguments.json_file or Path("profile.json")
    program = [sys.executable, "-m", "gemmjit", "bench", "profile"]
    program += [f"--{word}" for word in (*given, f"json={manifest}")]
    print(f"{ncu_command(program)} > ncu.csv")
    print(f"gemmjit bench counters ncu.csv --manifest {shlex.quote(str(manifest))}")


def declare_counters(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``gemmjit bench counters``."""
    parser.add_argument(
        "csv_file", type=file_path, metavar="CSV", help="standard output of ncu --csv"
    )
    parser.add_argument(
        "--manifest",
        type=file_path,
        metavar="FILE",
        help="what gemmjit bench profile --json wrote in that run: names the products",
    )
    parser.add_argument(
        "--json",
        dest="json_file",
        type=file_path,
        metavar="FILE",
        help="write the fields to a file",
    )


def run_counters_command(arguments: argparse.Namespace) -> int:
    """Run ``gemmjit bench counters``; 1 if nothing was profiled."""
    from gemmjit.bench.launches import labelled
    from gemmjit.bench.profiling import METRICS, counters, read_ncu
    from gemmjit.bench.report import text_table

    launches = read_ncu(_text_of("csv", arguments.csv_file))
    record: dict[str, Any] = {"kind": "counters"}
    if arguments.manifest:
        profile = _json_of("manifest", arguments.manifest)
        found = labelled(launches, profile)
        record = {name: profile[name] for name in _ORIGIN if name in profile} | record
        record["skipped"] = profile.get("skipped", [])
    else:
        found = [counters(launch) for launch in launches]
    record["launches"] = found
    write_record(arguments, record)
    for launch in found:
        print(*(launch[name] for name in ("workload", "kernel") if name in launch))
        rows = [
            [field, "-" if launch[field] is None else f"{launch[field]:.2f}"] for field in METRICS
        ]
        rows += [[f"stall {name}", f"{value:.2f}"] for name, value in launch["stalls"].items()]
        print("\n".join(text_table(("counter", "value"), rows)))
    return 0 if found else 1


def _json_of(name: str, path: Path) -> dict[str, Any]:
    """Return the object that a file holds; what of it goes into a record can be written again."""
    text = _text_of(name, path)
    try:
        found = json.loads(text)
        again = [[[[found]]]]  # deeper than the record, and the stack below it, will be
        json.dumps(again, indent=1, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise ManifestError(
            f"{name}: expected a JSON file; {path}: {error}. Give it what "
            "gemmjit bench profile --json wrote"
        ) from error
    if not isinstance(found, dict):
        raise ManifestError(
            f"{name}: expected a JSON object; {path} holds a {type(found).__name__}. Give it what "
            "gemmjit bench profile --json wrote"
        )
    return found


def _text_of(name: str, path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise ManifestError(
            f"{name}: expected a file of UTF-8; {path}: {error}. Write it again"
        ) from error
