"""Descriptors and forms of wgmma."""

from __future__ import annotations

import numpy as np
import pytest
from wgmma_operands import K_OF, PLAIN, accumulator_registers

from gemmjit.emulator import fragments
from gemmjit.emulator.faults import MemoryFault, UnknownInstruction
from gemmjit.emulator.matrix_descriptor import (
    MatrixDescriptor,
    decode_wgmma,
    encode_wgmma,
)
from gemmjit.emulator.wgmma import wgmma_plan
from gemmjit.tensormap import Swizzle


def test_descriptors_round_trip():
    for swizzle in PLAIN:
        at = MatrixDescriptor(0x3FFF0, 16, 0x2000, swizzle)
        assert decode_wgmma(encode_wgmma(at)) == at
    # Bits as in the manual: address 1024, LBO 16, SBO 1024, 128-byte swizzle.
    assert decode_wgmma(64 | 1 << 16 | 64 << 32 | 1 << 62) == MatrixDescriptor(
        1024, 16, 1024, Swizzle.BYTES_128
    )
    assert decode_wgmma(2 << 62).swizzle is Swizzle.BYTES_64
    assert decode_wgmma(3 << 62).swizzle is Swizzle.BYTES_32


@pytest.mark.parametrize("bit", [14, 15, 30, 31, 46, 47, 48, 52, 61])
def test_reserved_bits_are_refused(bit):
    with pytest.raises(MemoryFault, match="expected 0"):
        decode_wgmma(1 << bit)


def test_base_offsets_are_refused():
    with pytest.raises(MemoryFault, match="base offset"):
        decode_wgmma(1 << 62 | 1 << 49)


@pytest.mark.parametrize(
    ("form", "options", "reason"),
    [
        (("m64n8k8", "f32", "bf16", "bf16"), {}, "k16"),
        (("m64n12k16", "f32", "bf16", "bf16"), {}, "multiple of 8"),
        (("m64n264k16", "f32", "bf16", "bf16"), {}, "264"),
        (("m64n40k32", "s32", "s8", "s8"), {}, "of 16 above 32"),
        (("m64n8k16", "f32", "bf16", "f16"), {}, "cannot meet"),
        (("m64n8k16", "f16", "bf16", "bf16"), {}, "D of type f32"),
        (("m64n8k8", "f32", "tf32", "tf32"), {"trans_b": 1}, "transposed"),
        (("m64n8k16", "f32", "bf16", "bf16"), {"scale_a": 0}, "imm-scale-a"),
        (("m64n8k16", "f32", "bf16", "bf16"), {"satfinite": True}, "satfinite"),
        (("m128n8k16", "f32", "bf16", "bf16"), {}, "shape"),
    ],
)
def test_forms_outside_the_manual_are_refused(form, options, reason):
    with pytest.raises(UnknownInstruction, match=reason):
        wgmma_plan(*form, **options)


def test_accumulators_round_trip():
    rng = np.random.default_rng(0)
    for d_type, n in (("f32", 24), ("f16", 24), ("s32", 16)):
        a_type = "s8" if d_type == "s32" else "f16"
        plan = wgmma_plan(f"m64n{n}k{K_OF[a_type]}", d_type, a_type, a_type)
        matrices = rng.integers(-100, 100, (3, 64, n))
        registers = accumulator_registers(d_type, matrices)
        assert registers.shape[2] == plan.d_registers
        np.testing.assert_array_equal(plan.d_from_registers(registers), matrices)
        dtype = np.int32 if d_type == "s32" else np.float32
        np.testing.assert_array_equal(plan.d_to_registers(matrices.astype(dtype)), registers)
    assert fragments.wgmma_accumulator(256).elements == 128
