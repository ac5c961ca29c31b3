"""Tuned records: who reads them, when they count, and that coverage knows what they choose."""

from __future__ import annotations

import json
import logging
import random
from dataclasses import replace

import pytest

from gemmjit import Problem, Sm80MmaConfig, Sm90WgmmaConfig
from gemmjit.arch import Arch
from gemmjit.constraints import variant_for
from gemmjit.errors import InvalidProblemError
from gemmjit.kernels import KERNELS
from gemmjit.manifest import load
from gemmjit.ops.dispatch import resolve, spec_for
from gemmjit.selection import ANY_ROWS, Choice, choose, every_choice, heuristic, records
from gemmjit.selection.buckets import MAX_LOG2, Bucket, bucket_of, corners, kind_of, log2_range
from gemmjit.selection.records import FILE, kernels_digest

GPU = "NVIDIA H200"
SM90 = Arch.parse("sm_90")
SQUARE = Sm90WgmmaConfig(block_m=128, block_n=128, num_stages=6, store_boxes=2)
OWN = Sm90WgmmaConfig(block_m=64, block_n=64, num_stages=9, store_boxes=2)


def problem(rows=16384, groups=64, n=2688, k=1024, form="ragged_m", **keywords):
    return Problem.contiguous(form, num_groups=groups, rows=rows, n=n, k=k, **keywords)


def entry(asked, config, **changes):
    return {
        "gpu": GPU,
        "arch": "sm_90",
        "driver": "580.1",
        "digest": kernels_digest(),
        "date": "2026-11-30T00:00:00+00:00",
        "bucket": bucket_of(asked).to_dict(),
        "kernel": config.kernel,
        "config": config.to_dict(),
        **changes,
    }


@pytest.fixture
def place(monkeypatch, tmp_path):
    """Return what puts entries into the file of the cache directory."""
    monkeypatch.setenv("GEMMJIT_CACHE_DIR", str(tmp_path / "own"))
    monkeypatch.delenv("GEMMJIT_CACHE_PATH", raising=False)
    monkeypatch.delenv("GEMMJIT_IGNORE_TUNED", raising=False)
    records.forget()

    def put(*entries, directory="own", text=None):
        folder = tmp_path / directory
        folder.mkdir(mode=0o700, exist_ok=True)
        path = folder / FILE
        path.write_text(text or json.dumps({"schema": 1, "records": list(entries)}))
        path.chmod(0o600)
        records.forget()
        return path

    yield put
    records.forget()


def test_a_record_wins_on_its_gpu_and_only_there(place):
    asked = problem()
    place(entry(asked, SQUARE))
    assert choose(asked, SM90, GPU) == (KERNELS["k3"], SQUARE)
    assert resolve(asked, SM90, None, GPU)[1] == SQUARE
    assert spec_for(asked, SM90, gpu=GPU).config == SQUARE
    assert choose(asked, SM90) == heuristic.choose(asked, SM90)
    assert choose(asked, SM90, "NVIDIA H100") == heuristic.choose(asked, SM90)
    assert choose(asked, SM90)[1] != SQUARE


def test_a_record_serves_its_bucket_and_no_other(place):
    place(entry(problem(), SQUARE))
    for rows, groups, same in (
        (16384, 64, True), (64 * 511, 64, True), (64 * 512, 64, False), (64 * 255, 64, False),
        (64 * 255 + 1, 64, True), (127 * 300, 127, True), (128 * 300, 128, False),
        (63 * 300, 63, False),
    ):  # fmt: skip
        asked = problem(rows=rows, groups=groups)
        assert (choose(asked, SM90, GPU)[1] == SQUARE) is same, (rows, groups)
    for changes in (
        {"n": 2624},
        {"k": 960},
        {"dtype": "float16"},
        {"b_k_major": True},
        {"out_dtype": "float32"},
        {"out_dtype": "float32", "epilogue": "accumulate"},
    ):
        asked = problem(**changes)
        assert choose(asked, SM90, GPU) == heuristic.choose(asked, SM90)


