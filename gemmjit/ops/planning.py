"""From a problem to a plan: kernel, tile, grid, arguments."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gemmjit.build import CompiledKernel, build_first
from gemmjit.config import Config
from gemmjit.dtypes import I32, I64
from gemmjit.errors import InvalidProblemError
from gemmjit.kernels import KernelSpec
from gemmjit.kernels.split import Split
from gemmjit.kernels.tile_list import TileListSpec
from gemmjit.plan import (
    Edge,
    Launch,
    Plan,
    Pointer,
    Scalar,
    Struct,
    TensorMapArgument,
    Workspace,
    WorkspacePointer,
)
from gemmjit.problem import Problem
from gemmjit.schedule import max_row_tiles, tail_tiles, tile_list
from gemmjit.variant import MAX_SHAPE

__all__ = ["INPUTS", "OPERANDS", "operands_of", "plan_ladder"]

#: Operands that a call reads, in the order in which an executor is given their addresses.
INPUTS = ("mat_a", "mat_b", "offs")

#: All operands: the result comes last, since its address is the last to be known.
OPERANDS = (*INPUTS, "out")

_MAX_GRID_X = 2**31 - 1
_TILE_BYTES = 16
_CLAIMS_BYTES = 8

#: Blocks of the scheduling kernel: each walks all offsets, so more do not make it faster.
_LIST_BLOCKS = 64


def plan_ladder(
    problem: Problem,
    kernel: CompiledKernel,
    spec: KernelSpec,
    *,
    offs_is_int64: bool,
    group_sizes: npt.NDArray[np.int64] | None,
    resident_blocks: int,
) -> Plan:
    """Return the plan of a kernel that takes the common arguments (``core/arguments.cuh.j2``).

    Parameters
    ----------
    problem : Problem
    kernel : CompiledKernel
        A kernel of the ladder, of the problem's variant.
    spec : KernelSpec
        What was asked for; `kernel` may be compiled for another target of the same device.
    offs_is_int64 : bool
        Type of the offsets in device memory.
    group_sizes : numpy.ndarray, shape (G,), or None
        Rows of each group, where the schedule is a list.
    resident_blocks : int
        Blocks that the whole device holds at a time: the grid of a persistent launch.
    """
    config = spec.config
    workspaces: tuple[Workspace, ...] = ()
    before: tuple[Launch, ...] = ()
    if group_sizes is not None and (problem.form == "ragged_k" or problem.schedule == "scan"):
        ends = np.cumsum(group_sizes).astype(np.int32)
        workspaces = (Workspace("ends", nbytes=ends.nbytes, contents=ends),)
    persistent = spec.kernel.persistent
    split = spec.kernel.split_of(problem, config)
    if problem.form == "ragged_k":
        num_tiles = _ragged_k_tiles(problem, config, split)
    elif problem.schedule == "list":
        assert group_sizes is not None
        tiles = _tiles(problem, group_sizes, config)
        num_tiles = len(tiles)
        workspaces = (Workspace("tiles", nbytes=tiles.nbytes, contents=tiles),)
    else:
        row_tiles = max_row_tiles(problem.rows, problem.num_groups + 1, config.block_m)
        num_tiles = row_tiles * -(-problem.n // config.block_n)
        persistent = config.schedule != "bounded"
        if spec.variant.schedule == "compact":
            workspaces += (Workspace("tiles", nbytes=_TILE_BYTES * (num_tiles + 1)),)
            before = (_list_launch(problem, spec, workspaces, row_tiles, offs_is_int64),)
    # Blocks of a kernel that is made to run on take their turns at an exact list too.
    grid = min(num_tiles, resident_blocks) if persistent else num_tiles
    counters = _CLAIMS_BYTES if spec.kernel.claims_tiles(config) and grid < num_tiles else 0
    if split is not None:
        counters = _CLAIMS_BYTES + split.counter_bytes
        workspaces += (Workspace("partials", nbytes=split.partial_bytes),)
    if counters:
        workspaces += (Workspace("claims", nbytes=counters, lasting=True),)
    if grid > _MAX_GRID_X:
        raise InvalidProblemError(
            f"grid: expected at most {_MAX_GRID_X} tiles; got {grid}. Split the call by groups"
        )
    if grid == 0:
        return Plan(launches=())
    maps = [TensorMapArgument(*m) for m in spec.kernel.tensor_maps(problem, config, spec.variant)]
    launch = Launch(
        kernel=kernel,
        grid=(grid, 1, 1),
        block=(kernel.threads, 1, 1),
        smem_bytes=kernel.smem_bytes,
        arguments=(*maps, _arguments(problem, workspaces, num_tiles, split, offs_is_int64)),
        after=tuple(Edge(i) for i in range(len(before))),
    )
    return Plan(launches=(*before, launch), workspaces=workspaces)


def _list_launch(
    problem: Problem,
    spec: KernelSpec,
    workspaces: tuple[Workspace, ...],
    row_tiles: int,
    offs_is_int64: bool,
) -> Launch:
    """Return the launch that builds the tile list in the workspace ``tiles``."""
    kernel = build_first(TileListSpec(spec.target).alternatives)
    sizes = (problem.n, spec.config.block_m, spec.config.block_n)
    fields = (
        *_grouping(problem, workspaces, offs_is_int64),
        WorkspacePointer("tiles"),
        *(Scalar(I32, size) for size in sizes),
    )
    blocks = -(-row_tiles // (kernel.threads // 32))
    return Launch(
        kernel=kernel,
        grid=(max(1, min(blocks, _LIST_BLOCKS)), 1, 1),
        block=(kernel.threads, 1, 1),
        arguments=(Struct(fields),),
    )


def _tiles(
    problem: Problem, group_sizes: npt.NDArray[np.int64], config: Config
) -> npt.NDArray[np.int32]:
    shape = problem.n, config.block_m, config.block_n
    tiles = tile_list(group_sizes, *shape)
    if problem.zero_tail:
        tiles = np.concatenate([tiles, tail_tiles(group_sizes, problem.rows, *shape)])
    return tiles


def _ragged_k_tiles(problem: Problem, config: Config, split: Split | None) -> int:
    """Return how many tiles there are, pieces of tiles counted each, or at most are."""
    per_group = -(-problem.m // config.block_m) * -(-problem.n // config.block_n)
    return (problem.num_groups + (split.more_pieces if split else 0)) * per_group


def _grouping(
    problem: Problem, workspaces: tuple[Workspace, ...], offs_is_int64: bool
) -> tuple[Scalar | Pointer | WorkspacePointer, ...]:
    """Return the fields of ``struct Grouping``, in its order."""
    uploaded = any(w.name == "ends" for w in workspaces)
    flags = (problem.num_groups, problem.rows, int(offs_is_int64), int(problem.zero_tail))
    return (
        WorkspacePointer("ends") if uploaded else Pointer("offs"),
        *(Scalar(I32, value) for value in flags),
    )


def _arguments(
    problem: Problem,
    workspaces: tuple[Workspace, ...],
    num_tiles: int,
    split: Split | None,
    offs_is_int64: bool,
) -> Struct:
    """Return the fields of ``struct Arguments``, in its order, those of its base first."""
    listed, claims = (any(w.name == name for w in workspaces) for name in ("tiles", "claims"))
    s = problem.strides
    strides = (s.am, s.ak, s.bg, s.bk, s.bn, s.dg, s.dm, s.dn)
    sizes = (
        problem.m if problem.form == "ragged_k" else 0,
        problem.n,
        problem.k if problem.form == "ragged_m" else 0,
        num_tiles,
    )
    return Struct(
        (
            *_epilogue_operands(problem),
            Pointer("mat_a"),
            Pointer("mat_b"),
            Pointer("out"),
            *_grouping(problem, workspaces, offs_is_int64),
            WorkspacePointer("tiles") if listed else Scalar(I64, 0),
            WorkspacePointer("claims") if claims else Scalar(I64, 0),
            *(Scalar(I64, value) for value in strides),
            *(Scalar(I32, value) for value in sizes),
            Scalar(I32, split.rows if split else MAX_SHAPE),
            WorkspacePointer("partials") if split else Scalar(I64, 0),
        )
    )


def operands_of(problem: Problem) -> tuple[str, ...]:
    """Return the operands of a plan, in the order in which an executor is given their addresses.

    What the epilogue reads comes behind `INPUTS`, and the result last.
    """
    return (*INPUTS, *(step.kind.keyword for step in problem.chain.operands), "out")


def _epilogue_operands(problem: Problem) -> list[Scalar | Pointer]:
    """Return the fields of ``struct EpilogueOperands``, in its order."""
    fields: list[Scalar | Pointer] = []
    for step, strides in zip(problem.chain.operands, problem.operand_strides, strict=True):
        fields.append(Pointer(step.kind.keyword))
        fields += [Scalar(I64, stride) for stride in strides]
    return fields
