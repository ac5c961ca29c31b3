"""Tensor copies against an element-by-element copy and the swizzle tables of the PTX manual."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from tma_maps import MATRIX, copy_by_element, place, random_map

from gemmjit.emulator.box_copy import swizzled
from gemmjit.emulator.faults import TensorMapFault
from gemmjit.emulator.tma import check_map, gather4, load_box, scatter4, store_box
from gemmjit.tensormap import ElementType, Interleave, Swizzle, TensorMap


@pytest.mark.parametrize("swizzle", Swizzle)
def test_swizzles_are_the_manuals_tables(swizzle):
    addresses = np.arange(4096)
    expected = [place(a, swizzle) for a in addresses]
    np.testing.assert_array_equal(swizzled(addresses, swizzle), expected)
    assert swizzled(1234, swizzle) == expected[1234]


CASES = [
    (element_type, rank, swizzle)
    for element_type in (
        ElementType.UINT8,
        ElementType.BFLOAT16,
        ElementType.INT32,
        ElementType.FLOAT32,
        ElementType.FLOAT64,
    )
    for rank in (1, 2, 3, 4, 5)
    for swizzle in Swizzle
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0].name}-{c[1]}d-{c[2].name}")
def test_loads_and_stores_move_the_same_bytes_as_one_by_one(case):
    rng = np.random.default_rng(hash(tuple(int(x) for x in case)) % 2**32)
    base = 256
    for _ in range(4):
        t = random_map(rng, *case)
        check_map(t, base, "sm_100a")
        memory = rng.integers(0, 256, 1 << 19, dtype=np.uint8)
        smem = rng.integers(0, 256, 1 << 16, dtype=np.uint8)
        smem_address = 128 * int(rng.integers(0, 20))
        grid = 128 // t.element_type.bits
        anywhere = [int(rng.integers(-6, 8)) for _ in range(t.rank)]
        anywhere[0] = grid * int(rng.integers(-2, 3))
        for start in ([0] * t.rank, anywhere):
            box = load_box(t, base, start, smem_address)
            data = memory[box.runs[:, None] + np.arange(box.run_bytes)]
            loaded, expected = smem.copy(), smem.copy()
            box.write_shared(loaded, data)
            copy_by_element(t, memory, base, start, expected, smem_address)
            np.testing.assert_array_equal(loaded, expected)
            assert box.box_bytes == t.box_bytes
            changed = np.flatnonzero(loaded != smem)
            low, high = box.shared_range
            assert low <= changed.min(initial=low)
            assert changed.max(initial=low) < high
            assert box.complete == all(
                c >= 0 and c + (n - 1) * s < d
                for c, n, s, d in zip(start, t.counts, t.element_strides, t.dims, strict=True)
            )

            start = [abs(c) for c in start]
            box = store_box(t, base, start, smem_address)
            stored, expected = memory.copy(), memory.copy()
            stored[box.runs[:, None] + np.arange(box.run_bytes)] = box.read_shared(smem)
            copy_by_element(t, expected, base, start, smem, smem_address, store=True)
            np.testing.assert_array_equal(stored, expected)


def test_shared_memory_of_several_blocks():
    memory = np.arange(2**14, dtype=np.uint32).view(np.uint8)
    box = load_box(MATRIX, 0, (0, 0), 1024)
    data = memory[box.runs[:, None] + np.arange(box.run_bytes)]
    one, two = np.zeros(4096, np.uint8), np.zeros(8192, np.uint8)
    box.write_shared(one, data)
    box.write_shared(two, data, base=4096)
    np.testing.assert_array_equal(two[4096:], one)
    assert not two[:4096].any()
    np.testing.assert_array_equal(box.read_shared(two, base=4096), data)


def test_every_payload_of_a_unit_survives():
    # 16-byte units move as complex numbers: signalling NaNs and negative zeros must stay bits.
    octets = np.array([0x7FF0_0000_0000_0001, 1 << 63, 0xFFF4_0000_0000_0000, 1], np.uint64)
    memory = np.tile(octets, 64).view(np.uint8)
    t = replace(MATRIX, dims=(64, 8), strides=(128,))
    box = load_box(t, 0, (0, 0), 0)
    assert box.unit == 16
    smem = np.zeros(1024, np.uint8)
    box.write_shared(smem, memory[box.runs[:, None] + np.arange(128)])
    expected = np.zeros(1024, np.uint8)
    copy_by_element(t, memory, 0, (0, 0), expected, 0)
    np.testing.assert_array_equal(smem, expected)


def test_loads_round_and_flush_by_type():
    bits = np.array(
        [
            0x3F801000,  # 1 + half a unit: to even, down
            0x3F803000,  # 1 + one and a half units: to even, up
            0x3FFFF800,  # carries into the exponent
            0x7F800000, 0xFF800000, 0x7F800001, 0xFFC12345,  # infinities and NaN stay
            0x80000001, 0x007FFFFF, 0x00000000, 0x80000000, 0xC0490FDB,
        ],
        np.uint32,
    )  # fmt: skip
    rounded = [
        0x3F800000, 0x3F804000, 0x40000000, 0x7F800000, 0xFF800000, 0x7F800001, 0xFFC12345,
        0x80000000, 0x00800000, 0x00000000, 0x80000000, 0xC0490000,
    ]  # fmt: skip
    flushed = [*bits[:7].tolist(), 0x80000000, 0, 0, 0x80000000, 0xC0490FDB]
    both = [*rounded[:7], 0x80000000, 0, 0, 0x80000000, 0xC0490000]
    for element_type, expected in (
        (ElementType.FLOAT32, bits.tolist()),
        (ElementType.TFLOAT32, rounded),
        (ElementType.FLOAT32_FTZ, flushed),
        (ElementType.TFLOAT32_FTZ, both),
    ):
        t = TensorMap(element_type=element_type, dims=(12,), strides=(), box=(16,))
        box = load_box(t, 0, (0,), 0)
        smem = np.full(64, 0xAB, np.uint8)
        box.write_shared(smem, bits.view(np.uint8)[None])
        assert smem.view(np.uint32).tolist() == [*expected, 0, 0, 0, 0]
        source = np.concatenate([bits, bits[:4]]).view(np.uint8)  # a store copies
        np.testing.assert_array_equal(box.read_shared(source)[0], bits.view(np.uint8))


@pytest.mark.parametrize(
    ("element_type", "payload"), [(ElementType.U4X16_ALIGN16B, 8), (ElementType.U6X16_ALIGN16B, 12)]
)
@pytest.mark.parametrize("swizzle", [Swizzle.NONE, Swizzle.BYTES_128, Swizzle.BYTES_128_ATOM_32])
def test_padded_types_leave_their_padding_alone(element_type, payload, swizzle):
    row = payload * 8
    t = TensorMap(
        element_type=element_type, dims=(256, 5), strides=(2 * row,), box=(128, 4), swizzle=swizzle
    )
    check_map(t, 32, "sm_100a")
    rng = np.random.default_rng(0)
    memory = rng.integers(0, 256, 4096, dtype=np.uint8)
    smem = np.full(1024, 0xAB, np.uint8)
    box = load_box(t, 32, (128, 2), 0)
    box.write_shared(smem, memory[box.runs[:, None] + np.arange(box.run_bytes)])
    assert box.box_bytes == 4 * row
    for r, chunk, byte in itertools.product(range(4), range(8), range(16)):
        where = 32 + (r + 2) * 2 * row + row + chunk * payload + byte
        inside = r + 2 < 5
        expected = 0xAB if byte >= payload else memory[where] if inside else 0
        assert smem[place(r * 128 + chunk * 16 + byte, swizzle)] == expected
    with pytest.raises(TensorMapFault, match="coordinate 0: expected a multiple of 128"):
        load_box(t, 32, (64, 0), 0)


def test_packed_four_bit_elements():
    t = TensorMap(element_type=ElementType.U4X16_ALIGN8B, dims=(90, 4), strides=(48,), box=(64, 2))
    check_map(t, 16, "sm_100a")
    memory = np.arange(256, dtype=np.uint8)
    smem = np.full(64, 0xAB, np.uint8)
    box = load_box(t, 16, (64, 1), 0)
    box.write_shared(smem, memory[box.runs[:, None] + np.arange(box.run_bytes)])
    for r in range(2):
        start = 16 + 48 * (r + 1) + 32
        np.testing.assert_array_equal(smem[32 * r : 32 * r + 13], memory[start : start + 13])
        assert not smem[32 * r + 13 : 32 * r + 32].any()
    with pytest.raises(TensorMapFault, match="multiple of 32 "):
        load_box(t, 16, (16, 0), 0)


def test_gather_and_scatter_of_four_rows():
    t = replace(MATRIX, box=(64, 1))
    rng = np.random.default_rng(1)
    memory = rng.integers(0, 256, 50 * 208, dtype=np.uint8)
    rows = (3, 49, 50, -1)
    smem, expected = np.full((2, 512), 0xAB, np.uint8)
    box = gather4(t, 0, 48, rows, 0)
    assert box.box_bytes == 4 * 128
    assert not box.complete
    box.write_shared(smem, memory[box.runs[:, None] + np.arange(box.run_bytes)])
    for i, row in enumerate(rows):
        single = np.zeros(512, np.uint8)
        copy_by_element(t, memory, 0, (48, row), single, 0)  # line 0: not swizzled
        for byte in range(128):
            expected[place(128 * i + byte, t.swizzle)] = single[byte]
    np.testing.assert_array_equal(smem, expected)

    box = scatter4(t, 0, 48, (3, 49, 50, 7), 0)
    stored = memory.copy()
    stored[box.runs[:, None] + np.arange(box.run_bytes)] = box.read_shared(smem)
    for i, row in enumerate((3, 49, 7)):
        i = 3 if row == 7 else i
        source = [smem[place(128 * i + byte, t.swizzle)] for byte in range(104)]
        np.testing.assert_array_equal(stored[row * 208 + 96 : row * 208 + 200], source)
    with pytest.raises(TensorMapFault, match="negative"):
        scatter4(t, 0, 0, (0, 1, 2, -1), 0)
    with pytest.raises(TensorMapFault, match=r"box\[1\] = 1"):
        gather4(MATRIX, 0, 0, (0, 1, 2, 3), 0)
    with pytest.raises(TensorMapFault, match="four rows"):
        gather4(t, 0, 0, (0, 1), 0)


def test_a_negative_start_faults_in_stores_only():
    assert load_box(MATRIX, 0, (-8, 0), 0).runs.size == 8
    for coordinates in ((-8, 0), (0, -1)):
        with pytest.raises(TensorMapFault, match="negative"):
            store_box(MATRIX, 0, coordinates, 0)
    assert store_box(MATRIX, 0, (2000, 0), 0).runs.size == 0


@pytest.mark.parametrize("swizzle", [Swizzle.NONE, Swizzle.BYTES_64, Swizzle.BYTES_128])
def test_a_start_off_the_16_byte_grid_faults(swizzle):
    """An illegal instruction on an H200, in the contiguous dimension only."""
    t = replace(MATRIX, swizzle=swizzle, box=(64 if swizzle.span != 64 else 32, 8))
    for x in (3, -33, -65, 71, 142, 1, 4):
        with pytest.raises(TensorMapFault, match=f"multiple of 8 .*BFLOAT16.*got {x},"):
            load_box(t, 0, (x, 0), 0)
    for x in (3, 71):
        with pytest.raises(TensorMapFault, match="multiple of 8 "):
            store_box(t, 0, (x, 0), 0)
    for x in (8, -8, -64, 72):
        for y in (-1, -16, -17, 50, 120, 3):
            load_box(t, 0, (x, y), 0)
    store_box(t, 0, (72, 3), 0)
    rows = replace(t, box=(t.box[0], 1))
    with pytest.raises(TensorMapFault, match="multiple of 8 "):
        gather4(rows, 0, 12, (0, 1, 2, 3), 0)


@pytest.mark.parametrize(
    ("element_type", "grid"),
    [(ElementType.UINT8, 16), (ElementType.FLOAT32, 4), (ElementType.FLOAT64, 2)],
)
def test_the_grid_is_one_of_bytes(element_type, grid):
    t = TensorMap(element_type=element_type, dims=(100, 8), strides=(1024,), box=(16, 2))
    for x in (-3 * grid, 0, grid, 100 * grid):
        load_box(t, 0, (x, 0), 0)
    with pytest.raises(TensorMapFault, match=f"multiple of {grid} "):
        load_box(t, 0, (grid // 2, 0), 0)


def test_what_is_not_allowed_is_a_fault():
    with pytest.raises(TensorMapFault, match="multiple of 128"):
        load_box(MATRIX, 0, (0, 0), 64)
    with pytest.raises(TensorMapFault, match="2 coordinates"):
        load_box(MATRIX, 0, (0,), 0)
    with pytest.raises(TensorMapFault, match="can only be loaded"):
        store_box(
            replace(MATRIX, element_type=ElementType.U4X16_ALIGN16B, box=(128, 4)), 0, (0, 0), 0
        )
    with pytest.raises(TensorMapFault, match=r"strides\[0\].*base|base.*strides\[0\]"):
        check_map(replace(MATRIX, strides=(200,)), 8, "sm_90a")
    interleaved = replace(
        MATRIX, dims=(8, 8, 8), strides=(16, 128), box=(8, 8, 8), element_strides=(1, 1, 1),
        interleave=Interleave.BYTES_16, swizzle=Swizzle.NONE,
    )  # fmt: skip
    with pytest.raises(TensorMapFault, match="interleaved"):
        check_map(interleaved, 0, "sm_90a")
