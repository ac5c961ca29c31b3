"""The settings of a ``with emulating`` block: they reach the emulator, nest, and end."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import gemmjit
from gemmjit.emulator import emulating
from gemmjit.emulator.faults import StepBudgetExceeded
from gemmjit.emulator.settings import current

TILE = gemmjit.Sm80MmaConfig(block_m=32, block_n=64, num_stages=2)


def call():
    a, b = np.ones((8, 64), np.float16), np.ones((1, 64, 64), np.float16)
    return gemmjit.grouped_mm(a, b, offs=[8], config=TILE)


def test_reports_of_every_launch():
    with emulating() as reports:
        assert (call() == 64).all()
        assert len(reports) == 1
        call()
    assert len(reports) == 2
    assert reports[0].instructions["mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"] > 0
    call()
    assert len(reports) == 2


@pytest.mark.parametrize("policy", ["lazy", "random"])
def test_every_policy_counts_the_same_products(policy):
    def products(report):
        return {name: n for name, n in report.instructions.items() if "mma" in name}

    with emulating() as eager, emulating(policy, seed=3) as other:
        call()
    assert not eager
    with emulating() as eager:
        call()
    assert products(other[0]) == products(eager[0]) != {}


def test_large_problems_and_other_executors_are_emulated_too(monkeypatch):
    monkeypatch.setenv("GEMMJIT_EXECUTOR", "reference")
    with emulating() as reports:
        call()
    assert len(reports) == 1


def test_limits_reach_the_emulator():
    with emulating(max_steps=10), pytest.raises(StepBudgetExceeded):
        call()
    assert (call() == 64).all()


def test_the_inner_block_holds_and_then_the_outer_again():
    assert current() is None
    with emulating("lazy", seed=1):
        with emulating("random", seed=2):
            assert (current().policy, current().seed) == ("random", 2)
        assert (current().policy, current().seed) == ("lazy", 1)
    assert current() is None


def test_other_threads_are_not_concerned():
    seen = []
    with emulating("lazy"):
        thread = threading.Thread(target=lambda: seen.append(current()))
        thread.start()
        thread.join()
    assert seen == [None]


def test_an_unknown_policy_is_named():
    with emulating("slow"), pytest.raises(ValueError, match="policy: expected one of"):
        call()
