"""Operands of one block-scaled `tcgen05.mma`, and what it should give."""

from __future__ import annotations

import numpy as np
from mma_kinds import finite_codes, values
from tcgen05_products import CODE, octets_of
from tcgen05_programs import SMEM, Tile, descriptor, execute, mma, program, set_descriptor

ATOM = 512
# Kind, opcode suffix, scales of a row, their type.
KINDS = [
    ("mxf8f6f4", ".block_scale", 1, "ue8m0"), ("mxf8f6f4", ".block_scale.block32", 1, "ue8m0"),
    ("mxf4", ".block_scale.scale_vec::2X", 2, "ue8m0"), ("mxf4", ".block_scale", 2, "ue8m0"),
    ("mxf4nvf4", ".block_scale.block32", 2, "ue8m0"),
    ("mxf4nvf4", ".block_scale.block16", 4, "ue8m0"),
    ("mxf4nvf4", ".block_scale.scale_vec::4X", 4, "ue4m3"),
]  # fmt: skip


def idesc(kind, m, n, a, b, scale_type, ids=(0, 0), a_mn=0, b_mn=0):
    code = (lambda t: 1) if kind != "mxf8f6f4" else CODE.get
    return (
        ids[1] << 4 | code(a) << 7 | code(b) << 10 | a_mn << 15 | b_mn << 16 | n >> 3 << 17
        | (scale_type == "ue8m0") << 23 | m >> 7 << 27 | ids[0] << 29
    )  # fmt: skip


def atoms(words):
    """Words of the rows as `tcgen05.cp.32x128b` takes them: 512 bytes for 128 rows."""
    rows = -(-len(words) // 128) * 128
    out = np.full(rows, 0xFFFFFFFF, np.uint32)
    for m, word in enumerate(words):
        out[m // 128 * 128 + m % 32 * 4 + m % 128 // 32] = word
    return out.view(np.uint8)


def halves(words):
    """Words of the columns of B as `cp.64x128b.warpx2::01_23` takes them: a half for two warps."""
    out = np.full((2, 32, 4), 0xFFFFFFFF, np.uint32)
    width = len(words) // 2
    for n, word in enumerate(words):
        out[n // width, n % width % 32, n % width // 32] = word
    return out.reshape(-1).view(np.uint8)


class Scaled:
    """Operands of one block-scaled instruction; both blocks of a pair hold all scales of B.

    With 64 rows a block D is in two halves, and the scales of B are where each half needs them.
    """

    def __init__(
        self, kind, suffix, per_row, scale_type, *, a="e2m1", b="e2m1", n=128, ranks=1,
        ids=(0, 0), seed=0, mn=False, rows=128,
    ):  # fmt: skip
        rng = np.random.default_rng(seed)
        self.kind, self.suffix, self.n, self.ranks = kind, suffix, n, ranks
        self.rows, self.m = rows, rows * ranks
        packed = kind != "mxf8f6f4"
        k = 64 if packed else 32
        codes_a, codes_b = finite_codes(rng, a, (self.m, k)), finite_codes(rng, b, (n, k))
        low, high = (122, 133) if scale_type == "ue8m0" else (0x20, 0x50)
        self.sfa = rng.integers(low, high, (self.m, per_row)).astype(np.uint8)
        self.sfb = rng.integers(low, high, (n, per_row)).astype(np.uint8)
        self.ids, self.scale_type, self.per_row = ids, scale_type, per_row
        self.operands = values(a, codes_a), values(b, codes_b)
        self.smem = np.full((ranks, SMEM), 0xDD, np.uint8)
        for r in range(ranks):
            rows, columns = (slice(r * x // ranks, (r + 1) * x // ranks) for x in (self.m, n))
            tiles, offset = [], 0
            for name, codes in ((a, codes_a[rows]), (b, codes_b[columns])):
                if packed:
                    octets = codes[:, ::2] | codes[:, 1::2] << 4
                else:
                    octets = octets_of(name, codes, mn)
                tile = Tile(octets, 32, mn, offset)
                tile.put(self.smem[r])
                tiles.append(tile.bits)
                offset += -(-tile.nbytes // 1024) * 1024
        self.bits = tiles
        self.scales_at = offset
        self.idesc = idesc(kind, self.m, n, a, b, scale_type, ids, mn, mn)
        self.put_scales()

    def put_scales(self):
        for r in range(self.ranks):
            own = self.words(self.sfa[self.rows * r : self.rows * (r + 1)], self.ids[0])
            of_b = atoms if self.rows == 128 else halves
            octets = np.concatenate([atoms(own), of_b(self.words(self.sfb, self.ids[1]))])
            self.smem[r, self.scales_at : self.scales_at + len(octets)] = octets
        assert self.scales_at + len(octets) <= SMEM

    def words(self, scales, first):
        """Scales in their bytes; the others are NaN."""
        octets = np.full((len(scales), 4), 0xFF, np.uint8)
        octets[:, first : first + self.per_row] = scales
        return octets.view(np.uint32)[:, 0]

    @property
    def exact(self):
        a, b = self.operands
        size = a.shape[1] // self.per_row
        sfa, sfb = (values(self.scale_type, s) for s in (self.sfa, self.sfb))
        return (a * np.repeat(sfa, size, 1)) @ (b * np.repeat(sfb, size, 1)).T

    def copies(self):
        lines = []
        count = 1 + -(-self.n // 128) if self.rows == 128 else 2
        for i in range(count):
            at = descriptor(self.scales_at + ATOM * i, 0, 128, 0)
            lines.append(f"add.u32 %t1, %tm, {256 + 4 * i}; {set_descriptor('a', at)}")
            shape = "64x128b.warpx2::01_23" if self.rows == 64 and i else "32x128b.warpx4"
            lines.append(f"tcgen05.cp.cta_group::{self.ranks}.{shape} [%t1], %a;")
        return "\n".join(lines)

    def mma(self, **options):
        move = "add.u32 %t1, %tm, 256; add.u32 %t2, %tm, 260;"
        return move + mma(self.kind, self.idesc, *self.bits, ranks=self.ranks,
                          scales=" [%t1], [%t2],", collector=self.suffix, **options)  # fmt: skip

    def run(self, body=None, policy=("eager", 0), columns=None, before="", **options):
        columns = columns or self.n
        ptx = program(body if body is not None else self.copies() + self.mma(), columns=columns,
                      allocated=512, ranks=self.ranks, before=before)  # fmt: skip
        got, report = execute(ptx, self.smem, columns=columns, ranks=self.ranks,
                              policy=policy[0], seed=policy[1], **options)  # fmt: skip
        if self.rows == 64:
            low, high = np.split(got[:, :, : self.n // 2], 2, axis=1)
            got = np.concatenate([low, high], axis=2)
            return got.view(np.float32).reshape(-1, self.n), report
        return got.view(np.float32).reshape(-1, columns)[:, : self.n], report
