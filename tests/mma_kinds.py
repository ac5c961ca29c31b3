"""Programs of one `mma.sync` with a kind, and their operands packed by hand."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from gemmjit.emulator import DeviceMemory, KernelLaunch, emulate

NUMPY = {
    "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2,
    "e3m2": ml_dtypes.float6_e3m2fn, "e2m3": ml_dtypes.float6_e2m3fn,
    "e2m1": ml_dtypes.float4_e2m1fn, "ue8m0": ml_dtypes.float8_e8m0fnu,
    "ue4m3": ml_dtypes.float8_e4m3fn,
}  # fmt: skip
CODES = {"e4m3": 256, "e5m2": 256, "e3m2": 64, "e2m3": 64, "e2m1": 16}
WORDS = 12  # A: 4, B: 2, C: 4, scales: 2


def values(name, codes):
    """Exact values of codes, as float64."""
    return np.asarray(codes, np.uint8).view(NUMPY[name]).astype(np.float64)


def finite_codes(rng, name, shape):
    """Random codes without infinities and NaN."""
    codes = rng.integers(0, CODES[name], shape).astype(np.uint8)
    return np.where(np.isfinite(values(name, codes)), codes, 0).astype(np.uint8)


def pack_a(codes, name):
    """A (16, k) in registers (32, 4), by the formulas of the manual."""
    k = codes.shape[1]
    out = np.zeros((32, 4), np.uint32)
    for lane in range(32):
        for r in range(4):
            row = lane // 4 + 8 * (r % 2)
            for e in range(k // 8):
                column = lane % 4 * (k // 8) + e + (k // 2) * (r // 2)
                out[lane, r] |= _placed(codes[row, column], name, k, e)
    return out


def pack_b(codes, name):
    """B (k, 8) in registers (32, 2)."""
    k = codes.shape[0]
    out = np.zeros((32, 2), np.uint32)
    for lane in range(32):
        for r in range(2):
            for e in range(k // 8):
                row = lane % 4 * (k // 8) + e + (k // 2) * r
                out[lane, r] |= _placed(codes[row, lane // 4], name, k, e)
    return out


def _placed(code, name, k, e):
    if k == 64:
        return np.uint32(int(code) << (4 * e))
    return np.uint32(int(code) << (2 if name == "e2m1" else 0) << (8 * e))


def matrix_of(registers):
    """D (16, 8) from (32, 4)."""
    out = np.zeros((16, 8))
    for lane in range(32):
        for i in range(4):
            out[lane // 4 + 8 * (i // 2), lane % 4 * 2 + i % 2] = registers[lane, i]
    return out


def registers_of(matrix):
    out = np.zeros((32, 4), np.float32)
    for lane in range(32):
        for i in range(4):
            out[lane, i] = matrix[lane // 4 + 8 * (i // 2), lane % 4 * 2 + i % 2]
    return out


def scale_words(scales, lanes_of_row, byte, spread):
    """Scales (rows, per row) as one word a lane; `lanes_of_row` says who holds a row."""
    words = np.full(32, 0xFFFFFFFF, np.uint32) if not spread else np.zeros(32, np.uint32)
    for row, codes in enumerate(scales):
        word = sum(int(c) << (8 * (byte + i)) for i, c in enumerate(codes))
        for lane in lanes_of_row(row):
            words[lane] = word
    return words


def a_lanes(thread, spread):
    """Lanes that give row r of A: an even or odd lane of its quad; all such when spread."""
    pairs = (0, 1) if spread else (thread,)
    return lambda r: [r % 8 * 4 + 2 * pair + r // 8 for pair in pairs]


def b_lanes(thread, spread):
    return lambda n: [n * 4 + t for t in (range(4) if spread else (thread,))]


def program(name, tail=""):
    """A kernel of one warp: 12 words a lane in, the instruction, 4 words out."""
    load = "\n".join(f"ld.global.b32 %x{i}, [%from+{4 * i}];" for i in range(WORDS))
    store = "\n".join(f"st.global.b32 [%to+{4 * i}], %d{i};" for i in range(4))
    return f"""
.version 8.8
.target sm_120a
.address_size 64
.visible .entry k(.param .u64 source, .param .u64 result)
{{
.reg .b64 %from, %to, %at; .reg .b32 %x<12>; .reg .b32 %d<4>; .reg .b32 %t;
ld.param.u64 %from, [source]; ld.param.u64 %to, [result]; mov.u32 %t, %tid.x;
mad.wide.u32 %from, %t, {4 * WORDS}, %from; mad.wide.u32 %to, %t, 16, %to;
{load}
mma.sync.aligned.{name} {{%d0, %d1, %d2, %d3}}, {{%x0, %x1, %x2, %x3}}, {{%x4, %x5}},
  {{%x6, %x7, %x8, %x9}}{tail};
{store}
ret;
}}
"""


def run(ptx, words, **options):
    """Registers (32, 4) as uint32, and the report."""
    memory = DeviceMemory()
    to = memory.allocate(32 * 16)
    at = memory.allocate(words.nbytes, words)
    launch = KernelLaunch(ptx=ptx, entry="k", grid=(1,), block=(32,), args=[at, to], memory=memory)
    report = emulate([launch], **options)
    return memory.read(to, np.uint32, 128).reshape(32, 4), report
