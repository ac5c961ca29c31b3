"""The contract on memory layouts, alignment, types and aliasing, for any framework and executor."""

from __future__ import annotations

import makers
import numpy as np
import pytest
import references
from cases import Target, ends_of, integers
from contract_groups import NAN, check_fprop, check_wgrad, operands, wgrad_operands
from makers import LAYOUTS, PLAIN, SWAPPED, Layout
from references import assert_same, rounded

from gemmjit.errors import InvalidDtypeError, InvalidProblemError

SIZES = (5, 0, 20, 67)

#: Layouts of a result: distinct elements.
OUT_LAYOUTS = tuple(layout for layout in LAYOUTS if layout.expanded_axis is None)
#: Layouts of B that only three dimensions have.
GROUP_LAYOUTS = (
    makers.OUTER_SWAPPED,
    Layout(name="group_padded", outer_swapped=True, pad=5),
    Layout(name="all_swapped", swapped=True, outer_swapped=True),
)


def skip_without(target: Target, *layouts: Layout) -> None:
    """Skip a layout that the framework cannot express."""
    if any(x.reversed_axis is not None for x in layouts) and not target.maker.has_negative_strides:
        pytest.skip(f"{target.maker.name} has no negative strides")


def by_name(layouts):
    return pytest.mark.parametrize("layout", layouts, ids=lambda layout: layout.name)


