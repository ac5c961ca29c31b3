"""Whether tiles are claimed: the cost model beside the templates and the plans."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from gemmjit import Problem, Sm90WgmmaConfig
from gemmjit.arch import Arch
from gemmjit.ops.dispatch import plan_for, spec_for
from gemmjit.selection.work import MAX_LOOKED_AT, work_of
from gemmjit.templating import templates_root

TURNS = templates_root().joinpath("core/turns.cuh").read_text()
CLAIMED = Sm90WgmmaConfig(block_m=128, block_n=128, order="claimed")
NUM_SMS = 4


def in_step(sizes, *, config=CLAIMED, schedule="scan", n=128, tail=0, num_sms=NUM_SMS, zeros=True):
    rows = np.asarray(sizes, np.int64)
    problem = Problem.contiguous(
        num_groups=len(rows), rows=int(rows.sum()) + tail, n=n, k=64, schedule=schedule
    )
    return work_of(replace(problem, zero_tail=zeros), config, rows, num_sms).in_step


def test_the_model_looks_at_as_many_groups_as_the_template():
    (most,) = re.findall(r"constexpr int MAX_LOOKED_AT = (\d+);", TURNS)
    assert int(most) == MAX_LOOKED_AT
    assert "if (groups == 0 || groups > MAX_LOOKED_AT) return;" in TURNS
    assert "if (SCHEDULE != SCHEDULE_SCAN) return;" in TURNS
    assert (
        "scheduler.in_turn = !sizes.partial || (sizes.fewest == sizes.most && sizes.most > 1);"
        in (TURNS)
    )


@pytest.mark.parametrize("rows", [128, 200, 256])
def test_more_groups_count_as_uneven(rows):
    assert in_step([rows] * MAX_LOOKED_AT)
    assert not in_step([rows] * (MAX_LOOKED_AT + 1))
    assert not in_step([rows] * MAX_LOOKED_AT + [0])  # an empty one is looked at too
    listed = replace(CLAIMED, order="listed")
    assert in_step([rows] * (MAX_LOOKED_AT + 1), config=listed)  # nothing is claimed


@pytest.mark.parametrize("order", ["claimed", "listed"])
def test_a_list_is_always_claimed(order):
    config = replace(CLAIMED, order=order)
    even = [256] * 8
    assert in_step(even, config=config)
    assert in_step(even, config=config, schedule="list") is (order == "listed")
    compact = replace(config, schedule="compact")
    assert in_step(even, config=compact) is (order == "listed")
    assert in_step(even, config=compact, schedule="list") is (order == "listed")
    assert not in_step([100, 300], config=config)


@pytest.mark.parametrize("schedule", ["", "persistent", "bounded", "compact"])
@pytest.mark.parametrize("where", ["scan", "list"])
@pytest.mark.parametrize("zeros", [False, True])
def test_nothing_is_claimed_where_the_plan_has_no_counter(schedule, where, zeros):
    config = replace(CLAIMED, schedule=schedule)
    seen = set()
    for groups in (1, 2, 3, 4, 6):
        for tail in (0, 128, 400):
            sizes = np.full(groups, 128, np.int64)
            problem = replace(
                Problem.contiguous(
                    num_groups=groups, rows=128 * groups + tail, n=128, k=64, schedule=where
                ),
                zero_tail=zeros,
            )
            plan = plan_for(
                problem,
                spec_for(problem, Arch(90), config),
                num_sms=NUM_SMS,
                offs_is_int64=False,
                group_sizes=sizes if where == "list" else None,
            )
            counted = any(space.name == "claims" for space in plan.workspaces)
            seen.add(counted)
            looks = where == "scan" and schedule != "compact"
            found = in_step(sizes, config=config, schedule=where, tail=tail, zeros=zeros)
            assert found is (looks or not counted), (groups, tail)
    assert seen == ({False} if schedule == "bounded" and where == "scan" else {False, True})
