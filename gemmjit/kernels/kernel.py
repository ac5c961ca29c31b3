"""A kernel of the ladder, and one compiled instance of it as a value."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, NamedTuple

from gemmjit.arch import Arch, targets_for
from gemmjit.config import Config
from gemmjit.dtypes import DType
from gemmjit.kernels.split import Split
from gemmjit.kernels.steps import StepTable
from gemmjit.problem import Problem
from gemmjit.tensormap import TensorMap
from gemmjit.variant import Form, Variant

__all__ = ["Kernel", "KernelSpec", "OperandMap", "tma_stride"]


class OperandMap(NamedTuple):
    """A TensorMap over an operand.

    Attributes
    ----------
    operand : str
        ``mat_a``, ``mat_b`` or ``out``.
    tensor_map : TensorMap
    displacement : int
        Bytes from the operand's first element to the map's.
    """

    operand: str
    tensor_map: TensorMap
    displacement: int = 0


class Kernel(ABC):
    """One template and what the host has to know about it.

    Attributes
    ----------
    name : str
        Name in the ladder: ``k0``, ``k1``.
    title : str
        One line on what it is.
    template : str
        Template, relative to ``templates/``.
    config_type : type
        Its config dataclass; the default instance is the default tile.
    min_arch : Arch
        First architecture that has its instructions.
    max_arch : Arch or None
        Last architecture that has them.
    accelerated : bool
        Whether it needs an ``a`` or ``f`` target.
    in_dtypes, out_dtypes : tuple of DType
        Element types that it takes and makes.
    forms : tuple of str
        Forms that it has.
    persistent : bool
        Whether its blocks gain from several tiles each, so that as many are launched as fit.
    epilogues : tuple of str
        Keywords of the epilogue's steps that it has; see `gemmjit.epilogue`.
    loads_by_tma : bool
        Whether operands come through TensorMaps, which asks more of their strides.
    trait_names : tuple of str
        Fields of the variant that `traits` derives from a problem.
    emulated_flops : int
        Largest problem that the emulator runs by default on NumPy arrays: a few seconds' work.
    proved_on : tuple of int
        Architecture numbers on which it has been run; elsewhere it is only known to compile.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    template: ClassVar[str]
    config_type: ClassVar[type[Config]]
    min_arch: ClassVar[Arch]
    max_arch: ClassVar[Arch | None] = None
    accelerated: ClassVar[bool] = False
    in_dtypes: ClassVar[tuple[DType, ...]]
    out_dtypes: ClassVar[tuple[DType, ...]]
    forms: ClassVar[tuple[Form, ...]] = ("ragged_m", "ragged_k")
    epilogues: ClassVar[tuple[str, ...]] = ("bias", "swiglu", "row_scale", "accumulate")
    loads_by_tma: ClassVar[bool] = False
    persistent: ClassVar[bool] = False
    trait_names: ClassVar[tuple[str, ...]] = ()
    emulated_flops: ClassVar[int] = 2_000_000_000
    proved_on: ClassVar[tuple[int, ...]] = (90,)

    @abstractmethod
    def vector_elements(self, dtype: DType) -> int:
        """Return how many elements an aligned vector load moves."""

    @abstractmethod
    def threads(self, config: Config) -> int:
        """Return the threads of a block."""

    @abstractmethod
    def smem_bytes(self, config: Config, variant: Variant) -> int:
        """Return the dynamic shared memory of a block in bytes."""

    @abstractmethod
    def static_smem_bytes(self, config: Config, variant: Variant) -> int:
        """Return the static shared memory of a block in bytes."""

    @abstractmethod
    def tile_variables(self, config: Config, variant: Variant) -> dict[str, object]:
        """Return the template's variables that only this kernel has."""

    @abstractmethod
    def shipped_configs(self) -> tuple[Config, ...]:
        """Return the configs that are tested, gated against spills and considered by selection."""

    def ships(self, config: Config) -> bool:
        """Return whether a tile is one of `shipped_configs`, or what the default makes of one."""
        return config in self.shipped_configs()

    def least_registers(self, config: Config, variant: Variant, arch: Arch) -> int:
        """Return the registers that a thread needs so that nothing is spilled.

        Parameters
        ----------
        config : Config
            Tile that obeys the kernel's other rules.
        variant : Variant
        arch : Arch

        Returns
        -------
        int
            With so many nothing was seen to spill, neither with NVRTC 13.0 nor with 13.5; 0 where a
            tile never spills, since the kernel hands out registers itself.
        """
        return 0

    def tensor_maps(
        self, problem: Problem, config: Config, variant: Variant
    ) -> tuple[OperandMap, ...]:
        """Return the TensorMaps that the kernel takes, in parameter order."""
        return ()

    def claims_tiles(self, config: Config) -> bool:
        """Return whether blocks claim tiles by counters in device memory."""
        return False

    def split_of(self, problem: Problem, config: Config) -> Split | None:
        """Return how groups with many rows are computed in pieces; None if none can be."""
        return None

    def traits(self, problem: Problem, config: Config) -> dict[str, bool]:
        """Return fields of the variant that only this kernel derives from a problem."""
        return {}

    @property
    def default_config(self) -> Config:
        """The first of the shipped configs."""
        return self.shipped_configs()[0]

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return _registered, (self.name,)

    def variables(self, config: Config, variant: Variant, entry: str) -> dict[str, object]:
        """Return every variable of the template."""
        return {
            "entry": entry,
            "in_type": variant.in_dtype.cuda,
            "out_type": variant.out_dtype.cuda,
            "block_m": config.block_m,
            "block_n": config.block_n,
            "block_k": config.block_k,
            "min_blocks_per_sm": config.min_blocks_per_sm,
            "shape_n": variant.shape_n,
            "shape_k": variant.shape_k,
            "form": f"FORM_{variant.form.upper()}",
            "schedule": f"SCHEDULE_{variant.schedule.upper()}",
            "a_k_major": _cpp(variant.a_k_major),
            "b_k_major": _cpp(variant.b_k_major),
            "a_vector": _cpp(variant.a_vector),
            "b_vector": _cpp(variant.b_vector),
            "d_paired": _cpp(variant.d_paired),
            "epilogue": StepTable.of(variant.chain, variant.in_dtype),
            **self.tile_variables(config, variant),
        }


