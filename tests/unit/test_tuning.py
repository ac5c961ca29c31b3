"""The tuner, on a simulated device whose times are known."""

from __future__ import annotations

import os
import stat
import threading
from dataclasses import replace

import pytest
from tuned_device import GPU, SMALL, tuned_backend  # noqa: F401

from gemmjit import Problem
from gemmjit.arch import Arch
from gemmjit.bench.protocol import Protocol
from gemmjit.bench.setup import open_bench
from gemmjit.errors import CacheError, ManifestError
from gemmjit.manifest import parse
from gemmjit.selection import choose, heuristic, records
from gemmjit.tuning import (
    Storage,
    Tuner,
    checked,
    is_within,
    measure,
    random_tasks,
    tasks_of,
    tasks_of_manifest,
)

OTHER = "rows=64:groups=4:k=64:n=128"


def tuner(backend, **keywords):
    protocol = Protocol(rounds=6, warmup_seconds=0.01, slot_seconds=0.0002, graph_seconds=0.0001)
    bench = open_bench(backend, protocol, ("cool", "hot"), 4, None, lambda text: None)
    keywords = {"storage": Storage(), "kernels": ("k1",), "within": 10.0, **keywords}
    return Tuner(bench, **keywords)


def outcomes(tuner, tasks):
    found = []
    tuner.run(tasks, lambda task, record, now: found.append((task, record, now)))
    return found


def test_the_fastest_is_recorded_and_chosen_from_then_on(backend):
    (task,) = tasks_of([SMALL], ["fprop"], [])
    before = choose(task.problem, Arch(90), GPU)
    ((_, record, now),) = outcomes(tuner(backend), [task])
    assert now
    assert record["config"]["block_m"] == 64
    assert record["candidates"][0]["tile"] == "64x128x32_s2"
    assert len(record["candidates"]) > 5
    kernel, config = choose(task.problem, Arch(90), GPU)
    assert (kernel.name, str(config)) == ("k1", "64x128x32_s2")
    assert before == heuristic.choose(task.problem, Arch(90)) != (kernel, config)
    near = replace(task.problem, rows=task.problem.rows + 20)
    assert choose(near, Arch(90), GPU) == (kernel, config)


def test_what_is_recorded_is_not_measured_again_unless_asked(backend):
    tasks = tasks_of([SMALL, OTHER], ["fprop", "wgrad"], [])
    first = outcomes(tuner(backend), tasks[:3])
    assert [now for _, _, now in first] == [True] * 3
    second = outcomes(tuner(backend), tasks)
    assert [now for _, _, now in second] == [False, False, False, True]
    assert [dict(r) for _, r, _ in second[:3]] == [r for _, r, _ in first]
    (again,) = outcomes(tuner(backend, again=True), tasks[:1])
    assert again[2]
    assert len(Storage().entries()) == 4


@pytest.mark.parametrize("change", ["driver", "gpu", "digest"])
def test_another_driver_gpu_or_kernels_are_measured_anew(backend, change, monkeypatch):
    (task,) = tasks_of([SMALL], ["fprop"], [])
    outcomes(tuner(backend), [task])
    if change == "digest":
        for module in (measure, records):
            monkeypatch.setattr(module, "kernels_digest", lambda: "1" * 64)
    else:
        name = {"gpu": "name"}.get(change, change)
        backend.facts = replace(backend.facts, **{name: "another"})
    ((_, _, now),) = outcomes(tuner(backend), [task])
    assert now
    assert len(Storage().entries()) == (2 if change == "gpu" else 1)


def test_an_interruption_keeps_what_is_done(backend, monkeypatch, capsys):
    tasks = tasks_of([SMALL, OTHER], ["fprop"], [])
    mine = tuner(backend)
    real = measure.measure_cell
    calls = []

    def interrupted(bench, label, entries):
        calls.append(label)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(bench, label, entries)

    monkeypatch.setattr(measure, "measure_cell", interrupted)
    with pytest.raises(KeyboardInterrupt):
        outcomes(mine, tasks)
    assert len(Storage().entries()) == 1
    calls.clear()
    found = outcomes(tuner(backend), tasks[:1])
    assert not found[0][2]


def test_a_product_without_a_contender_is_told_and_not_recorded(backend, monkeypatch):
    own = measure.own_contender

    def broken(*arguments, **keywords):
        def prepare(operands):
            raise RuntimeError("no")

        return replace(own(*arguments, **keywords), prepare=prepare)

    monkeypatch.setattr(measure, "own_contender", broken)
    (task,) = tasks_of([SMALL], ["fprop"], [])
    ((_, record, now),) = outcomes(tuner(backend), [task])
    assert now
    assert record is None
    assert Storage().entries() == []


