"""An emulation leaves nothing behind."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import gemmjit
from gemmjit.emulator.grid import Grid


@pytest.mark.parametrize("kernel", ["k1", "k2", "k3"])
def test_grids_are_freed(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMMJIT_EXECUTOR", "emulator")
    a = np.ones((8, 64), np.float16)
    b = np.ones((2, 64, 64), np.float16)
    for _ in range(2):
        gemmjit.grouped_mm(a, b, offs=np.array([3, 8]), config=kernel)
    gc.collect()
    assert not [thing for thing in gc.get_objects() if isinstance(thing, Grid)]
