"""`wgmma.mma_async` against the layout algebra of the PTX manual and plain matrix products."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest
from wgmma_operands import K_OF, PLAIN, accumulator_registers

from gemmjit.emulator.matrix_descriptor import (
    MatrixDescriptor,
    chunk_indices,
    encode_wgmma,
)
from gemmjit.emulator.tma import load_box
from gemmjit.emulator.wgmma import wgmma_plan
from gemmjit.tensormap import ElementType, Swizzle, TensorMap

SMEM_BYTES = 128 * 1024
NUMPY = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "tf32": np.float32,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "s8": np.int8,
    "u8": np.uint8,
}

# --- the manual's canonical layouts, in CuTe's notation ------------------------------------------


def crd2idx(shape, stride, index):
    """Offset of a linear index in one (nested) mode; None stands for any extent."""
    if not isinstance(shape, tuple):
        return index * stride
    offset = 0
    for s, d in zip(shape, stride, strict=True):
        if s is None:
            return offset + index * d
        offset += index % s * d
        index //= s
    return offset


def canonical_address(descriptor, mn_major, size, r, k):
    """Byte address of element (r in M or N, k): table of section 9.7.15.5.1.2.1.3."""
    t = 16 // size
    lbo, sbo = descriptor.lbo // size, descriptor.sbo // size
    b = PLAIN.index(descriptor.swizzle)
    if mn_major:
        rows = {
            0: ((t, 1, None), (1, t, sbo)),
            1: ((t, 2, None), (1, t, lbo)),
            2: ((t, 4, None), (1, t, lbo)),
            3: ((t, 8, None), (1, t, lbo)),
        }[b]
        columns = {
            0: ((8, None), (1 * t, lbo)),
            1: ((8, None), (2 * t, sbo)),
            2: ((8, None), (4 * t, sbo)),
            3: ((8, None), (8 * t, sbo)),
        }[b]
    else:
        rows = ((8, None), ({0: 1, 1: 2, 2: 4, 3: 8}[b] * t, sbo))
        columns = ((t, None), (1, lbo if b == 0 else t))
    address = descriptor.start + size * (crd2idx(*rows, r) + crd2idx(*columns, k))
    yyy = ((1 << b) - 1) << (4 + 3)  # Swizzle<b, 4, 3>
    return address ^ ((address & yyy) >> 3)


def compact(swizzle, mn_major, rows, size, start):
    """A descriptor for a tile without holes, of one instruction's K (32 bytes)."""
    span = swizzle.span
    if not mn_major:
        if not span:
            return MatrixDescriptor(start, rows * 16, 128, swizzle)
        return MatrixDescriptor(start, 16, 8 * span, swizzle)
    k = 32 // size
    if not span:
        return MatrixDescriptor(start, rows * size * 8, 128, swizzle)
    return MatrixDescriptor(start, k * span, 8 * span, swizzle)


@pytest.mark.parametrize("swizzle", PLAIN)
@pytest.mark.parametrize("mn_major", [False, True])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_chunks_are_the_canonical_layouts(swizzle, mn_major, size):
    rng = np.random.default_rng(0)
    k_extent = 32 // size
    for start in (1024, 1024 + 128, 2048 + 32):
        strides = 16 * rng.integers(1, 512, 2)
        descriptor = MatrixDescriptor(start, int(strides[0]), int(strides[1]), swizzle)
        rows = 128
        chunks = chunk_indices(descriptor, mn_major=mn_major, rows=rows, size=size)
        octets = chunks[..., None] * 16 + np.arange(16)
        table = octets.reshape(octets.shape[0], -1)[:, ::size]
        for r, k in itertools.product(range(0, rows, 3), range(k_extent)):
            got = table[k, r] if mn_major else table[r, k]
            assert got == canonical_address(descriptor, mn_major, size, r, k)


# products


def place(smem, descriptor, mn_major, matrix, name):
    """Write a matrix (rows, K) of numbers to shared memory, element by element."""
    values = matrix.astype(NUMPY[name])
    size = values.itemsize
    octets = values.view(np.uint8).reshape(*matrix.shape, size)
    for r, k in np.ndindex(*matrix.shape):
        address = canonical_address(descriptor, mn_major, size, r, k)
        smem[address : address + size] = octets[r, k]


def reader(smems):
    return lambda group, chunks: smems[group][chunks[..., None] * 16 + np.arange(16)]


def numbers(name, rng, shape):
    low, high = {"u8": (0, 256), "s8": (-128, 128)}.get(name, (-4, 5))
    return rng.integers(low, high, shape)


PRODUCTS = [
    # D, A, B, n
    ("f32", "bf16", "bf16", 256),
    ("f32", "bf16", "bf16", 8),
    ("f32", "bf16", "bf16", 104),
    ("f32", "f16", "f16", 64),
    ("f16", "f16", "f16", 72),
    ("f32", "tf32", "tf32", 40),
    ("f32", "e4m3", "e4m3", 128),
    ("f32", "e5m2", "e4m3", 24),
    ("f16", "e4m3", "e5m2", 32),
    ("s32", "s8", "s8", 48),
    ("s32", "u8", "s8", 16),
    ("s32", "u8", "u8", 224),
]


