"""wmma: every shape and type, both layouts, strides, from shared and global memory."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from gemmjit.emulator import DeviceMemory, KernelLaunch, emulate

TYPES = {
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "tf32": np.float32, "f64": np.float64,
    "s8": np.int8, "u8": np.uint8, "f32": np.float32, "s32": np.int32,
}  # fmt: skip
# type: registers of A and B by shape, and of C by type
WIDE = ["m16n16k16", "m8n32k16", "m32n8k16"]
CASES = [
    *[("f16", c, s, (8, 8), {"f16": 4, "f32": 8}[c]) for s in WIDE for c in ("f16", "f32")],
    *[("bf16", "f32", s, r, 8) for s, r in zip(WIDE, [(4, 4), (2, 8), (8, 2)], strict=True)],
    *[(t, "s32", s, r, 8) for t in ("s8", "u8")
      for s, r in zip(WIDE, [(2, 2), (1, 4), (4, 1)], strict=True)],
    ("tf32", "f32", "m16n16k8", (4, 4), 8),
    ("f64", "f64", "m8n8k4", (1, 1), 2),
]  # fmt: skip


def names(prefix, count):
    return "{" + ", ".join(f"%{prefix}{i}" for i in range(count)) + "}"


def program(kind, c_kind, shape, ab, c_count, layouts, strides, warps):
    a_layout, b_layout, c_layout = layouts
    bits, word = ("b64", "f64") if kind == "f64" else ("b32", "b32")
    types = f"{c_kind}.{c_kind}" if kind == "f16" else f"{c_kind}.{kind}.{kind}.{c_kind}"
    return f"""
.version 8.7
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 pa, .param .u64 pb, .param .u64 pc, .param .u64 pd)
{{
.reg .b64 %a, %b, %c, %d; .reg .{word} %x<8>, %y<8>, %z<8>, %w<8>;
ld.param.u64 %a, [pa]; ld.param.u64 %b, [pb]; ld.param.u64 %c, [pc]; ld.param.u64 %d, [pd];
wmma.load.a.sync.aligned.{a_layout}.{shape}.global.{kind} {names("x", ab[0])}, [%a], {strides[0]};
wmma.load.b.sync.aligned.{b_layout}.{shape}.{kind} {names("y", ab[1])}, [%b], {strides[1]};
wmma.load.c.sync.aligned.{c_layout}.{shape}.global.{c_kind} {names("z", c_count)}, [%c];
wmma.mma.sync.aligned.{a_layout}.{b_layout}.{shape}.{types}
  {names("w", c_count)}, {names("x", ab[0])}, {names("y", ab[1])}, {names("z", c_count)};
wmma.store.d.sync.aligned.{c_layout}.{shape}.global.{c_kind} [%d], {names("w", c_count)};
}}
""".replace("b64 %x", f"{bits} %x")


@pytest.mark.parametrize("layouts", [("row", "col", "row"), ("col", "row", "col")])
@pytest.mark.parametrize(("kind", "c_kind", "shape", "ab", "c_count"), CASES)
def test_products(kind, c_kind, shape, ab, c_count, layouts):
    m, n, k = (int(v) for v in shape[1:].replace("n", " ").replace("k", " ").split())
    rng = np.random.default_rng(0)
    low = 0 if kind == "u8" else -4
    a = rng.integers(low, 5, (m, k)).astype(TYPES[kind])
    b = rng.integers(low, 5, (k, n)).astype(TYPES[kind])
    c = rng.integers(-9, 9, (m, n)).astype(TYPES[c_kind])

    def stored(matrix, layout, padding):
        lines = matrix if layout == "row" else matrix.T
        padded = np.zeros((lines.shape[0], lines.shape[1] + padding), matrix.dtype)
        padded[:, : lines.shape[1]] = lines
        return padded

    memory = DeviceMemory()
    held = [stored(a, layouts[0], 16), stored(b, layouts[1], 32), stored(c, layouts[2], 0)]
    pointers = [memory.allocate(h.nbytes, h) for h in held]
    out = memory.allocate(held[2].nbytes)
    strides = (held[0].shape[1], held[1].shape[1])
    ptx = program(kind, c_kind, shape, ab, c_count, layouts, strides, 1)
    launch = KernelLaunch(
        ptx=ptx, entry="k", grid=(1,), block=(64,), args=[*pointers, out], memory=memory
    )
    emulate([launch])
    got = memory.read(out, TYPES[c_kind], m * n).reshape(held[2].shape)
    expected = a.astype("f8") @ b.astype("f8") + c.astype("f8")
    np.testing.assert_array_equal(got if layouts[2] == "row" else got.T, expected)


@pytest.mark.parametrize("kind", ["s4", "u4", "b1"])
def test_sub_byte_products(kind):
    k, bits = (128, 1) if kind == "b1" else (32, 4)
    rng = np.random.default_rng(1)
    low, high = {"s4": (-8, 8), "u4": (0, 16), "b1": (0, 2)}[kind]
    a, b = rng.integers(low, high, (8, k)), rng.integers(low, high, (8, k))

    def packed(values):
        fields = (values & ((1 << bits) - 1)).reshape(8, -1, 8 // bits)
        return (fields << (np.arange(8 // bits) * bits)).sum(-1).astype(np.uint8)

    memory = DeviceMemory()
    pa, pb = (
        memory.allocate(packed(a).nbytes, packed(a)),
        memory.allocate(packed(b).nbytes, packed(b)),
    )
    out = memory.allocate(256)
    operation = "wmma.mma.xor.popc" if kind == "b1" else "wmma.mma"
    ptx = f"""
.version 8.7
.target sm_80
.address_size 64
.visible .entry k(.param .u64 pa, .param .u64 pb, .param .u64 pd)
{{
.reg .b64 %a, %b, %d; .reg .b32 %x, %y, %w<2>;
ld.param.u64 %a, [pa]; ld.param.u64 %b, [pb]; ld.param.u64 %d, [pd];
wmma.load.a.sync.aligned.row.m8n8k{k}.global.{kind} {{%x}}, [%a];
wmma.load.b.sync.aligned.col.m8n8k{k}.global.{kind} {{%y}}, [%b], {k};
{operation}.sync.aligned.row.col.m8n8k{k}.s32.{kind}.{kind}.s32
  {{%w0, %w1}}, {{%x}}, {{%y}}, {{5, 5}};
wmma.store.d.sync.aligned.row.m8n8k{k}.global.s32 [%d], {{%w0, %w1}};
}}
"""
    emulate(
        [
            KernelLaunch(
                ptx=ptx, entry="k", grid=(1,), block=(32,), args=[pa, pb, out], memory=memory
            )
        ]
    )
    expected = (a[:, None, :] != b[None]).sum(-1) if kind == "b1" else a @ b.T
    np.testing.assert_array_equal(memory.read(out, "i4", 64).reshape(8, 8), expected + 5)
