"""Operands of one `tcgen05.mma` in shared memory, and what it should give."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from mma_kinds import CODES, NUMPY
from tcgen05_programs import SMEM, Tile, execute, mma, program

POLICIES = [("eager", 0), ("lazy", 0), ("random", 1)]
CODE = {"f16": 0, "bf16": 1, "tf32": 2, "e4m3": 0, "e5m2": 1, "e2m3": 3, "e3m2": 4, "e2m1": 5,
        "u8": 0, "s8": 1}  # fmt: skip
WIDE = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "tf32": np.float32, "u8": np.uint8,
        "s8": np.int8}  # fmt: skip
KIND = {"f16": "f16", "bf16": "f16", "tf32": "tf32", "u8": "i8", "s8": "i8"}
K = {"f16": 16, "tf32": 8, "f8f6f4": 32, "i8": 32}


def idesc(kind, m, n, a, b, d="f32", *, a_mn=0, b_mn=0, negate=0, saturate=0):
    code = {"f16": 0, "f32": 1, "s32": 2}[d]
    return (
        saturate << 3 | code << 4 | CODE[a] << 7 | CODE[b] << 10 | negate << 13 | a_mn << 15
        | b_mn << 16 | n >> 3 << 17 | m >> 4 << 24
    )  # fmt: skip


def numbers(rng, name, shape):
    """Small whole numbers (or all codes of a small float) and their bytes."""
    if name in CODES:
        codes = rng.integers(0, CODES[name], shape).astype(np.uint8)
        if name in ("e4m3", "e5m2"):
            codes &= 0x8F if name == "e4m3" else 0x83  # subnormal: sums stay exact
        return codes.view(NUMPY[name]).astype(np.float64), codes
    low, high = (0, 9) if name == "u8" else (-8, 9)
    values = rng.integers(low, high, shape)
    return values.astype(np.float64), np.ascontiguousarray(values.astype(WIDE[name]))


def octets_of(name, held, mn_major):
    """Bytes along the contiguous dimension; 4-bit and 6-bit elements in padded chunks of 16."""
    held = np.ascontiguousarray(held.T if mn_major else held)
    bits = {"e2m1": 4, "e2m3": 6, "e3m2": 6}.get(name)
    if bits is None:
        return held.view(np.uint8).reshape(held.shape[0], -1)
    planes = np.stack([held >> i & 1 for i in range(bits)], -1).reshape(
        held.shape[0], -1, 16 * bits
    )
    packed = np.packbits(planes, axis=-1, bitorder="little")
    out = np.full((*packed.shape[:2], 16), 0xEE, np.uint8)
    out[..., : 2 * bits] = packed
    return out.reshape(held.shape[0], -1)


class Product:
    """Operands of one instruction of a block or a pair, and what it should give."""

    def __init__(
        self, a_type="bf16", b_type="bf16", m=128, n=64, *, swizzle=128, a_mn=False, b_mn=False,
        ranks=1, seed=0, d_type="f32", negate=0,
    ):  # fmt: skip
        rng = np.random.default_rng(seed)
        self.kind = KIND.get(a_type, "f8f6f4")
        self.m, self.n, self.ranks, self.d_type = m, n, ranks, d_type
        k = K[self.kind]
        a, held_a = numbers(rng, a_type, (m, k))
        b, held_b = numbers(rng, b_type, (n, k))
        self.a, self.b, self.held_a = a, b, held_a
        self.exact = a @ b.T * (-1) ** (negate & 1) * (-1) ** (negate >> 1)
        self.smem = np.full((ranks, SMEM), 0xDD, np.uint8)
        for r in range(ranks):
            rows = slice(r * m // ranks, (r + 1) * m // ranks)
            columns = slice(r * n // ranks, (r + 1) * n // ranks)
            tile_a = Tile(octets_of(a_type, held_a[rows], a_mn), swizzle, a_mn)
            offset = -(-tile_a.nbytes // 1024) * 1024
            tile_b = Tile(octets_of(b_type, held_b[columns], b_mn), swizzle, b_mn, offset)
            tile_a.put(self.smem[r])
            tile_b.put(self.smem[r])
        self.bits = (tile_a.bits, tile_b.bits)
        self.idesc = idesc(self.kind, m, n, a_type, b_type, d_type, a_mn=a_mn, b_mn=b_mn,
                           negate=negate)  # fmt: skip

    def mma(self, **options):
        return mma(self.kind, self.idesc, *self.bits, ranks=self.ranks, **options)

    def run(self, body=None, policy=("eager", 0), columns=None, **options):
        columns = columns or -(-self.n // 32) * 32
        ptx = program(body or self.mma(), columns=columns, ranks=self.ranks, **options)
        got, report = execute(
            ptx, self.smem, columns=columns, ranks=self.ranks, policy=policy[0], seed=policy[1],
        )  # fmt: skip
        assert not report.warnings
        return got

    def d(self, words, lane=0):
        """D (m, n) from tensor memory by the layouts of the manual."""
        out = np.zeros((self.m, self.n), np.uint32)
        for i in range(self.m):
            rank, row = divmod(i, self.m // self.ranks)
            if self.m == 64:
                out[i] = words[0, row % 16 + 32 * (row // 16) + lane, : self.n]
            elif self.m == 128 and self.ranks == 2:
                half = self.n // 2
                out[i, :half] = words[rank, row, :half]
                out[i, half:] = words[rank, row + 64, :half]
            else:
                out[i] = words[rank, row, : self.n]
        return self.values(out)

    def values(self, out):
        """Numbers from words."""
        if self.d_type == "f16":
            return (out & 0xFFFF).astype(np.uint16).view(np.float16).astype(np.float64)
        return out.view(np.int32 if self.d_type == "s32" else np.float32).astype(np.float64)
