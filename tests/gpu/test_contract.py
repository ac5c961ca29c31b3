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


@pytest.fixture(params=TARGETS, ids=lambda t: f"{t[0]}-{t[1]}-{t[2]}")
def target(request):
    framework, offs, config = request.param
    return Target(request.getfixturevalue(f"{framework}_maker"), offs, config)


class TestGroups(GroupsContract):
    pass


class TestLayouts(LayoutsContract):
    @pytest.fixture(params=TARGETS[::2], ids=lambda t: f"{t[0]}-{t[1]}-{t[2]}")
    def target(self, request):
        # Each layout is a kernel to compile: two targets, and the matrix has the rest.
        framework, offs, config = request.param
        return Target(request.getfixturevalue(f"{framework}_maker"), offs, config)


class TestNumerics(NumericsContract):
    pass
