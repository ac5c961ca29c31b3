"""The contract of groups and numerics with k2 and k3, where they take the operands.

What they do not take, the default choice does, as for a caller who leaves `config` out. k0, k1 and
the default choice itself have `tests/unit/test_grouped_mm.py`, in the emulator and in NumPy.
"""

from __future__ import annotations

import pytest
from cases import BY_TMA, GROUPINGS, Target
from contract_groups import GroupsContract, operands, wgrad_operands
from contract_numerics import NumericsContract
from makers import NumpyMaker

import gemmjit
from gemmjit.kernels import KERNELS


@pytest.fixture(params=BY_TMA)
def target(request, monkeypatch):
    monkeypatch.setenv("GEMMJIT_EXECUTOR", "emulator")
    monkeypatch.setenv("GEMMJIT_ARCH", "sm_90a")
    return Target(NumpyMaker(), "int32", request.param)


class TestGroups(GroupsContract):
    @pytest.mark.slow  # a quarter of a minute for each; hundreds are in the sampled edges
    def test_thousands_of_groups(self, target):
        super().test_thousands_of_groups(target)


class TestNumerics(NumericsContract):
    pass


@pytest.mark.parametrize("name", GROUPINGS)
def test_the_usual_arrays_are_taken(target, name):
    """Without this, all of the above might have been computed by other kernels."""
    sizes = GROUPINGS[name]
    a, b, ends = operands(target, sizes, n=40, k=24)
    gemmjit.grouped_mm(a.array, b.array, offs=ends, config=target.config)
    if "ragged_k" in KERNELS[target.config].forms:
        a, b, ends = wgrad_operands(target, sizes, k=24, n=40)
        gemmjit.grouped_mm(a.array, b.array, offs=ends, config=target.config)