def tma_stride(stride: int, extent: int, dense: int) -> int:
    """Return a stride in elements; that of a dimension of length 1 is any that TMA takes."""
    return stride if extent > 1 else -(-dense // 8) * 8


def _registered(name: str) -> Kernel:
    """Return the one kernel of a name, for pickles."""
    from gemmjit.kernels.registry import KERNELS

    return KERNELS[name]


def _cpp(value: bool) -> str:
    return "true" if value else "false"


@dataclass(frozen=True)
class KernelSpec:
    """Everything that decides the bytes of one compiled kernel.

    Attributes
    ----------
    kernel : Kernel
    config : Config
    variant : Variant
    target : Arch
        Compilation target, as in ``sm_90a``.
    """

    kernel: Kernel
    config: Config
    variant: Variant
    target: Arch

    @property
    def name(self) -> str:
        """Name of the kernel in the ladder."""
        return self.kernel.name

    @property
    def template(self) -> str:
        """Template, relative to ``templates/``."""
        return self.kernel.template

    @cached_property
    def entry(self) -> str:
        """Name of the kernel in the cubin, readable in a profiler."""
        return f"gemmjit_{self.name}_{self.config.code_name}_{self.variant}"

    @cached_property
    def variables(self) -> Mapping[str, object]:
        """Every variable of the template."""
        return self.kernel.variables(self.config, self.variant, self.entry)

    @property
    def options(self) -> tuple[str, ...]:
        """NVRTC options beyond the standard ones."""
        return ()

    @property
    def alternatives(self) -> tuple[KernelSpec, ...]:
        """The same for every target that serves the devices of this one, this one first."""
        targets = targets_for(self.target, self.kernel.accelerated)
        return tuple(replace(self, target=target) for target in targets)

    @property
    def prewarm_command(self) -> str:
        """The command that compiles this kernel into the cache."""
        config = json.dumps(self.config.to_dict(), separators=(",", ":"))
        variant = json.dumps(self.variant.to_dict(), separators=(",", ":"))
        return (
            f"gemmjit prewarm --arch {self.target} --kernel {self.name} "
            f"--config '{config}' --variant '{variant}'"
        )

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.kernel.threads(self.config)

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory of a block in bytes."""
        return self.kernel.smem_bytes(self.config, self.variant)
