"""``gemmjit demo``: compile the ladder, run a ragged problem, check it, and time it on a GPU."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gemmjit import env
from gemmjit.arch import Arch
from gemmjit.cli import choices, problem_data
from gemmjit.cli.output import add_json, print_json, print_table
from gemmjit.cuda.device import device
from gemmjit.cuda.driver import is_available
from gemmjit.ops.dispatch import default_arch
from gemmjit.ops.grouped_mm import grouped_mm
from gemmjit.ops.toolkit import LaunchableKernel, compile

__all__ = ["add_arguments", "run"]

#: K and N: small enough for the emulator to finish in seconds, or as in a real layer.
_ON_CPU = 64, 128
_ON_GPU = 1024, 2688


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "--arch",
        type=choices.architecture,
        help="architecture to compile for (default: GEMMJIT_ARCH, else sm_90a)",
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the demonstration; return 1 if a result is wrong."""
    arch = Arch.parse(arguments.arch) if arguments.arch else default_arch()
    told = not arguments.json
    kernels = [compile(kernel, config, arch) for kernel, config in problem_data.tiles(arch)]
    compiled = [_resources(kernel) for kernel in kernels]
    if told:
        _print_compiled(compiled, kernels)
    on_gpu = is_available()
    executor = "cuda" if on_gpu else env.choice("GEMMJIT_EXECUTOR") or "emulator"
    k, n = _ON_GPU if on_gpu else _ON_CPU
    if told:
        _print_problem(k, n, executor)
    with _environment(GEMMJIT_ARCH=str(arch), GEMMJIT_EXECUTOR=executor):
        checks = _check(k, n, device(0).arch if on_gpu else arch)
    if told:
        _print_checks(checks)
    times = _time(k, n) if on_gpu else []
    if told:
        _print_times(times)
    passed = all(check["passed"] for check in checks)
    if arguments.json:
        print_json(
            {
                "arch": str(arch),
                "nvrtc": kernels[0].nvrtc_version,
                "kernels": compiled,
                "problem": {"group_sizes": list(problem_data.GROUP_SIZES), "k": k, "n": n},
                "executor": executor,
                "checks": checks,
                "times": times,
                "passed": passed,
            }
        )
    return 0 if passed else 1


def _resources(kernel: LaunchableKernel) -> dict[str, Any]:
    return {
        "kernel": kernel.name,
        "tile": str(kernel.config),
        "target": str(kernel.target),
        "registers": kernel.registers,
        "spill_bytes": kernel.spills,
        "smem_bytes": kernel.smem_bytes + kernel.resources.smem_bytes,
        "resident_blocks": kernel.occupancy,
        "compile_ms": round(kernel.seconds * 1e3, 1),
        "from_cache": kernel.from_cache,
    }


def _print_compiled(compiled: list[dict[str, Any]], kernels: list[LaunchableKernel]) -> None:
    print(f"Compiled for {kernels[0].target} by NVRTC {kernels[0].nvrtc_version}:\n")
    head = ("kernel", "tile", "registers", "spills B", "smem B", "blocks/SM", "compile ms")
    rows = [[row[key] for key in _COLUMNS] for row in compiled]
    print_table((*head, "from"), [[*r, _origin(c)] for r, c in zip(rows, compiled, strict=True)])


_COLUMNS = (
    "kernel",
    "tile",
    "registers",
    "spill_bytes",
    "smem_bytes",
    "resident_blocks",
    "compile_ms",
)


def _origin(row: dict[str, Any]) -> str:
    return "cache" if row["from_cache"] else "NVRTC"


_EXECUTORS = {
    "cuda": "Run on the GPU:",
    "emulator": "No usable CUDA driver and GPU: the kernels' own PTX is interpreted on the CPU.",
    "reference": "No kernel is run: NumPy computes the results, as GEMMJIT_EXECUTOR asks.",
}


def _print_problem(k: int, n: int, executor: str) -> None:
    sizes = problem_data.GROUP_SIZES
    empty = sum(size == 0 for size in sizes)
    print(
        f"\nA routing with {len(sizes)} experts, {sum(sizes)} rows, {empty} experts empty, the "
        f"largest with {max(sizes)} rows;\nK={k}, N={n}, bfloat16. {_EXECUTORS.get(executor, '')}\n"
    )


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    kept = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in kept.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _check(k: int, n: int, arch: Arch) -> list[dict[str, Any]]:
    """Run fprop on every kernel, dgrad and wgrad on the default choice; compare with float64."""
    upload, download = problem_data.transfers(is_available())
    offs = upload(problem_data.ends())
    names = dict.fromkeys(name for name, _ in problem_data.tiles(arch))
    checks = []
    for case in problem_data.cases(k, n):
        a, b = upload(case.mat_a), case.view(upload(case.mat_b))
        chosen = [*names, None] if case.name == "fprop" else [None]
        results = [download(grouped_mm(a, b, offs=offs, config=name)) for name in chosen]
        for name, result, (error, ratio) in zip(
            chosen, results, case.compare(*results), strict=True
        ):
            checks.append(
                {
                    "product": case.name,
                    "kernel": name or "default",
                    "shape": list(result.shape),
                    "max_abs_error": error,
                    "error_over_bound": ratio,
                    "passed": bool(ratio <= 1.0),
                }
            )
    return checks


def _print_checks(checks: list[dict[str, Any]]) -> None:
    rows = [
        [
            check["product"],
            check["kernel"],
            "x".join(map(str, check["shape"])),
            f"{check['max_abs_error']:.2e}",
            f"{check['error_over_bound']:.2f}",
            "right" if check["passed"] else "WRONG",
        ]
        for check in checks
    ]
    print_table(
        ("product", "kernel", "result", "max |error|", "error/bound", "against float64"), rows
    )
    print(
        "error/bound: the largest share that an error has of what rounding allows there, half a "
        "unit in the\nlast place of bfloat16 and the FP32 sums; up to 1 is right, and near 1 is "
        "usual."
    )


def _time(k: int, n: int) -> list[dict[str, Any]]:
    from gemmjit.cli.timing import milliseconds

    flops = 2 * sum(problem_data.GROUP_SIZES) * k * n
    times = []
    contenders = [
        (f"{kernel} {config}", config) for kernel, config in problem_data.tiles(device(0).arch)
    ]
    for label, config in [("default choice", None), *contenders]:
        elapsed = milliseconds(k, n, config)
        times.append(
            {
                "config": label,
                "milliseconds": round(elapsed, 4),
                "useful_tflops": round(flops / elapsed / 1e9, 1),
            }
        )
    return times


def _print_times(times: list[dict[str, Any]]) -> None:
    if not times:
        print("\nNothing was timed: that needs a GPU.")
        return
    print("\nfprop, random data, weights larger than L2, CUDA events, padding not counted:\n")
    rows = [[t["config"], f"{t['milliseconds']:.3f}", t["useful_tflops"]] for t in times]
    print_table(("config", "ms", "useful TFLOP/s"), rows)
