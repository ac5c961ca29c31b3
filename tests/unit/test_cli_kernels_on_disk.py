"""``gemmjit prewarm`` and ``gemmjit cache``."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest
from command_line import run_json

import gemmjit
from gemmjit import build, cli
from gemmjit.arch import Arch
from gemmjit.errors import MissingKernelError
from gemmjit.kernels import KERNELS


def test_the_command_of_the_error_mends_it(empty_cache, monkeypatch, capsys):
    """BR: a mode that never compiles must say exactly what to run."""
    monkeypatch.setenv("GEMMJIT_DISABLE_JIT", "1")
    config = gemmjit.Sm80MmaConfig(block_m=32, min_blocks_per_sm=4)
    asked = {"config": config, "arch": "sm_80", "out_dtype": "float32", "b_k_major": True}
    with pytest.raises(MissingKernelError) as error:
        gemmjit.compile("k1", **asked)
    program, *argv = shlex.split(str(error.value).partition("Compile it beforehand: ")[2])
    assert program == "gemmjit"
    (row,) = run_json(capsys, *argv)["kernels"]
    assert row["target"] == "sm_80"
    assert row["from_cache"] is False
    assert os.environ["GEMMJIT_DISABLE_JIT"] == "1"
    build.clear_memory()
    kernel = gemmjit.compile("k1", **asked)
    assert kernel.from_cache
    assert kernel.identity == row["identity"]


@pytest.mark.parametrize("name", sorted(KERNELS))
def test_every_prewarm_command_is_understood(name, empty_cache, capsys):
    kernel = gemmjit.compile(name)
    argv = shlex.split(kernel.spec.prewarm_command)[1:]
    (row,) = run_json(capsys, *argv)["kernels"]
    assert row["identity"] == kernel.identity


def test_the_kernel_that_builds_tile_lists_can_be_prewarmed(empty_cache, monkeypatch, capsys):
    from gemmjit.kernels.tile_list import TileListSpec

    spec = TileListSpec(Arch.parse("sm_90a"))
    monkeypatch.setenv("GEMMJIT_DISABLE_JIT", "1")
    with pytest.raises(MissingKernelError) as error:
        build.build(spec)
    argv = shlex.split(str(error.value).partition("Compile it beforehand: ")[2])[1:]
    (row,) = run_json(capsys, *argv)["kernels"]
    build.clear_memory()
    assert build.build(spec).identity == row["identity"]


def test_prewarm_serves_several_architectures(empty_cache, capsys):
    argv = ["prewarm", "--kernel", "k0", "--arch", "sm_75,sm_90,sm_100f"]
    rows = run_json(capsys, *argv)["kernels"]
    assert [row["target"] for row in rows] == ["sm_75", "sm_90a", "sm_100f"]
    assert len(run_json(capsys, "cache", "ls")["entries"]) == 3
    build.clear_memory()
    assert all(row["from_cache"] for row in run_json(capsys, *argv)["kernels"])


def test_prewarm_fails_where_nothing_can_be_kept(monkeypatch, tmp_path, capsys):
    build.clear_memory()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GEMMJIT_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert cli.main(["prewarm", "--kernel", "k0", "--arch", "sm_80"]) == 1
    assert "could keep it" in capsys.readouterr().err


def test_prewarm_refuses_a_shipped_tile_that_spills(monkeypatch, capsys):
    tight = gemmjit.Sm80MmaConfig(block_m=128, min_blocks_per_sm=4)
    argv = ["prewarm", "--kernel", "k1", "--arch", "sm_90a", "--config", '{"min_blocks_per_sm":4}']
    assert cli.main(argv) == 2
    assert "without spills; got 4. Use 2, or a smaller tile" in capsys.readouterr().err
    # Past the rule, as an override of a template may be: one's own is reported, not refused.
    monkeypatch.setattr(type(KERNELS["k1"]), "least_registers", lambda *given: 0)
    (row,) = run_json(capsys, *argv)["kernels"]
    assert row["spill_bytes"] > 0
    monkeypatch.setattr(type(KERNELS["k1"]), "shipped_configs", lambda self: (tight,))
    assert cli.main(argv) == 1
    assert "expected no spills" in capsys.readouterr().err
    total = run_json(capsys, *argv, status=1)
    assert [total[name] for name in ("compiled", "present", "failed")] == [0, 0, 1]
    assert cli.main([*argv, "--allow-spills"]) == 0


def test_prewarm_takes_json_and_pairs_alike(empty_cache, capsys):
    argv = ("prewarm", "--kernel", "k1", "--arch", "sm_80", "--dry-run")
    pairs = ("--config", "block_m=64", "num_stages=3", "--variant", "out_dtype=float32")
    text = ("--config", '{"block_m":64,"num_stages":3}', "--variant", '{"out_dtype":"float32"}')
    (one,), (two,) = (run_json(capsys, *argv, *more)["kernels"] for more in (pairs, text))
    assert one == two
    assert "64x128x32_s3" in one["entry"]


def test_cache_looks_after_its_directory(empty_cache, capsys):
    assert run_json(capsys, "cache", "info")["directories"][0]["num_entries"] == 0
    gemmjit.compile("k0")
    gemmjit.compile("k0", out_dtype="float32")
    (info,) = run_json(capsys, "cache", "info")["directories"]
    assert info["path"] == str(empty_cache)
    assert info["num_entries"] == 2
    assert info["targets"] == ["sm_90a"]
    entries = run_json(capsys, "cache", "ls")["entries"]
    assert info["num_bytes"] == sum(entry["num_bytes"] for entry in entries)
    assert all(Path(entry["path"]).is_dir() for entry in entries)
    assert cli.main(["cache", "info"]) == 0
    assert "2 kernels" in capsys.readouterr().out
    assert cli.main(["cache", "ls"]) == 0
    assert capsys.readouterr().out.count("gemmjit_k0_64x64x16") == 2

    assert run_json(capsys, "cache", "verify")["damaged"] == []
    damaged = Path(entries[0]["path"]) / "kernel.cubin"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    (bad,) = run_json(capsys, "cache", "verify", status=1)["damaged"]
    assert bad["path"] == entries[0]["path"]
    assert bad["removed"] is False
    assert run_json(capsys, "cache", "verify", "--remove")["damaged"][0]["removed"] is True
    assert len(run_json(capsys, "cache", "ls")["entries"]) == 1

    # What was used a moment ago is never pruned, and that is told.
    assert cli.main(["cache", "prune", "--max-size", "0"]) == 0
    assert "used in the last 10 minutes stays" in capsys.readouterr().out
    assert run_json(capsys, "cache", "prune", "--max-size", "0")["removed"] == []
    old = entries[1]["path"]
    os.utime(old, (1e9, 1e9))
    assert [
        e["path"] for e in run_json(capsys, "cache", "prune", "--max-size", "0")["removed"]
    ] == [old]


def test_cache_clear_asks_first(empty_cache, capsys):
    gemmjit.compile("k0")
    assert cli.main(["cache", "clear"]) == 1
    assert "--yes" in capsys.readouterr().err
    assert len(run_json(capsys, "cache", "ls")["entries"]) == 1
    assert len(run_json(capsys, "cache", "clear", "--yes")["removed"]) == 1
    assert run_json(capsys, "cache", "ls")["entries"] == []


def test_cache_lists_layers_that_are_only_read(empty_cache, monkeypatch, tmp_path, capsys):
    gemmjit.compile("k0")
    monkeypatch.setenv("GEMMJIT_CACHE_PATH", str(empty_cache))
    monkeypatch.setenv("GEMMJIT_CACHE_DIR", str(tmp_path / "other"))
    user, shared = run_json(capsys, "cache", "info")["directories"]
    assert (user["num_entries"], shared["num_entries"]) == (0, 1)
    assert (user["writable"], shared["writable"]) == (True, False)
    assert run_json(capsys, "cache", "clear", "--yes")["removed"] == []
    assert len(run_json(capsys, "cache", "ls")["entries"]) == 1


@pytest.fixture
def elsewhere(empty_cache, monkeypatch, tmp_path):
    """A directory with one kernel, which the environment does not name."""
    monkeypatch.setenv("GEMMJIT_CACHE_DIR", str(tmp_path / "elsewhere"))
    gemmjit.compile("k0")
    monkeypatch.setenv("GEMMJIT_CACHE_DIR", str(empty_cache))
    return tmp_path / "elsewhere"


def test_every_action_takes_a_directory(elsewhere, empty_cache, tmp_path, capsys):
    where = ("--cache-dir", str(elsewhere))
    (info,) = run_json(capsys, "cache", "info", *where)["directories"]
    assert (info["path"], info["num_entries"], info["usable"]) == (str(elsewhere), 1, True)
    (entry,) = run_json(capsys, "cache", "ls", *where)["entries"]
    assert run_json(capsys, "cache", "verify", *where)["damaged"] == []
    assert run_json(capsys, "cache", "export", str(tmp_path / "x.zip"), *where)["entries"] == 1
    cubin = Path(entry["path"]) / "kernel.cubin"
    cubin.write_bytes(cubin.read_bytes()[:-1])
    (bad,) = run_json(capsys, "cache", "verify", *where, status=1)["damaged"]
    assert bad["path"] == entry["path"]
    assert run_json(capsys, "cache", "verify", "--remove", *where)["damaged"][0]["removed"]
    assert run_json(capsys, "cache", "import", str(tmp_path / "x.zip"), *where)["new"] == 1
    os.utime(entry["path"], (1e9, 1e9))
    assert len(run_json(capsys, "cache", "prune", "--max-size", "0", *where)["removed"]) == 1
    assert run_json(capsys, "cache", "import", str(tmp_path / "x.zip"), *where)["new"] == 1
    assert len(run_json(capsys, "cache", "clear", "--yes", *where)["removed"]) == 1
    assert not empty_cache.exists()  # none of them touched the directory of the environment


@pytest.mark.parametrize(
    "argv", [("ls",), ("verify",), ("export", "x.zip"), ("prune",), ("clear", "--yes")],
    ids=lambda argv: argv[0],
)  # fmt: skip
def test_a_directory_that_is_missing_or_refused_is_no_success(
    argv, elsewhere, monkeypatch, tmp_path, capsys
):
    monkeypatch.chdir(tmp_path)
    action, *more = argv
    assert cli.main(["cache", action, *more, "--cache-dir", str(tmp_path / "none")]) == 1
    out, err = capsys.readouterr()
    assert str(tmp_path / "none") in err
    assert "not exist" in err
    if action == "verify":
        assert "As they were written: nothing was read." in out
    elsewhere.chmod(0o777)
    assert cli.main(["cache", action, *more, "--cache-dir", str(elsewhere)]) == 1
    assert "everybody can write to it" in capsys.readouterr().err
    assert cli.main(["cache", action, *more, "--cache-dir", "~nobody-has-this-name/x"]) == 1
    err = capsys.readouterr().err
    assert "--cache-dir: expected a directory; got '~nobody-has-this-name/x'" in err