def test_a_tile_that_cannot_serve_the_operands_is_skipped(place):
    asked = problem()
    place(entry(asked, SQUARE))
    odd = replace(asked, a_alignment=2)
    assert bucket_of(odd) == bucket_of(asked)
    kernel, config = choose(odd, SM90, GPU)
    assert (kernel, config) == heuristic.choose(odd, SM90)
    assert kernel.name == "k1"


def test_records_of_another_architecture_do_not_count(place):
    asked = problem()
    place(entry(asked, Sm80MmaConfig(), arch="sm_80"))
    assert choose(asked, SM90, GPU) == heuristic.choose(asked, SM90)


@pytest.mark.parametrize(
    "changes",
    [
        {"digest": "0" * 64},
        {"config": {"block_m": 128, "block_n": 128, "depth": 3}},
        {"config": {"block_m": "128"}},
        {"config": None},
        {"kernel": "k9"},
        {"bucket": {}},
        {"bucket": None},
        {"gpu": 3},
    ],
    ids=str,
)
def test_what_no_longer_fits_is_left_out_with_one_line(place, changes, caplog):
    asked, other = problem(), problem(n=1024)
    place(entry(asked, SQUARE) | changes, entry(other, OWN))
    with caplog.at_level(logging.INFO, "gemmjit.selection"):
        for _ in range(3):
            assert choose(asked, SM90, GPU) == heuristic.choose(asked, SM90)
    lines = [r.message for r in caplog.records if "do not count" in r.message]
    assert len(lines) == 1
    assert "1 records do not count" in lines[0]
    assert choose(other, SM90, GPU)[1] == OWN


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"schema": 2, "records": []}',
        '{"schema": 1, "records": [3]}',
        '{"schema": 1}',
        "\x00",
    ],
)
def test_a_file_that_is_none_costs_a_warning_at_most(place, text, caplog):
    place(text=text or " ")
    asked = problem()
    with caplog.at_level(logging.WARNING, "gemmjit.selection"):
        assert choose(asked, SM90, GPU) == heuristic.choose(asked, SM90)
    assert any("tuned records are not used" in r.message for r in caplog.records)


def test_a_file_that_others_can_write_is_not_believed(place):
    asked = problem()
    path = place(entry(asked, SQUARE))
    path.chmod(0o666)
    records.forget()
    assert choose(asked, SM90, GPU) == heuristic.choose(asked, SM90)


def test_the_switch_and_the_order_of_directories(place, monkeypatch, tmp_path):
    asked = problem()
    place(entry(asked, OWN), directory="image")
    place(entry(asked, SQUARE), directory="second")
    shared = f"{tmp_path / 'image'}:{tmp_path / 'second'}"
    monkeypatch.setenv("GEMMJIT_CACHE_PATH", shared)
    assert choose(asked, SM90, GPU)[1] == OWN  # the first that is named
    place(entry(asked, SQUARE))
    assert choose(asked, SM90, GPU)[1] == SQUARE  # one's own before all
    monkeypatch.setenv("GEMMJIT_IGNORE_TUNED", "1")
    assert choose(asked, SM90, GPU) == heuristic.choose(asked, SM90)
    assert every_choice(lambda g, r: asked, SM90, num_groups=64, rows=(16384, 16384)) == [
        Choice(*heuristic.choose(asked, SM90), variant_for(asked, *heuristic.choose(asked, SM90)))
    ]


def drawn_buckets(rng, base):
    found = []
    for _ in range(rng.randint(1, 12)):
        bucket = replace(base, groups_log2=rng.randint(0, 10), rows_log2=rng.randint(0, 13))
        found.append(bucket)
    return found


