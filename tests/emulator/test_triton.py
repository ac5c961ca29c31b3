"""Kernels that Triton compiles, without a GPU, compute exactly here: another reading of the manual.

Their layouts, descriptors and synchronisation are Triton's own. ``make test-triton`` installs it
and runs them; elsewhere they are skipped without it (``pip install gemmjit[triton]``).
"""

from __future__ import annotations

import os

import ml_dtypes
import numpy as np
import pytest

from gemmjit.emulator import DeviceMemory, KernelLaunch, emulate
from gemmjit.emulator.tma import encode
from gemmjit.tensormap import ElementType, Swizzle, TensorMap

if not os.environ.get("REQUIRE_TRITON"):  # where it is set, a Triton that is missing is an error
    pytest.importorskip("triton", reason="Triton is not installed")
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # it warns unless it is told

import triton_kernels
from blackwell_evidence import ORDER_ONLY, known_good, of_blackwell
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

POLICIES = ["eager", "lazy", "random"]
M = N = 128
# Type of A and of B as Triton calls them, NumPy's type, elements a byte.
E2M1 = ("e2m1", ml_dtypes.float4_e2m1fn, 2)
E4M3 = ("e4m3", ml_dtypes.float8_e4m3fn, 1)
E5M2 = ("e5m2", ml_dtypes.float8_e5m2, 1)
# Name, A, B, elements with one scale, its NumPy type, what the kernels use on sm_100 and sm_120.
SCALED = [
    (
        "mx88",
        E4M3,
        E5M2,
        32,
        ml_dtypes.float8_e8m0fnu,
        ("kind::mxf8f6f4.block_scale.block32", "kind::mxf8f6f4.block_scale.scale_vec::1X"),
    ),
    (
        "mx84",
        E4M3,
        E2M1,
        32,
        ml_dtypes.float8_e8m0fnu,
        ("kind::mxf8f6f4.block_scale.block32", ".bf16.bf16."),
    ),
    (
        "mx44",
        E2M1,
        E2M1,
        32,
        ml_dtypes.float8_e8m0fnu,
        ("kind::mxf4.block_scale.block32", "kind::mxf4nvf4.block_scale.scale_vec::2X"),
    ),
    (
        "nv44",
        E2M1,
        E2M1,
        16,
        ml_dtypes.float8_e4m3fn,
        ("kind::mxf4nvf4.block_scale.block16", "kind::mxf4nvf4.block_scale.scale_vec::4X"),
    ),
]


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "triton"))


def compiled(function, pointers, constants, capability):
    signature = {**pointers, **dict.fromkeys(constants, "constexpr")}
    source = ASTSource(fn=function, signature=signature, constexprs=constants)
    return compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 4})


def run(kernel, arrays, policy):
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
    for name in of_blackwell(report.instructions):
        # The documentation says that Triton's kernels use it.
        assert "Triton" in known_good(name) or ORDER_ONLY.match(name), name
    return memory.read(to, np.float32, M * N).reshape(M, N), report


@pytest.mark.parametrize(("capability", "opcode"), [
    (90, "wgmma.mma_async"), (100, "tcgen05.mma.cta_group::1.kind::f16"), (120, "mma.sync"),
])  # fmt: skip
def test_products(capability, opcode):
    k = 256
    rng = np.random.default_rng(capability)
    a, b = (rng.integers(-4, 5, (rows, k)).astype(ml_dtypes.bfloat16) for rows in (M, N))
    kernel = compiled(
        triton_kernels.dot, {"a": "*bf16", "b": "*bf16", "c": "*fp32"},
        {"K": k, "M": M, "N": N, "BLOCK_K": 64}, capability,
    )  # fmt: skip
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    for policy in POLICIES:
        got, report = run(kernel, [x.view(np.uint8) for x in (a, b)], policy)
        np.testing.assert_array_equal(got, exact)
        assert any(name.startswith(opcode) for name in report.instructions)
        assert not any("undecided" in text for text in report.warnings)


