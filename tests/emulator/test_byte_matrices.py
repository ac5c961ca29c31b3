"""`ldmatrix.m16n16` and `stmatrix.m16n8`: CUTLASS's layouts, and what mma.sync needs."""

from __future__ import annotations

import numpy as np
import pytest
from byte_matrices import load, store

from gemmjit.emulator import fragments
from gemmjit.emulator.faults import UnknownInstruction


def random_bytes(*shape):
    return np.random.default_rng(len(shape)).integers(0, 256, shape).astype(np.uint8)


def place(shape, stride, index):
    """CuTe's layout function, the first mode fastest."""
    offset = 0
    for size, step in zip(shape, stride, strict=True):
        offset += index % size * step
        index //= size
    return offset


# SM100_U8x8_LDSM_T and SM100_U8x16_LDSM_T: rows of the source by their thread, and bytes of a
# thread's registers, as bits of the matrix. CUTLASS swaps bytes between the two registers first.
SOURCE = ((2, 2, 4, 2), (128, 1024, 256, 2048))
THREAD = ((4, 8), (256, 8))
LOADED = ((2, 2, 4), (128, 64, 1024))


def cutlass_registers(rows, num):
    """What the registers hold, (32, 2 num, 4)."""
    bits = {place(*SOURCE, thread) // 128: thread for thread in range(16 * num)}
    out = np.zeros((32, 2 * num, 4), np.uint8)
    for lane, register, byte in np.ndindex(out.shape):
        # dst0 = {tmp0.x, tmp0.y, tmp1.x, tmp1.y}, dst1 = {tmp0.z, tmp0.w, tmp1.z, tmp1.w}
        swapped = register // 2 * 2 + byte // 2, byte % 2 + 2 * (register % 2)
        at = place(*THREAD, lane) + place(*LOADED, 4 * swapped[0] + swapped[1])
        out[lane, register, byte] = rows[bits[at // 128], at % 128 // 8]
    return out


@pytest.mark.parametrize("num", [1, 2])
def test_loads_are_those_of_cutlass(num):
    rows = random_bytes(32, 16)
    got = load(rows, f"ldmatrix.sync.aligned.m16n16.x{num}.trans.shared.b8", 2 * num)
    np.testing.assert_array_equal(got, cutlass_registers(rows, num))


def test_loads_make_a_fragment_of_b_from_rows_along_n():
    """Two matrices of an N-major B, 32 deep in K, are what two mma.m16n8k32 take."""
    rows = random_bytes(32, 16)  # k, n
    got = load(rows, "ldmatrix.sync.aligned.m16n16.x2.trans.shared::cta.b8", 4)
    fragment = fragments.multiplicand_b(32, 8, 8)
    for half in range(2):
        held = got[:, half::2].reshape(1, -1)
        np.testing.assert_array_equal(fragment.matrices(held)[0], rows[:, 8 * half : 8 * half + 8])


@pytest.mark.parametrize(("fmt", "bits"), [("b4x16_p64", 4), ("b6x16_p32", 6)])
def test_expanding_loads(fmt, bits):
    codes = random_bytes(32, 16) & np.uint8((1 << bits) - 1)
    rows = np.full((32, 16), 0xEE, np.uint8)
    for i, row in enumerate(codes):
        whole = sum(int(code) << bits * j for j, code in enumerate(row))
        rows[i, : 2 * bits] = np.frombuffer(whole.to_bytes(2 * bits, "little"), np.uint8)
    got = load(rows, f"ldmatrix.sync.aligned.m16n16.x2.trans.shared.b8x16.{fmt}", 4)
    np.testing.assert_array_equal(got, cutlass_registers(codes, 2))


def test_rows_may_be_anywhere():
    rows = random_bytes(32, 16)
    order = "mul.lo.u32 %row, %t, 5; and.b32 %row, %row, 31; mad.lo.u32 %row, %row, 16, %s;"
    got = load(rows, "ldmatrix.sync.aligned.m16n16.x2.trans.shared.b8", 4, order=order)
    moved = rows[5 * np.arange(32) % 32]
    np.testing.assert_array_equal(got, cutlass_registers(moved, 2))


# SM100_U8x4_STSM_T to SM100_U8x16_STSM_T.
STORED = ((2, 2, 4), (128, 64, 1024))


@pytest.mark.parametrize("num", [1, 2, 4])
def test_stores_are_those_of_cutlass(num):
    registers = random_bytes(32, num, 4)
    got = store(registers, f"stmatrix.sync.aligned.m16n8.x{num}.trans.shared.b8")
    expected = np.zeros((32, 16), np.uint8)
    for lane, register, byte in np.ndindex(registers.shape):
        at = place(*THREAD, lane) + place(*STORED, 4 * register + byte)
        expected[at // 128, at % 128 // 8] = registers[lane, register, byte]
    np.testing.assert_array_equal(got, expected)


def test_stores_take_an_accumulator_of_mma():
    registers = random_bytes(32, 1, 4)
    got = store(registers, "stmatrix.sync.aligned.m16n8.x1.trans.shared::cta.b8")
    matrix = fragments.accumulator(16, 8).matrices(registers.reshape(1, -1))[0]
    np.testing.assert_array_equal(got[:8], matrix.T)


REFUSED = [
    ("ldmatrix.sync.aligned.m16n16.x4.trans.shared.b8", 4, "x1 to .x2"),
    ("ldmatrix.sync.aligned.m16n16.x1.shared.b8", 2, "semantics"),
    ("ldmatrix.sync.aligned.m16n16.x1.trans.shared.b16", 2, "semantics"),
    ("ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8", 1, "expected 2 registers"),
    ("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b8", 1, "semantics"),
    ("ldmatrix.sync.aligned.m8n16.x1.trans.shared.b8x16.b4x16_p64", 1, "semantics"),
]  # fmt: skip


@pytest.mark.parametrize(("opcode", "count", "reason"), REFUSED)
def test_other_loads_are_refused(opcode, count, reason):
    with pytest.raises(UnknownInstruction, match=reason):
        load(random_bytes(32, 16), opcode, count)


@pytest.mark.parametrize("opcode", ["m16n8.x1.shared.b8", "m8n8.x1.trans.shared.b8"])
def test_other_stores_are_refused(opcode):
    with pytest.raises(UnknownInstruction, match="semantics"):
        store(random_bytes(32, 1, 4), f"stmatrix.sync.aligned.{opcode}")
