"""Which rules a config must obey, and which variant of a kernel a problem needs.

Every rule is stated once, here, and answers with a reason; selection, the command line, errors and
tests all ask this module. Templates repeat the ones that they rely on as ``static_assert``.
"""

from __future__ import annotations

from typing import get_args

from gemmjit.arch import Arch
from gemmjit.config import (
    Config,
    DeviceSchedule,
    Order,
    SimtConfig,
    Sm80MmaConfig,
    Sm90TmaMmaConfig,
    Sm90WgmmaConfig,
)
from gemmjit.errors import InvalidConfigError
from gemmjit.kernels import Kernel, Variant
from gemmjit.occupancy import occupancy, register_budget
from gemmjit.problem import Problem
from gemmjit.tensormap import violations as tensor_map_violations
from gemmjit.variant import MAX_SHAPE, Schedule
from gemmjit.variant_rules import tile_reasons, variant_reasons

__all__ = ["map_violations", "require", "variant_for", "violations"]

_MAX_THREADS = 1024


def violations(
    kernel: Kernel, config: Config, variant: Variant, arch: Arch, problem: Problem | None = None
) -> list[str]:
    """Return every rule that a kernel, tile and architecture break together; empty if none.

    Parameters
    ----------
    kernel : Kernel
    config : Config
        Tile, of the kernel's config type.
    variant : Variant
        Types, layouts and schedule.
    arch : Arch
        Compilation target.
    problem : Problem, optional
        What needs the variant: reasons name its strides.

    Returns
    -------
    list of str
        Reasons, each with what was expected and what was given.
    """
    if type(config) is not kernel.config_type:
        return [
            f"config: {kernel.name} takes a {kernel.config_type.__name__}; "
            f"got a {type(config).__name__}"
        ]
    reasons = config.wrong_types() + variant.wrong_values()
    if reasons:  # what follows computes with them
        return reasons
    plain = Arch(arch.number)  # which target a caller meant is not known
    if arch.number < kernel.min_arch.number:
        reasons.append(
            f"arch: {kernel.name} ({kernel.title}) needs {kernel.min_arch} or newer; got {plain}"
        )
    elif kernel.max_arch is not None and arch.number > kernel.max_arch.number:
        reasons.append(
            f"arch: {kernel.name} ({kernel.title}) exists up to {kernel.max_arch}; got {plain}"
        )
    elif kernel.accelerated and not arch.suffix:
        reasons.append(f"arch: {kernel.name} needs a target such as {arch}a; got {arch}")
    for name, dtype, allowed in (
        ("in_dtype", variant.in_dtype, kernel.in_dtypes),
        ("out_dtype", variant.out_dtype, kernel.out_dtypes),
    ):
        if dtype not in allowed:
            names = ", ".join(d.name for d in allowed)
            reasons.append(f"{name}: {kernel.name} takes {names}; got {dtype}")
    reasons += variant_reasons(kernel, variant, problem)
    if config.specialize not in ("", "nk"):
        reasons.append(f"specialize: expected '' or 'nk'; got {config.specialize!r}")
    if config.schedule not in get_args(DeviceSchedule):
        names = ", ".join(repr(s) for s in get_args(DeviceSchedule))
        reasons.append(f"schedule: expected one of {names}; got {config.schedule!r}")
    reasons += _ROWS[type(config)](config)
    reasons += tile_reasons(kernel, config, variant)
    if reasons:
        return reasons
    threads = kernel.threads(config)
    limits = arch.limits
    room = min(limits.max_blocks, limits.max_warps * 32 // threads)
    if not 1 <= config.min_blocks_per_sm <= room:
        reasons.append(
            f"min_blocks_per_sm: {threads} threads a block leave room for 1 to {room} blocks on "
            f"{arch}; got {config.min_blocks_per_sm}"
        )
    else:
        reasons += _register_reasons(kernel, config, variant, arch)
    smem = kernel.smem_bytes(config, variant) + kernel.static_smem_bytes(config, variant)
    if smem > limits.smem_per_block:
        reasons.append(
            f"shared memory: {config} needs {smem} bytes a block; "
            f"{arch} allows {limits.smem_per_block}. Use a smaller tile or fewer stages"
        )
    elif not reasons:
        room = occupancy(1, threads, smem, arch)
        if room < config.min_blocks_per_sm and not _is_shipped(kernel, config):
            # The promise would cost registers, and never come true.
            reasons.append(
                f"min_blocks_per_sm: {smem} bytes of shared memory a block leave room for {room} "
                f"on {arch}; got {config.min_blocks_per_sm}. Use {room}, or fewer stages"
            )
    return reasons


def _is_shipped(kernel: Kernel, config: Config) -> bool:
    """Return whether a tile is the kernel's own: it runs on every device, with less on small ones.

    Fewer of its blocks are resident where there is less shared memory, as on sm_86.
    """
    own = (*kernel.shipped_configs(), kernel.default_config)
    return config.tile_name in {one.tile_name for one in own}


def _register_reasons(kernel: Kernel, config: Config, variant: Variant, arch: Arch) -> list[str]:
    """Return why a tile would spill: its launch bounds leave a thread too few registers."""
    threads, blocks = kernel.threads(config), config.min_blocks_per_sm
    least = kernel.least_registers(config, variant, arch)
    budget = register_budget(threads, blocks, arch)
    if budget >= least:
        return []
    told = (
        f"min_blocks_per_sm: {blocks} blocks of {threads} threads leave each {budget} registers on "
        f"{arch}, and {config} takes {least} for {variant} without spills; got {blocks}"
    )
    fewer = [n for n in range(1, blocks) if register_budget(threads, n, arch) >= least]
    return [f"{told}. Use {fewer[-1]}, or a smaller tile" if fewer else f"{told}. Use another tile"]


def map_violations(
    kernel: Kernel, config: Config, variant: Variant, problem: Problem, arch: Arch
) -> list[str]:
    """Return why the operands of a problem cannot be read through a kernel's TensorMaps."""
    reasons = []
    alignments = {
        "mat_a": problem.a_alignment,
        "mat_b": problem.b_alignment,
        "out": problem.d_alignment,
    }
    for operand, tensor_map, displacement in kernel.tensor_maps(problem, config, variant):
        broken = tensor_map_violations(tensor_map, alignments[operand] + displacement, arch)
        if 0 in tensor_map.strides:
            broken.append("strides: expected distinct elements; got an expanded dimension")
        reasons += [f"{operand}: TensorMap {reason}" for reason in broken]
    return reasons


def require(
    kernel: Kernel, config: Config, variant: Variant, arch: Arch, problem: Problem | None = None
) -> None:
    """Raise for a config that breaks a rule.

    Raises
    ------
    InvalidConfigError
        With every reason of `violations`.
    """
    reasons = violations(kernel, config, variant, arch, problem)
    if reasons:
        raise InvalidConfigError(f"{kernel.name} cannot be built: " + "; ".join(reasons))


def variant_for(problem: Problem, kernel: Kernel, config: Config) -> Variant:
    """Return the variant of a kernel that a problem needs.

    An operand is loaded in vectors if one of its dimensions is contiguous, and every vector that a
    tile can start at lies on the vector's alignment. The ragged dimension starts anywhere, so it
    must not be the contiguous one.
    """
    s = problem.strides
    ragged_m = problem.form == "ragged_m"
    a_k_major = _is_k_major(s.am, s.ak)
    b_k_major = _is_k_major(s.bn, s.bk)
    elements = kernel.vector_elements(problem.in_dtype)
    a_outer, a_inner = (s.am, s.ak) if a_k_major else (s.ak, s.am)
    b_outer, b_inner = (s.bn, s.bk) if b_k_major else (s.bk, s.bn)
    vector_bytes = elements * problem.in_dtype.itemsize
    a_vector = (
        a_inner == 1
        and a_outer % elements == 0
        and problem.a_alignment % vector_bytes == 0
        and a_k_major == ragged_m
    )
    b_vector = (
        b_inner == 1
        and b_outer % elements == 0
        and s.bg % elements == 0
        and problem.b_alignment % vector_bytes == 0
        and (ragged_m or not b_k_major)
        # Of split halves in an N-major B the second begins at a vector too, as boxes of TMA must.
        and (b_k_major or problem.chain.gate != "split" or problem.columns % elements == 0)
    )
    d_paired = (
        s.dn == 1
        and s.dm % 2 == 0
        and s.dg % 2 == 0
        and problem.d_alignment % min(2 * problem.out_dtype.itemsize, 16) == 0
    )
    baked = config.specialize == "nk"
    return Variant(
        form=problem.form,
        in_dtype=problem.in_dtype,
        out_dtype=problem.out_dtype,
        a_k_major=a_k_major,
        b_k_major=b_k_major,
        a_vector=a_vector,
        b_vector=b_vector,
        d_paired=d_paired,
        **kernel.traits(problem, config),
        schedule=_schedule(problem, config),
        epilogue=problem.epilogue,
        shape_n=problem.n if baked else 0,
        shape_k=problem.k if baked and ragged_m else 0,
    )


def _schedule(problem: Problem, config: Config) -> Schedule:
    if problem.form == "ragged_k":
        return "scan"
    if problem.schedule == "list":
        return "list"
    return "compact" if config.schedule == "compact" else "scan"


def _is_k_major(stride_mn: int, stride_k: int) -> bool:
    """Return the memory order of an operand; without a contiguous dimension, the closer one."""
    if stride_k == 1 or stride_mn == 1:
        return stride_k == 1
    return abs(stride_k) <= abs(stride_mn)


def _simt(config: Config) -> list[str]:
    assert isinstance(config, SimtConfig)
    reasons = []
    for name in ("block_m", "block_n"):
        value = getattr(config, name)
        if value not in (32, 64, 128):
            reasons.append(f"{name}: k0 takes 32, 64 or 128; got {value}")
    if config.block_k not in (8, 16, 32):
        reasons.append(f"block_k: k0 takes 8, 16 or 32; got {config.block_k}")
    if config.pad not in (0, 4, 8):
        reasons.append(f"pad: k0 takes 0, 4 or 8 elements; got {config.pad}")
    if not reasons:
        threads = config.block_m * config.block_n // 16
        if not 32 <= threads <= _MAX_THREADS:
            reasons.append(f"block: {config} makes {threads} threads; k0 takes 32 to 1024")
        for name in ("block_m", "block_n"):
            if getattr(config, name) * config.block_k % (4 * threads):
                reasons.append(
                    f"{name}: {threads} threads must move a slice of {getattr(config, name)} x "
                    f"{config.block_k} in whole vectors of 4; got {config}"
                )
    return reasons


def _sm80_mma(config: Config) -> list[str]:
    assert isinstance(config, Sm80MmaConfig)
    reasons = []
    if config.block_m not in (32, 64, 128, 256):
        reasons.append(f"block_m: k1 takes 32, 64, 128 or 256; got {config.block_m}")
    if config.block_n not in (64, 128, 256):
        reasons.append(f"block_n: k1 takes 64, 128 or 256; got {config.block_n}")
    if config.block_k not in (16, 32, 64):
        reasons.append(f"block_k: k1 takes 16, 32 or 64; got {config.block_k}")
    if not 2 <= config.num_stages <= 8:
        reasons.append(f"num_stages: k1 takes 2 to 8; got {config.num_stages}")
    if config.pad not in (0, 8, 16):
        reasons.append(f"pad: k1 takes 0, 8 or 16 elements; got {config.pad}")
    if config.block_m * config.block_n > 128 * 256:
        reasons.append(f"block: k1 keeps the tile in registers, at most 128 x 256; got {config}")
    return reasons


def _sm90_tma_mma(config: Config) -> list[str]:
    assert isinstance(config, Sm90TmaMmaConfig)
    reasons = []
    if config.block_m not in (32, 64, 128):
        reasons.append(f"block_m: k2 takes 32, 64 or 128; got {config.block_m}")
    if config.block_n not in (64, 128, 256):
        reasons.append(f"block_n: k2 takes 64, 128 or 256; got {config.block_n}")
    if config.block_k not in (64, 128):
        reasons.append(f"block_k: k2 takes 64 or 128; got {config.block_k}")
    if not 2 <= config.num_stages <= 4:
        reasons.append(f"num_stages: k2 takes 2 to 4; got {config.num_stages}")
    if config.swizzle not in (0, 32, 64, 128):
        reasons.append(f"swizzle: k2 takes 128, 64, 32 or 0 bytes; got {config.swizzle}")
    if config.block_m * config.block_n > 128 * 128:
        reasons.append(f"block: k2 keeps the tile in registers, at most 128 x 128; got {config}")
    return reasons


def _sm90_wgmma(config: Config) -> list[str]:
    assert isinstance(config, Sm90WgmmaConfig)
    reasons = []
    heights = (64, 128) if config.pingpong else (128, 256)
    if config.block_m not in heights:
        way = "pingpong" if config.pingpong else "cooperative"
        reasons.append(
            f"block_m: k3 {way} takes {heights[0]} or {heights[1]}; got {config.block_m}"
        )
    if config.block_n not in (64, 128, 192, 256):
        reasons.append(f"block_n: k3 takes 64, 128, 192 or 256; got {config.block_n}")
    if config.block_k != 64:
        reasons.append(f"block_k: k3 takes 64; got {config.block_k}")
    if not 2 <= config.num_stages <= 12:
        reasons.append(f"num_stages: k3 takes 2 to 12; got {config.num_stages}")
    if not 1 <= config.store_boxes <= 8:
        reasons.append(f"store_boxes: k3 takes 1 to 8; got {config.store_boxes}")
    if not 1 <= config.raster_m <= 64:
        reasons.append(f"raster_m: k3 takes 1 to 64; got {config.raster_m}")
    if config.order not in get_args(Order):
        reasons.append(f"order: k3 takes {', '.join(get_args(Order))}; got {config.order!r}")
    if not 0 <= config.split_rows <= MAX_SHAPE or config.split_rows % 64:
        reasons.append(
            f"split_rows: k3 takes 0 or a multiple of 64 rows up to {MAX_SHAPE}; "
            f"got {config.split_rows}"
        )
    if config.min_blocks_per_sm != 1:
        reasons.append(f"min_blocks_per_sm: k3 takes 1; got {config.min_blocks_per_sm}")
    rows = config.block_m if config.pingpong else config.block_m // 2
    if rows * config.block_n // 128 > 192:
        reasons.append(
            f"block: a consumer of k3 keeps at most 128 x 192 elements in registers; got {config}"
        )
    return reasons


#: One row of rules per config type.
_ROWS = {
    SimtConfig: _simt,
    Sm80MmaConfig: _sm80_mma,
    Sm90TmaMmaConfig: _sm90_tma_mma,
    Sm90WgmmaConfig: _sm90_wgmma,
}
