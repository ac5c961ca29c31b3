"""Kernels that Triton compiles without a GPU, with operands and what they should give.

Needs Triton. The instructions of Blackwell that they execute are on record in
``tests/data/triton_instructions.txt`` (``python tests/triton_programs.py`` writes it), for where
there is no Triton.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property

import ml_dtypes
import numpy as np
from blackwell_evidence import TRITON_RECORD, of_blackwell

from gemmjit.emulator import DeviceMemory, KernelLaunch, emulate
from gemmjit.emulator.tma import encode
from gemmjit.tensormap import ElementType, Swizzle, TensorMap

os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # it warns unless it is told

import triton_kernels
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

M = N = 128
# Type as Triton calls it, NumPy's type, elements a byte.
E2M1 = ("e2m1", ml_dtypes.float4_e2m1fn, 2)
E4M3 = ("e4m3", ml_dtypes.float8_e4m3fn, 1)
E5M2 = ("e5m2", ml_dtypes.float8_e5m2, 1)
UE8M0, UE4M3 = ml_dtypes.float8_e8m0fnu, ml_dtypes.float8_e4m3fn
POINTERS = {"e2m1": "*u8", "e4m3": "*fp8e4nv", "e5m2": "*fp8e5"}
#: Element types by the driver's number, as Triton's metadata has them.
DESCRIBED = {10: ElementType.BFLOAT16, 7: ElementType.FLOAT32}
SWIZZLES = (Swizzle.NONE, Swizzle.BYTES_32, Swizzle.BYTES_64, Swizzle.BYTES_128)


def compiled(function, pointers, constants, capability):
    signature = {**pointers, **dict.fromkeys(constants, "constexpr")}
    source = ASTSource(fn=function, signature=signature, constexprs=constants)
    return compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 4})


def whole_numbers(capability, *shapes):
    rng = np.random.default_rng(capability)
    return [rng.integers(-4, 5, shape).astype(ml_dtypes.bfloat16) for shape in shapes]


def execute(kernel, arrays, policy):
    """Run one block on plain pointers; D and the report."""
    memory = DeviceMemory()
    to = memory.allocate(M * N * 4)
    args = [*(memory.allocate(x.nbytes, x) for x in arrays), to]
    ptx, metadata = kernel.asm["ptx"], kernel.metadata
    count = ptx.split(".entry")[1].split(")")[0].count(".param")
    launch = KernelLaunch(
        ptx=ptx, entry=metadata.name, grid=(1,), block=(32 * metadata.num_warps,),
        smem_bytes=metadata.shared, args=args + [0] * (count - len(args)), memory=memory,
    )  # fmt: skip
    report = emulate([launch], policy=policy)
    return memory.read(to, np.float32, M * N).reshape(M, N), report


@dataclass(frozen=True)
class Dot:
    """One block, one tile: A and B by pointers."""

    capability: int
    opcode: str
    K = 256

    @cached_property
    def operands(self):
        return whole_numbers(self.capability, (M, self.K), (N, self.K))

    @cached_property
    def exact(self):
        a, b = self.operands
        return a.astype(np.float64) @ b.astype(np.float64).T

    @cached_property
    def kernel(self):
        return compiled(
            triton_kernels.dot, {"a": "*bf16", "b": "*bf16", "c": "*fp32"},
            {"K": self.K, "M": M, "N": N, "BLOCK_K": 64}, self.capability,
        )  # fmt: skip

    def run(self, policy):
        return execute(self.kernel, [x.view(np.uint8) for x in self.operands], policy)


@dataclass(frozen=True)
class DotScaled:
    """The same with block scales: `size` elements have one."""

    capability: int
    opcode: str
    a: tuple
    b: tuple
    size: int
    scale: type
    K = 256

    @cached_property
    def operands(self):
        """Bytes, bytes of scales and exact values, of A and of B."""
        rng = np.random.default_rng(self.size)
        found = []
        for kind, rows in ((self.a, M), (self.b, N)):
            _, dtype, per = kind
            values = rng.integers(-3, 4, (rows, self.K)).astype(np.float64)
            octets = values.astype(dtype).view(np.uint8)
            if per == 2:
                octets = octets[:, ::2] | octets[:, 1::2] << 4
            factors = np.exp2(rng.integers(-2, 3, (rows, self.K // self.size)))
            scales = factors.astype(self.scale).view(np.uint8)
            found.append((octets, scales, values * np.repeat(factors, self.size, 1)))
        return found

    @cached_property
    def exact(self):
        return self.operands[0][2] @ self.operands[1][2].T

    @cached_property
    def kernel(self):
        a, b = self.a, self.b
        scales = "*fp8e4nv" if self.size == 16 else "*u8"
        return compiled(
            triton_kernels.dot_scaled,
            {"a": POINTERS[a[0]], "b": POINTERS[b[0]], "sfa": scales, "sfb": scales, "c": "*fp32"},
            {"K": self.K, "M": M, "N": N, "BLOCK_K": 128, "A": a[0], "B": b[0], "PER_A": a[2],
             "PER_B": b[2], "SIZE": self.size}, self.capability,
        )  # fmt: skip

    def run(self, policy):
        (a, sfa, _), (b, sfb, _) = self.operands
        return execute(self.kernel, [a, b, sfa, sfb], policy)


@dataclass(frozen=True)
class Pipeline:
    """A grid of four blocks, tensor descriptors, several stages, with or without special warps."""

    capability: int
    opcode: str
    specialize: bool
    M, N, K = 256, 256, 320
    BLOCK = (128, 128, 64)

    @cached_property
    def operands(self):
        return whole_numbers(7, (self.M, self.K), (self.N, self.K))

    @cached_property
    def exact(self):
        a, b = self.operands
        return a.astype(np.float64) @ b.astype(np.float64).T

    @cached_property
    def kernel(self):
        m, n, k = self.BLOCK
        types = (("a", "bf16", m, k), ("b", "bf16", n, k), ("c", "fp32", m, n))
        return compiled(
            triton_kernels.dot_described,
            {**{x: f"tensordesc<{t}[{r}, {s}]>" for x, t, r, s in types}, "K": "i32"},
            {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "STAGES": 2 if self.capability == 120 else 3,
             "SPECIALIZE": self.specialize}, self.capability,
        )  # fmt: skip

    def run(self, policy):
        memory, args = DeviceMemory(), []
        metadata, ptx = self.kernel.metadata, self.kernel.asm["ptx"]
        arrays = (*self.operands, np.zeros((self.M, self.N), np.float32))
        for array, meta in zip(arrays, metadata.tensordesc_meta, strict=True):
            at = memory.allocate(array.nbytes, array.view(np.uint8))
            args += described(meta, array, at)
        launch = KernelLaunch(
            ptx=ptx, entry=metadata.name, grid=(2, 2), smem_bytes=metadata.shared,
            block=(int(ptx.split(".reqntid")[1].split()[0].strip(",")),),
            args=[*args, self.K, 0, 0], memory=memory,
        )  # fmt: skip
        report = emulate([launch], policy=policy)
        return memory.read(at, np.float32, self.M * self.N).reshape(self.M, self.N), report


def described(meta, array, at):
    """A tensor descriptor as the launcher expands it: map, shape, strides in elements."""
    rows, columns = array.shape
    size = array.itemsize
    tensor_map = TensorMap(
        element_type=DESCRIBED[meta["elem_type"]], dims=(columns, rows), strides=(columns * size,),
        box=tuple(reversed(meta["block_size"])), swizzle=SWIZZLES[meta["swizzle"]],
    )  # fmt: skip
    return [encode(tensor_map, at), rows, columns, columns, 1]


#: Kernels by name, each with an instruction that it must execute.
PROGRAMS = {
    "dot-90": Dot(90, "wgmma.mma_async"),
    "dot-100": Dot(100, "tcgen05.mma.cta_group::1.kind::f16"),
    "dot-120": Dot(120, "mma.sync"),
    "mx88-100": DotScaled(100, "kind::mxf8f6f4.block_scale.block32", E4M3, E5M2, 32, UE8M0),
    "mx88-120": DotScaled(120, "kind::mxf8f6f4.block_scale.scale_vec::1X", E4M3, E5M2, 32, UE8M0),
    "mx84-100": DotScaled(100, "kind::mxf8f6f4.block_scale.block32", E4M3, E2M1, 32, UE8M0),
    "mx84-120": DotScaled(120, ".bf16.bf16.", E4M3, E2M1, 32, UE8M0),
    "mx44-100": DotScaled(100, "kind::mxf4.block_scale.block32", E2M1, E2M1, 32, UE8M0),
    "mx44-120": DotScaled(120, "kind::mxf4nvf4.block_scale.scale_vec::2X", E2M1, E2M1, 32, UE8M0),
    "nv44-100": DotScaled(100, "kind::mxf4nvf4.block_scale.block16", E2M1, E2M1, 16, UE4M3),
    "nv44-120": DotScaled(120, "kind::mxf4nvf4.block_scale.scale_vec::4X", E2M1, E2M1, 16, UE4M3),
    "pipeline-90": Pipeline(90, "wgmma.mma_async", False),
    "pipeline-100": Pipeline(100, "tcgen05.mma", False),
    "pipeline-100-specialized": Pipeline(100, "tcgen05.mma", True),
    "pipeline-120": Pipeline(120, "mma.sync", False),
}


def instructions():
    """The instructions of Blackwell that the kernels execute when they compute rightly."""
    found = set()
    for name, program in PROGRAMS.items():
        got, report = program.run("eager")
        assert (got == program.exact).all(), name
        found |= of_blackwell(report.instructions)
    return found


if __name__ == "__main__":
    TRITON_RECORD.write_text("".join(f"{name}\n" for name in sorted(instructions())))
