"""The contract on values: tails of K and N, rounding, infinities; any framework, any executor."""

from __future__ import annotations

import makers
import numpy as np
import pytest
import references
from cases import integers
from contract_groups import NAN, check_fprop, check_wgrad, operands, wgrad_operands
from makers import PLAIN, SWAPPED
from references import assert_same, rounded


def float32_patterns() -> np.ndarray:
    """Return float32 values with the bits that a conversion can get wrong, as float64.

    Random bits; every neighbourhood of a half-way case of bfloat16 and of float16; the ends of
    both ranges; subnormal numbers, infinities and NaN.
    """
    rng = np.random.default_rng(3)
    bits = [rng.integers(0, 2**32, 600, dtype=np.uint64)]
    high = rng.integers(0, 2**16, 150, dtype=np.uint64)
    for half in (0x7FFF, 0x8000, 0x8001):  # below, at and above half of bfloat16's last bit
        bits.append((high << 16) | half)
    exponents = rng.integers(127 - 26, 127 + 17, 150, dtype=np.uint64) << 23
    for half in (0x0FFF, 0x1000, 0x1001, 0x3000):  # of float16's last bit
        bits.append(exponents | (rng.integers(0, 2**9, 150, dtype=np.uint64) << 14) | half)
    bits.append(np.array([0, 1, 0x7FFFFF, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000,
                          0x7F800001, 0x477FEFFF, 0x477FF000, 0x33000000, 0x33000001,
                          0x7F7F7FFF, 0x7F7F8000], np.uint64))  # fmt: skip
    with np.errstate(invalid="ignore"):
        return np.concatenate(bits).astype(np.uint32).view(np.float32).astype(np.float64)