@pytest.mark.parametrize("swizzle", PLAIN)
@pytest.mark.parametrize("case", PRODUCTS, ids=lambda c: "-".join(map(str, c)))
def test_products_of_integers_are_exact(case, swizzle):
    d_type, a_type, b_type, n = case
    k = K_OF[a_type]
    rng = np.random.default_rng(n)
    plan = wgmma_plan(f"m64n{n}k{k}", d_type, a_type, b_type)
    size = 32 // k
    a, b = numbers(a_type, rng, (2, 64, k)), numbers(b_type, rng, (2, n, k))
    c = rng.integers(-50, 51, (2, 64, n))
    smems = rng.integers(0, 256, (2, SMEM_BYTES), dtype=np.uint8)
    a_bits, b_bits = [], []
    for group in range(2):
        at_a = compact(swizzle, False, 64, size, 1024 + 8192 * group)
        at_b = compact(swizzle, False, n, size, 32768 + 1024 * group)
        place(smems[group], at_a, False, a[group], a_type)
        place(smems[group], at_b, False, b[group], b_type)
        a_bits.append(encode_wgmma(at_a))
        b_bits.append(encode_wgmma(at_b))
    old = accumulator_registers(d_type, c)
    got = plan(a_bits, b_bits, old, [True, False], reader(smems))
    expected = a @ b.swapaxes(1, 2)
    expected[0] += c[0]
    np.testing.assert_array_equal(got, accumulator_registers(d_type, expected))


