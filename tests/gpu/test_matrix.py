"""The matrix over tiles, types, layouts and schedules, on torch and CuPy arrays."""

from __future__ import annotations

import pytest
from matrix import cells, run_cell


@pytest.mark.parametrize("cell", cells(), ids=str)
def test_cell(torch_maker, cupy_maker, cell):
    assert run_cell(torch_maker, cell) > 0
    assert run_cell(cupy_maker, cell) > 0


@pytest.mark.parametrize("cell", [c for c in cells() if c.kernel in ("k0", "k1")][::4], ids=str)
def test_cell_with_negative_strides(cupy_maker, cell):
    """CuPy alone has them."""
    from dataclasses import replace

    from makers import REVERSED_COLUMNS, REVERSED_ROWS

    out = REVERSED_COLUMNS if cell.out is not None else None
    assert run_cell(cupy_maker, replace(cell, a=REVERSED_ROWS, b=REVERSED_COLUMNS, out=out)) > 0
