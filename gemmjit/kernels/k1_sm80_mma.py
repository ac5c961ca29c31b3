"""k1: cp.async, ldmatrix and mma.sync, sm_80 and up."""

from __future__ import annotations

from typing import ClassVar

from gemmjit.arch import Arch
from gemmjit.config import Config, Sm80MmaConfig
from gemmjit.dtypes import BF16, F16, F32, DType
from gemmjit.kernels.kernel import Kernel
from gemmjit.variant import Variant

__all__ = ["K1"]

_THREADS = 256  # 2 x 4 warps, see the template
_VECTOR_BYTES = 16  # cp.async

#: Accumulators of a thread, and the registers that so many, and fewer, need. With the next lower
#: budget (one block more) some variant spills, with NVRTC 13.0 or 13.5: 24 to 128
#: bytes for 8 accumulators, 16 to 40 for 16, 8 to 96 for 32, 8 to 260 for 64 (2026-11-30).
_LEAST_REGISTERS = ((8, 64), (16, 80), (48, 128), (128, 255))

#: Tiles that do with less than others of their size, unless fragments are double-buffered.
_LEANER_TILES = {(32, 128, 32): 64, (128, 128, 16): 128, (128, 128, 32): 128}

#: Tiles that do with less where both operands are loaded in vectors, before sm_100. Addresses of
#: single elements cost this one 8 to 12 bytes, and so does sm_120 (NVRTC 13.5).
_LEANER_VECTOR_TILES = {(64, 128, 32): 80}
_BLACKWELL = Arch(100)


class K1(Kernel):
    """Synchronous tensor cores, fed by cp.async through a ring of shared-memory stages."""

    name: ClassVar = "k1"
    title: ClassVar = "mma.sync fed by cp.async"
    template: ClassVar = "kernels/sm80_mma_grouped_mm.cu.j2"
    config_type: ClassVar[type[Config]] = Sm80MmaConfig
    min_arch: ClassVar = Arch(80)
    in_dtypes: ClassVar = (BF16, F16)
    out_dtypes: ClassVar = (BF16, F16, F32)

    def vector_elements(self, dtype: DType) -> int:
        """Return the elements of one 16-byte copy."""
        return _VECTOR_BYTES // dtype.itemsize

    def threads(self, config: Config) -> int:
        """Return 256: eight warps for every tile."""
        return _THREADS

    def smem_bytes(self, config: Config, variant: Variant) -> int:
        """Return the bytes of all stages; a tile lies in shared memory as in global memory."""
        assert isinstance(config, Sm80MmaConfig)
        elements = _tile_elements(config, config.block_m, variant.a_k_major)
        elements += _tile_elements(config, config.block_n, variant.b_k_major)
        return config.num_stages * elements * variant.in_dtype.itemsize

    def static_smem_bytes(self, config: Config, variant: Variant) -> int:
        """Return 0: all shared memory is dynamic."""
        return 0

    def least_registers(self, config: Config, variant: Variant, arch: Arch) -> int:
        """Return what the accumulators of a thread ask for, `_LEAST_REGISTERS`."""
        assert isinstance(config, Sm80MmaConfig)
        leaner: dict[tuple[int, int, int], int] = {}
        if not config.double_buffer_fragments:
            leaner |= _LEANER_TILES
        if variant.a_vector and variant.b_vector and arch.number < _BLACKWELL.number:
            leaner |= _LEANER_VECTOR_TILES
        accumulators = config.block_m * config.block_n // _THREADS
        found = (least for most, least in _LEAST_REGISTERS if accumulators <= most)
        tile = (config.block_m, config.block_n, config.block_k)
        return leaner.get(tile) or next(found)

    def tile_variables(self, config: Config, variant: Variant) -> dict[str, object]:
        """Return the template's variables that only k1 has."""
        assert isinstance(config, Sm80MmaConfig)
        return {
            "num_stages": config.num_stages,
            "pad": config.pad,
            "double_buffer_fragments": "true" if config.double_buffer_fragments else "false",
            "smem_bytes": self.smem_bytes(config, variant),
            "mma_type": variant.in_dtype.short,
        }

    def shipped_configs(self) -> tuple[Config, ...]:
        """Return the tiles of k1: the two-stage ladder, then the tiles that selection uses.

        One resident block more would cost nothing on sm_80 and sm_90, but spill a few bytes in some
        variants for sm_100 and sm_120 (NVRTC 13.5).
        """
        return (
            Sm80MmaConfig(block_m=128, min_blocks_per_sm=2),
            Sm80MmaConfig(block_m=64, min_blocks_per_sm=2),
            Sm80MmaConfig(block_m=32, min_blocks_per_sm=4),
            Sm80MmaConfig(block_m=64, min_blocks_per_sm=2, double_buffer_fragments=True),
            Sm80MmaConfig(block_m=128, min_blocks_per_sm=2, num_stages=4),
            Sm80MmaConfig(block_m=64, min_blocks_per_sm=2, block_k=64),
            Sm80MmaConfig(block_m=32, min_blocks_per_sm=3, block_k=64),
        )


def _tile_elements(config: Sm80MmaConfig, extent: int, k_major: bool) -> int:
    outer, inner = (extent, config.block_k) if k_major else (config.block_k, extent)
    return outer * (inner + config.pad)
