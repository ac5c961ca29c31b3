"""k2: TMA, an mbarrier ring, a producer warp and mma.sync, sm_90 and up."""

from __future__ import annotations

from typing import ClassVar

from gemmjit.arch import Arch
from gemmjit.config import Config, Sm90TmaMmaConfig
from gemmjit.dtypes import BF16, F16, F32, DType
from gemmjit.kernels.halves import halves_map
from gemmjit.kernels.kernel import Kernel, OperandMap, tma_stride
from gemmjit.problem import Problem
from gemmjit.tensormap import L2Promotion, Swizzle, TensorMap, element_type_of
from gemmjit.variant import Form, Variant

__all__ = ["K2"]

_CONSUMER_WARPS = 8
_VECTOR_BYTES = 16  # the grid of TMA strides and addresses
_BARRIER_BYTES = 8
_TILE_SLOTS = 2
_SLOT_BYTES = 16
_UNSWIZZLED_ROW = 128  # bytes of a panel's row without a swizzle

#: Accumulators of a thread, and the registers that so many, and fewer, need. With the next lower
#: budget (one block more) some variant spills, with NVRTC 13.0 or 13.5: 40 to 72
#: bytes for 8 accumulators, 24 to 60 for 16, 16 to 56 for 32, up to 120 for 64 (2026-11-30).
_LEAST_REGISTERS = ((8, 56), (16, 72), (32, 96), (64, 168))

#: Two blocks of this tile are worth more than what NVRTC 13.0 spills; that of 13.5 spills nothing.
_LEANER_TILES = {(128, 128, 64): 96}


class K2(Kernel):
    """Synchronous tensor cores, fed by TMA through a producer warp."""

    name: ClassVar = "k2"
    title: ClassVar = "mma.sync fed by TMA"
    template: ClassVar = "kernels/sm90_tma_mma_grouped_mm.cu.j2"
    config_type: ClassVar[type[Config]] = Sm90TmaMmaConfig
    min_arch: ClassVar = Arch(90)
    in_dtypes: ClassVar = (BF16, F16)
    out_dtypes: ClassVar = (BF16, F16, F32)
    forms: ClassVar[tuple[Form, ...]] = ("ragged_m",)
    loads_by_tma: ClassVar = True
    persistent: ClassVar = True

    def vector_elements(self, dtype: DType) -> int:
        """Return the elements of 16 bytes, the grid of TMA."""
        return _VECTOR_BYTES // dtype.itemsize

    def threads(self, config: Config) -> int:
        """Return the threads of the consumer warps and the producer warp."""
        return 32 * (_CONSUMER_WARPS + 1)

    def smem_bytes(self, config: Config, variant: Variant) -> int:
        """Return the bytes of stages and tile slots, with two barriers each."""
        assert isinstance(config, Sm90TmaMmaConfig)
        elements = (config.block_m + config.block_n) * config.block_k
        stage = elements * variant.in_dtype.itemsize
        barriers = 2 * _BARRIER_BYTES
        slot = _SLOT_BYTES * (2 if variant.chain.operands else 1)  # with the group, or without
        return config.num_stages * (stage + barriers) + _TILE_SLOTS * (slot + barriers)

    def static_smem_bytes(self, config: Config, variant: Variant) -> int:
        """Return 0: all shared memory is dynamic."""
        return 0

    def least_registers(self, config: Config, variant: Variant, arch: Arch) -> int:
        """Return what the accumulators of a thread ask for, `_LEAST_REGISTERS`."""
        tile = (config.block_m, config.block_n, config.block_k)
        accumulators = config.block_m * config.block_n // (32 * _CONSUMER_WARPS)
        found = (least for most, least in _LEAST_REGISTERS if accumulators <= most)
        return _LEANER_TILES.get(tile) or next(found)

    def tile_variables(self, config: Config, variant: Variant) -> dict[str, object]:
        """Return the template's variables that only k2 has."""
        assert isinstance(config, Sm90TmaMmaConfig)
        return {
            "num_stages": config.num_stages,
            "swizzle": config.swizzle,
            "smem_bytes": self.smem_bytes(config, variant),
            "mma_type": variant.in_dtype.short,
        }

    def tensor_maps(
        self, problem: Problem, config: Config, variant: Variant
    ) -> tuple[OperandMap, ...]:
        """Return the maps of A ``(K, M)`` and B ``(N, K, G)``, or ``(K, N, G)`` if K-major.

        A box is one panel of the stage: as wide as the swizzle, as high as the tile.
        """
        assert isinstance(config, Sm90TmaMmaConfig)
        s, itemsize = problem.strides, problem.in_dtype.itemsize
        panel = (config.swizzle or _UNSWIZZLED_ROW) // itemsize
        common = {
            "element_type": element_type_of(problem.in_dtype),
            "swizzle": Swizzle.of_bytes(config.swizzle),
            "l2_promotion": L2Promotion.BYTES_128,
        }
        map_a = TensorMap(
            dims=(problem.k, problem.rows),
            strides=(tma_stride(s.am, problem.rows, problem.k) * itemsize,),
            box=(panel, config.block_m),
            **common,  # type: ignore[arg-type]
        )
        b_k_major = variant.b_k_major
        inner, outer = (problem.k, problem.n) if b_k_major else (problem.n, problem.k)
        rows = config.block_n if b_k_major else config.block_k
        stride = tma_stride(s.bn if b_k_major else s.bk, outer, inner)
        group = tma_stride(s.bg, problem.num_groups, stride * outer)
        map_b = TensorMap(
            dims=(inner, outer, problem.num_groups),
            strides=(stride * itemsize, group * itemsize),
            box=(panel, rows, 1),
            **common,  # type: ignore[arg-type]
        )
        halves = halves_map(problem, b_k_major, config.block_n, panel * itemsize, config.swizzle)
        return (OperandMap("mat_a", map_a), OperandMap("mat_b", halves or map_b))

    def shipped_configs(self) -> tuple[Config, ...]:
        """Return the tiles of k2: three and two stages, and lower tiles."""
        return (
            Sm90TmaMmaConfig(block_m=128, num_stages=3, min_blocks_per_sm=1),
            Sm90TmaMmaConfig(block_m=128, num_stages=2, min_blocks_per_sm=2),
            Sm90TmaMmaConfig(block_m=128, num_stages=3, min_blocks_per_sm=2),
            Sm90TmaMmaConfig(block_m=64, num_stages=4, min_blocks_per_sm=2),
            Sm90TmaMmaConfig(block_m=32, num_stages=3, min_blocks_per_sm=3),
        )
