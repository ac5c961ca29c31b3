"""Whole kernels for Blackwell, in CUDA C++ under ``tests/blackwell``, compiled and emulated.

They include the project's own wrappers of instructions where there are some.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import ml_dtypes
import numpy as np

from gemmjit.arch import Arch
from gemmjit.compiler import get_compiler
from gemmjit.compiler.options import standard_options
from gemmjit.emulator import DeviceMemory, KernelLaunch, emulate
from gemmjit.emulator.tma import encode
from gemmjit.templates import read_template
from gemmjit.tensormap import ElementType, Swizzle, TensorMap

SOURCES = Path(__file__).parent / "blackwell"
PRELUDE = ("core/types.cuh", "ptx/mbarrier.cuh", "ptx/tma.cuh")
STRICT = {
    "unwaited_stores": "error", "unfenced_inits": "error", "unfenced_reads": "error",
    "unfenced_tmem": "error", "undecided": "error", "max_steps": 400_000,
    "readings": {"ld_registers": "poison"},
}  # fmt: skip


def source_of(name):
    return (SOURCES / name).read_text()


@cache
def compile_text(text, target, macros):
    """PTX of a source behind the project's own wrappers."""
    arch = Arch.parse(target)
    whole = "\n".join([*(read_template(name) for name in PRELUDE), text])
    options = standard_options(arch, tuple(f"-D{name}={value}" for name, value in macros))
    return get_compiler().compile(whole, target=arch, name="blackwell", options=options).ptx


@dataclass(frozen=True)
class Gemm100:
    """A problem for ``gemm_sm100.cu``: 128 x pair rows, so many tiles along n."""

    pair: int = 1
    block_n: int = 64
    control: int = 0
    tiles: int = 4
    dim_k: int = 200
    target: str = "sm_100a"

    def ptx(self, text=None):
        macros = (("PAIR", self.pair), ("BLOCK_N", self.block_n), ("CONTROL", self.control))
        return compile_text(text or source_of("gemm_sm100.cu"), self.target, macros)

    def run(self, text=None, **options):
        """Return what is wrong with the result, and the report."""
        rng = np.random.default_rng(0)
        m, n, k = 128 * self.pair, self.block_n * self.tiles, self.dim_k
        a, b = (rng.integers(-3, 4, (rows, k)).astype(ml_dtypes.bfloat16) for rows in (m, n))
        memory = DeviceMemory()
        at = [memory.allocate(x.nbytes, x.view(np.uint8)) for x in (a, b)]
        to = memory.allocate(m * n * 4)

        def described(rows, box):
            return TensorMap(
                element_type=ElementType.BFLOAT16, dims=(k, rows), strides=(2 * k,),
                box=(64, box), swizzle=Swizzle.BYTES_128,
            )  # fmt: skip

        maps = [described(m, 128), described(n, self.block_n // self.pair)]
        # Blocks that stride take two tiles each or more; launch control has one block a tile.
        blocks = self.tiles if self.control else max(self.tiles // 3, 1)
        launch = KernelLaunch(
            ptx=self.ptx(text), entry="gemm", grid=(blocks * self.pair,), block=(256,),
            smem_bytes=2 * (16384 + self.block_n // self.pair * 128),
            args=[*(encode(t, p) for t, p in zip(maps, at, strict=True)), to, n, k, self.tiles],
            memory=memory,
        )  # fmt: skip
        if self.control:
            options = {"resident_blocks": 2 * self.pair, **options}
        report = emulate([launch], **{**STRICT, **options})
        got = memory.read(to, np.float32, m * n).reshape(m, n)
        exact = a.astype(np.float64) @ b.astype(np.float64).T
        return int((got != exact).sum()), report


@dataclass(frozen=True)
class Gemm120:
    """A problem for ``gemm_sm120.cu``: whole tiles of 64 x 32."""

    packed: int = 0
    dim_m: int = 128
    dim_n: int = 64
    steps: int = 5
    target: str = "sm_120a"

    def ptx(self, text=None):
        return compile_text(
            text or source_of("gemm_sm120.cu"), self.target, (("PACKED", self.packed),)
        )

    def operands(self):
        """Packed bytes of A and B, words of scales, and the exact product.

        Sums stay exact in FP32: B holds whole numbers, and scales powers of two.
        """
        rng = np.random.default_rng(0)
        k = self.steps * (256 if self.packed else 128)
        size = 16 if self.packed else 32
        sides = []
        for rows, small in ((self.dim_m, True), (self.dim_n, bool(self.packed))):
            if small:
                codes = rng.integers(0, 16, (rows, k)).astype(np.uint8)
                octets = codes[:, ::2] | codes[:, 1::2] << 4
                values = codes.view(ml_dtypes.float4_e2m1fn).astype(np.float64)
            else:
                values = rng.integers(-3, 4, (rows, k)).astype(np.float64)
                octets = values.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
            exponents = rng.integers(-2, 3, (rows, k // size))
            kind = ml_dtypes.float8_e4m3fn if self.packed else ml_dtypes.float8_e8m0fnu
            scales = np.exp2(exponents).astype(kind).view(np.uint8)
            sides.append((octets, scales, values * np.repeat(np.exp2(exponents), size, 1)))
        return sides, sides[0][2] @ sides[1][2].T

    def run(self, text=None, **options):
        """Return how many elements are wrong, and the report."""
        sides, exact = self.operands()
        memory = DeviceMemory()
        maps, scales = [], []
        for (octets, words, values), box, padded in zip(
            sides, (64, 32), (not self.packed, False), strict=True
        ):
            rows, k = values.shape
            element = ElementType.U4X16_ALIGN8B if self.packed else ElementType.UINT8
            element = ElementType.U4X16_ALIGN16B if padded else element
            described = TensorMap(
                element_type=element, dims=(k, rows), strides=(octets.shape[1],),
                box=(256 if self.packed else 128, box), swizzle=Swizzle.BYTES_128,
            )  # fmt: skip
            maps.append(encode(described, memory.allocate(octets.nbytes, octets)))
            scales.append(memory.allocate(words.nbytes, words))
        to = memory.allocate(exact.size * 4)
        launch = KernelLaunch(
            ptx=self.ptx(text), entry="gemm", grid=(self.dim_n // 32, self.dim_m // 64),
            block=(160,), smem_bytes=2 * (64 + 32) * 128,
            args=[*maps, *scales, to, self.dim_n, self.steps], memory=memory,
        )  # fmt: skip
        report = emulate([launch], **{**STRICT, **options})
        got = memory.read(to, np.float32, exact.size).reshape(exact.shape)
        return int((got != exact.astype(np.float32)).sum()), report
