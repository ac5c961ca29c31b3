"""Elements 2^31 and more elements apart, for every kernel and every operand.

Memory that is reserved and hardly touched costs nothing, so operands reach over hundreds of
gigabytes. An index of 32 bits anywhere, signed or not, computes another address, and the emulator
refuses it or the values are wrong.
"""

from __future__ import annotations

import mmap
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
import references
from cases import integers
from references import assert_same, rounded

import gemmjit
from gemmjit.errors import GemmjitError, InvalidConfigError
from gemmjit.kernels import KERNELS

BF16 = np.dtype(ml_dtypes.bfloat16)
F32 = np.dtype(np.float32)
ENDS = {"ragged_m": [2, 2, 5], "ragged_k": [8, 8, 24]}  # of 6 and 26 rows
K, N = 64, 72
#: Of mat_a, mat_b and out in each form.
SHAPES = {
    "ragged_m": ((6, K), (3, K, N), (6, N)),
    "ragged_k": ((K, 26), (26, N), (3, K, N)),
}
_NORESERVE = 0x4000  # MAP_NORESERVE of Linux, which not every Python names


@pytest.fixture(autouse=True)
def _emulated(monkeypatch):
    monkeypatch.setenv("GEMMJIT_EXECUTOR", "emulator")
    monkeypatch.setenv("GEMMJIT_ARCH", "sm_90a")


