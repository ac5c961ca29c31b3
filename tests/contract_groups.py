"""The contract on groups and offsets, for any array framework and executor.

A subclass gives the fixture ``target``. Numbers such as br001 are those of collected bug reports of
other libraries; each names the fault that the test would show.
"""

from __future__ import annotations

import numpy as np
import pytest
import references
from cases import GROUPINGS, Target, ends_of, integers
from makers import SWAPPED
from references import assert_same, rounded

from gemmjit.errors import InvalidProblemError

NAN = float("nan")


def operands(
    target: Target,
    sizes: tuple[int, ...],
    *,
    n: int,
    k: int,
    tail: int = 0,
    dtype: str = "bfloat16",
):
    """Return A, B and end offsets of a ragged-M problem; the rows of the tail are NaN."""
    rows = sum(sizes)
    a = integers((rows + tail, k), seed=1)
    a[rows:] = NAN
    b = integers((len(sizes), k, n), seed=2)
    return target.place(a, dtype=dtype), target.place(b, dtype=dtype), ends_of(sizes)


def wgrad_operands(target: Target, sizes: tuple[int, ...], *, k: int, n: int, tail: int = 0):
    """Return A (K, M), B (M, N) and end offsets of a ragged-K problem; the tail is NaN in both."""
    rows = sum(sizes)
    a, b = integers((k, rows + tail), seed=3), integers((rows + tail, n), seed=4)
    a[:, rows:] = NAN
    b[rows:] = NAN
    return target.place(a, SWAPPED), target.place(b), ends_of(sizes)


def check_fprop(target: Target, a, b, ends, dtype: str = "bfloat16", **keywords) -> np.ndarray:
    """Run a ragged-M problem, compare it with the reference, and return the result."""
    got = target.read(target.grouped_mm(a, b, ends, **keywords))
    assert_same(got, rounded(references.fprop(a.read(), b.read(), ends), dtype))
    return got


def check_wgrad(target: Target, a, b, ends, dtype: str = "bfloat16", **keywords) -> np.ndarray:
    """Run a ragged-K problem, compare it with the reference, and return the result."""
    got = target.read(target.grouped_mm(a, b, ends, **keywords))
    assert_same(got, rounded(references.wgrad(a.read(), b.read(), ends), dtype))
    return got


