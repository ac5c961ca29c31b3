"""Converters of offsets on NumPy (and torch, where it is installed), and the check."""

from __future__ import annotations

import numpy as np
import pytest
import references
from hypothesis import given
from hypothesis import strategies as st

from gemmjit import check_offsets, offsets
from gemmjit.errors import InvalidProblemError

sizes_lists = st.lists(st.integers(0, 50), max_size=20)


def numpy_array(values, dtype="int64"):
    return np.asarray(values, dtype)


def torch_array(values, dtype="int64"):
    torch = pytest.importorskip("torch")
    return torch.tensor(list(values), dtype=getattr(torch, dtype))


FRAMEWORKS = pytest.mark.parametrize("make", [numpy_array, torch_array])


def listed(array, make) -> list[int]:
    """Return the elements, after checking framework and type."""
    assert type(array) is type(make([1]))
    assert str(array.dtype).removeprefix("torch.") == "int32"
    return array.tolist()


@FRAMEWORKS
@given(sizes=sizes_lists)
def test_group_sizes_there_and_back(make, sizes):
    ends = offsets.from_group_sizes(make(sizes))
    assert listed(ends, make) == np.cumsum(sizes, dtype=int).tolist()
    assert listed(offsets.to_group_sizes(ends), make) == sizes


@FRAMEWORKS
@given(sizes=sizes_lists)
def test_indptr_is_ends_with_a_zero_before(make, sizes):
    indptr = np.concatenate([[0], np.cumsum(sizes)]).astype(int)
    assert listed(offsets.from_indptr(make(indptr)), make) == indptr[1:].tolist()


@FRAMEWORKS
@given(sizes=sizes_lists, strangers=st.integers(0, 5))
def test_row_ids_give_the_ends_of_their_groups(make, sizes, strangers):
    ids = np.repeat(np.arange(len(sizes)), sizes).tolist()
    ids += [len(sizes) + i for i in range(strangers)]  # rows of no group come last
    ends = offsets.from_row_ids(make(ids), len(sizes))
    assert listed(ends, make) == np.cumsum(sizes, dtype=int).tolist()


@FRAMEWORKS
@pytest.mark.parametrize(
    ("ids", "at", "found"),
    [
        ([2, 0, 0, 2, 2], 1, "0 after 2"),
        ([0, -1, 1], 2, "1 after -1"),
        ([0, 9, 0], 2, "0 after 9"),
        ([1, 1, 0, 2, 1], 2, "0 after 1"),
    ],
)
def test_row_ids_on_the_host_must_be_sorted(make, ids, at, found):
    expected = rf"row_ids: expected rows sorted by group.*got row_ids\[{at}\] = {found}\. Sort"
    with pytest.raises(InvalidProblemError, match=expected):
        offsets.from_row_ids(make(ids), 3)


@FRAMEWORKS
def test_rows_of_no_group_come_in_any_order(make):
    assert listed(offsets.from_row_ids(make([0, 1, -1, 7, 3, -2]), 3), make) == [1, 2, 2]


def test_row_ids_that_are_traced_are_not_looked_at():
    torch = pytest.importorskip("torch")
    ids = torch.tensor([0, 0, 2])
    traced = torch.compile(offsets.from_row_ids, backend="eager", fullgraph=True)
    assert traced(ids, 3).tolist() == [2, 2, 3]
    both = torch.stack([ids, torch.tensor([1, 1, 1])])
    many = torch.vmap(lambda one: offsets.from_row_ids(one, 3))(both)
    assert many.tolist() == [[2, 2, 3], [0, 3, 3]]
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        assert offsets.from_row_ids(torch.ones(4, dtype=torch.int64), 3).shape == (3,)
    assert offsets.from_row_ids(torch.ones(4, dtype=torch.int64, device="meta"), 3).shape == (3,)


