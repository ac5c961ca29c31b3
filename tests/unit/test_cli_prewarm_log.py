"""`gemmjit prewarm --from-log`."""

from __future__ import annotations

import os
import subprocess
import sys

from command_line import run_json
from prewarming import CHECKOUT

import gemmjit
from gemmjit import cli


def run_with_log(tmp_path, cache, level):
    code = (
        "import numpy as np, gemmjit\n"
        "a, b = np.ones((7, 32), np.float16), np.ones((2, 32, 24), np.float16)\n"
        "for config in (None, 'k0', gemmjit.Sm80MmaConfig(block_m=32, schedule='compact')):\n"
        "    gemmjit.grouped_mm(a, b, offs=np.array([3, 7], np.int32), config=config)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": CHECKOUT, "GEMMJIT_LOG_LEVEL": level,
             "GEMMJIT_CACHE_DIR": str(cache), "GEMMJIT_EXECUTOR": "emulator",
             "GEMMJIT_ARCH": "sm_80"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    (tmp_path / f"{level}.log").write_text(f"starting\n{done.stderr}done\n")
    return str(tmp_path / f"{level}.log")


def test_the_log_of_a_run_prewarms_the_next(empty_cache, tmp_path, monkeypatch, capsys):
    cold = run_with_log(tmp_path, empty_cache, "info")
    warm = run_with_log(tmp_path, empty_cache, "debug")
    entries = {row["kernel"] for row in run_json(capsys, "cache", "ls")["entries"]}
    assert len(entries) == 4  # three kernels, and the one that lists tiles

    for log in (cold, warm):
        monkeypatch.setenv("GEMMJIT_CACHE_DIR", log + ".cache")
        told = run_json(capsys, "prewarm", "--from-log", log, "--jobs", "1")
        assert (told["compiled"], told["failed"]) == (4, 0)
        assert {row["kernel"] for row in run_json(capsys, "cache", "ls")["entries"]} == entries

    # As a manifest, which is then the same kernels.
    listed = str(tmp_path / "kernels.toml")
    told = run_json(capsys, "prewarm", "--from-log", warm, "--write", listed)
    assert told == {"written": listed, "kernels": 4}
    assert run_json(capsys, "prewarm", "--shapes", listed)["present"] == 4


def test_a_torn_log_compiles_what_it_can_and_fails(empty_cache, tmp_path, monkeypatch, capsys):
    spec = gemmjit.compile("k0", None, "sm_80").spec
    log = tmp_path / "run.log"
    log.write_text(f"INFO {spec.prewarm_command}\nINFO {spec.prewarm_command[:-9]}\n")
    assert cli.main(["prewarm", "--from-log", str(log)]) == 1
    out, err = capsys.readouterr()
    assert "1 there already, 0 failed" in out
    assert f"{log}, line 2: the command is not whole" in err
    told = run_json(capsys, "prewarm", "--from-log", str(log), status=1)
    assert told["unreadable_lines"] == [2]


def test_a_log_comes_through_a_pipe(empty_cache, monkeypatch, capsys):
    import io

    spec = gemmjit.compile("k0", None, "sm_80").spec
    monkeypatch.setattr("sys.stdin", io.StringIO(f"INFO {spec.prewarm_command}\n"))
    assert run_json(capsys, "prewarm", "--from-log", "-")["present"] == 1
