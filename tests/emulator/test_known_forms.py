"""Spellings in the PTX of other projects (fast.cu, DeepGEMM, CUTLASS, Triton), one by one.

Each is written as their compilers print it; what it computes is said here in NumPy.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from lane_programs import evaluate

A = np.random.default_rng(1).integers(0, 2**32, 128, dtype=np.uint64).astype(np.uint32)
B = np.random.default_rng(2).integers(0, 2**32, 128, dtype=np.uint64).astype(np.uint32)
LANE = np.arange(128, dtype=np.uint32)
F = np.random.default_rng(3).integers(-99, 99, 128).astype(np.float32)
SHARED = ".shared .align 16 .b8 s[4096]; .reg .b32 %s; .reg .b64 %s64; .reg .b16 %h<4>;"
AT = "mov.u32 %s, s; mad.lo.u32 %s, %tid.x, 16, %s;"
# p and its complement q: (p and q or not p) xor q or p, which is p.
ORDERED = A > B


def half(x, upper):
    return x >> 16 if upper else x & 0xFFFF


# Body, declarations, arrays, the expected results.
ARITHMETIC = {
    "bfe.u32": ("bfe.u32 %d, %a, 5, 9;", "", [A], A >> 5 & 511),
    "bfe.s32": ("bfe.s32 %d, %a, 4, 8;", "", [A],
                ((A << 20).view(np.int32) >> 24).view(np.uint32)),
    "prmt.b32": ("prmt.b32 %d, %a, %b, 0x5410;", "", [A, B], half(A, 0) | half(B, 0) << 16),
    "prmt.b32, 0x7632U": ("prmt.b32 %d, %a, %b, 0x7632U;", "", [A, B],
                          half(A, 1) | half(B, 1) << 16),
    "shfl.sync.idx.b32": ("shfl.sync.idx.b32 %d|%p, %a, 3, 31, -1;", "", [A],
                          np.repeat(A[3::32], 32)),
    "shfl.sync.bfly.b32": ("shfl.sync.bfly.b32 %d, %a, 4, 0x1f, 0xffffffff;", "", [A],
                           A[LANE ^ 4]),
    "mov.b64 {a, b}": ("mov.b64 %l, {%a, %b}; mov.b64 {%d, _}, %l;", ".reg .b64 %l;", [A, B], A),
    "mov.b64 {_, b}": ("mov.b64 %l, {%a, %b}; mov.b64 {_, %d}, %l;", ".reg .b64 %l;", [A, B], B),
    "mov.b32 {a, b}": ("mov.b32 {%x, %y}, %a; mov.b32 %d, {%y, %x};", ".reg .b16 %x, %y;", [A],
                       A >> 16 | A << 16),
    "predicates": ("""setp.gt.u32 %p|%q, %a, %b; mov.pred %u, %p; not.pred %v, %u;
        and.pred %u, %u, %q; or.pred %u, %u, %v; xor.pred %u, %u, %q; or.pred %u, %u, %p;
        setp.lt.and.u32 %v, %i, 40, !%u; selp.b32 %d, 1, 0, %v;""", ".reg .pred %u, %v;",
        [A, B], (LANE < 40) & ~ORDERED),
    "setp with and": ("""setp.lt.u32 %q, %b, %a; setp.eq.and.s32 %p, %i, 7, %q;
        selp.u32 %d, 5, 6, %p;""", "", [A, B], np.where((LANE == 7) & (B < A), 5, 6)),
    "fma.rn.f32x2": ("""mov.b64 %l, {%a, %b}; fma.rn.f32x2 %m, %l, %l, %l;
        mov.b64 {_, %d}, %m;""", ".reg .b64 %l, %m;", [F, F[::-1]], F[::-1] * F[::-1] + F[::-1]),
    "cvt.rn.bf16.f32": ("cvt.rn.bf16.f32 %x, %a; cvt.u32.u16 %d, %x;", ".reg .b16 %x;",
                        [F / 7], (F / 7).astype(ml_dtypes.bfloat16).view(np.uint16)),
    "ld.shared.b128": (f"""{AT} st.shared.v4.b32 [%s], {{%a, %b, %a, %b}};
        ld.shared.b128 %w, [%s]; mov.b128 {{%l, %m}}, %w; mov.b64 {{_, %d}}, %m;""",
        SHARED + ".reg .b128 %w; .reg .b64 %l, %m;", [A, B], B),
    "st.shared.v2.b8": (f"""{AT} cvt.u16.u32 %h0, %a; cvt.u16.u32 %h1, %b; mov.u32 %d, 0;
        st.shared.b32 [%s], %d; st.shared.v2.b8 [%s+2], {{%h0, %h1}}; ld.shared.u32 %d, [%s];""",
        SHARED, [A, B], (A & 255) << 16 | B << 24),
    "ld.shared.u8": (f"{AT} st.shared.b32 [%s], %a; ld.shared.u8 %h0, [%s+2]; cvt.u32.u16 %d, %h0;",
                     SHARED, [A], A >> 16 & 255),
    "stmatrix's address in 64 bits": (f"""{AT} cvt.u64.u32 %s64, %s; st.shared.b32 [%s64], %a;
        cvta.shared.u64 %s64, %s64; ld.b32 %d, [%s64];""", SHARED, [A], A),
    "cvta.to.shared": (f"""{AT} cvt.u64.u32 %s64, %s; cvta.shared.u64 %s64, %s64;
        st.b32 [%s64], %a; cvta.to.shared.u64 %s64, %s64; ld.shared.b32 %d, [%s64];""", SHARED,
        [A], A),
    "a wider register read as b32": (f"""{AT} cvt.u64.u32 %s64, %a; shl.b64 %s64, %s64, 3;
        st.shared.b32 [%s], %s64; ld.shared.b32 %d, [%s];""", SHARED, [A], A << 3),
    "cp.async with a size in a register": (f"""{AT} mov.u32 %d, 0; st.shared.b32 [%s], %d;
        ld.param.u64 %at, [p0]; mad.wide.u32 %at, %i, 4, %at; and.b32 %d, %i, 1; shl.b32 %d, %d, 2;
        cp.async.ca.shared.global [%s], [%at], 4, %d; cp.async.wait_all; ld.shared.b32 %d, [%s];""",
        SHARED, [A], A * (LANE & 1)),
    "cp.async, 0x10": (f"""{AT} ld.param.u64 %at, [p0];
        and.b32 %d, %i, -4; mad.wide.u32 %at, %d, 4, %at;
        cp.async.cg.shared.global.L2::128B [%s], [%at], 0x10, 0x10; cp.async.wait_all;
        ld.shared.b32 %d, [%s+8];""", SHARED, [A], A[LANE & ~np.uint32(3) | 2]),
    "st.bulk": ("""mov.u32 %s, s; mad.lo.u32 %x, %tid.x, 16, %s; st.shared.v2.b32 [%x], {%a, %b};
        st.shared.v2.b32 [%x+8], {%a, %a}; bar.sync 0; setp.eq.u32 %p, %i, 0;
        mov.u32 %d, 24; add.u32 %s, %s, 8; @%p st.bulk.weak.shared::cta [%s], %d, 0;
        setp.eq.u32 %p, %i, 5; cvt.u64.u32 %s64, %x; cvta.shared.u64 %s64, %s64;
        @%p st.bulk [%s64], 16, 0; bar.sync 0; ld.shared.b32 %d, [%x+12];""",
        SHARED + ".reg .b32 %x;", [A, B], np.where(np.isin(LANE, (0, 1, 5)), 0, A)),
    "cp.async with a policy": (f"""{AT} ld.param.u64 %at, [p0]; and.b32 %d, %i, -4;
        mad.wide.u32 %at, %d, 4, %at; createpolicy.fractional.L2::evict_last.b64 %s64, 1.0;
        cp.async.cg.shared.global.L2::cache_hint.L2::256B [%s], [%at], 16, 16, %s64;
        cp.async.wait_all; ld.shared.b32 %d, [%s+4];""", SHARED, [A],
        A[LANE & ~np.uint32(3) | 1]),
    "32 bytes": ("""ld.param.u64 %at, [p0]; and.b32 %d, %i, -8; mad.wide.u32 %at, %d, 4, %at;
        ld.global.nc.L1::evict_normal.L2::evict_normal.L2::256B.v8.s32
        {%x0, %x1, %x2, %x3, %x4, %x5, %x6, %d}, [%at];""", ".reg .s32 %x<8>;", [A],
        A[LANE | 7]),
    "the opcode touches its list": (f"""{AT} st.shared.v2.b32[%s],{{%a,%b}};
        ld.shared.v2.b32{{%d,%x}},[%s];sub.u32 %d,%d,%x;""", SHARED + ".reg .b32 %x;", [A, B],
        A - B),
    "labels and registers in scopes": ("""mov.u32 %d, 0;
        { .reg .pred P1; .reg .b32 t; mov.u32 t, 3;
        LAB_WAIT: add.u32 %d, %d, %a; sub.u32 t, t, 1; setp.eq.u32 P1, t, 0; @P1 bra DONE;
        bra LAB_WAIT; DONE: }
        { .reg .pred P1; .reg .b64 t; mov.u64 t, 2;
        LAB_WAIT: add.u32 %d, %d, %b; sub.u64 t, t, 1; setp.eq.u64 P1, t, 0; @P1 bra DONE;
        bra LAB_WAIT; DONE: }""", "", [A, B], 3 * A + 2 * B),
    "nanosleep and debug lines": (""".loc 1 7 3
        nanosleep.u32 20;
        .loc 1 8 3, function_name $L__info_string0, inlined_at 1 9 1
        mov.u32 %d, %a;""", "", [A], A),
    "bar.arrive and barrier.sync": ("""setp.lt.u32 %p, %i, 64; mov.u32 %d, 6;
        @%p bar.arrive 4, 128; @!%p barrier.sync 4, 128; bar.sync %d, 128; barrier.sync.aligned 0;
        mov.u32 %d, %a;""", "", [A], A),
}  # fmt: skip


@pytest.mark.parametrize("name", ARITHMETIC)
def test_values(name):
    body, declare, arrays, expected = ARITHMETIC[name]
    expected = np.asarray(expected)
    kind = np.float32 if expected.dtype.kind == "f" else np.uint32
    got = evaluate(body, arrays, kind, declare=declare)
    np.testing.assert_array_equal(got, expected)
