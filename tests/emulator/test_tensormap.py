"""The description of a TensorMap: enumerations, byte counts and every rule of the driver."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gemmjit.dtypes import BF16, F32, DType
from gemmjit.errors import InvalidDtypeError
from gemmjit.tensormap import (
    ElementType,
    Fill,
    Interleave,
    L2Promotion,
    Swizzle,
    TensorMap,
    element_type_of,
    violations,
)

VALID = TensorMap(
    element_type=ElementType.BFLOAT16,
    dims=(4096, 1024),
    strides=(8192,),
    box=(64, 128),
    swizzle=Swizzle.BYTES_128,
)
PADDED = TensorMap(
    element_type=ElementType.U4X16_ALIGN16B,
    dims=(512, 64),
    strides=(256,),
    box=(128, 32),
    swizzle=Swizzle.BYTES_128,
)


def test_enumerations_are_the_drivers():
    driver = pytest.importorskip("cuda.bindings.driver")
    types = driver.CUtensorMapDataType
    names = {
        ElementType.U4X16_ALIGN8B: "16U4_ALIGN8B",
        ElementType.U4X16_ALIGN16B: "16U4_ALIGN16B",
        ElementType.U6X16_ALIGN16B: "16U6_ALIGN16B",
    }
    for element_type in ElementType:
        name = names.get(element_type, element_type.name)
        assert int(getattr(types, f"CU_TENSOR_MAP_DATA_TYPE_{name}")) == element_type
    assert len(ElementType) == len(types)
    swizzles = driver.CUtensorMapSwizzle
    for swizzle, name in {
        Swizzle.NONE: "NONE",
        Swizzle.BYTES_32: "32B",
        Swizzle.BYTES_64: "64B",
        Swizzle.BYTES_128: "128B",
        Swizzle.BYTES_128_ATOM_32: "128B_ATOM_32B",
        Swizzle.BYTES_128_ATOM_32_FLIP_8: "128B_ATOM_32B_FLIP_8B",
        Swizzle.BYTES_128_ATOM_64: "128B_ATOM_64B",
    }.items():
        assert int(getattr(swizzles, f"CU_TENSOR_MAP_SWIZZLE_{name}")) == swizzle
    for ours, theirs in (
        (Interleave, driver.CUtensorMapInterleave),
        (L2Promotion, driver.CUtensorMapL2promotion),
        (Fill, driver.CUtensorMapFloatOOBfill),
    ):
        assert sorted(int(x) for x in theirs) == sorted(int(x) for x in ours)


def test_swizzles():
    assert [s.span for s in Swizzle] == [0, 32, 64, 128, 128, 128, 128]
    assert [s.atom for s in Swizzle] == [16, 16, 16, 16, 32, 32, 64]
    assert Swizzle.of_bytes(64) is Swizzle.BYTES_64


def test_element_types_of_dtypes():
    assert element_type_of(BF16) is ElementType.BFLOAT16
    assert element_type_of(F32).bits == 32
    with pytest.raises(InvalidDtypeError, match="fp3"):
        element_type_of(DType("fp3", "fp3", 3, "fp3", float))


def test_byte_counts():
    assert VALID.rank == 2
    assert VALID.element_strides == (1, 1)
    assert VALID.box_bytes == VALID.smem_bytes == 64 * 128 * 2
    assert PADDED.box_bytes == 128 * 32 // 2
    assert PADDED.smem_bytes == 128 * 32
    six = replace(PADDED, element_type=ElementType.U6X16_ALIGN16B)
    assert six.box_bytes == 96 * 32
    assert six.smem_bytes == 128 * 32
    packed = replace(PADDED, element_type=ElementType.U4X16_ALIGN8B)
    assert packed.box_bytes == 64 * 32
    assert packed.smem_bytes == 128 * 32  # rows are narrower than the swizzle
    assert replace(packed, swizzle=Swizzle.NONE).smem_bytes == 64 * 32
    strided = replace(VALID, element_strides=(4, 3))
    assert strided.counts == (64, 43)  # the first stride is ignored, 128 / 3 rounds up
    assert strided.box_bytes == 64 * 43 * 2
    with_interleave = replace(strided, interleave=Interleave.BYTES_16)
    assert with_interleave.counts == (16, 43)


def test_valid_maps_have_no_violations():
    assert violations(VALID, 0x7F00_0000_0010, "sm_90a") == []
    assert violations(PADDED, 0x7F00_0000_0020, "sm_100a") == []
    one = TensorMap(element_type=ElementType.UINT8, dims=(2**32,), strides=(), box=(256,))
    assert violations(one, 16, "sm_90") == []
    size_one = replace(VALID, dims=(4096, 1), strides=(0,))
    assert violations(size_one, 16, "sm_90a") == []
    fives = TensorMap(
        element_type=ElementType.FLOAT32,
        dims=(4, 5, 6, 7, 8),
        strides=(16, 80, 480, 3360),
        box=(4, 1, 2, 1, 2),
        element_strides=(1, 1, 2, 1, 8),
        fill=Fill.NAN,
    )
    assert violations(fives, 16, "sm_120f") == []


BROKEN = [
    (VALID, {}, 8, "sm_90a", ["base_address", "16", "0x8"]),
    (VALID, {"dims": (), "strides": (), "box": (), "element_strides": ()}, 0, "sm_90a",
     ["dims", "1 to 5", "got 0"]),
    (VALID, {"dims": (8,) * 6, "strides": (16,) * 5, "box": (8,) * 6,
             "element_strides": (1,) * 6}, 0, "sm_90a", ["dims", "got 6"]),
    (VALID, {"strides": ()}, 0, "sm_90a", ["strides", "1 entries", "got 0"]),
    (VALID, {"box": (64,)}, 0, "sm_90a", ["box", "2 entries", "got 1"]),
    (VALID, {"element_strides": (1,)}, 0, "sm_90a", ["element_strides", "got 1"]),
    (VALID, {"dims": (4096, 0)}, 0, "sm_90a", ["dims[1]", "got 0"]),
    (VALID, {"dims": (4096, 2**32 + 1)}, 0, "sm_90a", ["dims[1]", "2^32"]),
    (VALID, {"strides": (8200,)}, 0, "sm_90a", ["strides[0]", "16 bytes", "8200"]),
    (VALID, {"strides": (2**40,)}, 0, "sm_90a", ["strides[0]", "2^40", str(2**40)]),
    (VALID, {"strides": (-16,)}, 0, "sm_90a", ["strides[0]", "got -16"]),
    (VALID, {"box": (64, 257)}, 0, "sm_90a", ["box[1]", "256", "257"]),
    (VALID, {"box": (64, 0)}, 0, "sm_90a", ["box[1]", "got 0"]),
    (VALID, {"box": (60, 8)}, 0, "sm_90a", ["box[0]", "16 bytes", "60 elements of 16 bits"]),
    (VALID, {"box": (128, 8)}, 0, "sm_90a", ["box[0]", "128 bytes", "BYTES_128"]),
    (VALID, {"swizzle": Swizzle.BYTES_64}, 0, "sm_90a", ["box[0]", "at most 64 bytes"]),
    (VALID, {"swizzle": Swizzle.BYTES_32, "box": (32, 1)}, 0, "sm_90a", ["at most 32 bytes"]),
    (VALID, {"element_strides": (1, 9)}, 0, "sm_90a", ["element_strides[1]", "1 to 8", "9"]),
    (VALID, {"element_strides": (1, 0)}, 0, "sm_90a", ["element_strides[1]", "got 0"]),
    (VALID, {"interleave": Interleave.BYTES_16}, 0, "sm_90a", ["interleave", "rank 2"]),
    (VALID, {"swizzle": Swizzle.BYTES_128_ATOM_32}, 0, "sm_90a", ["swizzle", "10.0"]),
    (VALID, {}, 0, "sm_80", ["arch", "9.0", "sm_80"]),
    (VALID, {"element_type": ElementType.INT32, "box": (32, 8), "fill": Fill.NAN}, 0, "sm_90a",
     ["fill", "INT32", "NAN"]),
    (PADDED, {}, 16, "sm_100a", ["base_address", "32 bytes", "0x10"]),
    (PADDED, {"dims": (576, 64)}, 0, "sm_100a", ["dims[0]", "128", "576"]),
    (PADDED, {"strides": (272,)}, 0, "sm_100a", ["strides[0]", "32 bytes", "272"]),
    (PADDED, {"box": (64, 32)}, 0, "sm_100a", ["box[0]", "128 elements", "64"]),
    (PADDED, {"swizzle": Swizzle.BYTES_64, "box": (128, 1)}, 0, "sm_100a",
     ["swizzle", "BYTES_128_ATOM_32"]),
    (PADDED, {"swizzle": Swizzle.BYTES_128_ATOM_32_FLIP_8}, 0, "sm_100a", ["swizzle", "FLIP_8"]),
    (PADDED, {}, 0, "sm_90a", ["element_type", "U4X16_ALIGN16B"]),
    (PADDED, {"element_type": ElementType.U4X16_ALIGN8B, "dims": (511, 64)}, 0, "sm_100a",
     ["dims[0]", "multiple of 2", "511"]),
]  # fmt: skip


@pytest.mark.parametrize("case", BROKEN, ids=[" ".join(c[4]) for c in BROKEN])
def test_every_rule_is_reported(case):
    base, change, address, arch, words = case
    reasons = violations(replace(base, **change), address, arch)
    assert any(all(word in reason for word in words) for reason in reasons), reasons


def test_32_byte_interleave():
    interleaved = TensorMap(
        element_type=ElementType.BFLOAT16,
        dims=(16, 64, 64),
        strides=(32, 2048),
        box=(16, 8, 8),
        interleave=Interleave.BYTES_32,
        swizzle=Swizzle.BYTES_32,
    )
    assert violations(interleaved, 32, "sm_90a") == []
    wrong = replace(interleaved, strides=(48, 2048), swizzle=Swizzle.NONE)
    reasons = "\n".join(violations(wrong, 16, "sm_90a"))
    for word in ("base_address", "strides[0]", "BYTES_32 with 32-byte interleave"):
        assert word in reasons


def test_all_broken_rules_are_listed_at_once():
    reasons = violations(replace(VALID, strides=(8200,), box=(60, 300)), 8, "sm_90a")
    assert [r.split(":")[0] for r in reasons] == ["base_address", "strides[0]", "box[1]", "box[0]"]
