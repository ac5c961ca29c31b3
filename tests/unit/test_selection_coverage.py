"""Whatever a call needs is among what a manifest's problem compiles, for every number of rows."""

from __future__ import annotations

import numpy as np
import pytest

from gemmjit import Problem
from gemmjit.arch import Arch
from gemmjit.constraints import variant_for
from gemmjit.ops.dispatch import spec_for
from gemmjit.selection import Choice, choose, every_choice

SM90 = Arch.parse("sm_90")


def needed(problem: Problem, arch: Arch) -> Choice:
    kernel, config = choose(problem.settled, arch)
    return Choice(kernel, config, variant_for(problem.settled, kernel, config))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("seed", range(12))
def test_every_number_of_rows_is_covered(arch, seed):
    rng = np.random.default_rng(seed)
    target = Arch.parse(arch)
    for _ in range(12):
        form = str(rng.choice(["ragged_m", "ragged_k"]))
        n, k = (int(rng.choice([1, 7, 16, 64, 200, 2688])) for _ in range(2))
        groups = int(rng.choice([1, 2, 8, 64, 300, 1024]))
        low = int(rng.choice([0, 1, 2, 50]))
        keywords = {
            "n": n,
            "k": k,
            "b_k_major": bool(rng.integers(2)) and form == "ragged_m",
            "out_dtype": str(rng.choice(["bfloat16", "float32"])),
            "schedule": str(rng.choice(["scan", "list"])),
        }

        def describe(num_groups, rows, form=form, keywords=keywords):
            return Problem.contiguous(form, num_groups=num_groups, rows=rows, **keywords)

        known = bool(rng.integers(2))
        limits = (low, 2**20)
        covered = set(
            every_choice(describe, target, num_groups=groups if known else None, rows=limits)
        )
        some = [0, 1, 2, 3, 79, 197, 198, groups, 33 * groups, 65 * groups, 2047 * groups]
        for rows in (r for r in some if low <= r <= limits[1]):
            for count in {groups} if known else {0, 1, 2, groups}:
                asked = describe(count, rows)
                if not asked.is_empty:
                    assert needed(asked, target) in covered, (asked, low, known)


def test_arrays_without_elements_need_one_kernel_whatever_their_strides():
    usual = Problem.contiguous("ragged_k", num_groups=4, rows=0, n=64, k=64)
    odd = Problem.contiguous("ragged_k", num_groups=4, rows=0, n=64, k=64, a_k_major=True)
    assert usual.strides != odd.strides
    assert spec_for(odd.settled, SM90) == spec_for(usual.settled, SM90)
    full = Problem.contiguous("ragged_k", num_groups=4, rows=8, n=64, k=64, a_k_major=True)
    assert full.settled is full


@pytest.mark.parametrize("epilogue", ["bias_strided", "bias_f32_strided+swiglu_split+row_scale"])
def test_arrays_of_an_epilogue_without_elements_count_as_lying_side_by_side(epilogue):
    sizes = {"num_groups": 0, "rows": 8, "n": 64, "k": 64, "b_k_major": True}
    odd = Problem.contiguous(**sizes, epilogue=epilogue)
    usual = Problem.contiguous(**sizes, epilogue=epilogue.replace("_strided", ""))
    assert odd.settled == usual.settled
    assert spec_for(odd, SM90) == spec_for(odd.settled, SM90) == spec_for(usual, SM90)
    read = Problem.contiguous(**sizes | {"num_groups": 2, "k": 0}, epilogue=epilogue)
    assert read.settled.epilogue == epilogue  # what is added to nothing is read
