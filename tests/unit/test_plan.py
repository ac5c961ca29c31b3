"""Plans: grids, workspaces, and arguments that mean in the kernel what they mean here."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structs import struct_of

from gemmjit import Problem, Sm80MmaConfig
from gemmjit.arch import Arch
from gemmjit.cuda.packing import pack
from gemmjit.errors import InvalidProblemError
from gemmjit.ops.dispatch import spec_for
from gemmjit.ops.planning import plan_ladder
from gemmjit.plan import Plan
from gemmjit.workloads import power_law

RESIDENT = 264


def plan(problem: Problem, *, sizes=None, config="k1", is_int64=False) -> Plan:
    """Plan a problem without compiling anything."""
    spec = spec_for(problem, Arch(90), config)
    kernel = SimpleNamespace(threads=spec.threads, smem_bytes=spec.smem_bytes, entry=spec.entry)
    return plan_ladder(
        problem,
        kernel,
        spec,
        offs_is_int64=is_int64,
        group_sizes=None if sizes is None else np.asarray(sizes),
        resident_blocks=RESIDENT,
    )


def listed(sizes, tail=0, n=2688, **keywords) -> Problem:
    return Problem.contiguous(
        num_groups=len(sizes), rows=sum(sizes) + tail, n=n, k=64, schedule="list", **keywords
    )


@pytest.mark.parametrize(
    ("rows", "skew", "config", "tiles"),
    [
        (16384, 0, "k0", 10752),
        (16384, 1.2, "k0", 11970),
        (16384, 0, Sm80MmaConfig(block_m=32), 10752),
        (16384, 0, Sm80MmaConfig(block_m=128), 2688),
        (16384, 1.2, Sm80MmaConfig(block_m=128), 3444),
        (2048, 0, Sm80MmaConfig(block_m=64), 1344),
        (2048, 0, "k0", 2688),
    ],
)
def test_host_offsets_give_an_exact_grid(rows, skew, config, tiles):
    sizes = power_law(rows, 64, skew).tolist()
    (launch,) = plan(listed(sizes), sizes=sizes, config=config).launches
    assert launch.grid == (tiles, 1, 1)
    assert launch.block == (256, 1, 1)


def test_tail_of_a_fresh_result_is_part_of_the_list():
    sizes = [100, 0, 30]
    problem = listed(sizes, tail=200, n=100)
    made = plan(problem, sizes=sizes, config=Sm80MmaConfig(block_m=64))
    (tiles,) = (w for w in made.workspaces if w.name == "tiles")
    assert tiles.contents[:, 0].tolist() == [0, 0, 2, 3, 3, 3, 3]
    assert tiles.contents[3:, 2].sum() == 200
    into = plan(replace(problem, zero_tail=False), sizes=sizes, config=Sm80MmaConfig(block_m=64))
    assert into.launches[0].grid == (3, 1, 1)


def test_nothing_to_do_is_no_launch():
    problem = replace(listed([0, 0], tail=9), zero_tail=False)
    assert plan(problem, sizes=[0, 0]).launches == ()


@given(st.lists(st.integers(0, 300), min_size=1, max_size=9), st.integers(0, 50))
def test_device_offsets_take_as_many_blocks_as_fit(sizes, tail):
    rows = sum(sizes) + tail
    if rows == 0:
        return
    problem = Problem.contiguous(num_groups=len(sizes), rows=rows, n=256, k=64)
    (launch,) = plan(problem).launches
    assert 1 <= launch.grid[0] <= RESIDENT
    assert launch.grid[1:] == (1, 1)


def test_br062_the_grid_is_flat_and_bounded():
    problem = Problem.contiguous(num_groups=65537, rows=65537, n=16, k=16)
    (launch,) = plan(problem).launches
    assert launch.grid == (RESIDENT, 1, 1)
    sizes = [1] * 65537
    (launch,) = plan(replace(problem, schedule="list"), sizes=sizes).launches
    assert launch.grid == (65537, 1, 1)
    wgrad = Problem.contiguous("ragged_k", num_groups=65537, rows=65537, n=16, k=16)
    assert plan(wgrad).launches[0].grid == (65537, 1, 1)


def test_grid_beyond_the_limit_is_refused_before_launch():
    wgrad = Problem.contiguous("ragged_k", num_groups=2**20, rows=8, n=2**12 * 128, k=128)
    with pytest.raises(InvalidProblemError, match=r"grid: expected at most 2147483647 tiles; got"):
        plan(wgrad, config=Sm80MmaConfig(block_m=128))


def test_host_offsets_of_wgrad_travel_in_a_workspace():
    sizes = [5, 0, 9]
    wgrad = Problem.contiguous("ragged_k", num_groups=3, rows=14, n=64, k=64, schedule="list")
    made = plan(wgrad, sizes=sizes)
    (ends,) = made.workspaces
    assert ends.contents.tolist() == [5, 5, 14]
    assert ends.contents.dtype == np.int32
    assert ends.nbytes == 12
    assert ends.alignment >= 128
    assert set(made.operands()) == {"mat_a", "mat_b", "out"}


def test_device_offsets_are_an_operand():
    assert set(plan(Problem.contiguous(num_groups=3, rows=9, n=64, k=64)).operands()) == {
        "mat_a",
        "mat_b",
        "out",
        "offs",
    }


def arguments_of(made: Plan):
    """Return the main launch's arguments as the kernel's own struct reads them."""
    packed = pack(made.launches[-1].arguments)
    kind = struct_of("Arguments", "core/arguments.cuh.j2", "core/grouping.cuh")
    image = packed.image[packed.starts[-1] :]
    names = {slot.offset - packed.starts[-1]: slot.name for slot in packed.slots}
    return kind.from_buffer_copy(image), names, kind


@pytest.mark.parametrize("is_int64", [False, True])
def test_arguments_of_a_ragged_m_launch(is_int64):
    problem = Problem.contiguous(num_groups=3, rows=70, n=48, k=40, b_k_major=True)
    got, names, kind = arguments_of(plan(problem, is_int64=is_int64))
    s = problem.strides
    assert (got.stride_am, got.stride_ak) == (s.am, s.ak) == (40, 1)
    assert (got.stride_bg, got.stride_bk, got.stride_bn) == (s.bg, s.bk, s.bn) == (1920, 1, 40)
    assert (got.stride_dg, got.stride_dm, got.stride_dn) == (s.dg, s.dm, s.dn) == (0, 48, 1)
    assert (got.dim_n, got.dim_k) == (48, 40)
    assert (got.grouping.num_groups, got.grouping.rows) == (3, 70)
    assert (got.grouping.offs_is_int64, got.grouping.zero_tail) == (int(is_int64), 1)
    assert names == {
        kind.a.offset: "mat_a",
        kind.b.offset: "mat_b",
        kind.d.offset: "out",
        kind.grouping.offset: "offs",
    }


def test_arguments_of_a_listed_launch():
    sizes = [100, 0, 30]
    got, names, kind = arguments_of(plan(listed(sizes), sizes=sizes, config="k0"))
    assert names[kind.tiles.offset] == "tiles"
    assert got.num_tiles == (2 + 1) * 42


def test_arguments_of_a_ragged_k_launch():
    problem = Problem.contiguous("ragged_k", num_groups=3, rows=70, n=48, k=40)
    got, names, kind = arguments_of(plan(replace(problem, zero_tail=False)))
    assert (got.dim_m, got.dim_n, got.grouping.rows) == (40, 48, 70)
    assert (got.stride_am, got.stride_ak) == (1, 40)
    assert (got.stride_bk, got.stride_bn) == (48, 1)
    assert (got.stride_dg, got.stride_dm, got.stride_dn) == (1920, 48, 1)
    assert got.grouping.zero_tail == 0
    assert names[kind.grouping.offset] == "offs"


def test_dynamic_shared_memory_is_the_kernels():
    problem = Problem.contiguous(num_groups=3, rows=70, n=48, k=40)
    spec = spec_for(problem, Arch(90), "k1")
    assert plan(problem).launches[0].smem_bytes == spec.smem_bytes > 0
