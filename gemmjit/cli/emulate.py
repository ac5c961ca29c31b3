"""``gemmjit emulate``: run one kernel's PTX on the CPU, check it, count, and draw its timeline."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from gemmjit import templating
from gemmjit.arch import Arch
from gemmjit.build import build
from gemmjit.cli import choices
from gemmjit.cli.emulated_case import EmulatedCase, make_case
from gemmjit.cli.numbers import row_counts, whole
from gemmjit.cli.output import add_json, print_json, print_table
from gemmjit.cli.parsing import SETTING
from gemmjit.emulator import Report, Trace, emulating
from gemmjit.emulator.async_engine import POLICIES
from gemmjit.epilogue import RowScale
from gemmjit.kernels import KERNELS
from gemmjit.kernels import kernel as find_kernel
from gemmjit.ops.dispatch import default_arch, spec_for
from gemmjit.ops.toolkit import LaunchableKernel

__all__ = ["add_arguments", "run"]

#: Barriers that are printed; `--json` gives all.
_MAX_BARRIERS = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("kernel", metavar="KERNEL", help=f"one of {', '.join(KERNELS)}")
    parser.add_argument(
        "--config",
        type=choices.setting,
        action="append",
        default=[],
        metavar=SETTING,
        help="fields of the tile that differ from the first shipped one, as in block_m=64, or one "
        "JSON object",
    )
    parser.add_argument(
        "--problem",
        type=choices.pairs,
        default={},
        metavar="NAME=VALUE,...",
        help="sizes, as in rows=200,groups=4,n=128,k=256 (the default); also tail, skew, "
        "b_k_major, a_k_major, schedule, epilogue",
    )
    parser.add_argument(
        "--sizes",
        type=row_counts,
        metavar="ROWS,...",
        help="rows of each group, as in 5,0,70, instead of rows and groups",
    )
    parser.add_argument(
        "--dtype",
        help="element type of the operands (default: bfloat16)",
    )
    parser.add_argument(
        "--out-dtype",
        help="element type of the result (default: that of the operands)",
    )
    parser.add_argument(
        "--form",
        choices=("ragged_m", "ragged_k"),
        default="ragged_m",
        help="(rows, k) @ (G, k, n), or (k, rows) @ (rows, n) (default: ragged_m)",
    )
    parser.add_argument(
        "--arch",
        type=choices.architecture,
        help="architecture (default: GEMMJIT_ARCH, else sm_90a)",
    )
    parser.add_argument(
        "--policy",
        choices=POLICIES,
        default="eager",
        help="when asynchronous work completes: at once (the default), late, or at random, with "
        "warps in random order",
    )
    parser.add_argument(
        "--seed",
        type=whole(0),
        default=0,
        help="of --policy random, and of the data (default: 0)",
    )
    parser.add_argument(
        "--numerics",
        choices=("fp32", "tensor_core"),
        default="fp32",
        help="sums of matrix products: in FP32 (the default), or as tensor cores truncate them",
    )
    parser.add_argument(
        "--unfenced-reads",
        choices=("error", "warn"),
        default="error",
        help="an asynchronous write to shared memory after reads that neither a proxy fence nor a "
        "barrier orders before it: an error (the default), or a warning in the report",
    )
    parser.add_argument(
        "--trace",
        metavar="FILE",
        help="write a timeline that ui.perfetto.dev and chrome://tracing open",
    )
    parser.add_argument(
        "--template-path", metavar="DIR", help="take templates from this directory first"
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Emulate; return 1 if the result is wrong. A fault of the kernel raises its error."""
    kernel = find_kernel(arguments.kernel)
    arch = Arch.parse(arguments.arch) if arguments.arch else default_arch()
    given = dict(arguments.problem)
    for name, read in (("dtype", choices.operand_dtype), ("out_dtype", choices.result_dtype)):
        if getattr(arguments, name) is not None:
            given[name] = getattr(arguments, name)
        if name in given:
            given[name] = read(str(given[name]))
    case = make_case(given, arguments.sizes, arguments.form, arguments.seed)
    config = choices.tile(kernel, arguments.config)
    trace = Trace() if arguments.trace else None
    with ExitStack() as stack:
        if arguments.template_path:
            stack.enter_context(templating.override(arguments.template_path))
        spec = spec_for(case.usual, arch, config)
        built = build(spec)
        launchable = LaunchableKernel(
            **{f.name: getattr(built, f.name) for f in fields(built)}, spec=spec
        )
        settings = stack.enter_context(
            emulating(
                arguments.policy,
                arguments.seed,
                numerics=arguments.numerics,
                unfenced_reads=arguments.unfenced_reads,
                trace=trace,
            )
        )
        if trace is not None:  # of a fault too
            stack.callback(trace.write, Path(arguments.trace))
        result = np.empty(case.expected.shape)
        if not case.problem.is_empty:
            result = _launched(launchable, case)
    facts = {
        "kernel": launchable.name,
        "entry": launchable.entry,
        "config": spec.config.to_dict(),
        "target": str(launchable.target),
        "nvrtc": launchable.nvrtc_version,
        "problem": _problem(case),
        "policy": arguments.policy,
        "seed": arguments.seed,
        "numerics": arguments.numerics,
        "result": case.compare(result),
        "launches": [_launch(report) for report in settings],
        "trace": arguments.trace,
        "spans_dropped": None if trace is None else trace.dropped,
    }
    if arguments.json:
        print_json(facts)
    else:
        _print(facts)
    return 1 if facts["result"]["wrong"] else 0


