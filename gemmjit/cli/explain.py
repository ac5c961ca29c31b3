"""``gemmjit explain``: every tile for a problem, with its predicted time and the reasons."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from gemmjit.arch import Arch
from gemmjit.cli import choices
from gemmjit.cli.numbers import dimension, row_counts
from gemmjit.cli.output import add_json, print_json, print_table
from gemmjit.kernels import KERNELS
from gemmjit.ops.dispatch import default_arch
from gemmjit.problem import Problem
from gemmjit.selection import explain
from gemmjit.selection.explanation import HEAD, Explanation, Refusal

__all__ = ["add_arguments", "run"]

_LEGEND = (
    "hot, cool: predicted microseconds under load and after idle gaps, each fixed plus nearly the "
    "longest of mma + between tiles, dram and l2; us: their geometric mean; waves: rounds of "
    "blocks; eta: share of computed rows that exist; ->: the default choice."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--rows", type=dimension, help="rows of all groups together")
    parser.add_argument("--groups", type=dimension, help="number of groups")
    parser.add_argument(
        "--sizes",
        type=row_counts,
        metavar="ROWS,...",
        help="true rows of each group, as in 5,0,70, instead of --rows and --groups",
    )
    parser.add_argument("--n", type=dimension, required=True, help="columns of B")
    parser.add_argument(
        "--k",
        type=dimension,
        required=True,
        help="as in --form: the contraction, or the rows of each result",
    )
    parser.add_argument(
        "--form",
        default="ragged_m",
        choices=("ragged_m", "ragged_k"),
        help="(rows, k) @ (G, k, n), or (k, rows) @ (rows, n) (default: ragged_m)",
    )
    parser.add_argument(
        "--dtype",
        default="bfloat16",
        help="element type of the operands (default: bfloat16)",
    )
    parser.add_argument(
        "--out-dtype",
        help="element type of the result (default: that of the operands)",
    )
    parser.add_argument(
        "--b-k-major",
        action="store_true",
        help="B is stored transposed, as weights (G, n, k) often are",
    )
    parser.add_argument(
        "--epilogue",
        default="store",
        help="steps joined by +, as in bias+swiglu_split (default: store, none)",
    )
    parser.add_argument(
        "--schedule",
        default="scan",
        choices=("scan", "list"),
        help="offsets on the device (scan, the default) or on the host (list)",
    )
    parser.add_argument(
        "--arch",
        type=choices.architecture,
        help="architecture (default: GEMMJIT_ARCH, else sm_90a)",
    )
    add_json(parser)
    parser.set_defaults(wrong=parser.error)


def run(arguments: argparse.Namespace) -> int:
    """Print the explanation; return 1 if nothing can serve the problem."""
    sizes = arguments.sizes
    if sizes is not None:
        if arguments.rows is not None or arguments.groups is not None:
            arguments.wrong("argument --sizes: not allowed with --rows and --groups")
    elif arguments.rows is None or arguments.groups is None:
        arguments.wrong("expected --rows and --groups, or --sizes")
    problem = Problem.contiguous(
        arguments.form,
        num_groups=arguments.groups if sizes is None else len(sizes),
        rows=arguments.rows if sizes is None else sum(sizes),
        n=arguments.n,
        k=arguments.k,
        dtype=choices.operand_dtype(arguments.dtype),
        out_dtype=None
        if arguments.out_dtype is None
        else choices.result_dtype(arguments.out_dtype),
        b_k_major=arguments.b_k_major,
        schedule=arguments.schedule,
        epilogue=arguments.epilogue,
    )
    arch = Arch.parse(arguments.arch) if arguments.arch else default_arch()
    found = explain(problem, arch, group_sizes=sizes)
    unserved = not found.predictions and not problem.is_empty
    if arguments.json:
        print_json(found.to_dict() | ({"chosen": None} if unserved else {}))
        return int(unserved)
    print(f"{found.problem} on {found.arch}; {found.assumption}")
    if problem.is_empty:
        print("\nThe result has no elements: nothing is launched.")
        return 0
    if unserved:
        print("\nNo kernel can serve this problem:")
    else:
        _print_predictions(found, sizes is not None)
    for line in _refusals(found.refused):
        print(line)
    return int(unserved)


def _print_predictions(found: Explanation, sizes_known: bool) -> None:
    print(f"rates: {found.source}\n")
    print_table(HEAD, found.rows())
    print(f"\n{_LEGEND}")
    if not sizes_known:
        print("The rows of single groups are known on the device only; --sizes says them.")
    if found.refused:
        print()


def _refusals(refused: Sequence[Refusal]) -> Iterator[str]:
    """Yield a line for the tiles of a kernel that are refused for the same reasons."""
    together: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for one in refused:
        together.setdefault((one.kernel, one.reasons), []).append(one.tile)
    for (kernel, reasons), tiles in together.items():
        whole = len(tiles) == len(KERNELS[kernel].shipped_configs())
        which = "no tile can" if whole else f"{', '.join(tiles)} cannot"
        yield f"{kernel}: {which}: {'; '.join(reasons)}"
