"""``gemmjit explain``: every tile for a problem, with its predicted time and the reasons."""

from __future__ import annotations

import argparse

from gemmjit.arch import Arch
from gemmjit.cli.numbers import dimension
from gemmjit.cli.output import add_json, print_json, print_table
from gemmjit.errors import InvalidProblemError
from gemmjit.ops.dispatch import default_arch
from gemmjit.problem import Problem
from gemmjit.selection import explain
from gemmjit.selection.explanation import HEAD

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--rows", type=dimension, help="rows of all groups together")
    parser.add_argument("--groups", type=dimension, help="number of groups")
    parser.add_argument(
        "--sizes", help="true rows of each group, as in 5,0,70, instead of --rows and --groups"
    )
    parser.add_argument("--n", type=dimension, required=True, help="columns of the result")
    parser.add_argument("--k", type=dimension, required=True, help="as in the call, see --form")
    parser.add_argument(
        "--form",
        default="ragged_m",
        choices=("ragged_m", "ragged_k"),
        help="(rows, k) @ (G, k, n), or (k, rows) @ (rows, n) (default: ragged_m)",
    )
    parser.add_argument("--dtype", default="bfloat16", help="of the operands (default: bfloat16)")
    parser.add_argument("--out-dtype", help="of the result (default: that of the operands)")
    parser.add_argument(
        "--b-k-major", action="store_true", help="the contraction of B is contiguous"
    )
    parser.add_argument(
        "--epilogue", default="store", help="steps joined by +, as in bias+swiglu_split"
    )
    parser.add_argument(
        "--schedule",
        default="scan",
        choices=("scan", "list"),
        help="offsets on the device (scan, the default) or on the host (list)",
    )
    parser.add_argument("--arch", help="architecture (default: GEMMJIT_ARCH, else sm_90a)")
    add_json(parser)
    parser.set_defaults(wrong=parser.error)


def run(arguments: argparse.Namespace) -> int:
    """Print the explanation."""
    sizes = None
    if arguments.sizes is not None:
        if arguments.rows is not None or arguments.groups is not None:
            arguments.wrong("argument --sizes: not allowed with --rows and --groups")
        sizes = _numbers(arguments.sizes)
    elif arguments.rows is None or arguments.groups is None:
        arguments.wrong("expected --rows and --groups, or --sizes")
    problem = Problem.contiguous(
        arguments.form,
        num_groups=arguments.groups if sizes is None else len(sizes),
        rows=arguments.rows if sizes is None else sum(sizes),
        n=arguments.n,
        k=arguments.k,
        dtype=arguments.dtype,
        out_dtype=arguments.out_dtype,
        b_k_major=arguments.b_k_major,
        schedule=arguments.schedule,
        epilogue=arguments.epilogue,
    )
    arch = Arch.parse(arguments.arch) if arguments.arch else default_arch()
    found = explain(problem, arch, group_sizes=sizes)
    if arguments.json:
        print_json(found.to_dict())
        return 0
    print(f"{found.problem} on {found.arch}; {found.assumption}\nrates: {found.source}\n")
    print_table(HEAD, found.rows())
    for refusal in found.refused:
        print(f"{refusal.kernel} {refusal.tile}: refused: {'; '.join(refusal.reasons)}")
    if sizes is None:
        print(
            "\nTimes in microseconds. The rows of single groups are known on the device only; "
            "--sizes says them."
        )
    return 0


def _numbers(text: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = [-1]
    if min(found) < 0:
        raise InvalidProblemError(f"sizes: expected whole numbers >= 0, as in 5,0,70; got {text!r}")
    return found
