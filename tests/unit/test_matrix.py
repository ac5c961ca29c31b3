"""The matrix of the GPU tests, tried on NumPy: its logic, and that it holds what it promises."""

from __future__ import annotations

import pytest
from makers import NumpyMaker
from matrix import ANY, OUT, cells, run_cell, shapes

from gemmjit.errors import InvalidConfigError
from gemmjit.kernels import KERNELS

CELLS = cells()
EMULATED = CELLS[::2]  # half of them, of every kernel


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_cell_on_numpy(monkeypatch, cell):
    monkeypatch.setenv("GEMMJIT_EXECUTOR", "reference")
    assert run_cell(NumpyMaker(), cell) == len(list(shapes(cell))) > 0


@pytest.mark.parametrize("cell", EMULATED, ids=str)
def test_cell_in_the_emulator(monkeypatch, cell):
    monkeypatch.setenv("GEMMJIT_EXECUTOR", "emulator")
    assert run_cell(NumpyMaker(), cell) > 0


def test_the_matrix_takes_every_value_of_every_axis():
    assert len(CELLS) == len(set(map(str, CELLS)))
    assert len(CELLS) <= 120
    for kernel in KERNELS.values():
        mine = [cell for cell in CELLS if cell.kernel == kernel.name]
        tiles = {tile.tile_name for tile in kernel.shipped_configs()}
        assert {c.config.tile_name for c in mine} == tiles
        assert {c.form for c in mine} == set(kernel.forms)
        assert {c.dtype for c in mine} == {d.name for d in kernel.in_dtypes}
        assert {c.out_dtype for c in mine} == {d.name for d in kernel.out_dtypes}
        assert {c.offs for c in mine} == {"list", "int32", "int64"}
        assert {c.accumulate for c in mine} == {False, True}
    plain = [cell for cell in CELLS if cell.kernel in ("k0", "k1")]
    assert {c.a for c in plain} == {c.b for c in plain} == set(ANY)
    assert {c.out for c in plain} == set(OUT)
    assert {c.config.schedule for c in plain} == {"", "compact", "bounded"}


def test_a_wrong_result_is_seen(monkeypatch):
    from gemmjit import reference

    right = reference.run

    def wrong(problem, a, b, group_sizes, out, *rest):
        right(problem, a, b, group_sizes, out, *rest)
        if out.size:
            out.flat[-1] += 1

    monkeypatch.setenv("GEMMJIT_EXECUTOR", "reference")
    monkeypatch.setattr(reference, "run", wrong)
    for cell in CELLS[::7]:
        with pytest.raises(AssertionError, match="elements are wrong"):
            run_cell(NumpyMaker(), cell)


def test_a_config_that_cannot_run_raises(monkeypatch):
    monkeypatch.setenv("GEMMJIT_ARCH", "sm_75")
    with pytest.raises(InvalidConfigError):
        run_cell(NumpyMaker(), next(cell for cell in CELLS if cell.kernel == "k1"))