@pytest.mark.parametrize("seed", range(40))
def test_whatever_is_chosen_is_among_every_choice(place, seed):
    rng = random.Random(seed)
    form = rng.choice(["ragged_m", "ragged_k"])
    n, k = rng.choice([1, 64, 72, 1536]), rng.choice([1, 64, 100, 1024])
    keywords = {"b_k_major": form == "ragged_m" and rng.random() < 0.5}
    num_groups = rng.choice([None, 1, 3, 64, 1000])
    low = rng.choice([1, 1, 7, 5000])
    rows = rng.choice([ANY_ROWS, (low, low), (low, low + rng.randint(0, 100_000))])

    def describe(groups, size):
        return problem(rows=size, groups=groups, n=n, k=k, form=form, **keywords)

    base = bucket_of(describe(4, 100))
    tiles = [c for kernel in ("k1", "k3") for c in KERNELS[kernel].shipped_configs()] + [OWN]
    place(
        *(
            {**entry(problem(), rng.choice(tiles)), "bucket": bucket.to_dict()}
            for bucket in drawn_buckets(rng, base)
        )
    )
    covered = set(every_choice(describe, SM90, num_groups=num_groups, rows=rows))
    for _ in range(400):
        size = round(2 ** rng.uniform(0, 20))
        size = min(max(size, rows[0]), rows[1])
        groups = num_groups or round(2 ** rng.uniform(0, 10))
        for gpu in ("", GPU):
            asked = describe(groups, size)
            kernel, config = choose(asked, SM90, gpu)
            assert Choice(kernel, config, variant_for(asked, kernel, config)) in covered


def test_coverage_has_the_tile_of_a_record(place):
    asked = problem(rows=5000, groups=3)
    place(entry(asked, OWN))
    found = every_choice(
        lambda g, r: problem(rows=r, groups=g), SM90, num_groups=3, rows=(1, 10_000)
    )
    assert OWN in {choice.config for choice in found}
    assert len(found) > 2


@pytest.mark.parametrize("num_groups", [None, 1, 5, 64])
@pytest.mark.parametrize("rows", [(1, 1), (1, 40), (30, 33), (5, 3000)])
def test_corners_are_those_of_all_calls_of_a_bucket(num_groups, rows):
    calls = {}
    for groups in range(1, 80) if num_groups is None else [num_groups]:
        for size in range(rows[0], rows[1] + 1):
            calls.setdefault(bucket_of(problem(rows=size, groups=groups)), []).append(
                (groups, size)
            )
    kind = kind_of(problem())
    for groups_log2 in range(6):
        for rows_log2 in range(MAX_LOG2 + 1):
            bucket = Bucket(kind, groups_log2, rows_log2)
            found = list(corners(bucket, num_groups, rows))
            mine = calls.get(bucket, [])
            assert bool(found) is bool(mine), bucket
            assert set(found) <= set(mine)
            if mine:
                assert {min(mine), max(mine)} <= set(found)


def test_buckets_say_what_they_hold_and_survive_json():
    bucket = bucket_of(problem())
    assert Bucket.from_dict(json.loads(json.dumps(bucket.to_dict()))) == bucket
    assert str(bucket) == ("ragged_m bfloat16 n=2688 k=1024, 64 to 127 groups of 256 to 511 rows")
    with pytest.raises(InvalidProblemError, match="bucket: expected"):
        Bucket.from_dict({**bucket.to_dict(), "n": True})
    assert log2_range(MAX_LOG2)[1] > 2**30
    assert bucket_of(problem(rows=0, groups=0)) == Bucket(bucket.kind, 0, 0)


def test_prewarming_compiles_what_was_tuned(place, tmp_path):
    place(entry(problem(), OWN))
    path = tmp_path / "shapes.toml"
    path.write_text(
        'targets = ["sm_90a"]\n[[problems]]\nn = 2688\nk = 1024\nnum_groups = 64\n'
        "rows = [16384, 16384]\n"
    )
    tiles = {one.spec.config for one in load(path).wanted()}
    assert OWN in tiles
    assert heuristic.choose(problem(), SM90)[1] in tiles


def test_choosing_at_a_first_call_takes_less_than_a_millisecond(place):
    import time

    place(*(entry(problem(n=64 * i), OWN) for i in range(1, 200)))
    asked = problem()
    choose(asked, SM90, GPU)
    times = []
    for _ in range(50):
        start = time.perf_counter()
        choose(asked, SM90, GPU)
        times.append(time.perf_counter() - start)
    assert sorted(times)[25] < 1e-3
