"""Tiles that blocks claim by a counter, and groups by falling rows."""

from __future__ import annotations

import numpy as np
import pytest
import references
from cases import integers
from makers import NumpyMaker
from references import assert_same, rounded

import gemmjit
from gemmjit import Sm90WgmmaConfig
from gemmjit.emulator import emulating
from gemmjit.errors import EmulatorError
from gemmjit.templates import override, read_template

#: Several tiles a group, so that every block claims some.
TILE = Sm90WgmmaConfig(block_m=64, block_n=64, num_stages=3, order="claimed")
EVEN = [150, 160, 150, 140]  # in turn
RAGGED = (EVEN, [100, 0, 3, 260, 64, 1], [0, 0, 130], [64] * 5, [0, 0], [70])


@pytest.fixture(autouse=True)
def _target(monkeypatch):
    monkeypatch.setenv("GEMMJIT_ARCH", "sm_90a")


def product(form, sizes, config=TILE, m=128, n=136):
    """Return what is computed, and what should be, of integers: exact."""
    maker = NumpyMaker()
    ends = np.cumsum(sizes)
    rows = sum(sizes)
    x = integers((rows, m), seed=1)
    if form == "wgrad":
        a, b = x.T, integers((rows, n), seed=2)
        want = references.wgrad(x.T, b, ends)
        a = maker.array(x, "bfloat16").T
        b = maker.array(b, "bfloat16")
    else:
        w = integers((len(sizes), m, n), seed=2)
        want = references.fprop(x, w, ends)
        a, b = maker.array(x, "bfloat16"), maker.array(w, "bfloat16")
    # A tile that is left out must show: new memory may hold the result of a call before.
    out = maker.full(want.shape, float("nan"), "bfloat16")
    gemmjit.grouped_mm(a, b, offs=maker.array(ends, "int32"), config=config, out=out)
    return maker.read(out), rounded(want, "bfloat16")


@pytest.mark.parametrize("sizes", RAGGED, ids=str)
@pytest.mark.parametrize("form", ["fprop", "wgrad"])
@pytest.mark.parametrize(("policy", "sms"), [("eager", 1), ("lazy", 3), ("random", 4)])
def test_every_tile_is_claimed_once(form, sizes, policy, sms):
    with emulating(policy, 5, unwaited_stores="error", num_sms=sms):
        assert_same(*product(form, sizes))


@pytest.mark.parametrize("number", [511, 512, 513])
def test_more_groups_than_are_sorted(number):
    sizes = np.random.default_rng(0).integers(0, 3, number).tolist()
    with emulating(num_sms=4):
        assert_same(*product("wgrad", sizes, m=8, n=8))


@pytest.fixture
def edited(tmp_path):
    """What overrides one piece of a template."""

    def edit(name, old, new):
        text = read_template(name)
        assert text.count(old) == 1
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text.replace(old, new), encoding="utf-8")
        return override(tmp_path)

    return edit


def test_groups_with_most_rows_come_first(edited):
    """In the order of claims, since one block takes them all."""
    call = "more = scheduler.next(args, tile);\n"
    note = '    if (more && lane == 0) printf("g%d ", tile.group);\n'
    with (
        edited("core/wgmma_tiles.cuh", call, call + note),
        emulating(num_sms=1) as reports,
    ):
        assert_same(*product("wgrad", [5, 300, 0, 80, 300, 6], m=64, n=64))
    assert reports[-1].output.split() == ["g1", "g4", "g3", "g5", "g0", "g2"]


def test_a_counter_that_is_not_left_zero_is_found(edited):
    with (
        edited("core/scheduler.cuh", "      args.claims[1] = 0;\n", ""),
        emulating(num_sms=2),
        pytest.raises(EmulatorError, match="workspace claims: not left zero"),
    ):
        product("wgrad", [64, 64])


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("core/scheduler.cuh", "atomicAdd(args.claims, 1)", "atomicAdd(args.claims, 2)"),
        ("core/scheduler.cuh", "int(gridDim.x) + __shfl_sync", "1 + int(gridDim.x) + __shfl_sync"),
        ("core/by_rows.cuh", "&& other < group)", "&& other <= group)"),
    ],
)
def test_a_planted_bug_is_found(edited, name, old, new):
    found = False
    for policy in ("eager", "lazy", "random"):
        with edited(name, old, new), emulating(policy, 3, num_sms=2):
            try:
                got, want = product("wgrad", [100, 0, 3, 260, 64, 1] * 7)
            except EmulatorError as error:
                print(type(error).__name__)
                found = True
            else:
                found |= bool((got != want).any())
    assert found


@pytest.mark.parametrize(
    ("sizes", "claims"),
    [(EVEN, 0), ([128] * 4, 1), ([129] * 4, 0), ([150, 150, 150, 0], 1), ([150, 150, 250, 150], 1)],
)  # fmt: skip
def test_even_groups_of_some_length_are_taken_in_turn(edited, sizes, claims):
    old = "      args.claims[0] = 0;\n"
    note = '      printf("%d claims ", args.claims[0]);\n'
    with edited("core/scheduler.cuh", old, note + old), emulating(num_sms=2) as reports:
        assert_same(*product("wgrad", sizes, m=64, n=64))
    (found,) = reports[-1].output.split()[::2]
    assert (int(found) > 0) == bool(claims)


def test_the_same_bits_however_tiles_are_found():
    sizes = [100, 0, 3, 260, 64]
    listed = Sm90WgmmaConfig(block_m=64, block_n=64, num_stages=3)
    found = []
    for config, sms in ((listed, 2), (TILE, 1), (TILE, 5)):
        with emulating("random", sms, num_sms=sms):
            found.append(product("wgrad", sizes, config)[0])
    assert found[0].tobytes() == found[1].tobytes() == found[2].tobytes()
