"""Split K of wgrad: groups with many rows in pieces, whose sums have the same bits in every run."""

from __future__ import annotations

from dataclasses import replace

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

PINGPONG = Sm90WgmmaConfig(block_m=64, block_n=64, num_stages=3, order="claimed", split_rows=64)
COOPERATIVE = replace(PINGPONG, block_m=128, pingpong=False)
LISTED = replace(PINGPONG, order="listed")
TILES = {
    "ping-pong": PINGPONG,
    "two blocks": replace(PINGPONG, block_m=128),
    "reads D": replace(PINGPONG, block_m=128, store_boxes=3),
    "cooperative": COOPERATIVE,
    "cooperative, reads D": replace(COOPERATIVE, store_boxes=2),
    "cooperative, two blocks": replace(COOPERATIVE, block_m=256, num_stages=2),
    "listed": LISTED,
    "listed, cooperative": replace(COOPERATIVE, order="listed"),
    "longer pieces": replace(PINGPONG, split_rows=192),
}

#: What is split comes first, last and between; groups end beside a piece's end; all and none split.
SIZES = (
    [100, 0, 3, 260, 64, 1],
    [500],
    [0, 0, 579],
    [65, 128, 129, 191],
    [64, 63, 64],
    [127, 0, 255, 0, 1],
    [0, 0],
)
RUNS = [("eager", 1), ("lazy", 3), ("random", 4), ("random", 30)]


@pytest.fixture(autouse=True)
def _target(monkeypatch):
    monkeypatch.setenv("GEMMJIT_ARCH", "sm_90a")


def product(sizes, config, m=128, n=136, out_dtype="bfloat16", accumulate=False, by_tma=True):
    """Return what is computed, and what should be, of integers: exact.

    A column more between rows of the result is what TMA does not store.
    """
    maker = NumpyMaker()
    ends, rows = np.cumsum(sizes), sum(sizes)
    x, dy = integers((rows, m), seed=1), integers((rows, n), seed=2)
    want = references.wgrad(x.T, dy, ends)
    # Without anything to add to, a tile that is left out must show.
    out = maker.full((*want.shape[:2], n + (not by_tma)), float("nan"), out_dtype)[..., :n]
    if accumulate:
        out[:] = integers(want.shape, seed=3)
        want = want + integers(want.shape, seed=3)
    a, b = maker.array(x, "bfloat16").T, maker.array(dy, "bfloat16")
    offs = maker.array(ends, "int32")
    gemmjit.grouped_mm(a, b, offs=offs, config=config, out=out, accumulate=accumulate)
    return maker.read(np.ascontiguousarray(out)), rounded(want, out_dtype)


def drawn(sizes, config, seed=0, m=72, n=136):
    """Return the FP32 result of random numbers: any other order of additions shows."""
    rng = np.random.default_rng(seed)
    maker, rows = NumpyMaker(), sum(sizes)
    x, dy = (rng.standard_normal((rows, width), np.float32) for width in (m, n))
    a, b = maker.array(x, "bfloat16").T, maker.array(dy, "bfloat16")
    offs = maker.array(np.cumsum(sizes), "int32")
    return np.array(gemmjit.grouped_mm(a, b, offs=offs, config=config, out_dtype="float32"))


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("name", TILES)
def test_products_are_exact(name, sizes):
    for policy, sms in RUNS[len(sizes) % 2 :: 2]:
        with emulating(policy, 5, unwaited_stores="error", num_sms=sms):
            assert_same(*product(sizes, TILES[name]))


#: One of each way in which the last sum is stored or added; the others are the long form.
STORED = ("two blocks", "reads D", "cooperative", "listed, cooperative")


@pytest.mark.parametrize(
    "name",
    [t if t in STORED else pytest.param(t, marks=pytest.mark.slow) for t in TILES],
)
def test_what_the_epilogue_does_comes_after_the_last_sum(name):
    sizes = [100, 0, 3, 260, 64, 1]
    for policy, sms, by_tma in (("lazy", 2, True), ("random", 9, False)):
        kind = {"m": 72, "out_dtype": "float32", "by_tma": by_tma}  # which adds, or D is read by
        with emulating(policy, 2, unwaited_stores="error", num_sms=sms):
            assert_same(*product(sizes, TILES[name], **kind))
            assert_same(*product(sizes, TILES[name], **kind, accumulate=True))
    with emulating("random", 3):  # columns and rows that a tile has not
        assert_same(*product(sizes, TILES[name], m=200, n=72))
        assert_same(*product(sizes, TILES[name], m=8, n=8))


