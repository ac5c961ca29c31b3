"""The toolkit under the operator: render, compile, launch and prepare one kernel."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from gemmjit import templating
from gemmjit.arch import Arch, targets_for
from gemmjit.build import CompiledKernel, build
from gemmjit.config import Config
from gemmjit.constraints import require, violations
from gemmjit.errors import InvalidConfigError
from gemmjit.kernels import Kernel, KernelSpec, Variant
from gemmjit.kernels import kernel as find_kernel
from gemmjit.ops import grouped_mm as operator
from gemmjit.ops.dispatch import LadderKernel, build_all, default_arch, spec_for
from gemmjit.problem import Problem
from gemmjit.variant_rules import scheduled

__all__ = ["LaunchableKernel", "compile", "prepare", "render", "shipped_tiles"]


class LaunchableKernel(LadderKernel):
    """A compiled kernel that can be launched on arrays."""

    def launch(
        self,
        mat_a: Any,
        mat_b: Any,
        *,
        offs: Any,
        bias: Any = None,
        out: Any = None,
        epilogue: Any = None,
        stream: Any = None,
    ) -> Any:
        """Run exactly this kernel, as `gemmjit.grouped_mm` would.

        Where nothing is multiplied (no rows, no groups, a contraction of length 0) and this kernel
        cannot be launched, another one writes the zeros, as in `gemmjit.grouped_mm`.

        Parameters
        ----------
        mat_a, mat_b, offs, bias, out, epilogue, stream
            As for `gemmjit.grouped_mm`. On the GPU for CuPy and torch arrays there; on the CPU for
            NumPy arrays and torch tensors.

        Returns
        -------
        array
            Of shape (M, N), or (G, K, N) for a kernel of the ragged-K form.

        Raises
        ------
        InvalidConfigError
            If the arrays need another variant of the kernel than this one; with the differences.
        """
        variant = self.spec.variant
        accumulate, config = variant.chain.accumulates, self.spec.config
        if bias is not None or epilogue is not None:
            return operator.run_fused(
                mat_a, mat_b, offs, bias, variant.out_dtype, out, accumulate, epilogue, config,
                stream, kernel=self,
            )  # fmt: skip
        return operator.run_first(
            mat_a, mat_b, offs, variant.out_dtype, out, accumulate, config, stream, kernel=self
        )


def render(
    kernel: str,
    config: Config | None = None,
    arch: Arch | str | None = None,
    **variant: Any,
) -> str:
    """Return the CUDA source of a kernel.

    Parameters
    ----------
    kernel : str
        ``"k1"``, or the name of its template.
    config : Config, optional
        Tile; by default the kernel's first shipped one.
    arch : Arch or str, optional
        Architecture or target, as in ``"sm_90a"``; by default GEMMJIT_ARCH, else sm_90a. A plain
        name means the best target of that architecture: ``"sm_90"`` is sm_90a, ``"sm_80"`` sm_80.
    **variant
        Fields of `gemmjit.kernels.Variant`, as in ``out_dtype="float32"``. A tile with
        ``schedule="compact"`` and the variant of that schedule imply each other: without a tile the
        default one has it, without a schedule the variant.

    Returns
    -------
    str
        One self-contained file.

    Raises
    ------
    InvalidConfigError
        If the combination breaks a rule; with every reason.
    TemplateError
        If the template cannot be rendered; with its name and line.
    """
    spec = _spec(kernel, config, arch, variant)
    return templating.render(spec.template, spec.variables)


def compile(
    kernel: str,
    config: Config | None = None,
    arch: Arch | str | None = None,
    **variant: Any,
) -> LaunchableKernel:
    """Compile a kernel, or take it from the cache. Needs neither a GPU nor a driver.

    Parameters are those of `render`.

    Returns
    -------
    LaunchableKernel
        With ``source``, ``ptx``, ``cubin``, ``registers``, ``spills``, ``smem_bytes``,
        ``occupancy``, ``sass()`` and ``launch(...)``.

    Raises
    ------
    InvalidConfigError, TemplateError, CompileError, UnsupportedArchError
        If the kernel cannot be built.
    MissingKernelError
        If ``GEMMJIT_DISABLE_JIT`` is set and no cache has it.

    Examples
    --------
    >>> k = gemmjit.compile("k1", gemmjit.Sm80MmaConfig(block_m=64), "sm_80")
    >>> k.threads, k.spills, k.target.name
    (256, 0, 'sm_80')
    """
    spec = _spec(kernel, config, arch, variant)
    built = build(spec)
    return LaunchableKernel(**{f.name: getattr(built, f.name) for f in fields(built)}, spec=spec)


def prepare(
    problem: Problem, config: Config | str | None = None, device: int | None = None
) -> CompiledKernel:
    """Compile and load what a call needs, so that its first run does neither.

    Call it before a CUDA graph capture, or at start-up.

    Parameters
    ----------
    problem : Problem
        See `gemmjit.Problem.contiguous`.
    config : Config or str, optional
        As for `gemmjit.grouped_mm`.
    device : int, optional
        CUDA device to load on; by default 0 if there is a driver, else nothing is loaded and the
        kernel is compiled for GEMMJIT_ARCH.

    Returns
    -------
    CompiledKernel
    """
    from gemmjit.cuda.driver import is_available

    if device is None and not is_available():
        return build_all(spec_for(problem, default_arch(), config))[0]
    from gemmjit.cuda.device import current
    from gemmjit.cuda.device import device as find_device
    from gemmjit.cuda.library import load

    ordinal = device or 0
    where = find_device(ordinal)
    kernels = build_all(spec_for(problem, where.arch, config, gpu=where.name))
    with current(ordinal):
        for kernel in kernels:
            load(kernel, ordinal)
    return kernels[0]


def shipped_tiles(
    kernel: str, arch: Arch | str | None = None, **variant: Any
) -> dict[Config, list[str]]:
    """Return the shipped tiles of a kernel, each with why it cannot have a variant.

    Parameters are those of `render`.

    Returns
    -------
    dict of Config to list of str
        No reasons for a tile that can.
    """
    found, chosen, target = _asked(kernel, arch, variant)
    tiles = [_scheduled(tile, chosen) for tile in found.shipped_configs()]
    return {tile: violations(found, tile, chosen, target) for tile in tiles}


def _spec(
    name: str, config: Config | None, arch: Arch | str | None, variant: dict[str, Any]
) -> KernelSpec:
    found, chosen, target = _asked(name, arch, scheduled(variant, config))
    tile = config if config is not None else _scheduled(found.default_config, chosen)
    if not isinstance(tile, Config) or tile.kernel != found.name:
        raise InvalidConfigError(
            f"config: {found.name} takes a {found.config_type.__name__}; "
            f"got a {type(tile).__name__}"
        )
    require(found, tile, chosen, target)
    return KernelSpec(found, tile, chosen, target)


def _scheduled(tile: Config, variant: Variant) -> Config:
    """Return a shipped tile, which leaves the schedule open, with that of a variant."""
    return replace(tile, schedule="compact") if variant.schedule == "compact" else tile


def _asked(
    name: str, arch: Arch | str | None, variant: dict[str, Any]
) -> tuple[Kernel, Variant, Arch]:
    found: Kernel = find_kernel(name)
    chosen = Variant.from_dict({**_default_variant(found), **variant})
    device = Arch.parse(arch) if arch is not None else default_arch()
    targets = targets_for(device, found.accelerated)
    return found, chosen, targets[0] if targets else device


def _default_variant(kernel: Kernel) -> dict[str, Any]:
    return {"in_dtype": kernel.in_dtypes[0], "out_dtype": kernel.out_dtypes[0]}
