"""Generators of group sizes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmjit.errors import InvalidProblemError
from gemmjit.workloads import entropy_deficit, power_law


def test_largest_and_smallest_expert_of_the_seed_workload():
    sizes = power_law(16384, 64, 1.2)
    assert sizes.max() == sizes[0] == 4793
    assert sizes.min() == sizes[-1] == 32
    assert sizes.sum() == 16384


@pytest.mark.parametrize(("rows", "each"), [(16384, 256), (2048, 32)])
def test_no_skew_is_even(rows, each):
    np.testing.assert_array_equal(power_law(rows, 64, 0), np.full(64, each))


@given(st.integers(0, 10**7), st.integers(1, 500), st.floats(0, 8))
def test_rows_add_up_and_fall(rows, groups, skew):
    sizes = power_law(rows, groups, skew)
    assert sizes.dtype == np.int64
    assert sizes.shape == (groups,)
    assert sizes.sum() == rows
    assert sizes.min() >= 0
    assert (np.diff(sizes) <= 0).all()


@given(st.integers(0, 10**6), st.integers(1, 200), st.floats(0, 4))
def test_each_group_has_its_share_rounded_down_or_one_more(rows, groups, skew):
    sizes = power_law(rows, groups, skew)
    total = math.fsum((g + 1) ** -skew for g in range(groups))
    for g, size in enumerate(sizes.tolist()):
        share = rows * (g + 1) ** -skew / total
        assert share - 1 - 1e-6 <= size <= share + 1 + 1e-6


@given(st.integers(1, 10**5), st.integers(2, 100), st.floats(0.1, 3))
def test_rows_left_over_go_to_the_first_groups(rows, groups, skew):
    sizes = power_law(rows, groups, skew)
    weights = np.arange(1, groups + 1) ** -skew
    floors = np.floor(rows * weights / weights.sum()).astype(int)
    extra = sizes - floors
    left = rows - int(floors.sum())
    np.testing.assert_array_equal(extra, np.arange(groups) < left)


@pytest.mark.parametrize(
    ("rows", "groups", "skew"),
    [(-1, 4, 0), (4, 0, 0), (4, 4, math.nan), (4, 4, math.inf), (10, 5, -1000.0)],
)
def test_refused(rows, groups, skew):
    with pytest.raises(InvalidProblemError, match="power_law: expected") as caught:
        power_law(rows, groups, skew)
    assert f"skew={skew}" in str(caught.value)


@pytest.mark.parametrize("groups", [1, 2, 3, 5, 7, 64, 100])
def test_entropy_deficit_ends(groups):
    assert entropy_deficit([3] * groups) == 0.0
    if groups > 1:
        assert entropy_deficit([9] + [0] * (groups - 1)) == 1.0
    assert entropy_deficit([0] * groups) == 0.0


def test_entropy_deficit_by_hand():
    # shares 1/2, 1/4, 1/4, 0: H = 1.5 bits of 2
    assert entropy_deficit([8, 4, 4, 0]) == pytest.approx(0.25, rel=1e-12)


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=50))
def test_entropy_deficit_lies_between_0_and_1_whatever_the_order(sizes):
    deficit = entropy_deficit(sizes)
    assert 0.0 <= deficit <= 1.0
    assert entropy_deficit(sizes[::-1]) == pytest.approx(deficit, abs=1e-9)


def test_entropy_deficit_grows_with_skew():
    deficits = [entropy_deficit(power_law(16384, 64, s)) for s in (0, 0.4, 0.8, 1.2, 2)]
    assert deficits == sorted(set(deficits))
    assert deficits[0] == 0.0


def test_entropy_deficit_refuses_negative_sizes():
    with pytest.raises(InvalidProblemError, match="group_sizes"):
        entropy_deficit([3, -1])
