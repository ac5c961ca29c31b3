"""The tuner on hardware: what it records is what calls on this GPU take."""

from __future__ import annotations

import pytest

import gemmjit
from gemmjit.bench.protocol import Protocol
from gemmjit.bench.setup import choose_backend, open_bench
from gemmjit.cuda.device import device
from gemmjit.kernels import KERNELS
from gemmjit.selection import heuristic, records
from gemmjit.tuning import Storage, Tuner, checked, tasks_of


@pytest.mark.parametrize("form", ["fprop", "dgrad", "wgrad"])
def test_calls_take_the_tile_that_was_recorded(torch_maker, monkeypatch, tmp_path, form):
    monkeypatch.setenv("GEMMJIT_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("GEMMJIT_IGNORE_TUNED", raising=False)
    records.forget()
    try:
        protocol = Protocol(rounds=6, warmup_seconds=0.05, settle_seconds=0.01)
        backend = choose_backend("torch")
        bench = open_bench(backend, protocol, ("cool", "hot"), 2, None, lambda text: None)
        (task,) = tasks_of(["rows=4096:groups=8:k=1024:n=1024"], [form], [])
        tuner = Tuner(bench, Storage(), within=3.0)
        record = tuner.measure(task)
        assert record is not None
        assert record["rejected"] == []
        assert record["gpu"] == device(0).name
        assert checked(record)["model"]["ratio"] >= 1.0
        # The slowest of the candidates, which the rules would not have taken.
        last = record["candidates"][-1]
        Storage().add([record | {"kernel": last["kernel"], "config": last["config"]}])
        config = KERNELS[last["kernel"]].config_type.from_dict(last["config"])
        assert heuristic.choose(task.problem, device(0).arch)[1] != config
        assert gemmjit.prepare(task.problem, device=0).config == config
    finally:
        records.forget()