@pytest.mark.parametrize("swizzle", PLAIN)
@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize("signs", [(1, 1), (-1, 1), (1, -1), (-1, -1)])
def test_majors_and_signs(swizzle, trans_a, trans_b, signs):
    n = 64 + 8 * PLAIN.index(swizzle) if not trans_b else 128
    rng = np.random.default_rng(7)
    plan = wgmma_plan(
        f"m64n{n}k16", "f32", "f16", "f16",
        scale_a=signs[0], scale_b=signs[1], trans_a=trans_a, trans_b=trans_b,
    )  # fmt: skip
    a, b = rng.integers(-8, 9, (64, 16)), rng.integers(-8, 9, (n, 16))
    smem = rng.integers(0, 256, SMEM_BYTES, dtype=np.uint8)
    at_a = compact(swizzle, bool(trans_a), 64, 2, 2048)
    at_b = compact(swizzle, bool(trans_b), n, 2, 32768 + 1024)
    place(smem, at_a, bool(trans_a), a, "f16")
    place(smem, at_b, bool(trans_b), b, "f16")
    zeros = np.zeros((1, 128, n // 2), np.uint32)
    got = plan([encode_wgmma(at_a)], [encode_wgmma(at_b)], zeros, [True], reader([smem]))
    expected = signs[0] * signs[1] * (a @ b.T)
    np.testing.assert_array_equal(got, accumulator_registers("f32", expected[None]))


@pytest.mark.parametrize("name", ["bf16", "tf32", "e4m3", "u8"])
def test_a_from_registers(name):
    k = K_OF[name]
    per_register = 4 // (32 // k)
    rng = np.random.default_rng(9)
    d_type = "s32" if name == "u8" else "f32"
    plan = wgmma_plan(f"m64n16k{k}", d_type, name, name)
    a, b = numbers(name, rng, (1, 64, k)), numbers(name, rng, (16, k))
    codes = a[0].astype(NUMPY[name])
    codes = codes.view({1: np.uint8, 2: np.uint16, 4: np.uint32}[codes.itemsize]).astype(np.uint32)
    registers = np.zeros((1, 128, 4), np.uint32)
    for thread, r, e in itertools.product(range(128), range(4), range(per_register)):
        row = 16 * (thread // 32) + thread % 32 // 4 + 8 * (r % 2)
        column = per_register * (thread % 4) + e + 4 * per_register * (r // 2)
        registers[0, thread, r] |= codes[row, column] << np.uint32(32 // per_register * e)
    smem = np.zeros(SMEM_BYTES, np.uint8)
    at_b = compact(Swizzle.BYTES_32, False, 16, 32 // k, 1024)
    place(smem, at_b, False, b, name)
    zeros = np.zeros((1, 128, 8), np.uint32)
    got = plan(registers, [encode_wgmma(at_b)], zeros, [False], reader([smem]))
    np.testing.assert_array_equal(got, accumulator_registers(d_type, a @ b.T))


def test_bits_are_anded_and_counted():
    plan = wgmma_plan("m64n8k256", "s32", "b1", "b1")
    rng = np.random.default_rng(3)
    a, b = rng.integers(0, 2, (64, 256)), rng.integers(0, 2, (8, 256))
    smem = np.zeros(SMEM_BYTES, np.uint8)
    at_a = compact(Swizzle.NONE, False, 64, 1, 0)
    at_b = compact(Swizzle.NONE, False, 8, 1, 16384)
    for at, bits in ((at_a, a), (at_b, b)):
        octets = np.packbits(bits, axis=1, bitorder="little")
        for r, byte in np.ndindex(*octets.shape):
            smem[canonical_address(at, False, 1, r, byte)] = octets[r, byte]
    zeros = np.zeros((1, 128, 4), np.uint32)
    got = plan([encode_wgmma(at_a)], [encode_wgmma(at_b)], zeros, [False], reader([smem]))
    np.testing.assert_array_equal(got, accumulator_registers("s32", (a @ b.T)[None]))


def test_tensor_copies_and_wgmma_agree_on_swizzles():
    """A box of 64 x 128 bf16 read back by four K-steps of +32 bytes is the matrix."""
    rng = np.random.default_rng(4)
    matrix = rng.integers(-9, 10, (128, 64)).astype(ml_dtypes.bfloat16)
    memory = matrix.view(np.uint8).reshape(-1)
    plan = wgmma_plan("m64n128k16", "f32", "bf16", "bf16")
    for swizzle, start in itertools.product(PLAIN[1:], (1024, 1024 + 128)):
        columns = swizzle.span // 2
        t = TensorMap(
            element_type=ElementType.BFLOAT16, dims=(64, 128), strides=(128,),
            box=(columns, 128), swizzle=swizzle,
        )  # fmt: skip
        for first in range(0, 64, columns):
            box = load_box(t, 0, (first, 0), start)
            smem = np.zeros(SMEM_BYTES, np.uint8)
            box.write_shared(smem, memory[box.runs[:, None] + np.arange(box.run_bytes)])
            for step in range(columns // 16):
                at = MatrixDescriptor(start + 32 * step, 16, 8 * swizzle.span, swizzle)
                chunks = plan.chunks_of_b(encode_wgmma(at))
                b = plan.b_from_chunks(smem[chunks[..., None] * 16 + np.arange(16)])
                k = first + 16 * step
                np.testing.assert_array_equal(b.T, matrix[:, k : k + 16].astype(np.float32))


# numbers


def one_product(plan, a, b, d, name):
    smem = np.zeros(SMEM_BYTES, np.uint8)
    size = 32 // plan.k
    at_a = compact(Swizzle.BYTES_32, False, 64, size, 1024)
    at_b = compact(Swizzle.BYTES_32, False, plan.n, size, 16384)
    place(smem, at_a, False, a, name)
    place(smem, at_b, False, b, name)
    old = plan.d_to_registers(d[None])
    return plan.d_from_registers(
        plan([encode_wgmma(at_a)], [encode_wgmma(at_b)], old, [True], reader([smem]))
    )[0]


def test_fp8_sums_keep_13_bits_in_the_strict_model():
    a, b = np.zeros((64, 32)), np.ones((8, 32))
    a[:, 0] = 1.0
    a[:, 1:5] = 2.0**-7
    d = np.full((64, 8), 2.0**10, np.float32)
    exact = one_product(wgmma_plan("m64n8k32", "f32", "e4m3", "e4m3"), a, b, d, "e4m3")
    np.testing.assert_array_equal(exact, 1025 + 4 * 2.0**-7)
    strict = wgmma_plan("m64n8k32", "f32", "e4m3", "e4m3", model="tensor_core")
    # Aligned to 2^10, 13 bits end at 2^-3: the four 2^-7 vanish.
    np.testing.assert_array_equal(one_product(strict, a, b, d, "e4m3"), 1025.0)
    wide = wgmma_plan("m64n8k16", "f32", "bf16", "bf16", model="tensor_core")
    np.testing.assert_array_equal(
        one_product(wide, a[:, :16], b[:, :16], d, "bf16"), 1025 + 4 * 2.0**-7
    )


def test_f16_results_are_rounded_once():
    a, b = np.zeros((64, 16)), np.ones((8, 16))
    a[:, :2] = 2.0**-1
    for model in ("fp32", "tensor_core"):
        plan = wgmma_plan("m64n8k16", "f16", "f16", "f16", model=model)
        d = np.full((64, 8), 2048.0, np.float32)  # the neighbours in f16 are 2 apart
        np.testing.assert_array_equal(one_product(plan, a, b, d, "f16"), 2048.0)
        a[:, 2] = 0.5
        np.testing.assert_array_equal(one_product(plan, a, b, d, "f16"), 2050.0)
        a[:, 2] = 0


def test_integer_sums_wrap_or_clamp():
    a, b = np.full((64, 32), 127), np.full((8, 32), 127)
    d = np.full((64, 8), 2**31 - 2, np.int32)
    for satfinite in (False, True):
        plan = wgmma_plan("m64n8k32", "s32", "s8", "s8", satfinite=satfinite)
        total = 2**31 - 2 + 32 * 127 * 127
        expected = 2**31 - 1 if satfinite else total - 2**32
        np.testing.assert_array_equal(one_product(plan, a, b, d, "s8"), expected)