@pytest.mark.parametrize("extra", [-1, 0, 1, 63, 64, 65, 127, 128, 255])
def test_pieces_of_every_length(extra):
    config = replace(PINGPONG, split_rows=128)
    with emulating("random", extra + 1):
        assert_same(*product([5, 128 + extra, 2], config, m=64, n=64))


@pytest.mark.parametrize("number", [30, 33, 70, 511, 512, 513])
@pytest.mark.parametrize("config", [PINGPONG, LISTED], ids=str)
def test_many_groups_by_rows_and_as_they_come(number, config):
    sizes = np.random.default_rng(0).integers(0, 3, number)
    sizes[[2, number // 2, number - 1]] = 130, 65, 200
    with emulating(num_sms=4):
        assert_same(*product(sizes.tolist(), config, m=8, n=8))


@pytest.mark.parametrize("kind", ["int64", "list"])
def test_offsets_in_64_bits_and_on_the_host(kind):
    maker, sizes = NumpyMaker(), [100, 0, 3, 260]
    ends = np.cumsum(sizes)
    x, dy = integers((sum(sizes), 64), seed=1), integers((sum(sizes), 72), seed=2)
    offs = ends.tolist() if kind == "list" else maker.array(ends, kind)
    a, b = maker.array(x, "bfloat16").T, maker.array(dy, "bfloat16")
    with emulating("random", 1):
        found = gemmjit.grouped_mm(a, b, offs=offs, config=PINGPONG)
    assert_same(maker.read(found), rounded(references.wgrad(x.T, dy, ends), "bfloat16"))


@pytest.mark.parametrize("rows", [0, 1, 64])
def test_calls_without_a_split_group(rows):
    with emulating():
        assert_same(*product([rows, 0], PINGPONG, m=64, n=64))


def in_pairs(parts):
    """Add as ``core/split.cuh`` says: neighbours, then their sums."""
    while len(parts) > 1:
        odd = parts[len(parts) // 2 * 2 :]
        parts = [a + b for a, b in zip(parts[::2], parts[1::2], strict=False)] + odd
    return parts[0]


@pytest.mark.parametrize("pieces", range(2, 10))
def test_pieces_are_added_in_pairs(pieces):
    """Each piece as a group of its own, by a tile that does not split; added here, in FP32."""
    whole = replace(PINGPONG, split_rows=0)
    sizes = [64] * (pieces - 1) + [17]
    with emulating("random", pieces, numerics="tensor_core"):
        parts = list(drawn(sizes, whole))
        found = drawn([sum(sizes)], PINGPONG)[0]
    assert found.tobytes() == in_pairs(parts).tobytes()
    if pieces > 3:  # else every order of so many is a sum of the same two
        assert found.tobytes() != sum(parts[1:], parts[0]).tobytes()


def test_every_run_gives_the_same_bits():
    sizes = [100, 0, 400, 65]
    found = set()
    runs = [(policy, seed, sms) for policy, sms in RUNS for seed in range(2)]
    tiles = (PINGPONG, LISTED, replace(PINGPONG, block_m=128), COOPERATIVE)
    for number, (policy, seed, sms) in enumerate(runs):
        with emulating(policy, seed, num_sms=sms):
            found.add(drawn(sizes, tiles[number % len(tiles)]).tobytes())
    assert len(found) == 1
    with emulating():
        assert drawn(sizes, replace(PINGPONG, split_rows=128)).tobytes() not in found


def test_the_bits_of_a_group_are_the_same_in_every_batch():
    found = set()
    rng = np.random.default_rng(4)
    rows, m, n = 333, 72, 64
    own = [rng.standard_normal((rows, width), np.float32) for width in (m, n)]
    for before, after in ([], []), ([0, 1], [400]), ([70, 64], []), ([200] * 3, [63]):
        sizes = [*before, rows, *after]
        maker = NumpyMaker()
        arrays = []
        for array in own:
            full = rng.standard_normal((sum(sizes), array.shape[1]), np.float32)
            full[sum(before) : sum(before) + rows] = array
            arrays.append(maker.array(full, "bfloat16"))
        offs = maker.array(np.cumsum(sizes), "int32")
        for config in (PINGPONG, LISTED):
            with emulating("random", len(found)):
                result = gemmjit.grouped_mm(arrays[0].T, arrays[1], offs=offs, config=config)
            found.add(np.asarray(result)[len(before)].tobytes())
    assert len(found) == 1


@pytest.fixture
def edited(tmp_path):
    """What overrides one piece of the template."""

    def edit(old, new, name="core/split.cuh"):
        text = read_template(name)
        assert text.count(old) == 1
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text.replace(old, new), encoding="utf-8")
        return override(tmp_path)

    return edit


def test_both_may_come_before_either_has_left_its_part(edited):
    """Whoever looks, sees nobody: so both leave theirs, and the second adds."""
    with edited("load_acquire(arrivals) != 0", "false"):
        for policy, sms in RUNS:
            with emulating(policy, 1, num_sms=sms):
                assert_same(*product([100, 0, 3, 260], COOPERATIVE))
                assert_same(*product([100, 0, 3, 260], PINGPONG))


def test_counters_that_are_not_left_zero_are_found(edited):
    with (
        edited("    if (leader) *arrivals = 0;\n", ""),
        emulating(),
        pytest.raises(EmulatorError, match="workspace claims: not left zero"),
    ):
        product([130, 64], PINGPONG)


_LEAVE = "      leave_part(part_at(args, own, consumer), acc);\n"
_ARRIVE = (
    "      second = barrier_any(1 + consumer, 128, leader && increment_acq_rel(arrivals) != 0);\n"
)
BUGS = {
    "own and other are confused": ("piece.first + (is_left ? right : left)", "piece.first + left"),
    "two sums have one counter": ("(piece.first + right) * SHARERS", "piece.first * SHARERS"),
    "a sum is left out": ("if (right >= piece.count)", "if (right + 1 >= piece.count)"),
    "places overlap": ("2 * u32(rows) / u32(split_rows)", "u32(rows) / u32(split_rows)"),
    "the last piece is too long": ("tile.k1 = piece.index + 1 <", "tile.k1 = piece.index <"),
    "the part is announced before it is there": (
        f"{_LEAVE}      sync_consumer(consumer);\n{_ARRIVE}",
        f"{_ARRIVE}{_LEAVE}",
    ),
    "groups that come later are passed over": ("place += 32;", "place += 33;"),
    "what is not split goes on at the wrong place": ("place + number - before", "place + number"),
}  # fmt: skip


BUG_SIZES = [100, 0, 3, 260, 64, 1, 400, *[65] * 20, *[1] * 40, 70]
BUG_RUNS = [("random", seed, config) for seed in range(6) for config in (PINGPONG, LISTED)]


@pytest.mark.parametrize(
    "runs", [BUG_RUNS[:2], pytest.param(BUG_RUNS, marks=pytest.mark.slow)], ids=["few", "all"]
)
def test_without_a_bug_none_is_found(runs):
    for policy, seed, config in runs:
        with emulating(policy, seed, num_sms=30):
            assert_same(*product(BUG_SIZES, config, m=72, n=64))


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(edited, name):
    for policy, seed, config in BUG_RUNS:
        with edited(*BUGS[name]), emulating(policy, seed, num_sms=30, max_steps=9_000_000):
            try:
                got, want = product(BUG_SIZES, config, m=72, n=64)
            except EmulatorError as error:
                print(f"{name}: {type(error).__name__}, {policy}, seed {seed}, {config}")
                return
            if (got != want).any():
                print(f"{name}: wrong result, {policy}, seed {seed}, {config}")
                return
    pytest.fail(f"{name}: not found by {BUG_RUNS}")


def test_sums_in_the_order_of_arrival_are_found(edited):
    """Bits tell: a chain that takes whoever comes next, as an atomic addition would."""
    old = "const int left = piece.index & -(2 * width), right = left + width;"
    new = "const int left = 0, right = width;"
    with edited(old, new), emulating("random", 1):
        try:
            found = drawn([400], PINGPONG)[0].tobytes()
        except EmulatorError:
            return
    with emulating():
        assert found != drawn([400], PINGPONG)[0].tobytes()
