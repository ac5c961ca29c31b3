"""`tcgen05.mma.ws`: layouts of D and A, masks of columns; A in tensor memory where D has parts."""

from __future__ import annotations

import numpy as np
import pytest
from tcgen05_products import POLICIES, Product, idesc
from tcgen05_programs import execute, finished, mma, program, set_descriptor

from gemmjit.emulator.faults import MemoryFault, UnknownInstruction
from gemmjit.emulator.zero_columns import zero_columns


def stationary(text, tail=""):
    return text.replace("tcgen05.mma.", "tcgen05.mma.ws.").replace("%no;", f"%no{tail};")


def d_of(p, words, rows):
    """D (rows, n) by CUTLASS's layouts (tmem_frg_ws): parts of N are below each other."""
    width = p.n * rows // 128
    out = np.zeros((rows, p.n), np.uint32)
    for i, j in np.ndindex(rows, p.n):
        out[i, j] = words[0, i + rows * (j // width), j % width]
    return p.values(out)


@pytest.mark.parametrize("n", [64, 128, 256])
@pytest.mark.parametrize("m", [32, 64, 128])
@pytest.mark.parametrize("kind", ["f16", "tf32", "e5m2", "s8"])
def test_layouts_of_d(kind, m, n):
    p = Product(
        kind, kind, m=m, n=n, swizzle=32, seed=n, d_type="s32" if kind == "s8" else "f32"
    )  # fmt: skip
    body = stationary(p.mma()) + stationary(p.mma(accumulate="%yes"))
    got = p.run(body, POLICIES[n // 64 % 3])
    np.testing.assert_array_equal(d_of(p, got, m), 2 * p.exact)


@pytest.mark.parametrize("b_mn", [False, True])
def test_collectors_and_descriptor_bits_change_nothing(b_mn):
    p = Product("bf16", "bf16", m=64, n=128, b_mn=b_mn)
    p.idesc |= 3 << 30  # the largest shift
    body = stationary(p.mma(collector=".collector::b2::fill"), ", 0")
    np.testing.assert_array_equal(d_of(p, p.run(body), 64), p.exact)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", ["bf16", "tf32", "e4m3"])
@pytest.mark.parametrize("m", [32, 64, 128])
def test_a_in_tensor_memory_belongs_to_its_lanes(m, kind, policy):
    """Other lanes, another A: two products in one instruction, as FlashMLA has them."""
    p = Product(kind, kind, m=128, n=64, seed=m)
    body = f"add.u32 %t1, %tm, 96; {set_descriptor('a', p.bits[0])}"
    body += f"tcgen05.cp.cta_group::1.128x256b [%t1], %a; {finished()}"
    small = idesc(p.kind, m, p.n, kind, kind)
    body += stationary(mma(p.kind, small, None, p.bits[1], a_text="[%t1]"))
    got = d_of(p, p.run(body, policy, columns=128), m)
    width = p.n * m // 128
    for part in range(128 // m):
        columns = slice(part * width, (part + 1) * width)
        expected = p.exact[part * m : (part + 1) * m, columns]
        np.testing.assert_array_equal(got[:, columns], expected)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_of_64_rows_of_a_pair_belongs_to_its_lanes_too(policy):
    p = Product("bf16", "bf16", m=256, n=64, ranks=2)
    body = f"add.u32 %t1, %tm, 96; {set_descriptor('a', p.bits[0])}"
    body += f"tcgen05.cp.cta_group::2.128x256b [%t1], %a; {finished(2)}"
    small = idesc(p.kind, 128, p.n, "bf16", "bf16")
    body += mma(p.kind, small, None, p.bits[1], ranks=2, a_text="[%t1]")
    got = p.run(body, policy, columns=128)
    p.m = 128
    d = p.d(got)
    for rank, half in np.ndindex(2, 2):
        columns = slice(32 * half, 32 * half + 32)
        expected = p.exact[128 * rank + 64 * half :][:64, columns]
        np.testing.assert_array_equal(d[64 * rank : 64 * rank + 64, columns], expected)


def bits_of(text, width):
    """The mask that an example of the manual begins with, its lowest bit at the right."""
    digits = text.replace(" ", "")[::-1]
    assert len(digits) <= width
    return [c == "1" for c in digits]


def descriptor(starts, firsts, skip, use):
    fields = [start << 8 * i for i, start in enumerate(starts)]
    fields += [first << 32 + i for i, first in enumerate(firsts)]
    return sum(fields) | 1 << 39 | skip << 40 | use << 48


# PTX ISA 9.1, section 9.7.16.4.3, examples 2 to 4 (without the shift): start counts and first
# spans from sub-mask 0 on, masks.
MANUAL = [
    ([0], [0], ["111 0000 111 0000"]),
    ([0, 0], [1, 0], ["111 0000 111 0000 111", "0000 111 0000 111 0000"]),
    ([0, 1, 2, 1], [1, 1, 0, 0], ["0000 111 0000 111", "0000 111 0000 11", "111 0000 111 00",
                                  "111 0000 111 000"]),
]  # fmt: skip


@pytest.mark.parametrize(("starts", "firsts", "masks"), MANUAL)
def test_masks_of_the_manual(starts, firsts, masks):
    n, parts = 128, len(masks)
    got = zero_columns(descriptor(starts, firsts, 2, 3), n, parts, "examples")
    for part, text in zip(np.split(got, parts), masks, strict=True):
        expected = bits_of(text, n // parts)
        assert part[: len(expected)].tolist() == expected
    other = zero_columns(descriptor(starts, firsts, 3, 2), n, parts, "table")
    np.testing.assert_array_equal(other, got)


def test_a_masked_column_of_b_is_zero():
    p = Product("bf16", "bf16", m=64, n=64)
    mask = descriptor([1, 0], [1, 0], 2, 3)
    body = f"mov.b64 %big, {mask};" + stationary(p.mma(), ", %big")
    zero = zero_columns(mask, 64, 2, "examples")
    assert 0 < zero.sum() < 64
    ptx = program(body, columns=32)
    words, report = execute(ptx, p.smem)
    assert "zero_column_spans" in report.warnings[0]
    np.testing.assert_array_equal(d_of(p, words, 64), np.where(zero, 0, p.exact))


REFUSED = [
    (dict(n=32), "", MemoryFault, "N: expected one of"),
    (dict(n=64, m=256, ranks=2), "", UnknownInstruction, "cta_group::1"),
    (dict(n=64), ", 0x100000000000000", UnknownInstruction, "column shift"),
    (dict(n=64), ", 0x1000000000", MemoryFault, "bits 36 to 38"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "tail", "fault", "reason"), REFUSED)
def test_refused(options, tail, fault, reason):
    p = Product("bf16", "bf16", **options)
    with pytest.raises(fault, match=reason):
        p.run(stationary(p.mma(), tail))


def test_block_scales_are_refused():
    p = Product("bf16", "bf16")
    body = stationary(p.mma()).replace("kind::f16", "kind::mxf4.block_scale")
    with pytest.raises(UnknownInstruction, match="without block scales"):
        p.run(body)
