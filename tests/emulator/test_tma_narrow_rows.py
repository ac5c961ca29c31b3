"""Boxes whose rows are narrower than the swizzle: a span apart, nothing between them written."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tma_maps import MATRIX, copy_by_element, random_map
from tma_programs import (
    FILL,
    POLICIES,
    WAIT,
    expect,
    load,
    loaded,
    program,
    run,
    store,
    tensor_bytes,
)
from tma_programs import MATRIX as TENSOR

from gemmjit.emulator.faults import Deadlock, MemoryFault, RaceError, TensorMapFault
from gemmjit.emulator.tma import check_map, gather4, load_box, scatter4, store_box
from gemmjit.tensormap import ElementType, Swizzle, TensorMap

PLAIN_SWIZZLES = [Swizzle.BYTES_32, Swizzle.BYTES_64, Swizzle.BYTES_128]


@pytest.mark.parametrize("rank", [1, 2, 3, 5])
@pytest.mark.parametrize("element_type", [ElementType.UINT8, ElementType.BFLOAT16], ids=str)
@pytest.mark.parametrize(
    ("row", "swizzle"), [(row, s) for s in PLAIN_SWIZZLES for row in range(16, s.span, 16)]
)
def test_narrow_rows_move_the_same_bytes_as_one_by_one(row, swizzle, element_type, rank):
    rng = np.random.default_rng(row + rank)
    for smem_address in (0, 384, 1024):
        t = random_map(rng, element_type, rank, swizzle, row)
        check_map(t, 256, "sm_90a")
        memory = rng.integers(0, 256, 1 << 19, dtype=np.uint8)
        smem = rng.integers(0, 256, 1 << 16, dtype=np.uint8)
        start = [128 // element_type.bits * int(rng.integers(-2, 3)), *([-1, 1, 0, 2][: rank - 1])]
        box = load_box(t, 256, start, smem_address)
        loaded, expected = smem.copy(), smem.copy()
        box.write_shared(loaded, memory[box.runs[:, None] + np.arange(box.run_bytes)])
        copy_by_element(t, memory, 256, start, expected, smem_address)
        np.testing.assert_array_equal(loaded, expected)
        num_rows = box.whole.size * box.unit // row
        assert box.box_bytes == t.box_bytes == num_rows * row
        assert box.shared_range == (smem_address, smem_address + num_rows * swizzle.span)
        assert t.smem_bytes == num_rows * swizzle.span


@pytest.mark.parametrize(
    ("box", "swizzle", "divisor"),
    [
        ((32, 16), Swizzle.BYTES_128, 1), ((16, 16), Swizzle.BYTES_128, 1),
        ((16, 16), Swizzle.BYTES_64, 2), ((8, 16), Swizzle.BYTES_32, 4),
        ((32, 2, 8), Swizzle.BYTES_128, 1),
    ],
)  # fmt: skip
def test_narrow_rows_lie_as_an_h200_showed(box, swizzle, divisor):
    """Row r begins at r spans, chunk c of it at c ^ (r / divisor); the rest is not written."""
    dims = (64, 16) if len(box) == 2 else (64, 2, 8)
    t = TensorMap(element_type=ElementType.BFLOAT16, dims=dims, strides=(128, 256)[: len(box) - 1],
                  box=box, swizzle=swizzle)  # fmt: skip
    tensor = np.random.default_rng(0).integers(0, 255, (16, 128), np.uint8)
    copy = load_box(t, 0, (0,) * len(box), 0)
    smem = np.full(16 * swizzle.span, 0xFF, np.uint8)
    copy.write_shared(smem, tensor.reshape(-1)[copy.runs[:, None] + np.arange(copy.run_bytes)])
    lines = smem.reshape(16, swizzle.span // 16, 16)
    expected = np.full_like(lines, 0xFF)
    for row in range(16):
        for chunk in range(box[0] // 8):
            there = chunk ^ (row // divisor % (swizzle.span // 16))
            expected[row, there] = tensor[row, chunk * 16 : chunk * 16 + 16]
    np.testing.assert_array_equal(lines, expected)
    assert copy.box_bytes == 16 * box[0] * 2


def test_narrow_rows_are_refused_where_nothing_was_seen_of_them():
    narrow = replace(MATRIX, box=(32, 8))
    check_map(narrow, 0, "sm_90a")
    with pytest.raises(TensorMapFault, match=r"narrower than swizzle BYTES_128, .* not of stores"):
        store_box(narrow, 0, (0, 0), 0)
    four = replace(narrow, box=(32, 1))
    with pytest.raises(TensorMapFault, match=r"narrower .* not of gather4"):
        gather4(four, 0, 0, (0, 1, 2, 3), 0)
    with pytest.raises(TensorMapFault, match=r"narrower .* not of stores"):
        scatter4(four, 0, 0, (0, 1, 2, 3), 0)
    for swizzle in (s for s in Swizzle if s > Swizzle.BYTES_128):
        with pytest.raises(TensorMapFault, match=rf"narrower .* not of swizzle {swizzle.name}"):
            check_map(replace(narrow, swizzle=swizzle), 0, "sm_100a")


#: 16 rows of 64 bytes: 1,024 bytes arrive, 2,048 are spanned.
NARROW = replace(TENSOR, box=(32, 16))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("coordinates", [(0, 0), (64, 8), (-8, -3), (88, 35), (200, 0)], ids=str)
def test_a_load(coordinates, policy):
    tensor = tensor_bytes()
    smem, _ = run(program(expect(1024) + load() + WAIT), NARROW, tensor, coordinates, policy=policy)
    np.testing.assert_array_equal(smem[0], loaded(NARROW, tensor, coordinates))
    rows = smem[0][:2048].reshape(16, 2, 64)
    gaps = [rows[r, 1 - r % 8 // 4] for r in range(16)]  # bit 2 of the row moves the half
    assert (np.array(gaps) == 0xFF).all()
    with pytest.raises(Deadlock, match="1024 transaction bytes pending"):
        run(program(expect(2048) + load() + WAIT), NARROW, tensor, coordinates, policy=policy)


def test_what_is_spanned_must_be_there():
    """The last row ends 64 bytes after what its copy writes."""
    ptx = program(expect(1024) + load(address="%s+6272") + WAIT)
    whole = ptx.replace("bar[8]", "bar[128]").replace("mov.u32 %b, bar", "mov.u32 %b, bar+120")
    smem, _ = run(whole, NARROW, tensor_bytes(), (0, 0))
    rows = smem[0][6272:].reshape(15, 128)  # the last one is not in what comes back
    assert ((rows != 0xFF).sum(1) >= 32).all()
    assert ((rows == 0xFF).sum(1) >= 64).all()
    with pytest.raises(MemoryFault, match="outside"):
        run(ptx.replace("bar[8]", "bar[72]"), NARROW, tensor_bytes(), (0, 0))


@pytest.mark.parametrize("policy", POLICIES)
def test_what_lies_between_rows_is_free(policy):
    """Another warp writes there meanwhile."""
    write = "setp.eq.u32 %p2, %tid, 32; @%p2 st.shared.b32 [%s+{}], %tid;\n"
    tensor = tensor_bytes()
    for gap in (64, 112, 512, 2044 - 64):
        body = expect(1024) + load() + write.format(gap) + WAIT + "bar.sync 0;\n"
        smem, _ = run(program(body), NARROW, tensor, (0, 0), policy=policy)
        expected = loaded(NARROW, tensor, (0, 0))
        expected[gap : gap + 4] = (32, 0, 0, 0)
        np.testing.assert_array_equal(smem[0], expected)


@pytest.mark.parametrize("row", [0, 48, 512 + 64, 2044])
def test_what_is_written_can_race(row):
    """Another warp writes into a row that is on its way."""
    write = f"setp.eq.u32 %p2, %tid, 32; @%p2 st.shared.b32 [%s+{row}], %tid;\n"
    ptx = program(expect(1024) + load() + write + WAIT)
    with pytest.raises(RaceError):
        run(ptx, NARROW, tensor_bytes(), (0, 0), policy=("lazy", 0))


def test_a_store_from_narrow_rows_is_refused():
    with pytest.raises(TensorMapFault, match="not of stores"):
        run(program(FILL + store()), NARROW, tensor_bytes(), (0, 0))
