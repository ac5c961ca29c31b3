"""Fragments against the formulas of the PTX manual, element by element, and CUTLASS's layouts."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from gemmjit.emulator import fragments
from gemmjit.errors import EmulatorError

# --- the manual's formulas, one function per section, (lane, i) -> (row, column) --------------


def a_884_f64(lane, i):
    return lane >> 2, lane % 4


def b_884_f64(lane, i):
    return lane % 4, lane >> 2


def a_8816(lane, i):
    return lane >> 2, (lane % 4) * 4 + i


def b_8816(lane, i):
    return (lane % 4) * 4 + i, lane >> 2


def a_8832(lane, i):
    return lane >> 2, (lane % 4) * 8 + i


def b_8832(lane, i):
    return (lane % 4) * 8 + i, lane >> 2


def a_88128(lane, i):
    return lane >> 2, (lane % 4) * 32 + i


def b_88128(lane, i):
    return (lane % 4) * 32 + i, lane >> 2


def a_1684(lane, i):
    return (lane >> 2) + (8 if i == 1 else 0), lane % 4


def b_1684(lane, i):
    return lane % 4, lane >> 2


def a_1688_half(lane, i):
    return (lane >> 2) + (0 if i in (0, 1) else 8), (lane % 4) * 2 + (i & 1)


def b_1688_half(lane, i):
    return (lane % 4) * 2 + i, lane >> 2


def a_1688_word(lane, i):
    return (lane >> 2) + (0 if i in (0, 2) else 8), lane % 4 + (0 if i in (0, 1) else 4)


def b_1688_word(lane, i):
    return lane % 4 + 4 * i, lane >> 2


def a_16816_half(lane, i):
    row = (lane >> 2) + (0 if 0 <= i < 2 or 4 <= i < 6 else 8)
    return row, (lane % 4) * 2 + (i & 1) + (0 if i < 4 else 8)


def b_16816_half(lane, i):
    return (lane % 4) * 2 + (i & 1) + (0 if i < 2 else 8), lane >> 2


def a_16816_f64(lane, i):
    if i % 2 == 0:
        return lane >> 2, i * 2 + lane % 4
    return (lane >> 2) + 8, i * 2 - 2 + lane % 4


def b_16816_f64(lane, i):
    return lane % 4 + i * 4, lane >> 2


def a_16816_byte(lane, i):
    return (lane >> 2) + (0 if i < 4 else 8), (lane % 4) * 4 + (i & 3)


def a_16832_nibble(lane, i):
    return (lane >> 2) + (0 if i < 8 else 8), (lane % 4) * 8 + (i & 7)


def a_16832_byte(lane, i):
    row = (lane >> 2) + (0 if 0 <= i < 4 or 8 <= i < 12 else 8)
    return row, (lane % 4) * 4 + (i & 3) + (0 if i < 8 else 16)


def b_16832_byte(lane, i):
    return (lane % 4) * 4 + (i & 3) + (0 if i < 4 else 16), lane >> 2


def a_16864(lane, i):
    row = (lane >> 2) + (0 if 0 <= i < 8 or 16 <= i < 24 else 8)
    return row, (lane % 4) * 8 + (i & 7) + (0 if i < 16 else 32)


def b_16864(lane, i):
    return (lane % 4) * 8 + (i & 7) + (0 if i < 8 else 32), lane >> 2


def a_168128(lane, i):
    return (lane >> 2) + (0 if i < 32 else 8), (lane % 4) * 32 + (i & 31)


def a_168256(lane, i):
    row = (lane >> 2) + (0 if 0 <= i < 32 or 64 <= i < 96 else 8)
    return row, (lane % 4) * 32 + (i & 31) + (0 if i < 64 else 128)


def b_168256(lane, i):
    return (lane % 4) * 32 + (i & 31) + (0 if i < 32 else 128), lane >> 2


MANUAL = {
    # (m, k, bits): A, B
    (8, 4, 64): (a_884_f64, b_884_f64),
    (8, 16, 8): (a_8816, b_8816),
    (8, 32, 4): (a_8832, b_8832),
    (8, 128, 1): (a_88128, b_88128),
    (16, 4, 32): (a_1684, b_1684),
    (16, 4, 64): (a_1684, b_1684),
    (16, 8, 16): (a_1688_half, b_1688_half),
    (16, 8, 32): (a_1688_word, b_1688_word),
    (16, 8, 64): (a_1688_word, b_1688_word),
    (16, 16, 16): (a_16816_half, b_16816_half),
    (16, 16, 64): (a_16816_f64, b_16816_f64),
    (16, 16, 8): (a_16816_byte, b_8816),
    (16, 32, 4): (a_16832_nibble, b_8832),
    (16, 32, 8): (a_16832_byte, b_16832_byte),
    (16, 64, 4): (a_16864, b_16864),
    (16, 128, 1): (a_168128, b_88128),
    (16, 256, 1): (a_168256, b_168256),
}


def positions(fragment):
    """(lane, element) -> (matrix, row, column) as the code sees it."""
    _, rows, columns = fragment.shape
    matrix, rest = np.divmod(fragment.scatter, rows * columns)
    row, column = np.divmod(rest, columns)
    shape = (fragment.lanes, fragment.elements)
    return matrix.reshape(shape), row.reshape(shape), column.reshape(shape)


@pytest.mark.parametrize("key", MANUAL, ids=str)
def test_multiplicands_follow_the_manual(key):
    m, k, bits = key
    for fragment, formula in zip(
        (fragments.multiplicand_a(m, k, bits), fragments.multiplicand_b(k, 8, bits)),
        MANUAL[key],
        strict=True,
    ):
        _, row, column = positions(fragment)
        for lane, i in itertools.product(range(32), range(fragment.elements)):
            assert (row[lane, i], column[lane, i]) == formula(lane, i)


def test_accumulators_follow_the_manual():
    for m in (8, 16):
        _, row, column = positions(fragments.accumulator(m, 8))
        for lane, i in itertools.product(range(32), range(m // 4)):
            expected = (lane >> 2) + (8 if i >= 2 else 0), (lane % 4) * 2 + (i & 1)
            assert (row[lane, i], column[lane, i]) == expected


@pytest.mark.parametrize("layout", ["row", "col"])
def test_volta_multiplicands_follow_the_manual(layout):
    a = positions(fragments.volta_multiplicand("a", layout))
    b = positions(fragments.volta_multiplicand("b", layout))
    for lane, i in itertools.product(range(32), range(4)):
        high = 0 if lane < 16 else 4
        group = (lane if lane < 16 else lane - 16) // 4
        if layout == "row":
            expected_a, expected_b = (lane % 4 + high, i), (lane % 4, i + high)
        else:
            expected_a, expected_b = (i % 4 + high, lane % 4), (i, lane % 4 + high)
        assert tuple(x[lane, i] for x in a) == (group, *expected_a)
        assert tuple(x[lane, i] for x in b) == (group, *expected_b)


def test_volta_accumulators_follow_the_manual():
    half = positions(fragments.volta_accumulator("f16"))
    single = positions(fragments.volta_accumulator("f32"))
    for lane, i in itertools.product(range(32), range(8)):
        high = 0 if lane < 16 else 4
        group = (lane if lane < 16 else lane - 16) // 4
        assert tuple(x[lane, i] for x in half) == (group, lane % 4 + high, i)
        row = (lane & 0b1) + (i & 0b10) + high
        column = (i & 0b100) + (lane & 0b10) + (i & 0b1)
        assert tuple(x[lane, i] for x in single) == (group, row, column)


# --- CUTLASS's layouts, as facts: (thread, value) shapes and strides -> row + rows * column -----


def cute(shape, stride, index):
    """The offset of a linear index in a nested layout, first mode fastest."""
    if isinstance(shape, int):
        return index * stride
    offset = 0
    for s, d in zip(shape, stride, strict=True):
        size = int(np.prod(np.array(flatten(s))))
        offset += cute(s, d, index % size)
        index //= size
    return offset


def flatten(x):
    return [x] if isinstance(x, int) else [z for y in x for z in flatten(y)]


CUTLASS_LAYOUTS = [
    # fragment, rows (of m or n), thread shape:stride, value shape:stride, transposed
    (lambda: fragments.multiplicand_a(16, 16, 16), 16,
     (4, 8), (32, 1), (2, 2, 2), (16, 8, 128), False),
    (lambda: fragments.multiplicand_b(16, 8, 16), 8, (4, 8), (16, 1), (2, 2), (8, 64), True),
    (lambda: fragments.multiplicand_a(16, 32, 8), 16,
     (4, 8), (64, 1), (4, 2, 2), (16, 8, 256), False),
    (lambda: fragments.multiplicand_b(32, 8, 8), 8, (4, 8), (32, 1), (4, 2), (8, 128), True),
    (lambda: fragments.accumulator(16, 8), 16, (4, 8), (32, 1), (2, 2), (16, 8), False),
    (lambda: fragments.wgmma_accumulator(8), 64,
     (4, 8, 4), (128, 1, 16), (2, 2, 1), (64, 8, 512), False),
    (lambda: fragments.wgmma_accumulator(96), 64,
     (4, 8, 4), (128, 1, 16), (2, 2, 12), (64, 8, 512), False),
    (lambda: fragments.wgmma_accumulator(256), 64,
     (4, 8, 4), (128, 1, 16), (2, 2, 32), (64, 8, 512), False),
    (lambda: fragments.wgmma_multiplicand_a(16), 64,
     (4, 8, 4), (128, 1, 16), (2, 2, 2), (64, 8, 512), False),
    (lambda: fragments.wgmma_multiplicand_a(32), 64,
     (4, 8, 4), (64, 1, 16), (2, 2), (8, 256), False),
    (lambda: fragments.wgmma_multiplicand_a(8), 64,
     (4, 8, 4), (256, 1, 16), (4, 2, 2), (64, 8, 1024), False),
]  # fmt: skip


@pytest.mark.parametrize("case", CUTLASS_LAYOUTS)
def test_fragments_equal_cutlass_layouts(case):
    make, rows, thread_shape, thread_stride, value_shape, value_stride, transposed = case
    fragment = make()
    _, row, column = positions(fragment)
    if transposed:
        row, column = column, row
    for thread, value in itertools.product(range(fragment.lanes), range(fragment.elements)):
        offset = cute(thread_shape, thread_stride, thread) + cute(value_shape, value_stride, value)
        assert (row[thread, value], column[thread, value]) == (offset % rows, offset // rows)


def test_gather_and_scatter_are_inverse():
    rng = np.random.default_rng(0)
    for fragment in (fragments.volta_accumulator("f32"), fragments.wgmma_accumulator(40)):
        held = rng.integers(0, 1000, (3, fragment.lanes * fragment.elements))
        matrices = fragment.matrices(held)
        assert matrices.shape == (3 * fragment.shape[0], *fragment.shape[1:])
        np.testing.assert_array_equal(fragment.held(matrices), held)


# --- matrix movers --------------------------------------------------------------------------


@pytest.mark.parametrize("num", [1, 2, 4])
@pytest.mark.parametrize("trans", [False, True])
def test_ldmatrix_and_stmatrix_move_the_manuals_elements(num, trans):
    rng = np.random.default_rng(num)
    warps = 2
    memory = rng.integers(0, 2**16, 4096, dtype=np.uint16)
    starts = rng.permutation(memory.size // 8)[: warps * 32].reshape(warps, 32) * 16
    addresses = fragments.row_addresses(starts, num)
    assert addresses.shape == (warps, num, 8)
    octets = memory.view(np.uint8)
    rows = octets[addresses[..., None] + np.arange(16)]
    registers = fragments.rows_to_registers(rows, trans)
    for warp, j, lane in itertools.product(range(warps), range(num), range(32)):
        for half in range(2):
            along, across = 2 * (lane % 4) + half, lane // 4
            row, column = (along, across) if trans else (across, along)
            expected = memory[starts[warp, 8 * j + row] // 2 + column]
            assert (registers[warp, j, lane] >> (16 * half)) & 0xFFFF == expected
    np.testing.assert_array_equal(fragments.rows_from_registers(registers, trans), rows)


def test_ldmatrix_rejects_other_counts():
    with pytest.raises(EmulatorError, match="x3"):
        fragments.row_addresses(np.zeros((1, 32), np.uint32), 3)


def test_movmatrix_transposes():
    rng = np.random.default_rng(3)
    matrix = rng.integers(0, 2**16, (2, 8, 8), dtype=np.uint16)
    registers = np.zeros((2, 32), np.uint32)
    for warp, lane in itertools.product(range(2), range(32)):
        low, high = matrix[warp, lane // 4, 2 * (lane % 4) : 2 * (lane % 4) + 2].astype(np.uint32)
        registers[warp, lane] = low | (high << 16)
    moved = fragments.transpose_registers(registers)
    for warp, lane, half in itertools.product(range(2), range(32), range(2)):
        got = (moved[warp, lane] >> (16 * half)) & 0xFFFF
        assert got == matrix[warp, 2 * (lane % 4) + half, lane // 4]
