"""Files of tuned records that are broken or cannot be trusted: told, never a crash or a hang."""

from __future__ import annotations

import json
import logging
import os

import pytest
from command_line import run_json

from gemmjit import Problem, Sm90WgmmaConfig, cli
from gemmjit.arch import Arch
from gemmjit.errors import CacheError, InvalidProblemError
from gemmjit.selection import choose, heuristic, records
from gemmjit.selection.buckets import Bucket, bucket_of
from gemmjit.selection.records import FILE, kernels_digest
from gemmjit.tuning.storage import Storage, read_file

GPU = "NVIDIA H200"
SM90 = Arch.parse("sm_90")
ASKED = Problem.contiguous(num_groups=64, rows=16384, n=2688, k=1024)
OTHER = Problem.contiguous(num_groups=64, rows=16384, n=1024, k=1024)
OWN = Sm90WgmmaConfig(block_m=64, block_n=64, num_stages=9, store_boxes=2)


def entry(asked=ASKED, bucket=(), **changes):
    timed = {"kernel": "k3", "tile": str(OWN), "us": {"hot": 4.0}, "mean_us": 4.0}
    return {
        "gpu": GPU,
        "arch": "sm_90",
        "driver": "580.1",
        "digest": kernels_digest(),
        "date": "2026-11-30T00:00:00+00:00",
        "bucket": bucket_of(asked).to_dict() | dict(bucket),
        "kernel": OWN.kernel,
        "config": OWN.to_dict(),
        "candidates": [timed | {"predicted_us": 5.0}],
        **changes,
    }


def text_of(*entries):
    return json.dumps({"schema": 1, "records": list(entries)})


@pytest.fixture
def path(monkeypatch, tmp_path):
    monkeypatch.setenv("GEMMJIT_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("GEMMJIT_CACHE_PATH", raising=False)
    monkeypatch.delenv("GEMMJIT_IGNORE_TUNED", raising=False)
    records.forget()
    yield tmp_path / FILE
    records.forget()


def write(path, text):
    path.write_text(text)
    path.chmod(0o600)
    records.forget()


NESTED = '{"schema": 1, "records": [{"x": ' + "[" * 40 + "]" * 40 + "}]}"
WHOLE = {
    "recursion": "[" * 200_000,
    "recursion of objects": '{"a":' * 100_000,
    "nested": NESTED,
    "NaN": text_of(entry(mean=float("nan"))),
    "infinity": text_of(entry(mean=float("-inf"))),
    "overflow": text_of(entry()).replace("4.0", "4e999"),
    "digits": text_of(entry()).replace("4.0", "4" * 5000),
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_broken_file_is_not_used_and_told_once(path, name, caplog, capsys):
    write(path, WHOLE[name])
    with caplog.at_level(logging.WARNING, "gemmjit.selection"):
        for _ in range(2):
            records.forget()
            assert choose(ASKED, SM90, GPU) == heuristic.choose(ASKED, SM90)
    assert sum("tuned records are not used" in r.message for r in caplog.records) == 1
    for call in (Storage().listed, lambda: read_file(path), lambda: Storage().add([entry()])):
        with pytest.raises(CacheError, match=r"tune: expected a file"):
            call()
    for action in (["ls"], ["export", str(path) + ".new"], ["import", str(path)]):
        assert cli.main(["tune", *action]) == 1
        assert "gemmjit tune: expected a file" in capsys.readouterr().err


ONE = {
    "rows_log2": entry(bucket={"rows_log2": 10**10}),
    "groups_log2": entry(bucket={"groups_log2": 200_000}),
    "negative": entry(bucket={"rows_log2": -1}),
    "n": entry(bucket={"n": 2**31}),
    "k": entry(bucket={"k": -5}),
    "mean_us": entry(candidates=[{"kernel": "k3", "tile": "t", "mean_us": "4"}]),
    "huge mean_us": entry(candidates=[{"kernel": "k3", "tile": "t", "mean_us": 10**400}]),
    "states": entry(candidates=[{"kernel": "k3", "tile": "t", "mean_us": 4, "us": [1]}]),
    "candidates": entry(candidates={"k3": 1}),
    "candidate": entry(candidates=["k3"]),
}


@pytest.mark.parametrize("name", ONE)
def test_a_broken_record_does_not_count(path, name, caplog, capsys):
    write(path, text_of(ONE[name], entry(OTHER)))
    with caplog.at_level(logging.INFO, "gemmjit.selection"):
        assert choose(ASKED, SM90, GPU) == heuristic.choose(ASKED, SM90)
    assert choose(OTHER, SM90, GPU)[1] == OWN
    assert sum("1 records do not count" in r.message for r in caplog.records) == 1
    assert cli.main(["tune", "ls"]) == 0
    listed = capsys.readouterr().out
    assert "no: broken" in listed
    assert "2 records" in listed
    with pytest.raises(CacheError, match="got one that is broken"):
        read_file(path)


@pytest.mark.parametrize("exponent", [-1, 21, 10**10])
def test_exponents_of_buckets_have_a_range(exponent):
    with pytest.raises(InvalidProblemError, match="bucket: expected rows_log2 from 0 to 20"):
        Bucket.from_dict(bucket_of(ASKED).to_dict() | {"rows_log2": exponent})


def test_nothing_is_merged_into_a_file_that_others_can_write(path, tmp_path):
    write(tmp_path / "given", text_of(entry(OTHER)))
    write(path, text_of(entry()))
    path.chmod(0o666)
    before = path.read_text()
    with pytest.raises(CacheError, match="everybody can write to it"):
        Storage().add(read_file(tmp_path / "given"))
    assert path.read_text() == before
    assert cli.main(["tune", "import", str(tmp_path / "given")]) == 1


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_is_told(path, make, capsys):
    make(path)
    assert cli.main(["tune", "ls"]) == 1
    assert f"tune: expected a file of records; got {path}: " in capsys.readouterr().err
    told = run_json(capsys, "tune", "ls", status=1)
    assert told["error"]["type"] == "CacheError"