def _launched(launchable: LaunchableKernel, case: EmulatedCase) -> Any:
    scale = case.read.get("row_scale")
    return launchable.launch(
        case.mat_a,
        case.mat_b,
        offs=case.offs,
        bias=case.read.get("bias"),
        out=case.start,
        epilogue=None if scale is None else RowScale(scale),
    )


def _problem(case: EmulatedCase) -> dict[str, Any]:
    p = case.problem
    return {
        "form": p.form,
        "group_sizes": list(case.sizes),
        "rows": p.rows,
        "n": p.n,
        "k": p.k if p.form == "ragged_m" else p.m,
        "dtype": p.in_dtype.name,
        "out_dtype": p.out_dtype.name,
        "schedule": p.schedule,
        "epilogue": p.epilogue,
    }


def _launch(report: Report) -> dict[str, Any]:
    return {
        "warp_instructions": report.warp_instructions,
        "issues": report.issues,
        "seconds": round(report.seconds, 4),
        "warp_instructions_per_second": round(report.warp_instructions / report.seconds),
        "asynchronous_operations": report.async_operations,
        "instructions": report.instructions,
        "barriers": report.barriers,
        "warnings": report.warnings,
        "output": report.output,
    }


def _print(facts: dict[str, Any]) -> None:
    problem, result = facts["problem"], facts["result"]
    sizes = problem["group_sizes"]
    shown = ", ".join(map(str, sizes[:12])) + (", ..." if len(sizes) > 12 else "")
    print(f"{facts['entry']}, {facts['target']}, NVRTC {facts['nvrtc']}")
    print(
        f"{problem['form']}, {len(sizes)} groups ({shown}), {problem['rows']} rows, "
        f"n={problem['n']}, k={problem['k']}, {problem['dtype']} to {problem['out_dtype']}"
    )
    seed = f", seed {facts['seed']}" if facts["policy"] == "random" else ""
    print(f"policy {facts['policy']}{seed}, sums {facts['numerics']}\n")
    for launch in facts["launches"]:
        _print_launch(launch)
    if not facts["launches"]:
        print("Nothing to launch: the result has no elements.\n")
    if facts["trace"]:
        dropped = facts["spans_dropped"]
        left_out = f"; the last {dropped} spans are left out" if dropped else ""
        print(f"Timeline: {facts['trace']} (open it in ui.perfetto.dev{left_out})")
    if result["wrong"]:
        print(
            f"WRONG: {result['wrong']} of {result['elements']} elements differ from float64, max "
            f"|error| {result['max_abs_error']:g}; the first at {tuple(result['first_wrong'])}: "
            f"got {result['first_got']:g}, expected {result['first_expected']:g}"
        )
    else:
        print(f"Right: all {result['elements']} elements equal float64, rounded once.")


def _print_launch(launch: dict[str, Any]) -> None:
    print_table(
        ("warp instructions", "opcode"), [(n, o) for o, n in launch["instructions"].items()]
    )
    print(
        f"\n{launch['warp_instructions']:,} warp instructions in {launch['seconds']:.2f} s, "
        f"{launch['warp_instructions_per_second']:,} a second; "
        f"{launch['asynchronous_operations']:,} asynchronous operations\n"
    )
    if launch["barriers"]:
        print("Barriers as their blocks left them:")
        for line in launch["barriers"][:_MAX_BARRIERS]:
            print(f"  {line}")
        hidden = len(launch["barriers"]) - _MAX_BARRIERS
        print(f"  and {hidden} more (--json has all)\n" if hidden > 0 else "")
    for warning in launch["warnings"]:
        print(f"Warning: {warning}")
    if launch["output"]:
        print(f"Printed by the kernel:\n{launch['output']}")
