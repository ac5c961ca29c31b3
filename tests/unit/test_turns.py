"""Which listed tiles drift apart, in the cost model and in the templates."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gemmjit import Problem, Sm90WgmmaConfig
from gemmjit.selection.work import work_of
from gemmjit.templating import read_template

CLAIMED = Sm90WgmmaConfig(block_m=128, block_n=128, order="claimed")
LISTED = replace(CLAIMED, order="listed")


def rereads(sizes, config):
    rows = np.asarray(sizes, np.int64)
    problem = Problem.contiguous(num_groups=len(rows), rows=int(rows.sum()), n=128, k=64)
    return work_of(problem, config, rows, 4).rereads


def test_the_rule_is_that_of_the_template():
    turns = "!sizes.partial || (sizes.fewest == sizes.most && sizes.most > 1);"
    assert f"scheduler.in_turn = {turns}" in read_template("core/turns.cuh")


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [([128] * 3, 0), ([256, 0, 128], 0), ([200, 0, 250], 0), ([100, 300], 1), ([1, 9], 0), ([], 0)],
)  # fmt: skip
def test_weights_are_read_again_where_listed_tiles_are_unlike(sizes, expected):
    assert rereads(sizes, LISTED) == expected
    assert rereads(sizes, CLAIMED) == 0
