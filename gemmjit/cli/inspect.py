"""``gemmjit inspect``: one kernel from template to SASS, or which kernel serves a problem."""

from __future__ import annotations

import argparse
from typing import Any

from gemmjit.arch import Arch
from gemmjit.cli import choices
from gemmjit.cli.output import add_json, print_json, print_table
from gemmjit.cli.parsing import SETTING
from gemmjit.config import Config
from gemmjit.errors import InvalidConfigError, InvalidProblemError
from gemmjit.kernels import KERNELS, Kernel
from gemmjit.kernels import kernel as find_kernel
from gemmjit.ops.dispatch import default_arch
from gemmjit.ops.toolkit import LaunchableKernel, compile, render, shipped_tiles

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("kernel", nargs="?", metavar="KERNEL", help=f"one of {', '.join(KERNELS)}")
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
        "--variant",
        type=choices.setting,
        action="append",
        default=[],
        metavar=SETTING,
        help="fields of the variant that differ from the defaults, as in out_dtype=float32 "
        "b_k_major=true, or one JSON object",
    )
    parser.add_argument(
        "--arch",
        type=choices.architecture,
        help="architecture (default: GEMMJIT_ARCH, else sm_90a)",
    )
    parser.add_argument(
        "--problem",
        type=choices.pairs,
        metavar="NAME=VALUE,...",
        help="instead of KERNEL: show what serves a problem, as in "
        "rows=16384,groups=64,n=2688,k=1024; also form, dtype, out_dtype, a_k_major, b_k_major, "
        "schedule, epilogue",
    )
    what = parser.add_mutually_exclusive_group()
    for name, text in (
        ("resources", "registers, spills, shared memory, resident blocks (the default)"),
        ("source", "the rendered CUDA source"),
        ("ptx", "the PTX, with line information"),
        ("sass", 'the SASS (needs pip install "gemmjit[inspect]")'),
    ):
        what.add_argument(f"--{name}", dest="what", action="store_const", const=name, help=text)
    add_json(parser)
    parser.set_defaults(what="resources", parser=parser)


def run(arguments: argparse.Namespace) -> int:
    """Show what was asked for; return 1 if nothing can serve the problem."""
    if (arguments.kernel is None) == (arguments.problem is None):
        arguments.parser.error("expected either KERNEL or --problem")
    arch = Arch.parse(arguments.arch) if arguments.arch else default_arch()
    if arguments.problem is not None:
        return _show_problem(arguments, arch)
    kernel = find_kernel(arguments.kernel)
    variant = choices.merged(arguments.variant)
    tiles = shipped_tiles(kernel.name, arch, **variant)
    config = _tile(kernel, arguments.config, tiles)
    if arguments.what == "source":  # rendering needs no compiler
        return _show_text(arguments, kernel, render(kernel.name, config, arch, **variant))
    built = compile(kernel.name, config, arch, **variant)
    if arguments.what == "resources":
        return _show_resources(arguments, built, tiles)
    text = built.ptx_with_lines() if arguments.what == "ptx" else built.sass()
    return _show_text(arguments, kernel, text)


def _tile(kernel: Kernel, settings: list[dict[str, Any]], tiles: dict[Config, list[str]]) -> Config:
    """Return the tile that was asked for; by default the first shipped one that can."""
    able = [tile for tile, reasons in tiles.items() if not reasons]
    if not able and not settings:  # for every tile the same reason, or each its own
        reasons = {reason for reasons in tiles.values() for reason in reasons}
        raise InvalidConfigError(
            f"{kernel.name} cannot be built with any shipped tile: {'; '.join(sorted(reasons))}"
        )
    return choices.tile(kernel, settings) if settings else able[0]


def _show_text(arguments: argparse.Namespace, kernel: Kernel, text: str) -> int:
    if arguments.json:
        print_json({"kernel": kernel.name, arguments.what: text})
    else:
        print(text, end="" if text.endswith("\n") else "\n")
    return 0


def _show_resources(
    arguments: argparse.Namespace, built: LaunchableKernel, tiles: dict[Config, list[str]]
) -> int:
    spec, resources = built.spec, built.resources
    facts: dict[str, Any] = {
        "kernel": built.name,
        "title": spec.kernel.title,
        "entry": built.entry,
        "template": spec.template,
        "target": str(built.target),
        "nvrtc": built.nvrtc_version,
        "identity": built.identity,
        "config": spec.config.to_dict(),
        "variant": spec.variant.to_dict(),
        "threads": built.threads,
        "registers": built.registers,
        "spill_store_bytes": resources.spill_store_bytes,
        "spill_load_bytes": resources.spill_load_bytes,
        "stack_bytes": resources.stack_bytes,
        "static_smem_bytes": resources.smem_bytes,
        "dynamic_smem_bytes": built.smem_bytes,
        "barriers": resources.barriers,
        "resident_blocks": built.occupancy,
        "cubin_bytes": len(built.cubin),
        "compile_ms": round(built.seconds * 1e3, 1),
        "from_cache": built.from_cache,
        "run_on_this_architecture": built.target.number in spec.kernel.proved_on,
        "prewarm": spec.prewarm_command,
        "shipped_tiles": [str(tile) for tile, reasons in tiles.items() if not reasons],
        "refused_tiles": {str(tile): "; ".join(why) for tile, why in tiles.items() if why},
    }
    if arguments.json:
        print_json(facts)
        return 0
    width = max(map(len, facts))
    refused = facts.pop("refused_tiles")
    for name, value in facts.items():
        if isinstance(value, list):
            value = " ".join(value)
        elif isinstance(value, dict):
            value = " ".join(f"{key}={one}" for key, one in value.items())
        elif isinstance(value, bool):
            value = "yes" if value else "no"
        print(f"{name:<{width}}  {value}")
    for tile, why in refused.items():
        print(f"{'cannot':<{width}}  {tile}: {why}")
    return 0


def _show_problem(arguments: argparse.Namespace, arch: Arch) -> int:
    from gemmjit.cli.candidates import Candidate, candidates, problem_from

    try:
        problem = problem_from(arguments.problem)
    except TypeError as error:
        raise InvalidProblemError(f"problem: {error}") from None
    found: list[Candidate] = candidates(problem, arch)
    chosen = next((one for one in found if one.chosen), None)
    status = int(not problem.is_empty and not any(one.serves for one in found))
    if arguments.json:
        print_json(
            {
                "problem": arguments.problem,
                "arch": str(arch),
                "mean_group_rows": problem.rows / max(problem.num_groups, 1),
                "chosen": None if chosen is None else chosen.to_dict(),
                "candidates": [one.to_dict() for one in found],
            }
        )
        return status
    mean = problem.rows / max(problem.num_groups, 1)
    print(
        f"{problem.form}, {problem.num_groups} groups, {problem.rows} rows (on average {mean:.1f} "
        f"a group), n={problem.n}, k={problem.k if problem.form == 'ragged_m' else problem.m}, "
        f"{problem.in_dtype} on {arch}\n"
    )
    rows = [
        [
            "->" if one.chosen else "",
            one.kernel,
            one.config,
            one.num_tiles,
            None if one.utilization is None else f"{one.utilization:.3f}",
            one.verdict,
        ]
        for one in found
    ]
    print_table(("", "kernel", "tile", "tiles", "eta", "verdict"), rows)
    if status:
        print("\nNo kernel can serve this problem.")
    if problem.is_empty:
        print("\nThe result has no elements: nothing is launched.")
    print(
        "\ntiles and eta (the share of scheduled rows that belong to a group) are those of groups "
        "of equal size;\nthe rows of single groups are known on the device only."
    )
    return status