def operand(rng, kind, rows, k, size, scale):
    """Bytes, bytes of scales, and exact values."""
    _, dtype, per = kind
    values = rng.integers(-3, 4, (rows, k)).astype(np.float64)
    octets = values.astype(dtype).view(np.uint8)
    if per == 2:
        octets = octets[:, ::2] | octets[:, 1::2] << 4
    factors = np.exp2(rng.integers(-2, 3, (rows, k // size)))
    return octets, factors.astype(scale).view(np.uint8), values * np.repeat(factors, size, 1)


@pytest.mark.parametrize("capability", [100, 120])
@pytest.mark.parametrize(("name", "a", "b", "size", "scale", "opcodes"), SCALED,
                         ids=[row[0] for row in SCALED])  # fmt: skip
def test_scaled_products(name, a, b, size, scale, opcodes, capability):
    k = 256
    rng = np.random.default_rng(size)
    (octets_a, sfa, x), (octets_b, sfb, y) = (
        operand(rng, each, rows, k, size, scale) for each, rows in ((a, M), (b, N))
    )
    scales = "*fp8e4nv" if size == 16 else "*u8"
    elements = {"e2m1": "*u8", "e4m3": "*fp8e4nv", "e5m2": "*fp8e5"}
    kernel = compiled(
        triton_kernels.dot_scaled,
        {"a": elements[a[0]], "b": elements[b[0]], "sfa": scales, "sfb": scales, "c": "*fp32"},
        {"K": k, "M": M, "N": N, "BLOCK_K": 128, "A": a[0], "B": b[0], "PER_A": a[2],
         "PER_B": b[2], "SIZE": size}, capability,
    )  # fmt: skip
    exact = x @ y.T
    for policy in POLICIES:
        got, report = run(kernel, [octets_a, octets_b, sfa, sfb], policy)
        np.testing.assert_array_equal(got, exact)
        assert any(opcodes[capability == 120] in n for n in report.instructions)
        assert not any("undecided" in text for text in report.warnings)


#: Element types by the driver's number, as Triton's metadata has them.
DESCRIBED = {10: ElementType.BFLOAT16, 7: ElementType.FLOAT32}
SWIZZLES = (Swizzle.NONE, Swizzle.BYTES_32, Swizzle.BYTES_64, Swizzle.BYTES_128)


def described(meta, array, at):
    """A tensor descriptor as the launcher expands it: map, shape, strides in elements."""
    rows, columns = array.shape
    size = array.itemsize
    tensor_map = TensorMap(
        element_type=DESCRIBED[meta["elem_type"]], dims=(columns, rows), strides=(columns * size,),
        box=tuple(reversed(meta["block_size"])), swizzle=SWIZZLES[meta["swizzle"]],
    )  # fmt: skip
    return [encode(tensor_map, at), rows, columns, columns, 1]


@pytest.mark.parametrize(("capability", "specialize", "opcode"), [
    (90, False, "wgmma.mma_async"), (100, False, "tcgen05.mma"), (100, True, "tcgen05.mma"),
    (120, False, "mma.sync"),
])  # fmt: skip
def test_pipelines(capability, specialize, opcode):
    m, n, k, block = 256, 256, 320, (128, 128, 64)
    rng = np.random.default_rng(7)
    a, b = (rng.integers(-4, 5, (rows, k)).astype(ml_dtypes.bfloat16) for rows in (m, n))
    c = np.zeros((m, n), np.float32)
    types = ("a", "bf16", block[0], block[2]), ("b", "bf16", block[1], block[2])
    types += (("c", "fp32", block[0], block[1]),)
    stages = 3 if capability != 120 else 2
    kernel = compiled(
        triton_kernels.dot_described,
        {**{x: f"tensordesc<{t}[{r}, {s}]>" for x, t, r, s in types}, "K": "i32"},
        {"BLOCK_M": block[0], "BLOCK_N": block[1], "BLOCK_K": block[2], "STAGES": stages,
         "SPECIALIZE": specialize}, capability,
    )  # fmt: skip
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    metadata, ptx = kernel.metadata, kernel.asm["ptx"]
    threads = int(ptx.split(".reqntid")[1].split()[0].strip(","))
    for policy in POLICIES:
        memory = DeviceMemory()
        args = []
        for array, meta in zip((a, b, c), metadata.tensordesc_meta, strict=True):
            at = memory.allocate(array.nbytes, array.view(np.uint8))
            args += described(meta, array, at)
        launch = KernelLaunch(
            ptx=ptx, entry=metadata.name, grid=(2, 2), block=(threads,),
            smem_bytes=metadata.shared, args=[*args, k, 0, 0], memory=memory,
        )  # fmt: skip
        report = emulate([launch], policy=policy)
        np.testing.assert_array_equal(memory.read(at, np.float32, m * n).reshape(m, n), exact)
        assert any(name.startswith(opcode) for name in report.instructions)
        for name in of_blackwell(report.instructions):
            assert "Triton" in known_good(name) or ORDER_ONLY.match(name), name
        assert not any("undecided" in text for text in report.warnings)
