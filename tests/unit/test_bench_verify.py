"""Contenders that cheat, inputs that make it easy, and what counts as work."""

import ml_dtypes
import numpy as np
import pytest
from verified_case import CASE, product, verified

from gemmjit.bench.cases import Workload
from gemmjit.bench.entrant import enter, verify_all
from gemmjit.bench.inputs import Inputs
from gemmjit.bench.peers import Contender, Prepared
from gemmjit.bench.simulated import SimulatedBackend
from gemmjit.bench.verify import check_result
from gemmjit.dtypes import BF16, F32
from gemmjit.errors import LaunchError


@pytest.mark.parametrize("form", ["fprop", "dgrad", "wgrad"])
def test_a_right_contender_passes_with_the_error_of_one_rounding(form):
    check, reason = verified(lambda operands, _: lambda: product(operands), form)
    assert check is not None, reason
    assert 5e-4 < check.relative_error < 2.5e-3
    assert check.worst_element < 1.0


@pytest.mark.parametrize("form", ["fprop", "dgrad"])
def test_the_layout_that_a_contender_was_given_is_the_one_it_is_compared_with(form):
    right, _ = verified(lambda o, _: lambda: product(o, "nt"), form, layout="nt")
    wrong, _ = verified(lambda o, _: lambda: product(o, "nn"), form, layout="nt")
    assert right is not None
    assert wrong is None


def test_a_contender_that_does_no_work_is_caught():
    def make(operands, _):
        out = product(operands)  # right once, and then left alone
        return lambda: out

    check, reason = verified(make)
    assert check is None
    assert "not written" in reason


def test_a_contender_that_remembers_its_result_is_caught():
    def make(operands, _):
        kept = product(operands)
        return lambda: kept.copy()

    check, reason = verified(make)
    assert check is None
    assert "wrong: group" in reason


def test_a_contender_that_computes_one_copy_for_all_is_caught():
    first = []

    def make(operands, _):
        first.append(operands)
        return lambda: product(first[0])

    assert verified(make)[0] is None
    assert verified(make, copies=1)[0] is not None  # with one copy there is nothing to catch


def test_a_contender_that_works_only_every_other_time_is_caught():
    turns = []

    def make(operands, _):
        kept = [None]

        def call():
            turns.append(1)
            if len(turns) % 4 < 2 or kept[0] is None:
                kept[0] = product(operands)
                return kept[0].copy()
            return np.full_like(kept[0], np.nan)

        return call

    assert verified(make, copies=2)[0] is None


@pytest.mark.parametrize(
    "spoil",
    [
        lambda out: out[3].fill(0),  # a row of zeros
        lambda out: out.__setitem__((7, 11), out[7, 11] + 0.25),  # one element, slightly
        lambda out: out.__setitem__((0, 0), np.nan),
        lambda out: out.__setitem__(slice(5, 24), out[5:24] * 1.01),  # a group, by one percent
        lambda out: out.__setitem__((slice(None), slice(0, 2)), out[:, [1, 0]]),  # columns swapped
    ],
)
def test_wrong_values_are_caught(spoil):
    def make(operands, _):
        def call():
            out = product(operands)
            spoil(out)
            return out

        return call

    assert verified(make)[0] is None


def test_a_result_of_lower_precision_is_caught():
    def make(operands, _):
        return lambda: product(operands).astype(ml_dtypes.float8_e4m3fn).astype(ml_dtypes.bfloat16)

    assert verified(make)[0] is None


def test_a_result_of_another_shape_is_caught():
    check, reason = verified(lambda o, _: lambda: product(o)[:-1])
    assert check is None
    assert "shape" in reason


def test_a_contender_that_raises_is_reported_and_the_others_go_on():
    backend = SimulatedBackend()
    inputs = Inputs(backend, Workload(CASE, "fprop"), copies=2)

    def broken(operands):
        raise RuntimeError("no kernel for this\nand a long explanation")

    contenders = [
        Contender("broken", "p", broken),
        Contender("fine", "q", lambda o: Prepared(lambda: product(o))),
    ]
    entrants, rejected = enter(backend, inputs, contenders, 1e-3)
    assert [r.reason for r in rejected] == ["RuntimeError: no kernel for this"]
    assert [e.name for e in verify_all(backend, entrants, 2)[0]] == ["fine"]


def test_a_contender_that_loses_the_device_ends_the_run():
    class Lost(SimulatedBackend):
        lost = False

        def synchronize(self):
            if self.lost:
                raise RuntimeError("an illegal memory access was encountered")

    backend = Lost()
    inputs = Inputs(backend, Workload(CASE, "fprop"), copies=2)

    def broken(operands):
        backend.lost = True
        raise RuntimeError("launch failure")

    with pytest.raises(LaunchError, match="bad: it left the device unusable"):
        enter(backend, inputs, [Contender("bad", "p", broken)], 1e-3)


def test_gradients_that_accumulate_are_checked_from_zero():
    def make(operands, _):
        out = np.ones(operands.workload.result_shape, np.float32)

        def call():
            out[...] += product_f32(operands)
            return out

        return call

    def product_f32(operands):
        a, b = (np.asarray(x, np.float32) for x in (operands.mat_a, operands.mat_b()))
        ends = np.cumsum(operands.group_sizes)
        return np.stack(
            [
                a[:, e - s : e] @ b[e - s : e]
                for e, s in zip(ends, operands.group_sizes, strict=True)
            ]
        )

    check, reason = verified(make, "wgrad", accumulates=True, dtype=F32)
    assert check is not None, reason
    lazy, reason = verified(
        lambda o, _: lambda: np.zeros(o.workload.result_shape, np.float32),
        "wgrad",
        accumulates=True,
        dtype=F32,
    )
    assert lazy is None


def test_the_gradient_of_an_empty_group_must_be_zero():
    def make(operands, _):
        def call():
            out = product(operands)
            out[1] = 1e-6
            return out

        return call

    check, reason = verified(make, "wgrad")
    assert check is None
    assert "empty" in reason


def test_packed_copies_are_refreshed_when_operands_are_redrawn():
    def with_refresh(refresh):
        backend = SimulatedBackend()
        inputs = Inputs(backend, Workload(CASE, "fprop"), copies=1, seed=1)

        def prepare(operands):
            packed = np.array(operands.mat_a)

            def call():
                out, start = np.zeros(operands.workload.result_shape, np.float32), 0
                for group, size in enumerate(operands.group_sizes):
                    rows = slice(start, start + size)
                    start += size
                    b = operands.mat_b()[group].astype(np.float32)
                    out[rows] = packed[rows].astype(np.float32) @ b
                return out.astype(BF16.numpy)

            def pack():
                packed[...] = operands.mat_a

            return Prepared(call, refresh=pack if refresh else None)

        entrants, _ = enter(backend, inputs, [Contender("x", "x", prepare)], 1e-3)
        return verify_all(backend, entrants, 2)

    assert len(with_refresh(True)[0]) == 1
    assert len(with_refresh(False)[0]) == 0


def test_the_check_itself_sees_a_nan_in_any_group():
    backend = SimulatedBackend()
    operands = Inputs(backend, Workload(CASE, "fprop"), copies=1).copies[0]
    good = product(operands)
    assert check_result(operands, good).ok
    for row in (0, 4, 5, 23, 24, 31):
        bad = good.copy()
        bad[row, -1] = np.nan
        assert not check_result(operands, bad).ok
