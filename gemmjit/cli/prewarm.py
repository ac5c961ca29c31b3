"""``gemmjit prewarm``: compile a kernel into the cache, without a GPU."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gemmjit.arch import Arch, targets_for
from gemmjit.build import CompiledKernel, build
from gemmjit.cache import Key, current_layers
from gemmjit.cli import choices
from gemmjit.cli.output import add_json, print_json, print_table
from gemmjit.errors import CacheError, CompileError
from gemmjit.kernels import kernel as find_kernel
from gemmjit.kernels.tile_list import TileListSpec
from gemmjit.ops.toolkit import compile

__all__ = ["add_arguments", "run"]

_SWITCH = "GEMMJIT_DISABLE_JIT"

#: The kernel that builds tile lists: it has neither tile nor variant.
TILE_LIST = "tile_list"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--kernel", required=True, help="name in the ladder, as in k1")
    parser.add_argument("--arch", required=True, help="architectures, as in sm_90a,sm_100f")
    parser.add_argument(
        "--config", type=choices.json_object, default={}, help="fields of the tile that differ"
    )
    parser.add_argument(
        "--variant", type=choices.json_object, default={}, help="fields of the variant that differ"
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Compile for every architecture, and make sure that the cache has the results."""
    archs = choices.arch_list(arguments.arch)
    with _compiling_allowed():
        if arguments.kernel == TILE_LIST:
            built, shipped = [build(TileListSpec(targets_for(arch)[0])) for arch in archs], True
        else:
            kernel = find_kernel(arguments.kernel)
            config = choices.tile(kernel, [arguments.config])
            shipped = config in kernel.shipped_configs()
            built = [compile(kernel.name, config, arch, **arguments.variant) for arch in archs]
    rows = [_row(arch, one) for arch, one in zip(archs, built, strict=True)]
    if arguments.json:
        print_json({"kernels": rows})
    else:
        head = ("arch", "target", "kernel", "registers", "spills B", "ms", "from cache")
        print_table(head, [list(row.values())[: len(head)] for row in rows])
    for one in built:
        if one.spills and shipped:
            raise CompileError(
                f"{one.entry} for {one.target}: expected no spills of a tile that is shipped; "
                f"got {one.spills} bytes. Lower min_blocks_per_sm",
                log=one.log,
                source=one.source,
            )
    return 0


@contextmanager
def _compiling_allowed() -> Iterator[None]:
    """Let this command compile even where the environment forbids everyone else to."""
    kept = os.environ.pop(_SWITCH, None)
    try:
        yield
    finally:
        if kept is not None:
            os.environ[_SWITCH] = kept


def _row(arch: Arch, kernel: CompiledKernel) -> dict[str, Any]:
    layers = current_layers()
    key = Key(kernel.target.name, kernel.entry, kernel.identity)
    if layers.find(key, kernel.nvrtc_version, any_version=True) is None:
        raise CacheError(
            f"{kernel.entry} for {kernel.target} was compiled, but none of the cache directories "
            f"({layers.describe()}) could keep it. Choose one with GEMMJIT_CACHE_DIR"
        )
    return {
        "arch": str(arch),
        "target": str(kernel.target),
        "entry": kernel.entry,
        "registers": kernel.registers,
        "spill_bytes": kernel.spills,
        "compile_ms": round(kernel.seconds * 1e3, 1),
        "from_cache": kernel.from_cache,
        "nvrtc": kernel.nvrtc_version,
        "identity": kernel.identity,
    }
