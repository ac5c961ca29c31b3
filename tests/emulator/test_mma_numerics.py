"""`mma.sync` against integer and float64 matrix products, with operands packed by hand."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from gemmjit.emulator import accumulate, fragments
from gemmjit.emulator.accumulate import Accumulation, accumulation_model, matrix_product
from gemmjit.emulator.mma import mma_plan, mma_sync, unpack
from gemmjit.errors import EmulatorError

NUMPY = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "tf32": np.float32,
    "f32": np.float32,
    "f64": np.float64,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "s8": np.int8,
    "u8": np.uint8,
    "s32": np.int32,
}
WIDTH = {"f64": 64, "f32": 32, "s32": 32, "tf32": 32, "f16": 16, "bf16": 16,
         "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8, "s4": 4, "u4": 4, "b1": 1}  # fmt: skip


def to_codes(name, matrix):
    """Element codes as Python-sized integers."""
    if name in ("s4", "u4", "b1"):
        return matrix.astype(np.int64) & ((1 << WIDTH[name]) - 1)
    unsigned = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}[WIDTH[name]]
    return np.ascontiguousarray(matrix.astype(NUMPY[name])).view(unsigned)


def pack(name, fragment, matrices):
    """Put matrices (warps, matrices, rows, columns) into registers, bit by bit."""
    width = WIDTH[name]
    word = max(width, 32)
    per_word = word // width
    codes = to_codes(name, matrices).reshape(len(matrices), -1)
    out = np.zeros(
        (len(matrices), fragment.lanes, fragment.elements // per_word),
        np.uint64 if word == 64 else np.uint32,
    )
    for lane in range(fragment.lanes):
        for i in range(fragment.elements):
            position = fragment.scatter[lane * fragment.elements + i]
            value = codes[:, position].astype(out.dtype)
            out[:, lane, i // per_word] |= value << out.dtype.type(width * (i % per_word))
    return out


def numbers(name, rng, shape):
    """Small integers that every format holds exactly."""
    low, high = {"u8": (0, 256), "s8": (-128, 128), "u4": (0, 16), "s4": (-8, 8), "b1": (0, 2)}.get(
        name, (-8, 9)
    )
    return rng.integers(low, high, shape)


def dense_cases():
    for shape in ("m8n8k4", "m16n8k4", "m16n8k8", "m16n8k16"):
        yield shape, "f64", "f64", "f64", "f64"
    for shape in ("m16n8k4", "m16n8k8"):
        yield shape, "tf32", "tf32", "f32", "f32"
    for shape in ("m16n8k8", "m16n8k16"):
        yield shape, "bf16", "bf16", "f32", "f32"
        yield shape, "f16", "f16", "f32", "f32"
        yield shape, "f16", "f16", "f16", "f16"
    for shape in ("m16n8k16", "m16n8k32"):
        for a in ("e4m3", "e5m2"):
            for b in ("e4m3", "e5m2"):
                yield shape, a, b, "f32", "f32"
                yield shape, a, b, "f16", "f16"
    for shape in ("m8n8k16", "m16n8k16", "m16n8k32"):
        for a in ("s8", "u8"):
            for b in ("s8", "u8"):
                yield shape, a, b, "s32", "s32"
    for shape in ("m8n8k32", "m16n8k32", "m16n8k64"):
        for a in ("s4", "u4"):
            for b in ("s4", "u4"):
                yield shape, a, b, "s32", "s32"


MODELLED = [
    (*case, model)
    for case in dense_cases()
    for model in (("fp32", "tensor_core") if case[3] in ("f32", "f16") else ("fp32",))
]


@pytest.mark.parametrize("modelled", MODELLED, ids=".".join)
def test_integers_are_exact(modelled):
    *case, model = modelled
    _, a_type, b_type, c_type, d_type = case
    rng = np.random.default_rng(1)
    plan = mma_plan(*case, model=model)
    m, n, k = plan.shape
    a, b = numbers(a_type, rng, (3, 1, m, k)), numbers(b_type, rng, (3, 1, k, n))
    c = rng.integers(-100, 101, (3, 1, m, n))
    registers = (
        pack(a_type, fragments.multiplicand_a(m, k, WIDTH[a_type]), a),
        pack(b_type, fragments.multiplicand_b(k, n, WIDTH[b_type]), b),
        pack(c_type, fragments.accumulator(m, n), c),
    )
    assert tuple(r.shape[2] for r in registers) == plan.registers[:3]
    d = mma_sync(*case, *registers, model=model)
    assert d.shape == (3, 32, plan.registers[3])
    expected = pack(d_type, fragments.accumulator(m, n), a @ b + c)
    np.testing.assert_array_equal(d, expected)


@pytest.mark.parametrize("a_layout", ["row", "col"])
@pytest.mark.parametrize("b_layout", ["row", "col"])
@pytest.mark.parametrize("accumulators", [("f16", "f16"), ("f16", "f32"), ("f32", "f32")])
def test_four_products_of_m8n8k4(a_layout, b_layout, accumulators):
    c_type, d_type = accumulators
    rng = np.random.default_rng(2)
    a, b = rng.integers(-8, 9, (2, 4, 8, 4)), rng.integers(-8, 9, (2, 4, 4, 8))
    c = rng.integers(-100, 101, (2, 4, 8, 8))
    d = mma_sync(
        "m8n8k4", "f16", "f16", c_type, d_type,
        pack("f16", fragments.volta_multiplicand("a", a_layout), a),
        pack("f16", fragments.volta_multiplicand("b", b_layout), b),
        pack(c_type, fragments.volta_accumulator(c_type), c),
        a_layout=a_layout, b_layout=b_layout,
    )  # fmt: skip
    np.testing.assert_array_equal(d, pack(d_type, fragments.volta_accumulator(d_type), a @ b + c))


@pytest.mark.parametrize("shape", ["m8n8k128", "m16n8k128", "m16n8k256"])
@pytest.mark.parametrize("bit_op", ["and", "xor"])
def test_bits_are_counted(shape, bit_op):
    rng = np.random.default_rng(4)
    plan = mma_plan(shape, "b1", "b1", "s32", "s32", bit_op=bit_op)
    m, n, k = plan.shape
    a, b = rng.integers(0, 2, (2, 1, m, k)), rng.integers(0, 2, (2, 1, k, n))
    c = rng.integers(-9, 10, (2, 1, m, n))
    d = plan(
        pack("b1", fragments.multiplicand_a(m, k, 1), a),
        pack("b1", fragments.multiplicand_b(k, n, 1), b),
        pack("s32", fragments.accumulator(m, n), c),
    )
    pairs = a[..., :, :, None], b[..., None, :, :]
    combined = np.bitwise_and(*pairs) if bit_op == "and" else np.bitwise_xor(*pairs)
    np.testing.assert_array_equal(
        d, pack("s32", fragments.accumulator(m, n), combined.sum(axis=-2) + c)
    )


@pytest.mark.parametrize("satfinite", [False, True])
def test_integer_overflow_wraps_or_clamps(satfinite):
    a = np.full((1, 1, 16, 32), -128)
    b = np.full((1, 1, 32, 8), -128)
    c = np.full((1, 1, 16, 8), 2**31 - 5)
    c[..., 8:, :] = -(2**31) + 5
    b[..., 4:] = 127
    d = mma_sync(
        "m16n8k32", "s8", "s8", "s32", "s32",
        pack("s8", fragments.multiplicand_a(16, 32, 8), a),
        pack("s8", fragments.multiplicand_b(32, 8, 8), b),
        pack("s32", fragments.accumulator(16, 8), c),
        satfinite=satfinite,
    )  # fmt: skip
    total = a @ b + c
    if satfinite:
        expected = np.clip(total, -(2**31), 2**31 - 1)
    else:
        expected = (total + 2**31) % 2**32 - 2**31
    assert (total != (total + 2**31) % 2**32 - 2**31).any()
    np.testing.assert_array_equal(d, pack("s32", fragments.accumulator(16, 8), expected))


def test_tf32_ignores_the_low_13_bits():
    a = np.zeros((1, 1, 16, 8), np.float32)
    a[..., 0] = np.float32(1) + np.float32(2**-11)
    b = np.ones((1, 1, 8, 8), np.float32)
    d = mma_sync(
        "m16n8k8", "tf32", "tf32", "f32", "f32",
        pack("tf32", fragments.multiplicand_a(16, 8, 32), a),
        pack("tf32", fragments.multiplicand_b(8, 8, 32), b),
        np.zeros((1, 32, 4), np.uint32),
    )  # fmt: skip
    np.testing.assert_array_equal(d.view(np.float32), 1.0)


def test_random_values_are_close_to_float64():
    rng = np.random.default_rng(5)
    a = rng.standard_normal((4, 1, 16, 16)).astype(ml_dtypes.bfloat16)
    b = rng.standard_normal((4, 1, 16, 8)).astype(ml_dtypes.bfloat16)
    c = rng.standard_normal((4, 1, 16, 8)).astype(np.float32)
    registers = (
        pack("bf16", fragments.multiplicand_a(16, 16, 16), a),
        pack("bf16", fragments.multiplicand_b(16, 8, 16), b),
        pack("f32", fragments.accumulator(16, 8), c),
    )
    exact = a.astype(np.float64) @ b.astype(np.float64) + c
    bound = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64)) + np.abs(c)
    for model, ulps in (("fp32", 17), ("tensor_core", 17)):
        d = mma_sync("m16n8k16", "bf16", "bf16", "f32", "f32", *registers, model=model)
        held = fragments.accumulator(16, 8).matrices(unpack("f32", d))
        assert (np.abs(held - exact[:, 0]) <= ulps * 2.0**-23 * bound[:, 0]).all()


def test_nan_is_the_tensor_cores_nan():
    a = np.zeros((1, 1, 16, 16), np.float32)
    a[..., 0, 0] = np.nan
    a[..., 1, 0] = np.inf
    d = mma_sync(
        "m16n8k16", "bf16", "bf16", "f32", "f32",
        pack("bf16", fragments.multiplicand_a(16, 16, 16), a),
        pack("bf16", fragments.multiplicand_b(16, 8, 16), np.zeros((1, 1, 16, 8))),
        np.zeros((1, 32, 4), np.uint32),
    )  # fmt: skip
    bits = fragments.accumulator(16, 8).matrices(d.reshape(1, -1))[0]
    assert (bits[:2] == accumulate.CANONICAL_NAN).all()
    assert (bits[2:] == 0).all()


# --- the tensor-core adder against exact rational arithmetic -----------------------------------


def leading_exponent(x, min_exponent):
    return -126 if x == 0 else max(math.frexp(x)[1] - 1, min_exponent)


def adder_oracle(a, b, c, a_min, b_min, fraction_bits, output_bits):
    """One element with Python integers: terms are integers in units of 2^-200."""
    unit = 2**200
    exponents = [leading_exponent(c, -126)]
    terms = [int(c * unit)]
    for x, y in zip(a, b, strict=True):
        exponents.append(leading_exponent(x, a_min) + leading_exponent(y, b_min))
        terms.append(int(x * 2.0**40) * int(y * 2.0**40) * 2**120)
    grain = 2 ** (200 + max(exponents) - fraction_bits)
    total = sum((abs(t) // grain) * (1 if t > 0 else -1) for t in terms) * grain
    if total == 0:
        return 0.0
    magnitude = abs(total)
    exponent = max(magnitude.bit_length() - 1 - 200, -126)
    step = 2 ** (200 + exponent - output_bits)
    return math.copysign(magnitude // step * step / unit, total)


@pytest.mark.parametrize("case", [("bf16", 25, 23), ("f16", 24, 23), ("e4m3", 13, 13)])
def test_tensor_core_adder_equals_integer_arithmetic(case):
    name, fraction_bits, output_bits = case
    rng = np.random.default_rng(6)
    numpy_type = NUMPY[name]
    scale = np.exp2(rng.integers(-6, 7, (4, 8, 16)))
    a = (rng.standard_normal((4, 8, 16)) * scale).astype(numpy_type).astype(np.float32)
    b = rng.standard_normal((4, 16, 8)).astype(numpy_type).astype(np.float32)
    c = (rng.standard_normal((4, 8, 8)) * 16).astype(np.float32)
    d = matrix_product(
        a, b, c, a_type=name, b_type=name, accumulation=Accumulation(fraction_bits, output_bits)
    )
    smallest = {"bf16": -126, "f16": -14, "e4m3": -6}[name]
    for i, row, column in np.ndindex(4, 8, 8):
        expected = adder_oracle(
            a[i, row].tolist(), b[i, :, column].tolist(), float(c[i, row, column]),
            smallest, smallest, fraction_bits, output_bits,
        )  # fmt: skip
        assert d[i, row, column] == np.float32(expected)
    assert (d != a @ b + c).any()


def test_tensor_core_adder_loses_what_falls_below_its_window():
    a = np.zeros((1, 1, 16), np.float32)
    b = np.ones((1, 16, 1), np.float32)
    a[0, 0, 0], a[0, 0, 1:] = 1.0, 2.0**-26
    for fraction_bits, expected in ((25, 1.0), (28, 1 + 15 * 2.0**-26)):
        d = matrix_product(
            a, b, np.zeros((1, 1, 1), np.float32),
            a_type="bf16", b_type="bf16", accumulation=Accumulation(fraction_bits),
        )  # fmt: skip
        truncated = math.floor(expected * 2**23) / 2**23
        assert d[0, 0, 0] == truncated


def test_parameters_of_the_adder_by_architecture():
    assert accumulation_model("fp32", 90, "mma", "bf16", 16) is None
    assert accumulation_model("tensor_core", 90, "mma", "bf16", 16) == Accumulation(25)
    assert accumulation_model("tensor_core", 90, "wgmma", "e4m3", 32) == Accumulation(13, 13)
    assert accumulation_model("tensor_core", 80, "mma", "bf16", 16) == Accumulation(24, split_k=2)
    assert accumulation_model("tensor_core", 80, "mma", "bf16", 8) == Accumulation(24)
    assert accumulation_model("tensor_core", 89, "mma", "e5m2", 32) == Accumulation(13, 13, 2)
    with pytest.raises(EmulatorError, match="fp64"):
        accumulation_model("fp64", 90, "mma", "bf16", 16)


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (("m16n8k4", "bf16", "bf16", "f32", "f32"), "shape"),
        (("m16n8k16", "bf16", "f16", "f32", "f32"), "cannot meet"),
        (("m16n8k16", "bf16", "bf16", "f16", "f16"), "accumulators"),
        (("m16n8k16", "f16", "f16", "f16", "f32"), "equal types"),
        (("m16n8k16", "e2m1", "e2m1", "f32", "f32"), "shape"),
        (("m8n8k128", "b1", "b1", "s32", "s32"), "b1 only"),
    ],
)
def test_combinations_outside_the_manual_are_refused(case, reason):
    with pytest.raises(EmulatorError, match=reason):
        mma_plan(*case)
    with pytest.raises(EmulatorError, match=r"row\.col"):
        mma_plan("m16n8k16", "bf16", "bf16", "f32", "f32", a_layout="col")
    with pytest.raises(EmulatorError, match="satfinite"):
        mma_plan("m16n8k16", "bf16", "bf16", "f32", "f32", satfinite=True)
