"""Grids: exact where a block takes one tile, no more than fit where blocks run on."""

from __future__ import annotations

import numpy as np
import pytest

from gemmjit.arch import Arch
from gemmjit.ops.dispatch import plan_for, spec_for
from gemmjit.plan import Plan, Scalar, Struct
from gemmjit.problem import Problem

SIZES = np.array([300, 0, 20, 64])
SMS = 2


def plan(form: str, kernel: str, schedule: str) -> Plan:
    rows = int(SIZES.sum())
    problem = Problem.contiguous(
        form, num_groups=len(SIZES), rows=rows, n=384, k=256, schedule=schedule
    )
    spec = spec_for(problem, Arch.parse("sm_90a"), kernel)
    sizes = SIZES if schedule == "list" else None
    return plan_for(problem, spec, num_sms=SMS, offs_is_int64=False, group_sizes=sizes)


def num_tiles(made: Plan) -> int:
    (launch,) = made.launches
    arguments = launch.arguments[-1]
    assert isinstance(arguments, Struct)
    number = arguments.fields[-3]  # behind it is what splitting takes
    assert isinstance(number, Scalar)
    return int(number.value)


# 128-row tiles of k1 and k3: 3 + 0 + 1 + 1 row tiles; 384 columns are 3 tiles of 128, 2 of 192.
@pytest.mark.parametrize(("kernel", "tiles"), [("k1", 15), ("k3", 10)])
def test_a_list_from_the_host_is_exact(kernel: str, tiles: int) -> None:
    made = plan("ragged_m", kernel, "list")
    assert num_tiles(made) == tiles
    (workspace,) = [one for one in made.workspaces if one.name == "tiles"]
    assert workspace.contents is not None
    assert len(workspace.contents) == tiles


def test_kernels_of_one_tile_a_block_get_a_block_a_tile() -> None:
    assert plan("ragged_m", "k1", "list").launches[0].grid == (15, 1, 1)
    assert plan("ragged_k", "k1", "scan").launches[0].grid == (4 * 2 * 3, 1, 1)


def test_persistent_kernels_get_as_many_blocks_as_fit() -> None:
    for form, schedule in (("ragged_m", "list"), ("ragged_m", "scan"), ("ragged_k", "scan")):
        assert plan(form, "k3", schedule).launches[0].grid == (SMS, 1, 1), (form, schedule)