class LayoutsContract:
    """Strides, pointers, out=, element types."""

    @by_name(LAYOUTS)
    def test_layout_of_a(self, target, layout):
        skip_without(target, layout)
        a, b, ends = operands(target, SIZES, n=40, k=72, tail=9)
        placed = target.place(a.read(), layout)
        check_fprop(target, placed, b, ends)
        placed.assert_unchanged()

    @by_name(LAYOUTS + GROUP_LAYOUTS)
    def test_layout_of_b(self, target, layout):
        skip_without(target, layout)
        a, b, ends = operands(target, SIZES, n=40, k=72)
        placed = target.place(b.read(), layout)
        check_fprop(target, a, placed, ends)
        placed.assert_unchanged()

    @by_name(LAYOUTS)
    def test_layout_of_a_in_wgrad(self, target, layout):
        skip_without(target, layout)
        a, b, ends = wgrad_operands(target, SIZES, k=40, n=72)
        check_wgrad(target, target.place(a.read(), layout), b, ends)

    @by_name(LAYOUTS)
    def test_layout_of_b_in_wgrad(self, target, layout):
        skip_without(target, layout)
        a, b, ends = wgrad_operands(target, SIZES, k=40, n=72)
        check_wgrad(target, a, target.place(b.read(), layout), ends)

    @by_name(OUT_LAYOUTS)
    def test_br038_layout_of_out(self, target, layout):
        skip_without(target, layout)
        a, b, ends = operands(target, SIZES, n=40, k=72, tail=9)
        values = a.read()
        values[:5] = NAN  # group 0's rows alone
        start = integers((101, 40), seed=9)
        out = target.out(start, layout)
        target.grouped_mm(target.place(values), b, ends, out=out)
        want = references.fprop(values, b.read(), ends, start)
        assert_same(out.read(), rounded(want, "bfloat16"))
        assert np.isfinite(out.read()[5:]).all()
        out.assert_only_elements_changed()

    @by_name(OUT_LAYOUTS + GROUP_LAYOUTS)
    def test_br038_layout_of_out_in_wgrad(self, target, layout):
        skip_without(target, layout)
        a, b, ends = wgrad_operands(target, SIZES, k=40, n=72)
        out = target.out(np.full((4, 40, 72), NAN), layout)
        target.grouped_mm(a, b, ends, out=out)
        assert_same(out.read(), rounded(references.wgrad(a.read(), b.read(), ends), "bfloat16"))
        out.assert_only_elements_changed()

    def test_br027_row_stride_off_the_vector_grid(self, target):
        a = target.place(integers((8, 1025), seed=1))
        b = target.place(integers((4, 1025, 24), seed=2), SWAPPED)  # stored as (4, 24, 1025)
        check_fprop(target, a, b, [2, 4, 6, 8], "float32", out_dtype="float32")

    def test_br029_row_stride_of_24_elements_and_odd_groups(self, target):
        a = target.place(integers((12, 20), seed=1), Layout(name="24", pad=4))
        b = target.place(integers((3, 20, 5), seed=2), Layout(name="n", pad=19))
        check_fprop(target, a, b, [3, 8, 11])

    @pytest.mark.parametrize("offset", [1, 2, 4, 7])
    @pytest.mark.parametrize("operand", ["mat_a", "mat_b", "out"])
    def test_br030_pointer_off_the_vector_grid(self, target, operand, offset):
        layout = Layout(name="shifted", offset=offset)
        a, b, ends = operands(target, (3, 5), n=32, k=64)
        if operand == "mat_a":
            check_fprop(target, target.place(a.read(), layout), b, ends)
        elif operand == "mat_b":
            check_fprop(target, a, target.place(b.read(), layout), ends)
        else:
            out = target.out(np.full((8, 32), NAN), layout)
            target.grouped_mm(a, b, ends, out=out)
            want = references.fprop(a.read(), b.read(), ends)
            assert_same(out.read(), rounded(want, "bfloat16"))
            out.assert_only_elements_changed()

    def test_br034_small_array_that_is_not_dense(self, target):
        a = target.place(integers((64, 64), seed=1), Layout(name="half", pad=64))
        b = target.place(integers((2, 64, 64), seed=2))
        check_fprop(target, a, b, [30, 64])

    @pytest.mark.parametrize("k", [1, 15, 20, 63, 65])
    def test_br036_odd_contraction(self, target, k):
        for layout in (PLAIN, SWAPPED):
            a = target.place(integers((40, k), seed=1), layout)
            b = target.place(integers((2, k, 33), seed=2), layout)
            check_fprop(target, a, b, [17, 40])

    @pytest.mark.parametrize(
        ("sizes", "n", "k"), [((1,), 16, 64), ((8,), 16, 1), ((8,), 1, 64), ((1,), 1, 1)]
    )
    @pytest.mark.parametrize("unit_stride", [1, 3, 1001])
    def test_br037_strides_of_axes_of_length_1(self, target, sizes, n, k, unit_stride):
        layout = Layout(name="unit", unit_stride=unit_stride)
        ends = ends_of(sizes)
        a = target.place(integers((sum(sizes), k), seed=1), layout)
        b = target.place(integers((len(sizes), k, n), seed=2), layout)
        out = target.out(np.full((sum(sizes), n), NAN), layout)
        check_fprop(target, a, b, ends)
        target.grouped_mm(a, b, ends, out=out)
        want = references.fprop(a.read(), b.read(), ends)
        assert_same(out.read(), rounded(want, "bfloat16"))
        out.assert_only_elements_changed()

    def test_br037_length_1_axes_of_wgrad(self, target):
        for k, n, rows in ((1, 16, 8), (16, 1, 8), (16, 16, 1), (1, 1, 1)):
            layout = Layout(name="unit", unit_stride=777)
            a = target.place(integers((k, rows), seed=1), layout)
            b = target.place(integers((rows, n), seed=2), layout)
            check_wgrad(target, a, b, [rows])

    def test_br039_out_that_overlaps_an_operand(self, target):
        a, b, ends = operands(target, (7, 9), n=16, k=16)
        with pytest.raises(InvalidProblemError, match="out: expected memory that mat_a does not"):
            target.grouped_mm(a, b, ends, out=a)
        with pytest.raises(InvalidProblemError, match="out: expected memory that mat_b does not"):
            target.grouped_mm(a, b, ends, out=b.array[0])

    def test_br039_views_of_one_buffer(self, target):
        b = target.place(integers((2, 16, 16), seed=2))
        base = target.place(integers((40, 16), seed=1))
        rows = base.array
        with pytest.raises(InvalidProblemError, match="they overlap between bytes"):
            target.grouped_mm(rows[0:16], b, [7, 16], out=rows[4:20])
        before = base.read()
        target.grouped_mm(rows[0:16], b, [7, 16], out=rows[16:32])
        want = before.copy()
        want[16:32] = rounded(references.fprop(before[:16], b.read(), [7, 16]), "bfloat16")
        assert_same(base.read(), want)

    def test_out_whose_elements_coincide(self, target):
        a, b, ends = operands(target, (7, 9), n=16, k=16)
        out = target.out(np.zeros((16, 16)), Layout(name="same", expanded_axis=0))
        with pytest.raises(InvalidProblemError, match="out: expected distinct elements"):
            target.grouped_mm(a, b, ends, out=out)
        out.assert_unchanged()

    @pytest.mark.parametrize(
        ("first", "second"), [("float32", "bfloat16"), ("float16", "bfloat16")]
    )
    def test_br040_mixed_types(self, target, first, second):
        a = target.place(integers((4, 64), seed=1), dtype=first)
        b = target.place(integers((2, 64, 128), seed=2), dtype=second)
        with pytest.raises(InvalidDtypeError, match="mat_b") as caught:
            target.grouped_mm(a, b, [2, 4])
        assert isinstance(caught.value, TypeError)
        assert first in str(caught.value)
        assert second in str(caught.value)

    @pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
    def test_br042_small_unaligned_shape(self, target, dtype):
        a = target.place(integers((6, 8), seed=1), dtype=dtype)
        b = target.place(integers((3, 8, 5), seed=2), dtype=dtype)
        got = target.grouped_mm(a, b, [2, 4, 6])
        assert target.maker.dtype_name(got) == dtype
        want = references.fprop(a.read(), b.read(), [2, 4, 6])
        assert_same(target.read(got), rounded(want, dtype))

    @pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
    @pytest.mark.parametrize("out_dtype", ["bfloat16", "float16", "float32"])
    @pytest.mark.parametrize("given", ["out_dtype", "out"])
    def test_every_result_type(self, target, dtype, out_dtype, given):
        a, b, ends = operands(target, (5, 0, 20), n=24, k=40, tail=3, dtype=dtype)
        want = rounded(references.fprop(a.read(), b.read(), ends), out_dtype)
        if given == "out":
            got = target.out(np.zeros((28, 24)), dtype=out_dtype)
            target.grouped_mm(a, b, ends, out=got)
            assert_same(got.read(), want)
            got.assert_only_elements_changed()
        else:
            result = target.grouped_mm(a, b, ends, out_dtype=out_dtype)
            assert target.maker.dtype_name(result) == out_dtype
            assert_same(target.read(result), want)

    def test_br046_one_shape_after_another(self, target):
        for sizes, k in (((60, 68), 256), ((32,) * 16, 512), ((60, 68), 256)):
            a, b, ends = operands(target, sizes, n=64, k=k)
            check_fprop(target, a, b, ends, "float32", out_dtype="float32")

    def test_same_arrays_with_other_values(self, target):
        # What is remembered of a call must be its shape, never its data or its addresses.
        for seed in range(4):
            a = target.place(integers((20, 32), seed=seed))
            b = target.place(integers((3, 32, 16), seed=seed + 50))
            check_fprop(target, a, b, [seed, 9 + seed, 20 - seed])
