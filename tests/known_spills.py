"""What the documentation of prewarming says that a kernel spills."""

from __future__ import annotations

from gemmjit.compiler import get_compiler
from gemmjit.kernels import KernelSpec


def known_spills(spec: KernelSpec) -> int:
    """Return the bytes that ptxas is known to spill; the documentation of prewarming tells them.

    96 registers, as two blocks of 288 threads leave them, are enough for k2's tile of 128 x 128
    with NVRTC 13.5 (95 used). That of 13.0 keeps more alive: 76 to 116 bytes on Blackwell, 64 to
    120 in some variants on sm_90 (2026-11-30). One block and lower tiles spill with neither.
    """
    tile = spec.config
    tight = spec.name == "k2" and tile.block_m == 128 and tile.min_blocks_per_sm == 2
    return 120 if tight and get_compiler().version.startswith("13.0.") else 0