def test_candidates_are_those_that_the_model_thinks_near_and_the_heuristics():
    (task,) = tasks_of(["seed1-16k-s0"], ["fprop"], [])
    near = measure.candidates(task, Arch(90), 1.2)
    assert {config.kernel for config, _ in near} == {"k3"}
    times = [predicted.us for _, predicted in near]
    assert times == sorted(times)
    only = measure.candidates(task, Arch(90), 1.0)
    assert {config for config, _ in only} >= {heuristic.choose(task.problem, Arch(90))[1]}
    assert {c.kernel for c, _ in measure.candidates(task, Arch(90), 9.0, ["k2"])} == {"k2"}


def fake_record(model, heuristic, drawn=False):
    def one(tile, hot, cool, predicted):
        us = {"hot": hot, "cool": cool}
        mean = (hot * cool) ** 0.5
        return {"kernel": "k3", "tile": tile, "config": {}, "us": us, "mean_us": mean,
                "predicted_us": predicted}  # fmt: skip

    timed = [one("a", 100, 100, 3), one("b", 104, 100, 2), one("c", 130, 100, 1)]
    timed = [t | {"predicted_us": 0.5} if t["tile"] == model else t for t in timed]
    return {
        "candidates": timed,
        "heuristic": {"kernel": "k3", "tile": heuristic},
        "workload": {"case": "x", "form": "fprop"},
        "layout": "nn",
        "drawn": drawn,
    }


def test_the_check_compares_picks_with_the_fastest():
    row = checked(fake_record("b", "a"))
    assert row["best"] == "k3 a"
    assert row["model"]["tile"] == "k3 b"
    assert row["model"]["ratio"] == pytest.approx(1.04**0.5)
    assert row["model"]["ratios"] == {"hot": 1.04, "cool": 1.0}
    assert row["heuristic"]["ratio"] == 1.0
    assert is_within([row], "model")
    bad = checked(fake_record("c", "not timed"))
    assert not is_within([row, bad], "model")
    assert bad["heuristic"] is None
    assert not is_within([bad], "heuristic")
    assert checked(fake_record("c", "a", drawn=True))["limit"] > row["limit"]


def test_random_tasks_repeat_and_stay_small():
    forms = ["fprop", "dgrad", "wgrad"]
    tasks = random_tasks(30, 7, forms)
    assert tasks == random_tasks(30, 7, forms)
    assert tasks != random_tasks(30, 8, forms)
    assert {t.workload.form for t in tasks} == {"fprop", "dgrad", "wgrad"}
    assert all(t.drawn and t.workload.flops <= 2e12 for t in tasks)


def test_a_manifests_problems_give_one_product_a_bucket():
    text = """
    [[problems]]
    n = 64
    k = 128
    num_groups = 4
    rows = [10, 100]
    [[problems]]
    form = "ragged_k"
    n = 64
    k = 128
    num_groups = 3
    rows = [5, 5]
    [[problems]]
    n = 64
    k = 128
    kernel = "k1"
    [[problems]]
    n = 64
    k = 128
    out_dtype = "float32"
    epilogue = "accumulate"
    """
    tasks = tasks_of_manifest(parse(text))
    assert [t.workload.form for t in tasks] == ["fprop"] * 4 + ["wgrad"]
    assert [t.bucket.rows_log2 for t in tasks] == [1, 2, 3, 4, 1]
    for task in tasks[:4]:
        assert 10 <= task.problem.rows <= 100
        assert task.problem.num_groups == 4
    assert tasks[4].problem == Problem.contiguous("ragged_k", num_groups=3, rows=5, n=64, k=128)
    with pytest.raises(ManifestError, match=r"problems\[0\].num_groups: expected"):
        tasks_of_manifest(parse("[[problems]]\nn = 64\nk = 128\n"))
    with pytest.raises(ManifestError, match="expected problems whose kernel is chosen"):
        tasks_of_manifest(parse('[[problems]]\nn = 64\nk = 128\nkernel = "k1"\n'))


def test_the_file_is_private_whole_and_survives_writers_side_by_side(tmp_path, monkeypatch):
    monkeypatch.setenv("GEMMJIT_CACHE_DIR", str(tmp_path / "deep" / "cache"))
    storage = Storage()

    def write(number):
        for i in range(5):
            storage.add([{"gpu": f"g{number}", "bucket": {"n": i}, "date": "1"}])

    threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(storage.entries()) == 20
    assert stat.S_IMODE(storage.path.stat().st_mode) == 0o600
    assert sorted(os.listdir(storage.directory)) == ["tuned.json", "tuned.lock"]


def test_a_file_that_is_none_of_ours_is_not_overwritten(tmp_path):
    storage = Storage(tmp_path)
    storage.path.write_text("my notes")
    with pytest.raises(CacheError, match="Move it away"):
        storage.add([{"gpu": "g", "bucket": {}}])
    assert storage.path.read_text() == "my notes"


def test_a_directory_that_cannot_be_written_is_told(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(CacheError, match="expected to write"):
        Storage(blocked / "below").add([{"gpu": "g", "bucket": {}}])
