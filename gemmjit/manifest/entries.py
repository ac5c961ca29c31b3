"""What a manifest holds, and the kernels that follow from it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from gemmjit.arch import Arch, devices_of, targets_for
from gemmjit.build import Spec, key_of
from gemmjit.cache import Key
from gemmjit.config import Config
from gemmjit.constraints import map_violations, require, variant_for
from gemmjit.dtypes import BF16, DType
from gemmjit.epilogue import chain_of
from gemmjit.errors import InvalidConfigError, InvalidDtypeError, ManifestError
from gemmjit.kernels import Kernel, KernelSpec, Variant
from gemmjit.kernels import kernel as find_kernel
from gemmjit.kernels.tile_list import TileListSpec
from gemmjit.problem import MAX_ALIGNMENT, Problem
from gemmjit.selection import ANY_ROWS, Choice, every_choice, taken_for
from gemmjit.selection.coverage import empty_sizes, sample_sizes
from gemmjit.variant import Form, Schedule
from gemmjit.variant_rules import scheduled

__all__ = ["TILE_LIST", "KernelEntry", "Manifest", "ProblemEntry", "Wanted", "target_of"]

#: The kernel that builds tile lists: it has neither tile nor variant.
TILE_LIST = "tile_list"


@dataclass(frozen=True, slots=True)
class Wanted:
    """One kernel to compile.

    Attributes
    ----------
    arch : Arch
        The architecture that was asked for.
    spec : Spec
    key : Key
        What identifies it.
    """

    arch: Arch
    spec: Spec
    key: Key

    @property
    def is_shipped(self) -> bool:
        """Whether its tile comes with gemmjit, so that it must not spill.

        Where an epilogue reads arrays, a few registers may be spilled once a tile, beside the main
        loop: such a kernel does not count.
        """
        spec = self.spec
        if not isinstance(spec, KernelSpec):
            return True
        return spec.kernel.ships(spec.config) and not spec.variant.chain.operands


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemEntry:
    """Calls of one kind; the tile is chosen as at run time.

    Attributes
    ----------
    form : {"ragged_m", "ragged_k"}
    n, k : int
        Sizes as in `gemmjit.Problem.contiguous`.
    num_groups : int or None
        None for any number.
    rows : tuple of int
        Smallest and largest number of rows of a call.
    dtype : DType
    out_dtype : DType or None
        None for that of the operands.
    a_k_major : bool or None
        None for the form's default.
    b_k_major : bool
    epilogue : str
        Name of a chain of steps, as in ``bias+row_scale_f32``; see `gemmjit.epilogue`.
    offsets : tuple of {"device", "host"}
        Where the offsets of a call lie.
    alignment : int
        The largest of 2, 4, 8 and 16 bytes that divides the addresses of both operands, and of a
        result that the caller gives.
    kernel : str or None
        Kernel, or kernel of `config`, that the calls name; None for the default choice.
    config : mapping
        Fields of its tile that differ from the first shipped one.
    targets : tuple of Arch
        Instead of the manifest's.
    """

    n: int
    k: int
    form: Form = "ragged_m"
    num_groups: int | None = None
    rows: tuple[int, int] = ANY_ROWS
    dtype: DType = BF16
    out_dtype: DType | None = None
    a_k_major: bool | None = None
    b_k_major: bool = False
    epilogue: str = "store"
    offsets: tuple[str, ...] = ("device",)
    alignment: int = MAX_ALIGNMENT
    kernel: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    targets: tuple[Arch, ...] = ()

    def specs(self, arch: Arch) -> Iterator[Spec]:
        """Yield every kernel that such calls may need on the devices of a target.

        Raises
        ------
        InvalidConfigError
            If the calls name a tile that cannot serve them.
        """
        results = {self.alignment}
        if not chain_of(self.epilogue).accumulates:  # a result of the call's own lies on the grid
            results.add(MAX_ALIGNMENT)
        for offsets, result in product(self.offsets, sorted(results)):
            schedule: Schedule = "list" if offsets == "host" else "scan"
            for choice in self._choices(arch, schedule, result):
                kernel, config, variant = choice
                target = target_of(kernel, arch)
                require(kernel, config, variant, target)
                yield KernelSpec(kernel, config, variant, target)
                if variant.schedule == "compact":
                    yield TileListSpec(targets_for(arch)[0])

    def _choices(self, arch: Arch, schedule: Schedule, d_alignment: int) -> Iterable[Choice]:
        def describe(num_groups: int, rows: int) -> Problem:
            problem = Problem.contiguous(
                self.form,
                num_groups=num_groups,
                rows=rows,
                n=self.n,
                k=self.k,
                dtype=self.dtype,
                out_dtype=self.out_dtype,
                a_k_major=self.a_k_major,
                b_k_major=self.b_k_major,
                schedule=schedule,
                epilogue=self.epilogue,
            )
            return replace(
                problem,
                a_alignment=self.alignment,
                b_alignment=self.alignment,
                d_alignment=d_alignment,
            )

        found: dict[Choice, None] = {}
        sizes = {"num_groups": self.num_groups, "rows": self.rows}
        if self.kernel is None:
            for device in devices_of(targets_for(arch)[0]):
                found |= dict.fromkeys(every_choice(describe, device, **sizes))  # type: ignore[arg-type]
            return found
        kernel = find_kernel(self.kernel)
        config = tile_of(kernel, self.config)
        for size in (*sample_sizes(**sizes), *empty_sizes(**sizes)):  # type: ignore[arg-type]
            problem = describe(*size).settled
            if not problem.is_empty:
                found |= dict.fromkeys(_taken(kernel, config, problem, arch))
        return found


def _taken(kernel: Kernel, config: Config, problem: Problem, arch: Arch) -> Iterator[Choice]:
    """Yield what runs on the devices of a target where a call names a kernel."""
    for device in devices_of(targets_for(arch)[0]):
        taken, tile = taken_for(kernel, config, problem, device)
        variant = variant_for(problem, taken, tile)
        target = target_of(taken, arch)
        require(taken, tile, variant, target, problem)
        reasons = map_violations(taken, tile, variant, problem, target)
        if reasons:
            raise InvalidConfigError(
                f"{taken.name} cannot load the operands: {'; '.join(reasons)}. "
                "Leave kernel and config out, and a kernel that can is chosen"
            )
        yield Choice(taken, tile, variant)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelEntry:
    """One kernel, exactly.

    Attributes
    ----------
    kernel : str
        Name in the ladder, or ``tile_list``.
    config, variant : mapping
        Fields that differ from the first shipped tile, and from the defaults.
    targets : tuple of Arch
        Instead of the manifest's.
    """

    kernel: str
    config: Mapping[str, Any] = field(default_factory=dict)
    variant: Mapping[str, Any] = field(default_factory=dict)
    targets: tuple[Arch, ...] = ()

    def specs(self, arch: Arch) -> Iterator[Spec]:
        """Yield the kernel for a target.

        Raises
        ------
        InvalidConfigError
            If it breaks a rule there; with every reason.
        """
        if self.kernel == TILE_LIST:
            if self.config or self.variant:
                raise InvalidConfigError(
                    f"config: expected none for {TILE_LIST}, which has neither tile nor variant; "
                    f"got {dict(self.config or self.variant)}. Remove it"
                )
            yield TileListSpec(targets_for(arch)[0])
            return
        kernel = find_kernel(self.kernel)
        config = tile_of(kernel, self.config)
        types = {"in_dtype": kernel.in_dtypes[0], "out_dtype": kernel.out_dtypes[0]}
        variant = Variant.from_dict({**types, **scheduled(self.variant, config)})
        target = target_of(kernel, arch)
        require(kernel, config, variant, target)
        yield KernelSpec(kernel, config, variant, target)

    @classmethod
    def of(cls, spec: Spec) -> KernelEntry:
        """Return the entry that names a specification, every field written out."""
        if not isinstance(spec, KernelSpec):
            return cls(kernel=spec.name, targets=(spec.target,))
        return cls(
            kernel=spec.name,
            config=spec.config.to_dict(),
            variant=spec.variant.to_dict(),
            targets=(spec.target,),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What to compile.

    Attributes
    ----------
    targets : tuple of Arch
        For entries that name none.
    problems : tuple of ProblemEntry
    kernels : tuple of KernelEntry
    name : str
        File, for messages.
    """

    targets: tuple[Arch, ...] = ()
    problems: tuple[ProblemEntry, ...] = ()
    kernels: tuple[KernelEntry, ...] = ()
    name: str = "manifest"

    def wanted(self, archs: Sequence[Arch] = ()) -> list[Wanted]:
        """Return every kernel once, in a fixed order.

        Parameters
        ----------
        archs : sequence of Arch
            Instead of every target that the manifest names.

        Raises
        ------
        ManifestError
            If an entry has no target, or cannot be built for one of its targets; with the reasons.
        """
        found: dict[Key, Wanted] = {}
        sections: tuple[tuple[str, Sequence[ProblemEntry | KernelEntry]], ...] = (
            ("problems", self.problems),
            ("kernels", self.kernels),
        )
        for section, entries in sections:
            for number, entry in enumerate(entries):
                where = f"{self.name}, {section}[{number}]"
                for arch in archs or entry.targets or self.targets:
                    try:
                        specs = list(entry.specs(arch))
                    except (InvalidConfigError, InvalidDtypeError) as error:
                        raise ManifestError(f"{where} for {arch}: {error}") from error
                    for spec in specs:
                        key = key_of(spec)
                        found.setdefault(key, Wanted(arch, spec, key))
                if not (archs or entry.targets or self.targets):
                    raise ManifestError(
                        f"{where}.targets: expected architectures such as sm_80, sm_90a, sm_100f; "
                        'got none. Write targets = ["sm_90a"] at the top, or pass --arch'
                    )
        return list(found.values())


def tile_of(kernel: Kernel, fields: Mapping[str, Any]) -> Config:
    """Return a kernel's first shipped tile with the given fields changed."""
    return kernel.config_type.from_dict({**kernel.default_config.to_dict(), **fields})


def target_of(kernel: Kernel, arch: Arch) -> Arch:
    """Return the target that a kernel is compiled for when an architecture is asked for."""
    targets = targets_for(arch, kernel.accelerated)
    return targets[0] if targets else arch
