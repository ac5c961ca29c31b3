"""Offsets on the device hold anything: the kernels clamp them. Real kernels, in the emulator.

A NumPy call validates its offsets, so the plan is run here without the operator around it.
"""

from __future__ import annotations

import numpy as np
import pytest
import references
from cases import integers
from makers import SWAPPED, NumpyMaker
from references import assert_same, rounded

from gemmjit import SimtConfig, Sm80MmaConfig, Sm90WgmmaConfig
from gemmjit.arch import Arch
from gemmjit.arrays import frontend_of
from gemmjit.emulator import plan_executor
from gemmjit.ops.dispatch import plan_for, spec_for
from gemmjit.ops.validation import problem_of

ROWS = 150

OFFSETS = {
    "valid": [40, 40, 120],
    "falls": [100, 40, 120],
    "falls to nothing": [150, 0, 0],
    "negative": [-1, 50, 70],
    "all negative": [-5, -6, -7],
    "beyond the rows": [50, 400, 100],
    "all beyond the rows": [151, 152, 153],
    "up and down": [150, 8, 150],
    "ends of int32": [2**31 - 1, -(2**31), 2**31 - 1],
    "beyond int32": [2**40, 5, 2**62],
    "below int32": [-(2**40), 60, -(2**63)],
    "negative, low word looks right": [-(2**32) + 60, 70, -(2**33) + 90],
    "low word looks right": [2**32 + 40, 2**33 + 60, 2**34 + 70],
}

CONFIGS = {
    "auto": None,
    "k0": SimtConfig(),
    "k0-compact": SimtConfig(schedule="compact"),
    "k1": Sm80MmaConfig(block_m=64, min_blocks_per_sm=3),
    "k1-compact": Sm80MmaConfig(block_m=32, min_blocks_per_sm=4, schedule="compact"),
    "k1-bounded": Sm80MmaConfig(block_m=32, min_blocks_per_sm=4, schedule="bounded"),
}
PIECES = {
    f"k3-pieces-{order}": Sm90WgmmaConfig(
        block_m=64, block_n=64, num_stages=2, order=order, split_rows=64
    )
    for order in ("claimed", "listed")
}


def run(a, b, offs, out, config, dtype) -> None:
    """Run the plan of a call whose offsets nobody has looked at."""
    numpy = frontend_of(offs, "offs")
    views = {
        "mat_a": numpy.view(a.array),
        "mat_b": numpy.view(b.array),
        "out": numpy.view(out.array),
        "offs": numpy.view(offs),
    }
    problem = problem_of(
        views["mat_a"], views["mat_b"], views["offs"], len(offs), views["out"], None, False
    )
    spec = spec_for(problem, Arch(90, "a"), config)
    plan = plan_for(problem, spec, num_sms=2, offs_is_int64=dtype == "int64", group_sizes=None)
    plan_executor.run(plan, views)


def cases():
    for name, ends in OFFSETS.items():
        wide = any(not -(2**31) <= end < 2**31 for end in ends)
        for dtype in ("int64",) if wide else ("int32", "int64"):
            yield pytest.param(ends, dtype, id=f"{name}-{dtype}")


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize(("ends", "dtype"), list(cases()))
def test_br016_rows(ends, dtype, config):
    maker = NumpyMaker()
    a = maker.place(integers((ROWS, 40), seed=1), "bfloat16")
    b = maker.place(integers((3, 40, 24), seed=2), "bfloat16")
    start = integers((ROWS, 24), seed=3)
    out = maker.place(start, "bfloat16", poison=7.0)
    offs = np.asarray(ends, dtype)
    run(a, b, offs, out, CONFIGS[config], dtype)
    want = references.fprop(a.read(), b.read(), references.clamp(ends, ROWS), start)
    assert_same(out.read(), rounded(want, "bfloat16"))
    out.assert_only_elements_changed()
    assert offs.tolist() == ends


@pytest.mark.parametrize("config", ["auto", "k0", "k1", *PIECES])
@pytest.mark.parametrize(("ends", "dtype"), list(cases()))
def test_br016_contraction(ends, dtype, config):
    maker = NumpyMaker()
    a = maker.place(integers((24, ROWS), seed=1), "bfloat16", SWAPPED)
    b = maker.place(integers((ROWS, 40), seed=2), "bfloat16")
    out = maker.place(np.full((3, 24, 40), np.nan), "bfloat16", poison=7.0)
    run(a, b, np.asarray(ends, dtype), out, (CONFIGS | PIECES)[config], dtype)
    want = references.wgrad(a.read(), b.read(), references.clamp(ends, ROWS))
    assert_same(out.read(), rounded(want, "bfloat16"))
    out.assert_only_elements_changed()
