"""The contract of `grouped_mm` on a GPU: the tests of the CPU, on torch and CuPy arrays."""

from __future__ import annotations

import pytest
from cases import Target
from contract_groups import GroupsContract
from contract_layouts import LayoutsContract
from contract_numerics import NumericsContract

#: Framework, form of the offsets, kernel (None: the default choice).
TARGETS = (
    ("torch", "int32", None),
    ("torch", "int64", "k0"),
    ("cupy", "list", "k1"),
)
#: k2 and k3, where they take the operands; what they do not take is in the targets above.
BY_TMA_TARGETS = (("torch", "int64", "k2"), ("cupy", "int32", "k3"))


def by_tma(request):
    from gemmjit.cuda.device import device

    framework, offs, config = request.param
    if device(0).arch.number != 90:
        pytest.skip(f"k2 and k3 are named here for sm_90; this is {device(0).arch}")
    return Target(request.getfixturevalue(f"{framework}_maker"), offs, config)


@pytest.fixture(params=TARGETS, ids=lambda t: f"{t[0]}-{t[1]}-{t[2]}")
def target(request):
    framework, offs, config = request.param
    return Target(request.getfixturevalue(f"{framework}_maker"), offs, config)


class TestGroups(GroupsContract):
    pass


class TestGroupsByTma(GroupsContract):
    @pytest.fixture(params=BY_TMA_TARGETS, ids=lambda t: f"{t[0]}-{t[1]}-{t[2]}")
    def target(self, request):
        return by_tma(request)


class TestNumericsByTma(NumericsContract):
    @pytest.fixture(params=BY_TMA_TARGETS, ids=lambda t: f"{t[0]}-{t[1]}-{t[2]}")
    def target(self, request):
        return by_tma(request)


class TestLayouts(LayoutsContract):
    @pytest.fixture(params=TARGETS[::2], ids=lambda t: f"{t[0]}-{t[1]}-{t[2]}")
    def target(self, request):
        # Each layout is a kernel to compile: two targets, and the matrix has the rest.
        framework, offs, config = request.param
        return Target(request.getfixturevalue(f"{framework}_maker"), offs, config)


class TestNumerics(NumericsContract):
    pass
