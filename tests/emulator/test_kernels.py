"""Every kernel and shipped tile over the edges of the contract, instruction by instruction.

Results must be exact, under every policy: operands are small whole numbers. Every access is checked
against the bounds of its array, and operands lie between NaN.

The matrix is sampled so that every kernel meets every edge, and every tile, edge and schedule takes
part; `-m slow` runs all of it, with late completion and twenty random schedules.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import references
from cases import Target, integers
from edges import EDGES, check, serves
from makers import SWAPPED, NumpyMaker
from references import assert_same, rounded

from gemmjit.arch import Arch
from gemmjit.arrays import frontend_of
from gemmjit.emulator import emulating, plan_executor
from gemmjit.errors import InvalidConfigError
from gemmjit.kernels import KERNELS
from gemmjit.ops.dispatch import plan_for, spec_for
from gemmjit.ops.validation import problem_of

SCHEDULES = ("", "compact", "bounded")


def cells(sampled):
    """Yield kernel, tile with schedule, and edge."""
    for kernel in KERNELS.values():
        tiles = itertools.cycle(kernel.shipped_configs())
        schedules = itertools.cycle(SCHEDULES)
        for name, edge in EDGES.items():
            if not serves(kernel, edge):
                continue
            chosen = (next(tiles),) if sampled else kernel.shipped_configs()
            for config in chosen:
                used = (next(schedules),) if sampled else SCHEDULES
                if edge.offs == "list" or edge.form == "ragged_k":
                    used = ("",)
                for schedule in used:
                    tile = replace(config, schedule=schedule)
                    label = f"{kernel.name}-{tile}-{schedule or 'default'}-{name}"
                    yield pytest.param(tile, edge, id=label)


SAMPLE = list(cells(sampled=True))
ALL = list(cells(sampled=False))


@pytest.fixture(autouse=True)
def _target(monkeypatch):
    monkeypatch.setenv("GEMMJIT_ARCH", "sm_90a")


def run(config, edge, policy, seed=0):
    with emulating(policy, seed, unwaited_stores="error", num_sms=1):
        check(Target(NumpyMaker(), edge.offs, config), edge)


@pytest.mark.parametrize(("config", "edge"), SAMPLE)
def test_edge(config, edge):
    run(config, edge, "eager")


@pytest.mark.parametrize(("config", "edge"), SAMPLE[::4])
def test_edge_when_copies_are_late(config, edge):
    run(config, edge, "lazy")


@pytest.mark.parametrize(("config", "edge"), [p for p in SAMPLE if p.values[0].kernel != "k0"][::5])
def test_edge_in_random_order(config, edge):
    run(config, edge, "random", seed=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "config", [c for k in KERNELS.values() for c in k.shipped_configs()],
    ids=lambda c: f"{c.kernel}-{c}",
)  # fmt: skip
def test_every_edge_in_full(config):
    mine = [p for p in ALL if replace(p.values[0], schedule="") == config]
    assert len(mine) > len(EDGES)
    for tile, edge in (p.values for p in mine):
        for policy in ("eager", "lazy"):
            run(tile, edge, policy)
        for seed in range(20):
            run(tile, edge, "random", seed)


def test_the_sample_takes_part_of_everything():
    tiles = {(c.kernel, c.tile_name) for c, _ in (p.values for p in SAMPLE)}
    assert tiles == {(k.name, c.tile_name) for k in KERNELS.values() for c in k.shipped_configs()}
    pairs = {(c.kernel, id(edge)) for c, edge in (p.values for p in SAMPLE)}
    assert pairs == {
        (k.name, id(e)) for k in KERNELS.values() for e in EDGES.values() if serves(k, e)
    }
    for kernel in KERNELS:
        assert {c.schedule for c, _ in (p.values for p in SAMPLE) if c.kernel == kernel} == {
            *SCHEDULES
        }


@pytest.mark.parametrize("name", [n for n, edge in EDGES.items() if not edge.by_tma])
def test_what_tma_cannot_load_is_refused_or_goes_another_way(name):
    edge = EDGES[name]
    for kernel in KERNELS.values():
        if not (kernel.loads_by_tma and edge.form in kernel.forms):
            continue
        if edge.k and edge.sizes:
            with pytest.raises(InvalidConfigError):
                run(kernel.default_config, edge, "eager")
        else:  # nothing to load
            run(kernel.default_config, edge, "eager")
    run(None, edge, "eager")


# Offsets that nobody has looked at. A NumPy call validates them, so that plans are run directly.

ROWS = 150
OFFSETS = {
    "valid": [40, 40, 120],
    "falling": [100, 40, 120],
    "negative": [-1, 50, 70],
    "beyond the rows": [50, 400, 100],
    "extreme": [2**31 - 1, -(2**31), 60],
}


def run_with_offsets(config, form, dtype, ends):
    maker = NumpyMaker()
    offs = np.asarray(ends, dtype)
    if form == "ragged_m":
        a = maker.place(integers((ROWS, 40), seed=1), "bfloat16")
        b = maker.place(integers((3, 40, 72), seed=2), "bfloat16")
        start = integers((ROWS, 72), seed=3)
    else:
        a = maker.place(integers((40, ROWS), seed=1), "bfloat16", SWAPPED)
        b = maker.place(integers((ROWS, 72), seed=2), "bfloat16")
        start = np.full((3, 40, 72), np.nan)
    out = maker.place(start, "bfloat16", poison=7.0)
    numpy = frontend_of(offs, "offs")
    arrays = {"mat_a": a.array, "mat_b": b.array, "out": out.array, "offs": offs}
    views = {name: numpy.view(array) for name, array in arrays.items()}
    problem = problem_of(
        views["mat_a"], views["mat_b"], views["offs"], 3, views["out"], None, False
    )
    spec = spec_for(problem, Arch(90, "a"), config)
    wide = dtype == "int64"
    plan = plan_for(problem, spec, num_sms=1, offs_is_int64=wide, group_sizes=None)
    plan_executor.run(plan, views)
    clamped = references.clamp(ends, ROWS)
    if form == "ragged_m":
        want = references.fprop(a.read(), b.read(), clamped, start)
    else:
        want = references.wgrad(a.read(), b.read(), clamped)
    assert_same(out.read(), rounded(want, "bfloat16"))
    for placed in (a, b):
        placed.assert_unchanged()
    out.assert_only_elements_changed()
    assert offs.tolist() == ends


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("name", OFFSETS)
@pytest.mark.parametrize(
    ("kernel", "form"), [(k.name, form) for k in KERNELS.values() for form in k.forms]
)
def test_offsets_are_clamped(kernel, form, name, dtype):
    config = KERNELS[kernel].default_config
    schedules = SCHEDULES if form == "ragged_m" and kernel in ("k1", "k3") else ("",)
    for schedule in schedules:
        run_with_offsets(replace(config, schedule=schedule), form, dtype, OFFSETS[name])


@pytest.mark.parametrize("kernel", KERNELS)
def test_sums_as_tensor_cores_make_them_are_exact_too(kernel):
    """Whole numbers lose nothing to the truncation that the hardware's adders are known for."""
    with emulating(numerics="tensor_core"):
        check(Target(NumpyMaker(), "int32", KERNELS[kernel].default_config), EDGES["odd sizes"])
