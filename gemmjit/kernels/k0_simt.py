"""k0: FP32 FMA on every architecture."""

from __future__ import annotations

from typing import ClassVar

from gemmjit.arch import Arch
from gemmjit.config import Config, SimtConfig
from gemmjit.dtypes import BF16, F16, F32, DType
from gemmjit.kernels.kernel import Kernel
from gemmjit.variant import Variant

__all__ = ["K0"]

_THREAD_TILE = 4

#: Elements of a slice that a thread moves, and the registers that so many, and fewer, need. With
#: less some variant spills, with NVRTC 13.0 or 13.5: 12 to 24 bytes for 8 elements with 64 or 72
#: registers, 8 to 40 for 16 with 80, 8 to 120 for 20 and 24 with 96 to 168 (2026-11-30).
_LEAST_REGISTERS = ((8, 80), (16, 112), (32, 255))


class K0(Kernel):
    """Shared-memory FP32 FMA, 4 x 4 elements a thread."""

    name: ClassVar = "k0"
    title: ClassVar = "FP32 FMA from shared memory"
    template: ClassVar = "kernels/simt_grouped_mm.cu.j2"
    config_type: ClassVar[type[Config]] = SimtConfig
    min_arch: ClassVar = Arch(75)
    in_dtypes: ClassVar = (BF16, F16, F32)
    out_dtypes: ClassVar = (BF16, F16, F32)
    emulated_flops: ClassVar = 200_000_000

    def vector_elements(self, dtype: DType) -> int:
        """Return 4: a thread moves four elements at once, whatever their size."""
        return _THREAD_TILE

    def threads(self, config: Config) -> int:
        """Return the threads of a block: 4 x 4 elements of the tile each."""
        return config.block_m // _THREAD_TILE * (config.block_n // _THREAD_TILE)

    def smem_bytes(self, config: Config, variant: Variant) -> int:
        """Return 0: the slices are static."""
        return 0

    def static_smem_bytes(self, config: Config, variant: Variant) -> int:
        """Return the bytes of the two FP32 slices."""
        assert isinstance(config, SimtConfig)
        return 4 * config.block_k * (config.block_m + config.block_n + 2 * config.pad)

    def least_registers(self, config: Config, variant: Variant, arch: Arch) -> int:
        """Return what the elements that a thread moves for each slice ask for, `_LEAST_REGISTERS`.

        16 accumulators and 8 operands are in use while the next slice is on its way through
        registers, with an address for each element that is loaded alone.
        """
        extent = config.block_m + config.block_n
        moved = extent * config.block_k // self.threads(config)
        return next(least for most, least in _LEAST_REGISTERS if moved <= most)

    def tile_variables(self, config: Config, variant: Variant) -> dict[str, object]:
        """Return the template's variables that only k0 has."""
        assert isinstance(config, SimtConfig)
        return {"pad": config.pad, "threads": self.threads(config)}

    def shipped_configs(self) -> tuple[Config, ...]:
        """Return the one tile of k0."""
        return (SimtConfig(),)
