"""The 128-byte TensorMap object: fields, damage, replacements."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tma_maps import MATRIX

from gemmjit.emulator import tensormap_object
from gemmjit.emulator.faults import TensorMapFault
from gemmjit.tensormap import ElementType, Fill, Interleave, Swizzle, TensorMap

FIVE = TensorMap(
    element_type=ElementType.FLOAT32,
    dims=(2**32, 5, 6, 7, 8),
    strides=(2**39, 80, 480, 3360),
    box=(256, 1, 2, 1, 2),
    element_strides=(1, 1, 2, 1, 8),
    fill=Fill.NAN,
)


def test_objects_round_trip():
    for t in (MATRIX, FIVE, *(replace(MATRIX, swizzle=s) for s in Swizzle)):
        data = tensormap_object.encode(t, 0x7F12_3456_7890)
        assert len(data) == 128
        assert tensormap_object.decode(data) == (t, 0x7F12_3456_7890)


def test_damaged_objects_are_found():
    data = tensormap_object.encode(MATRIX, 4096)
    other = tensormap_object.encode(replace(MATRIX, box=(64, 16)), 8192)
    for broken, reason in (
        (data[:64] + other[64:], "torn"),
        (bytes(128), "unwritten"),
        (b"\xff" * 128, "unwritten"),
        (data[:100], "128 bytes"),
    ):
        with pytest.raises(TensorMapFault, match=reason):
            tensormap_object.decode(broken)


def test_fields_are_replaced_by_ptx_numbers():
    data = tensormap_object.encode(MATRIX, 4096)
    for field, value, ordinal, expected in (
        ("global_dim", 77, 1, replace(MATRIX, dims=(100, 77))),
        ("global_stride", 416, 0, replace(MATRIX, strides=(416,))),
        ("box_dim", 16, 1, replace(MATRIX, box=(64, 16))),
        ("element_stride", 2, 1, replace(MATRIX, element_strides=(1, 2))),
        ("elemtype", 9, None, replace(MATRIX, element_type=ElementType.FLOAT64)),
        ("elemtype", 10, None, replace(MATRIX, element_type=ElementType.BFLOAT16)),
        ("elemtype", 8, None, replace(MATRIX, element_type=ElementType.FLOAT32_FTZ)),
        ("elemtype", 6, None, replace(MATRIX, element_type=ElementType.FLOAT16)),
        ("swizzle_mode", 2, None, replace(MATRIX, swizzle=Swizzle.BYTES_64)),
        ("swizzle_atomicity", 3, None, replace(MATRIX, swizzle=Swizzle.BYTES_128_ATOM_64)),
        ("interleave_layout", 1, None, replace(MATRIX, interleave=Interleave.BYTES_16)),
        ("fill_mode", 1, None, replace(MATRIX, fill=Fill.NAN)),
    ):
        changed = tensormap_object.replace(data, field, value, ordinal)
        assert tensormap_object.decode(changed) == (expected, 4096)
    moved = tensormap_object.replace(data, "global_address", 0x7F00_0000_0010)
    assert tensormap_object.decode(moved) == (MATRIX, 0x7F00_0000_0010)
    third = tensormap_object.replace(data, "rank", 2)
    for field, value in (("global_dim", 9), ("box_dim", 2), ("element_stride", 1)):
        third = tensormap_object.replace(third, field, value, 2)
    third = tensormap_object.replace(third, "global_stride", 20800, 1)
    t, _ = tensormap_object.decode(third)
    assert (t.dims, t.strides, t.box) == ((100, 50, 9), (208, 20800), (64, 8, 2))


@pytest.mark.parametrize(
    ("field", "value", "ordinal", "reason"),
    [
        ("global_dim", 1, 5, "ordinal"),
        ("global_stride", 16, 4, "ordinal"),
        ("box_dim", 1, None, "ordinal"),
        ("box_dim", 2**16, 0, "does not fit"),
        ("rank", 5, None, "0 to 4"),
        ("elemtype", 16, None, "0 to 15"),
        ("swizzle_mode", 4, None, "0 to 3"),
        ("colour", 1, None, "expected one of"),
    ],
)
def test_replacements_outside_the_manual_are_refused(field, value, ordinal, reason):
    data = tensormap_object.encode(MATRIX, 0)
    with pytest.raises(TensorMapFault, match=reason):
        tensormap_object.replace(data, field, value, ordinal)


def test_a_mode_without_that_atomicity_is_refused():
    data = tensormap_object.encode(replace(MATRIX, swizzle=Swizzle.BYTES_128_ATOM_64), 0)
    with pytest.raises(TensorMapFault, match="atomicity 3"):
        tensormap_object.decode(tensormap_object.replace(data, "swizzle_mode", 1))