@FRAMEWORKS
def test_negative_row_ids_belong_to_no_group(make):
    ends = offsets.from_row_ids(make([0, 0, 2, -1, -1]), 3)
    assert listed(ends, make) == [2, 2, 3]


@FRAMEWORKS
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32"])
def test_narrow_row_ids_and_many_groups(make, dtype):
    # Group numbers beyond the type of the ids must not wrap around.
    ends = offsets.from_row_ids(make([0, 5, 100, 127], dtype), 300)
    want = [int(np.sum(np.asarray([0, 5, 100, 127]) <= g)) for g in range(300)]
    assert listed(ends, make) == want


@FRAMEWORKS
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64"])
def test_narrow_group_sizes_do_not_wrap(make, dtype):
    ends = offsets.from_group_sizes(make([100, 100, 100], dtype))
    assert listed(ends, make) == [100, 200, 300]


def test_lists_are_taken_as_numpy():
    assert offsets.from_group_sizes([3, 0, 4]).tolist() == [3, 3, 7]
    assert offsets.from_indptr([0, 3, 3, 7]).tolist() == [3, 3, 7]
    assert offsets.to_group_sizes((3, 3, 7)).tolist() == [3, 0, 4]
    assert offsets.from_row_ids([0, 0, 2], 3).tolist() == [2, 2, 3]


@FRAMEWORKS
@pytest.mark.parametrize(
    ("function", "values", "words"),
    [
        (
            offsets.from_indptr,
            [1, 3, 6],
            ("indptr: ", "leading zero", "indptr[0] = 1", "End offsets"),
        ),
        (
            offsets.from_indptr,
            [0, 3, 1],
            ("indptr: ", "never fall", "indptr[2] = 1 after 3", "in order"),
        ),
        (offsets.from_indptr, [0, 2**31], ("indptr: ", "2147483647", "got 2147483648", "Split")),
        (offsets.from_indptr, [], ("indptr: ", "(G + 1,)", "got none", "[0]")),
        (offsets.from_group_sizes, [3, -1], ("group_sizes: ", "at least 0", "group_sizes[1] = -1")),
        (
            offsets.from_group_sizes,
            [2**31 - 1, 1],
            ("group_sizes: ", "2147483647", "got 2147483648"),
        ),
        (
            offsets.to_group_sizes,
            [3, 1],
            ("offs: ", "never fall", "offs[1] = 1 after 3", "from_group"),
        ),
        (offsets.to_group_sizes, [-2, 1], ("offs: ", "from 0 on", "offs[0] = -2")),
    ],
)
def test_what_is_no_grouping_is_refused_on_the_host(make, function, values, words):
    with pytest.raises(InvalidProblemError) as caught:
        function(make(values))
    for word in words:
        assert word in str(caught.value)


def test_no_values_are_read_where_there_are_none_on_the_host():
    torch = pytest.importorskip("torch")
    far = torch.empty(3, dtype=torch.int32, device="meta")  # has no values at all
    assert offsets.from_indptr(far).shape == (2,)
    assert offsets.from_group_sizes(far).shape == offsets.to_group_sizes(far).shape == (3,)
    for function in (offsets.from_indptr, offsets.from_group_sizes, offsets.to_group_sizes):
        traced = torch.compile(function, backend="eager", fullgraph=True)
        assert traced(torch.tensor([1, 3])).dtype == torch.int32


def test_an_empty_list_is_no_groups():
    for found in (
        offsets.from_group_sizes([]),
        offsets.to_group_sizes([]),
        offsets.from_indptr([0]),
        offsets.from_row_ids([], 0),
    ):
        assert found.shape == (0,)
        assert found.dtype == np.int32


def test_converters_leave_their_input_alone():
    ends = np.array([3, 3, 7], np.int32)
    offsets.to_group_sizes(ends)
    offsets.from_group_sizes(ends)
    assert ends.tolist() == [3, 3, 7]