class GroupsContract:
    """Empty groups, tails, offsets."""

    @pytest.mark.parametrize("name", GROUPINGS)
    def test_any_grouping(self, target, name):
        a, b, ends = operands(target, GROUPINGS[name], n=40, k=24)
        check_fprop(target, a, b, ends)

    @pytest.mark.parametrize("name", GROUPINGS)
    def test_any_grouping_of_wgrad(self, target, name):
        a, b, ends = wgrad_operands(target, GROUPINGS[name], k=24, n=40)
        check_wgrad(target, a, b, ends)

    @pytest.mark.parametrize("name", GROUPINGS)
    def test_tail_is_zero_and_never_read(self, target, name):
        a, b, ends = operands(target, GROUPINGS[name], n=40, k=24, tail=75)
        target.maker.poison_pool((ends[-1] + 75, 40), "bfloat16")
        check_fprop(target, a, b, ends)

    @pytest.mark.parametrize("name", GROUPINGS)
    def test_tail_of_out_is_left_alone(self, target, name):
        a, b, ends = operands(target, GROUPINGS[name], n=40, k=24, tail=75)
        start = integers((ends[-1] + 75, 40), seed=9)
        out = target.out(start)
        target.grouped_mm(a, b, ends, out=out)
        want = references.fprop(a.read(), b.read(), ends, start)
        assert_same(out.read(), rounded(want, "bfloat16"))
        out.assert_only_elements_changed()

    def test_br001_empty_group_has_zero_weight_gradient(self, target):
        a, b, ends = wgrad_operands(target, (8, 0, 8), k=16, n=16)
        out = target.out(np.full((3, 16, 16), NAN))
        target.grouped_mm(a, b, ends, out=out)
        assert_same(out.read(), rounded(references.wgrad(a.read(), b.read(), ends), "bfloat16"))
        assert not out.read()[1].any()
        out.assert_only_elements_changed()

    def test_br001_sizes_of_the_report(self, target):
        a, b, ends = wgrad_operands(target, (162, 0, 2577, 446, 0, 83), k=40, n=24)
        got = check_wgrad(target, a, b, ends, "float32", out_dtype="float32")
        assert not got[[1, 4]].any()
        assert got[[0, 2, 3, 5]].any(axis=(1, 2)).all()

    def test_br002_inner_and_trailing_empty_group(self, target):
        a, b, ends = operands(target, (8, 0, 8, 0), n=32, k=64)
        check_fprop(target, a, b, ends)

    def test_br004_only_the_last_group_has_rows(self, target):
        a, b, ends = operands(target, (0, 0, 0, 0, 0, 0, 0, 8), n=64, k=64)
        check_fprop(target, a, b, ends)

    @pytest.mark.parametrize("sizes", [(64, 0), (0, 64)])
    def test_br005_emptied_expert(self, target, sizes):
        a, b, ends = operands(target, sizes, n=128, k=128, tail=8)
        out = target.out(np.full((72, 128), 7.0))
        target.grouped_mm(a, b, ends, out=out)
        want = references.fprop(a.read(), b.read(), ends, np.full((72, 128), 7.0))
        assert_same(out.read(), rounded(want, "bfloat16"))
        out.assert_only_elements_changed()

    def test_br007_all_groups_empty(self, target):
        a = target.place(np.full((64, 64), NAN))
        b = target.place(np.full((4, 64, 64), NAN))
        target.maker.poison_pool((64, 64), "bfloat16")
        got = target.read(target.grouped_mm(a, b, [0, 0, 0, 0]))
        assert_same(got, np.zeros((64, 64)))
        out = target.out(integers((64, 64), seed=5))
        target.grouped_mm(a, b, [0, 0, 0, 0], out=out)
        out.assert_unchanged()

    def test_br008_no_rows(self, target):
        a = target.maker.array(np.zeros((0, 64)), "bfloat16")
        b = target.place(np.full((4, 64, 32), NAN))
        got = target.grouped_mm(a, b, [0, 0, 0, 0])
        assert target.read(got).shape == (0, 32)
        assert target.maker.dtype_name(got) == "bfloat16"

    def test_no_columns(self, target):
        a = target.place(integers((8, 16), seed=1))
        b = target.maker.array(np.zeros((2, 16, 0)), "bfloat16")
        assert target.read(target.grouped_mm(a, b, [3, 8])).shape == (8, 0)

    def test_no_groups(self, target):
        a = target.place(np.full((8, 16), NAN))
        b = target.maker.array(np.zeros((0, 16, 24)), "bfloat16")
        target.maker.poison_pool((8, 24), "bfloat16")
        assert_same(target.read(target.grouped_mm(a, b, [])), np.zeros((8, 24)))
        wgrad = target.grouped_mm(target.place(integers((8, 16), seed=2)), a_of(target, 16, 24), [])
        assert target.read(wgrad).shape == (0, 8, 24)

    def test_wgrad_without_rows_is_zero(self, target):
        a = target.maker.array(np.zeros((16, 0)), "bfloat16")
        b = target.maker.array(np.zeros((0, 24)), "bfloat16")
        target.maker.poison_pool((3, 16, 24), "bfloat16")
        assert_same(target.read(target.grouped_mm(a, b, [0, 0, 0])), np.zeros((3, 16, 24)))

    def test_br010_one_group_does_not_own_the_padding(self, target):
        a, b, ends = operands(target, (100,), n=128, k=128, tail=156)
        got = check_fprop(target, a, b, ends)
        assert np.isfinite(got).all()

    def test_br011_tail_of_a_fresh_result_over_a_poisoned_pool(self, target):
        a, b, ends = operands(target, (8, 8), n=48, k=32, tail=16)
        for _ in range(3):
            target.maker.poison_pool((32, 48), "bfloat16")
            check_fprop(target, a, b, ends)

    def test_br012_zero_rows_of_the_tail(self, target):
        a, b, ends = operands(target, (2, 3, 1, 4, 0, 2, 3, 1), n=64, k=64)
        padded = np.zeros((16 + 64, 64))
        padded[:16] = a.read()
        target.maker.poison_pool((80, 64), "bfloat16")
        got = check_fprop(target, target.place(padded), b, ends)
        assert not got[16:].any()

    def test_br014_tail_does_not_leak_into_any_gradient(self, target):
        x, w, ends = operands(target, (8, 8), n=24, k=40, tail=8)
        dy = integers((24, 24), seed=6)
        dy[16:] = NAN
        y = check_fprop(target, x, w, ends)
        dx = check_fprop(target, target.place(dy), target.place(w.read().swapaxes(1, 2)), ends)
        xt = target.place(x.read().T, SWAPPED)
        dw = check_wgrad(target, xt, target.place(dy), ends)
        assert np.isfinite(y).all()
        assert np.isfinite(dx).all()
        assert np.isfinite(dw).all()

    def test_br015_rows_of_experts_elsewhere_are_tail(self, target):
        # 16 local experts of 128: rows of the others come last and belong to no group.
        a, b, ends = operands(target, tuple(i % 3 for i in range(16)), n=32, k=32, tail=40)
        check_fprop(target, a, b, ends)

    def test_br015_more_offsets_than_experts(self, target):
        a, b, _ = operands(target, (1,) * 16, n=32, k=32)
        with pytest.raises(InvalidProblemError, match="offs: expected 16 end offsets") as caught:
            target.grouped_mm(a, b, [min(i, 16) for i in range(128)])
        assert "got 128" in str(caught.value)

    def test_br018_no_contraction(self, target):
        for ends in ([2, 4, 6, 8], [0, 0, 0, 0]):
            a = target.maker.array(np.zeros((8, 0)), "bfloat16")
            b = target.maker.array(np.zeros((4, 0, 16)), "bfloat16")
            target.maker.poison_pool((8, 16), "bfloat16")
            assert_same(target.read(target.grouped_mm(a, b, ends)), np.zeros((8, 16)))

    @pytest.mark.parametrize("sizes", [(8, 16, 64, 1), (5, 7, 9, 11), (1, 1, 1, 125)])
    def test_br020_br023_sizes_off_every_tile(self, target, sizes):
        a, b, ends = operands(target, sizes, n=128, k=128)
        check_fprop(target, a, b, ends)

    @pytest.mark.parametrize("rows", [8, 16, 32, 64])
    def test_br022_small_groups(self, target, rows):
        a, b, ends = operands(target, (rows,) * 4, n=256, k=256)
        check_fprop(target, a, b, ends)

    def test_br024_odd_number_of_tiles_per_group(self, target):
        a, b, ends = operands(target, (192, 192), n=384, k=32)
        check_fprop(target, a, b, ends)

    def test_br076_one_group_takes_nearly_all(self, target):
        a, b, ends = operands(target, (0, 0, 500, 0, 1, 0, 0, 3), n=40, k=32)
        check_fprop(target, a, b, ends)

    def test_thousands_of_groups(self, target):
        sizes = tuple((i * 7919) % 3 for i in range(3000))
        a, b, ends = operands(target, sizes, n=8, k=8, tail=5)
        check_fprop(target, a, b, ends)
        a, b, ends = wgrad_operands(target, sizes, k=8, n=8, tail=5)
        check_wgrad(target, a, b, ends)

    def test_foreign_rows_of_nan_and_inf_stay_where_they_are(self, target):
        a, b, ends = operands(target, (9, 6, 10), n=24, k=40)
        values = a.read()
        values[9:15] = np.where(np.arange(40) % 2, NAN, np.inf)
        got = check_fprop(target, target.place(values), b, ends)
        assert np.isfinite(got[:9]).all()
        assert np.isfinite(got[15:]).all()

    def test_foreign_rows_of_nan_and_inf_in_wgrad(self, target):
        # Group 1's rows are bad in both operands; they share K tiles with both neighbours.
        a, b, ends = wgrad_operands(target, (9, 6, 10), k=24, n=40)
        bad_a, bad_b = a.read(), b.read()
        bad_a[:, 9:15] = NAN
        bad_b[9:15] = np.inf
        got = check_wgrad(target, target.place(bad_a, SWAPPED), target.place(bad_b), ends)
        assert np.isfinite(got[[0, 2]]).all()

    def test_accumulate_adds_and_skips_empty_groups(self, target):
        sizes = (0, 9, 0, 30)
        a, b, ends = operands(target, sizes, n=24, k=40, tail=6)
        start = integers((45, 24), seed=7)
        start[39:] = NAN
        out = target.out(start, dtype="float32")
        got = target.grouped_mm(a, b, ends, out=out, accumulate=True)
        assert got is out.array
        want = references.fprop(a.read(), b.read(), ends)
        assert_same(out.read(), np.where(np.arange(45)[:, None] < 39, want + start, start))
        out.assert_only_elements_changed()

    def test_accumulate_of_wgrad_leaves_empty_groups_alone(self, target):
        a, b, ends = wgrad_operands(target, (0, 9, 0, 30), k=24, n=40, tail=6)
        start = integers((4, 24, 40), seed=8)
        start[[0, 2]] = NAN
        out = target.out(start, dtype="float32")
        target.grouped_mm(a, b, ends, out=out, accumulate=True)
        want = references.wgrad(a.read(), b.read(), ends) + start
        assert_same(out.read(), want)
        out.assert_only_elements_changed()

    def test_inputs_are_never_written(self, target):
        a, b, ends = operands(target, (5, 0, 9), n=24, k=40, tail=3)
        target.grouped_mm(a, b, ends)
        a.assert_unchanged()
        b.assert_unchanged()

    def test_out_is_returned_itself(self, target):
        a, b, ends = operands(target, (5, 0, 9), n=24, k=40)
        out = target.out(np.full((14, 24), NAN))
        assert target.grouped_mm(a, b, ends, out=out) is out.array

    def test_ends_in_32_and_64_bits_and_on_the_host(self, target):
        a, b, ends = operands(target, (5, 0, 9), n=24, k=40, tail=2)
        results = []
        for offs in ("list", "int32", "int64"):
            one = Target(target.maker, offs, target.config)
            results.append(check_fprop(one, a, b, ends))
        assert_same(results[1], results[0])
        assert_same(results[2], results[0])


def a_of(target: Target, rows: int, columns: int):
    """Return a plain matrix of small whole numbers."""
    return target.place(integers((rows, columns), seed=11))
