"""`tcgen05.cp` in all shapes, `shift`, and operands of products in tensor memory."""

from __future__ import annotations

import numpy as np
import pytest
from mma_kinds import NUMPY
from tcgen05_products import POLICIES, WIDE, Product
from tcgen05_programs import (
    SMEM,
    descriptor,
    execute,
    finished,
    mma,
    program,
    set_descriptor,
)

from gemmjit.emulator.faults import MemoryFault, UndecidedSemantics, UnknownInstruction

# Shape, multicast, rows, chunks of 16 bytes, lanes of row r.
SHAPES = [
    ("128x256b", "", 128, 2, lambda r: [r]),
    ("128x128b", "", 128, 1, lambda r: [r]),
    ("64x128b", ".warpx2::02_13", 64, 1, lambda r: [r, r + 64]),
    ("64x128b", ".warpx2::01_23", 64, 1, lambda r: [r + r // 32 * 32, r + r // 32 * 32 + 32]),
    ("32x128b", ".warpx4", 32, 1, lambda r: [r, r + 32, r + 64, r + 96]),
    ("4x256b", "", 4, 2, lambda r: [32 * r]),
]


def copy(shape, multicast, at, *, ranks=1, target="%tm", formats=""):
    return (
        f"{set_descriptor('a', at)} "
        f"tcgen05.cp.cta_group::{ranks}.{shape}{multicast}{formats} [{target}], %a;"
    )


def rows_in(smem, octets, chunks):
    """Put rows of 16 or 32 bytes into 8x16-byte tiles; the descriptor."""
    rows = len(octets)
    lbo = -(-rows // 8) * 128
    for r, byte in np.ndindex(rows, 16 * chunks):
        smem[r % 8 * 16 + r // 8 * 128 + byte // 16 * lbo + byte % 16] = octets[r, byte]
    return descriptor(0, lbo, 128, 0)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(("policy", "seed"), POLICIES)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: s[0] + s[1])
def test_copies(shape, policy, seed, ranks):
    name, multicast, rows, chunks, lanes_of = shape
    rng = np.random.default_rng(rows)
    smem = np.zeros((ranks, SMEM), np.uint8)
    octets = rng.integers(0, 256, (ranks, rows, 16 * chunks)).astype(np.uint8)
    for r in range(ranks):
        at = rows_in(smem[r], octets[r], chunks)
    ptx = program(copy(name, multicast, at, ranks=ranks), ranks=ranks)
    got, report = execute(ptx, smem, ranks=ranks, policy=policy, seed=seed)
    expected = np.full_like(got, 0xFFFFFFFF)
    for r in range(ranks):  # every block copies from its own shared memory
        for row in range(rows):
            for lane in lanes_of(row):
                expected[r, lane, : 4 * chunks] = octets[r, row].view(np.uint32)
    np.testing.assert_array_equal(got, expected)
    assert bool(report.warnings) == (name == "4x256b")


@pytest.mark.parametrize(("formats", "bits"), [(".b8x16.b4x16_p64", 4), (".b8x16.b6x16_p32", 6)])
def test_copies_can_expand(formats, bits):
    rng = np.random.default_rng(bits)
    codes = rng.integers(0, 1 << bits, (128, 16)).astype(np.uint8)
    planes = np.stack([codes >> i & 1 for i in range(bits)], -1).reshape(128, -1)
    octets = np.full((128, 16), 0xEE, np.uint8)
    octets[:, : 2 * bits] = np.packbits(planes, axis=1, bitorder="little")
    smem = np.zeros(SMEM, np.uint8)
    ptx = program(copy("128x128b", "", rows_in(smem, octets, 1), formats=formats))
    for reading, shift in (("middle", 2 if bits == 4 else 0), ("low", 0)):
        got, report = execute(ptx, smem, readings={"tmem_containers": reading})
        found = np.ascontiguousarray(got[0, :, :4]).view(np.uint8)
        np.testing.assert_array_equal(found, codes << shift)
        assert "tmem_containers" in report.warnings[0]


def test_shift():
    rng = np.random.default_rng(5)
    octets = rng.integers(0, 256, (128, 32)).astype(np.uint8)
    smem = np.zeros(SMEM, np.uint8)
    body = copy("128x256b", "", rows_in(smem, octets, 2))
    body += "add.u32 %t1, %tm, 0x200000; tcgen05.shift.cta_group::1.down [%t1];"
    words = octets.view(np.uint32)
    for reading in ("next", "previous"):
        got, report = execute(program(body), smem, readings={"shift_down": reading})
        expected = words.copy()
        if reading == "next":
            expected[32:63] = words[33:64]
        else:
            expected[33:64] = words[32:63]
        np.testing.assert_array_equal(got[0, :, :8], expected)
        assert "shift_down" in report.warnings[0]
    with pytest.raises(UndecidedSemantics):
        execute(program(body), smem, undecided="error")


REFUSED = [
    (copy("32x128b", "", 1 << 46), UnknownInstruction, "warpx4"),
    (copy("128x128b", ".warpx4", 1 << 46), UnknownInstruction, "no multicast"),
    (copy("128x128b", "", 1 << 46, formats=".b4x16_p64"), UnknownInstruction, "semantics"),
    (copy("32x128b", ".warpx4", 0), MemoryFault, "bits 46 to 48"),
    (f"add.u32 %t1, %tm, 30; {copy('128x128b', '', 1 << 46, target='%t1')}", MemoryFault,
     "allocated"),
    (f"add.u32 %t1, %tm, 0x200000; {copy('128x128b', '', 1 << 46, target='%t1')}", MemoryFault,
     "lane"),
    ("add.u32 %t1, %tm, 0x80000; tcgen05.shift.cta_group::1.down [%t1];", MemoryFault, "lane"),
    (copy("128x128b", "", 1 << 46 | (SMEM + 1024) // 16), MemoryFault, "outside"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "fault", "reason"), REFUSED)
def test_misuses(body, fault, reason):
    with pytest.raises(fault, match=reason):
        execute(program(body), np.zeros(SMEM, np.uint8))


# A in tensor memory: kind, type, M, blocks.
A_PLACES = [
    ("f16", "bf16", 128, 1), ("f16", "f16", 64, 1), ("tf32", "tf32", 64, 1),
    ("tf32", "tf32", 128, 1), ("f8f6f4", "e4m3", 128, 1), ("i8", "s8", 64, 1),
    ("f16", "bf16", 256, 2), ("f8f6f4", "e3m2", 128, 1), ("f8f6f4", "e2m1", 128, 1),
]  # fmt: skip


@pytest.mark.parametrize(("policy", "seed"), POLICIES)
@pytest.mark.parametrize("place", A_PLACES, ids=str)
def test_a_in_tensor_memory(place, policy, seed):
    kind, name, m, ranks = place
    rows = m // ranks
    p = Product(name, name, m=m, n=32, ranks=ranks, d_type="s32" if kind == "i8" else "f32")
    smem = np.zeros((ranks, SMEM), np.uint8)
    held = p.held_a if name in NUMPY else p.held_a.astype(WIDE[name])
    octets = np.ascontiguousarray(held << 2 if name == "e2m1" else held).view(np.uint8)
    octets = octets.reshape(m, 32)
    for r in range(ranks):
        full = np.zeros((128, 32), np.uint8)
        for i in range(rows):
            full[i % 16 + i // 16 * 32 if rows == 64 else i] = octets[r * rows + i]
        at_a = rows_in(smem[r], full, 2)
        smem[r, 8192:] = p.smem[r, : SMEM - 8192]
    b = p.bits[1] + 8192 // 16
    body = "add.u32 %t1, %tm, 32;" + copy("128x256b", "", at_a, ranks=ranks, target="%t1")
    body += finished(ranks) + mma(kind, p.idesc, None, b, ranks=ranks, a_text="[%t1]")
    ptx = program(body, columns=32, allocated=64, ranks=ranks)
    got, report = execute(ptx, smem, columns=32, ranks=ranks, policy=policy, seed=seed)
    np.testing.assert_array_equal(p.d(got), p.exact)
    undecided = name in ("e3m2", "e2m1")
    assert [w.split("(")[1].split(")")[0] for w in report.warnings] == (
        ["tmem_containers"] if undecided else []
    )


def test_what_a_in_tensor_memory_cannot_be():
    p = Product()
    for m, ranks, a_text, reason in (
        (128, 2, "[%t2]", "expected 0 for M = 128"), (64, 1, "[%t2]", "expected that of D"),
        (128, 1, "[%t2]", "expected 0 for M = 128"),
    ):  # fmt: skip
        p = Product(m=m, ranks=ranks, n=32)
        body = "add.u32 %t1, %tm, 32; add.u32 %t2, %tm, 0x100020;"
        body += mma("f16", p.idesc, None, p.bits[1], ranks=ranks, a_text=a_text)
        with pytest.raises(MemoryFault, match=reason):
            execute(program(body, allocated=64, ranks=ranks), p.smem, ranks=ranks)