@pytest.mark.parametrize("function", [offsets.from_group_sizes, offsets.to_group_sizes])
def test_converters_refuse_other_shapes(function):
    with pytest.raises(InvalidProblemError, match=r"one dimension.*\(1, 2\)"):
        function(np.zeros((1, 2), np.int64))
    with pytest.raises(InvalidProblemError, match="int"):
        function(3)


def test_row_ids_need_a_number_of_groups():
    with pytest.raises(InvalidProblemError, match="num_groups: expected a number >= 0; got -1"):
        offsets.from_row_ids([0], -1)


@FRAMEWORKS
@given(sizes=sizes_lists, tail=st.integers(0, 5))
def test_check_accepts_every_grouping(make, sizes, tail):
    ends = make(np.cumsum(sizes, dtype=int))
    check_offsets(ends, sum(sizes) + tail)


@FRAMEWORKS
@given(ends=st.lists(st.integers(-5, 30), min_size=1, max_size=8), rows=st.integers(0, 25))
def test_check_refuses_exactly_what_clamping_would_change(make, ends, rows):
    if references.clamp(ends, rows) == ends:
        check_offsets(make(ends), rows)
    else:
        with pytest.raises(InvalidProblemError, match=r"offs\[\d+\] = -?\d+"):
            check_offsets(make(ends), rows)


@pytest.mark.parametrize(
    ("ends", "rows", "words"),
    [
        ([8, 4], 16, ("offs[1] = 4 after 8", "never fall", "from_group_sizes")),
        ([-1, 8], 16, ("offs[0] = -1 after 0", "from 0 on")),
        ([8, 32], 16, ("offs[1] = 32", "up to 16")),
        ([20, 32], 16, ("offs[0] = 20", "up to 16")),
        ([[1, 2]], 16, ("one dimension", "(1, 2)")),
        ([1.0, 2.0], 16, ("whole numbers", "float64")),
        ([True, True], 16, ("whole numbers", "bool")),
        ([2**70], 16, ("whole numbers", "object")),
        (3, 16, ("one dimension", "()")),
    ],
)
def test_check_names_index_and_values(ends, rows, words):
    with pytest.raises(InvalidProblemError) as caught:
        check_offsets(ends, rows)
    for word in ("offs", *words):
        assert word in str(caught.value)


def test_check_of_a_torch_tensor_of_the_wrong_type():
    torch = pytest.importorskip("torch")
    for dtype in (torch.bfloat16, torch.float32):
        with pytest.raises(InvalidProblemError, match="whole numbers"):
            check_offsets(torch.ones(3, dtype=dtype), 16)


# The reference's clamping, which GPU tests compare the kernels with.


@given(st.lists(st.integers(-(2**40), 2**40), max_size=20), st.integers(0, 1000))
def test_clamped_offsets_are_a_grouping(ends, rows):
    clamped = references.clamp(ends, rows)
    assert clamped == sorted(clamped)
    assert all(0 <= end <= rows for end in clamped)
    assert references.clamp(clamped, rows) == clamped
    # The kernels clamp to [0, rows] first and take the running maximum: the same thing.
    if ends:
        assert clamped == np.maximum.accumulate(np.clip(ends, 0, rows)).tolist()


@given(sizes_lists, st.integers(0, 9))
def test_clamping_changes_no_valid_offsets(sizes, tail):
    ends = np.cumsum(sizes, dtype=int).tolist()
    assert references.clamp(ends, sum(sizes) + tail) == ends


@pytest.mark.parametrize(
    ("ends", "rows", "want"),
    [
        ([8, 4], 16, [8, 8]),
        ([-1, 8], 16, [0, 8]),
        ([8, 32], 16, [8, 16]),
        ([16, 8, 16], 16, [16, 16, 16]),
        ([99, -7], 16, [16, 16]),
    ],
)
def test_clamping_by_hand(ends, rows, want):
    assert references.clamp(ends, rows) == want
