"""From a problem to something that can be called again: kernel chosen, built, planned, bound."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from gemmjit import env
from gemmjit.arch import DEFAULT_ARCH, Arch, targets_for
from gemmjit.build import CompiledKernel, build_first, find_first
from gemmjit.config import Config
from gemmjit.constraints import map_violations, require, variant_for
from gemmjit.errors import InvalidConfigError, LaunchError, UnsupportedArchError
from gemmjit.kernels import KERNELS, Kernel, KernelSpec, kernel
from gemmjit.kernels.tile_list import TileListSpec
from gemmjit.occupancy import occupancy
from gemmjit.ops.planning import plan_ladder
from gemmjit.plan import Plan
from gemmjit.problem import Problem
from gemmjit.selection import choose, taken_for
from gemmjit.selection.admission import reasons_against
from gemmjit.variant import Schedule, Variant

__all__ = [
    "LadderKernel",
    "build_all",
    "default_arch",
    "must_compile",
    "plan_for",
    "resolve",
    "spec_for",
    "spec_with",
]


@dataclass(frozen=True)
class LadderKernel(CompiledKernel):
    """A compiled kernel that knows what it was compiled from.

    Attributes
    ----------
    spec : KernelSpec
        Kernel, tile, variant and target.
    """

    spec: KernelSpec


def default_arch() -> Arch:
    """Return the architecture for work without a device: GEMMJIT_ARCH, else sm_90a.

    Raises
    ------
    UnsupportedArchError
        If GEMMJIT_ARCH names none that gemmjit knows.
    """
    try:
        return Arch.parse(env.get("GEMMJIT_ARCH") or DEFAULT_ARCH)
    except UnsupportedArchError as error:
        raise UnsupportedArchError(str(error).replace("arch:", "GEMMJIT_ARCH:", 1)) from None


def resolve(
    problem: Problem, arch: Arch, config: Config | str | None, gpu: str = ""
) -> tuple[Kernel, Config]:
    """Return the kernel and tile: the caller's config, or the default choice for a GPU.

    Raises
    ------
    InvalidConfigError
        If `config` is neither a config nor the name of a kernel.
    """
    if config is None:
        return choose(problem, arch, gpu)
    if isinstance(config, str):
        found = kernel(config, "config")
        return found, found.default_config
    if isinstance(config, Config) and config.kernel in KERNELS:
        return KERNELS[config.kernel], config
    names = ", ".join(k.config_type.__name__ for k in KERNELS.values())
    raise InvalidConfigError(
        f"config: expected one of {names}, or the name of a kernel; got {config!r}"
    )


def spec_for(
    problem: Problem, arch: Arch, config: Config | str | None = None, *, gpu: str = ""
) -> KernelSpec:
    """Return what would be compiled for a problem on an architecture.

    Parameters
    ----------
    problem : Problem
    arch : Arch
    config : Config or str, optional
    gpu : str
        Name of the device, for which tiles may have been tuned.

    Raises
    ------
    InvalidConfigError
        If the config breaks a rule there; with every reason.
    """
    problem = problem.settled
    asked, tile = resolve(problem, arch, config, gpu)
    try:
        return _checked_spec(problem, arch, asked, tile, named=config is not None)
    except InvalidConfigError as error:
        if config is None:
            raise
        able = [
            one.name
            for one in KERNELS.values()
            if one is not asked and not reasons_against(one, one.default_config, problem, arch)
        ]
        others = f"Choose {' or '.join(able)}, or leave" if able else "Leave"
        raise InvalidConfigError(f"config: {error}. {others} config out") from None


def _checked_spec(
    problem: Problem, arch: Arch, asked: Kernel, tile: Config, *, named: bool
) -> KernelSpec:
    chosen, tile = taken_for(asked, tile, problem, arch)
    variant = variant_for(problem, chosen, tile)
    targets = targets_for(arch, chosen.accelerated)
    target = targets[0] if targets else arch
    require(chosen, tile, variant, target, problem)
    if named:  # what is chosen can load the operands: that is half of choosing
        reasons = map_violations(chosen, tile, variant, problem, target)
        if reasons:
            raise InvalidConfigError(
                f"{chosen.name} cannot load the operands: {'; '.join(reasons)}"
            )
    return KernelSpec(chosen, tile, variant, target)


def spec_with(problem: Problem, kernel: LadderKernel) -> tuple[KernelSpec, LadderKernel | None]:
    """Return what is to be launched of a given kernel, after checking that it serves a problem.

    Returns
    -------
    KernelSpec
        That of the kernel. Where nothing is multiplied and the operands, which nobody reads then,
        have no strides that it could take: that of a kernel that writes the zeros.
    LadderKernel or None
        The kernel itself; None if the other one is to be built.

    Raises
    ------
    InvalidConfigError
        If the problem needs another variant; with the differences.
    """
    spec = kernel.spec
    have, need = spec.variant, variant_for(problem, spec.kernel, spec.config)
    reasons = [
        f"{name} {getattr(have, name)}, the arrays need {getattr(need, name)}"
        for name in ("form", "in_dtype", "out_dtype", "epilogue", "schedule")
        if getattr(have, name) != getattr(need, name)
        and not (name == "epilogue" and have.chain.serves(need.chain))
    ]
    reasons += [
        f"{name} {getattr(have, name)}, the arrays have {size}"
        for name, size in (("shape_n", problem.n), ("shape_k", problem.k))
        if getattr(have, name) not in (0, size)
    ]
    layout = _layout_reasons(spec, need)
    if not reasons and not layout:
        layout = map_violations(spec.kernel, spec.config, have, problem, spec.target)
    if layout and not reasons and not problem.has_products:
        return spec_for(problem, spec.target), None
    reasons += layout
    if reasons:
        raise InvalidConfigError(
            f"launch: {kernel.entry} was compiled for other arrays: " + "; ".join(reasons) + ". "
            "Compile it with those fields, as in gemmjit.compile(..., out_dtype='float32')"
        )
    return spec, kernel


def _layout_reasons(spec: KernelSpec, need: Variant) -> list[str]:
    """Return why a kernel cannot take arrays as they lie in memory."""
    have = spec.variant
    reasons = []
    for name in ("a", "b"):
        vector = getattr(have, f"{name}_vector")
        if vector and not getattr(need, f"{name}_vector"):
            reasons.append(f"{name}_vector True, mat_{name} is not aligned or contiguous enough")
        elif vector and getattr(have, f"{name}_k_major") != getattr(need, f"{name}_k_major"):
            reasons.append(
                f"{name}_k_major {getattr(have, f'{name}_k_major')}, mat_{name} lies otherwise"
            )
    for name in spec.kernel.trait_names:
        if getattr(have, name) and not getattr(need, name):
            reasons.append(f"{name} True, which the arrays do not allow")
    if have.d_paired and not need.d_paired:
        reasons.append("d_paired True, out is not aligned or contiguous enough")
    return reasons


def host_schedule(kernel: LadderKernel) -> Schedule:
    """Return how a given kernel is to be called when the offsets are on the host."""
    return "list" if kernel.spec.variant.schedule == "list" else "scan"


def build_all(spec: KernelSpec) -> list[CompiledKernel]:
    """Return the kernel of a specification, and the one that builds its tile list, if any.

    Each is taken from a cache for any target that serves the device, before it is compiled for the
    best of them.
    """
    return [build_first(choice) for choice in _choices(spec)]


def must_compile(spec: KernelSpec, kernel: LadderKernel | None = None) -> bool:
    """Return whether a plan needs a kernel that neither memory nor a directory has.

    Parameters
    ----------
    spec : KernelSpec
    kernel : LadderKernel, optional
        Compiled kernel that the plan is to use.
    """
    choices = _choices(spec)
    return any(find_first(choice) is None for choice in choices[kernel is not None :])


def _choices(spec: KernelSpec) -> list[tuple[KernelSpec, ...] | tuple[TileListSpec, ...]]:
    choices: list[tuple[KernelSpec, ...] | tuple[TileListSpec, ...]] = [spec.alternatives]
    if spec.variant.schedule == "compact":
        choices.append(TileListSpec(spec.target).alternatives)
    return choices


def plan_for(
    problem: Problem,
    spec: KernelSpec,
    *,
    num_sms: int,
    offs_is_int64: bool,
    group_sizes: npt.NDArray[np.int64] | None,
    kernel: LadderKernel | None = None,
) -> Plan:
    """Build the kernel of a problem and return the plan of its launches.

    Parameters
    ----------
    problem : Problem
    spec : KernelSpec
        As `spec_for` returns it: for the best target. A kernel for another target of the same
        device serves if a cache has it.
    num_sms : int
        Streaming multiprocessors of the device.
    offs_is_int64 : bool
        Type of the offsets in device memory.
    group_sizes : numpy.ndarray, shape (G,), or None
        Rows per group, where the offsets are on the host.
    kernel : LadderKernel, optional
        Compiled kernel to use instead of the one that would be built.

    Raises
    ------
    LaunchError
        If there is no multiprocessor: a grid sized by them would compute nothing.
    """
    if num_sms < 1:
        raise LaunchError(
            f"num_sms: expected the number of the device's multiprocessors; got {num_sms}. "
            "Ask the driver for it"
        )
    compiled = kernel if kernel is not None else build_first(spec.alternatives)
    return plan_ladder(
        problem,
        compiled,
        spec,
        offs_is_int64=offs_is_int64,
        group_sizes=group_sizes,
        resident_blocks=num_sms * _resident_blocks(compiled, spec.target),
    )


def _resident_blocks(compiled: CompiledKernel, arch: Arch) -> int:
    return _occupancy(
        compiled.resources.registers,
        compiled.threads,
        compiled.smem_bytes + compiled.resources.smem_bytes,
        arch,
    )


@lru_cache(maxsize=256)
def _occupancy(registers: int, threads: int, smem_bytes: int, arch: Arch) -> int:
    return max(1, occupancy(registers, threads, smem_bytes, arch))