def far(values: np.ndarray, axis: int, dtype: np.dtype, unit: int) -> np.ndarray:
    """Return an array with these values, whose neighbours along an axis lie 2^31 elements apart.

    So every product of an index and a stride needs more than 32 bits, those within a tile too.

    Parameters
    ----------
    values : numpy.ndarray
    axis : int
        The axis with the long stride.
    dtype : numpy.dtype
    unit : int
        The axis whose elements lie next to each other.
    """
    shape = values.shape
    strides = [0] * len(shape)
    strides[unit] = 1
    step = -(-shape[unit] // 64) * 64
    for i in reversed(range(len(shape))):
        if i not in (unit, axis):
            strides[i] = step
            step *= shape[i]
    strides[axis] = 2**31 + 64
    assert step < strides[axis]
    reach = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + 1
    try:
        memory = mmap.mmap(
            -1, reach * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
        )
    except OSError as error:
        pytest.skip(f"this system does not reserve {reach * dtype.itemsize >> 30} GiB: {error}")
    array = np.ndarray(shape, dtype, memory, strides=[s * dtype.itemsize for s in strides])
    array[...] = values.astype(dtype)
    return array


def run(form, config, which, axis, unit, **keywords):
    """Run a problem with one far operand and compare every element."""
    shapes = SHAPES[form]
    values = [integers(shape, seed=i) for i, shape in enumerate(shapes)]
    ends = ENDS[form]
    if form == "ragged_m":
        values[0][ends[-1] :] = np.nan
        want = references.fprop(values[0], values[1], ends, values[2])
    else:
        values[0][:, ends[-1] :] = np.nan
        values[1][ends[-1] :] = np.nan
        want = references.wgrad(values[0], values[1], ends)
    dtypes = [BF16, BF16, F32]
    arrays = [v.astype(t) for v, t in zip(values, dtypes, strict=True)]
    if form == "ragged_k" and config == "k3":
        arrays[0] = np.asfortranarray(arrays[0])  # a transposed activation
    arrays[which] = far(values[which], axis, dtypes[which], unit)
    got = gemmjit.grouped_mm(
        arrays[0],
        arrays[1],
        offs=np.array(ends, np.int32),
        out=arrays[2],
        config=config,
        **keywords,
    )
    if keywords.get("accumulate"):
        used = slice(None, ends[-1]) if form == "ragged_m" else [0, 2]
        want[used] += values[2][used]
        if form == "ragged_k":
            want[1] = values[2][1]
    assert_same(got.astype(np.float64), rounded(want, "float32"))


#: Operand, far axis, axis of stride 1.
FAR = {
    "ragged_m": {
        "rows of A": (0, 0, 1),
        "contraction of A": (0, 1, 0),
        "groups of B": (1, 0, 2),
        "contraction of B": (1, 1, 2),
        "columns of B": (1, 2, 1),
        "rows of the result": (2, 0, 1),
        "columns of the result": (2, 1, 0),
    },
    "ragged_k": {
        "rows of A, which the groups cut": (0, 1, 0),
        "columns of A": (0, 0, 1),
        "rows of B, which the groups cut": (1, 0, 1),
        "columns of B": (1, 1, 0),
        "groups of the result": (2, 0, 2),
        "rows of the result": (2, 1, 2),
        "columns of the result": (2, 2, 1),
    },
}
#: Memory orders that a kernel does not load; another one is chosen for them.
REFUSED = {
    "ragged_m": {"contraction of A": ("k2", "k3")},
    "ragged_k": {"columns of A": ("k3",), "columns of B": ("k3",)},
}
CASES = [
    pytest.param(form, kernel.name, *FAR[form][name], id=f"{kernel.name}-{form}-{name}")
    for kernel in KERNELS.values()
    for form in kernel.forms
    for name in FAR[form]
    if kernel.name not in REFUSED[form].get(name, ())
]


@pytest.mark.parametrize(("form", "config", "which", "axis", "unit"), CASES)
def test_elements_far_apart(form, config, which, axis, unit):
    run(form, config, which, axis, unit)


@pytest.mark.parametrize(
    ("form", "name"), [(form, name) for form, names in REFUSED.items() for name in names]
)
def test_orders_that_a_kernel_does_not_load_go_to_another(form, name):
    for config in REFUSED[form][name]:
        with pytest.raises(InvalidConfigError, match=f"{config} cannot be built"):
            run(form, config, *FAR[form][name])
    run(form, None, *FAR[form][name])


@pytest.mark.parametrize(
    ("form", "config", "which", "axis", "unit"), [p for p in CASES if p.values[2] == 2]
)
def test_sums_that_are_added_far_apart(form, config, which, axis, unit):
    run(form, config, which, axis, unit, accumulate=True)


@pytest.mark.parametrize("config", KERNELS)
@pytest.mark.parametrize("schedule", ["compact", "bounded"])
def test_schedules_of_other_kinds(config, schedule):
    tile = KERNELS[config].default_config
    for which, axis, unit in ((0, 0, 1), (1, 0, 2), (2, 0, 1)):
        run_tile = replace(tile, schedule=schedule)
        values = [integers(shape, seed=i) for i, shape in enumerate(SHAPES["ragged_m"])]
        arrays = [values[0].astype(BF16), values[1].astype(BF16), values[2].astype(F32)]
        arrays[which] = far(values[which], axis, arrays[which].dtype, unit)
        ends = ENDS["ragged_m"]
        got = gemmjit.grouped_mm(
            arrays[0], arrays[1], offs=np.array(ends), out=arrays[2], config=run_tile
        )
        want = references.fprop(values[0], values[1], ends, values[2])
        assert_same(got.astype(np.float64), rounded(want, "float32"))


@pytest.mark.parametrize("config", KERNELS)
def test_what_an_epilogue_reads_may_lie_far_apart(config):
    a, b = integers((6, K), seed=1), integers((3, K, N), seed=2)
    bias, scale = integers((3, N), seed=3), integers((6,), seed=4)
    got = gemmjit.grouped_mm(
        a.astype(BF16), b.astype(BF16), offs=np.array([2, 2, 6]), out_dtype="float32",
        config=config, bias=far(bias, 0, F32, 1),
        epilogue=gemmjit.RowScale(far(scale[:, None].repeat(2, 1), 0, F32, 1)[:, 0]),
    )  # fmt: skip
    want = references.fprop(a, b, [2, 2, 6])
    want[:2] += bias[0]
    want[2:] += bias[2]
    assert_same(got.astype(np.float64), rounded(want * scale[:, None], "float32"))


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("rows of A", "mn * stride_mn"),
        ("groups of B", "tile.group * args.stride_bg"),
        ("rows of the result", "m * args.stride_dm"),
    ],
)
def test_an_index_of_32_bits_would_be_seen(tmp_path, name, right):
    """The tests can fail: they do with a template that cuts a product."""
    template = KERNELS["k0"].template
    text = gemmjit.templates.read_template(template)
    assert text.count(f" {right}") >= 1
    (tmp_path / "kernels").mkdir()
    (tmp_path / template).write_text(text.replace(f" {right}", f" int({right})"))
    with (
        gemmjit.templates.override(tmp_path),
        pytest.raises((AssertionError, GemmjitError)),
    ):
        run("ragged_m", "k0", *FAR["ragged_m"][name])