class NumericsContract:
    """Values."""

    @pytest.mark.parametrize("k", [1, 7, 31, 33, 63, 65, 101])
    def test_br053_tail_of_the_contraction(self, target, k):
        a, b, ends = operands(target, (37, 63), n=99, k=k)
        check_fprop(target, a, b, ends)

    @pytest.mark.parametrize("rows", [1, 7, 15, 17, 31, 33, 63, 65])
    def test_br053_tail_of_the_contraction_in_wgrad(self, target, rows):
        a, b, ends = wgrad_operands(target, (rows, 3, rows), k=33, n=49, tail=2)
        check_wgrad(target, a, b, ends)

    @pytest.mark.parametrize("block_k", [16, 32, 64])
    @pytest.mark.parametrize("stages", [2, 3])
    @pytest.mark.parametrize("rounds", [1, 2])
    def test_br054_leftover_after_whole_rounds_of_the_stages(self, target, block_k, stages, rounds):
        k = block_k * stages * rounds + 8
        a = target.place(np.ones((10, k)))
        b = target.place(np.ones((2, k, 24)))
        got = target.read(target.grouped_mm(a, b, [4, 10], out_dtype="float32"))
        assert_same(got, np.full((10, 24), float(k)))

    @pytest.mark.parametrize("n", [1, 2, 5, 7, 72, 120, 127, 129, 130])
    def test_br057_tail_of_n_between_guards(self, target, n):
        a, b, ends = operands(target, (3, 5), n=n, k=40, tail=2)
        start = integers((10, n), seed=4)
        for layout in (PLAIN, makers.PADDED, makers.ODD_PAD):
            out = target.out(start, layout)
            target.grouped_mm(a, b, ends, out=out)
            want = references.fprop(a.read(), b.read(), ends, start)
            assert_same(out.read(), rounded(want, "bfloat16"))
            out.assert_only_elements_changed()

    @pytest.mark.parametrize("n", [1, 4, 15, 70, 131])
    def test_what_lies_behind_a_row_on_the_16_byte_grid_is_not_written(self, target, n):
        # A store by TMA ends with a chunk of 16 bytes, wherever the tensor ends in it.
        to_grid = makers.Layout(name="to_grid", pad=-n % 8 or 8)
        a = target.place(integers((8, 40), seed=1))
        weights = integers((2, 40, n), seed=2)
        x = target.place(integers((8, 48), seed=3).T, SWAPPED)
        y = target.place(integers((8, n), seed=4), to_grid)
        for layout in (to_grid, SWAPPED):
            b = target.place(weights, layout)
            out = target.out(integers((8, n), seed=5), to_grid)
            target.grouped_mm(a, b, [3, 8], out=out)
            want = references.fprop(a.read(), weights, [3, 8])
            assert_same(out.read(), rounded(want, "bfloat16"))
            out.assert_only_elements_changed()
        out = target.out(np.full((2, 48, n), NAN), to_grid)
        target.grouped_mm(x, y, [3, 8], out=out)
        assert_same(out.read(), rounded(references.wgrad(x.read(), y.read(), [3, 8]), "bfloat16"))
        out.assert_only_elements_changed()

    @pytest.mark.parametrize("k", [1, 31, 33, 65, 129])
    def test_tail_of_k_and_n_in_wgrad_between_guards(self, target, k):
        a, b, ends = wgrad_operands(target, (3, 5), k=k, n=k + 2)
        for layout in (PLAIN, makers.PADDED, makers.ODD_PAD):
            out = target.out(np.full((2, k, k + 2), NAN), layout)
            target.grouped_mm(a, b, ends, out=out)
            want = references.wgrad(a.read(), b.read(), ends)
            assert_same(out.read(), rounded(want, "bfloat16"))
            out.assert_only_elements_changed()

    def test_one_rounding_to_nearest_even(self, target):
        # bfloat16 has 8 bits: 257 and 259 lie half-way, and even is down once, up once.
        a = np.zeros((6, 8))
        a[:, 0] = [256, 256, 256, 256, -256, -256]
        a[:, 1] = [0, 1, 2, 3, -1, -3]
        b = np.zeros((1, 8, 4))
        b[0, :2] = 1
        got = target.read(target.grouped_mm(target.place(a), target.place(b), [6]))
        assert_same(got, np.repeat([[256.0], [256], [258], [260], [-256], [-260]], 4, axis=1))

    @pytest.mark.parametrize("out_dtype", ["bfloat16", "float16", "float32"])
    def test_rounding_of_any_float32(self, target, out_dtype):
        # One column times one: the accumulator is the operand, whatever its bits.
        values = float32_patterns()
        a = target.place(values[:, None], dtype="float32")
        b = target.place(np.ones((1, 1, 1)), dtype="float32")
        got = target.read(target.grouped_mm(a, b, [values.size], out_dtype=out_dtype))
        assert_same(got[:, 0], rounded(values, out_dtype))

    def test_partial_sums_are_not_rounded_to_16_bits(self, target):
        a = np.ones((4, 300))
        a[:, 0] = 256  # in bfloat16 256 + 1 would stay 256, over and over
        b = np.ones((1, 300, 8))
        got = target.read(
            target.grouped_mm(target.place(a), target.place(b), [4], out_dtype="float32")
        )
        assert_same(got, np.full((4, 8), 555.0))

    def test_float16_overflows_to_infinity_and_float32_does_not(self, target):
        a, b = np.full((4, 128), 30.0), np.full((2, 128, 8), 30.0)
        b[1] = -30.0
        placed = target.place(a, dtype="float16"), target.place(b, dtype="float16")
        got = target.read(target.grouped_mm(*placed, [2, 4]))
        assert_same(got, np.repeat([[np.inf], [np.inf], [-np.inf], [-np.inf]], 8, axis=1))
        wide = target.read(target.grouped_mm(*placed, [2, 4], out_dtype="float32"))
        assert_same(wide, np.repeat([[115200.0], [115200], [-115200], [-115200]], 8, axis=1))

    def test_float32_operands_keep_all_their_bits(self, target):
        # 24 significant bits: neither TF32 nor a 16-bit detour survives this.
        a = np.full((5, 3), 1 + 2.0**-23)
        a[:, 1:] = 0
        b = np.ones((2, 3, 6))
        placed = target.place(a, dtype="float32"), target.place(b, dtype="float32")
        got = target.read(target.grouped_mm(*placed, [2, 5]))
        assert_same(got, np.full((5, 6), 1 + 2.0**-23))

    def test_own_nan_and_infinity_go_where_they_belong(self, target):
        a, b, ends = operands(target, (4, 6), n=24, k=40)
        values = a.read()
        values[1, 7] = NAN
        values[5, 0] = np.inf
        weights = b.read()
        weights[1, 0] = np.where(np.arange(24) % 2, 1.0, -1.0)
        got = check_fprop(target, target.place(values), target.place(weights), ends)
        assert np.isnan(got[1]).all()
        assert_same(got[5], np.where(np.arange(24) % 2, np.inf, -np.inf))
        assert np.isfinite(np.delete(got, [1, 5], axis=0)).all()

    def test_a_bad_weight_touches_its_group_alone(self, target):
        a, b, ends = operands(target, (4, 6, 5), n=24, k=40)
        weights = b.read()
        weights[1] = NAN
        got = check_fprop(target, a, target.place(weights), ends)
        assert np.isnan(got[4:10]).all()
        assert np.isfinite(got[:4]).all()
        assert np.isfinite(got[10:]).all()

    def test_long_contraction_in_float32_result(self, target):
        a, b, ends = operands(target, (1, 2, 1), n=24, k=8192)
        got = target.read(target.grouped_mm(a, b, ends, out_dtype="float32"))
        assert_same(got, references.fprop(a.read(), b.read(), ends))

    def test_random_data_within_the_error_of_fp32_sums(self, target):
        # sum of k products: |error| <= k * 2^-24 * sum |a||b|, in any order of FP32 additions
        # (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1).
        rng = np.random.default_rng(12)
        k = 200
        a = target.place(rng.standard_normal((50, k)))
        b = target.place(rng.standard_normal((3, k, 40)))
        got = target.read(target.grouped_mm(a, b, [11, 30, 50], out_dtype="float32"))
        want = references.fprop(a.read(), b.read(), [11, 30, 50])
        bound = references.fprop(np.abs(a.read()), np.abs(b.read()), [11, 30, 50])
        assert (np.abs(got - want) <= k * 2.0**-24 * bound).all()

    def test_swapped_operands_give_the_same(self, target):
        a, b, ends = operands(target, (5, 0, 40), n=48, k=56)
        plain = check_fprop(target, a, b, ends)
        swapped = check_fprop(
            target, target.place(a.read(), SWAPPED), target.place(b.read(), SWAPPED), ends
        )
        assert_same(swapped, plain)
