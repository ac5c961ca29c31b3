"""``gemmjit prewarm`` with many kernels: manifests, logs, processes, parts, directories."""

from __future__ import annotations

import os
import re
from dataclasses import replace

import numpy as np
import pytest
from command_line import run_json
from prewarming import program

import gemmjit
from gemmjit import build, cli
from gemmjit.cache import Store, stats
from gemmjit.errors import MissingKernelError


def test_a_manifest_is_compiled_once_in_spawned_processes(empty_cache, shapes):
    argv = ("prewarm", "--shapes", shapes, "--jobs", "2")
    first = program(*argv, GEMMJIT_CACHE_DIR=str(empty_cache))
    assert first.returncode == 0, first.stderr
    assert "6 kernels in " in first.stdout
    assert "6 compiled, 0 there already, 0 failed" in first.stdout
    assert "6/6 kernels" in first.stderr
    second = program(*argv, GEMMJIT_CACHE_DIR=str(empty_cache))
    assert "0 compiled, 6 there already, 0 failed" in second.stdout
    assert second.returncode == 0


def test_what_is_prewarmed_is_all_that_runs(empty_cache, shapes, monkeypatch, capsys):
    told = run_json(capsys, "prewarm", "--shapes", shapes, "--jobs", "1")
    assert (told["compiled"], told["present"], told["failed"]) == (6, 0, 0)
    assert {row["status"] for row in told["kernels"]} == {"compiled"}
    monkeypatch.setenv("GEMMJIT_DISABLE_JIT", "1")
    monkeypatch.setenv("GEMMJIT_EXECUTOR", "emulator")
    a, b = np.ones((7, 32), np.float32), np.ones((2, 32, 24), np.float32)
    for arch in ("sm_86", "sm_90"):  # sm_80 serves the one, sm_90a the other
        monkeypatch.setenv("GEMMJIT_ARCH", arch)
        for offs in ([3, 7], np.array([3, 7], np.int32)):
            build.clear_memory()
            assert (gemmjit.grouped_mm(a, b, offs=offs) == 32).all()
    with pytest.raises(MissingKernelError):
        gemmjit.grouped_mm(a.T.copy().T, b, offs=[3, 7])


def test_a_dry_run_compiles_nothing(empty_cache, shapes, capsys):
    before = stats().compiles
    told = run_json(capsys, "prewarm", "--shapes", shapes, "--dry-run")
    assert told["missing"] == len(told["kernels"]) == 6
    assert stats().compiles == before
    assert not empty_cache.exists()
    run_json(capsys, "prewarm", "--kernel", "tile_list", "--arch", "sm_80")
    assert run_json(capsys, "prewarm", "--shapes", shapes, "--dry-run")["missing"] == 5
    assert cli.main(["prewarm", "--shapes", shapes, "--dry-run"]) == 0
    assert "6 kernels, 5 to compile." in capsys.readouterr().out


@pytest.mark.parametrize("count", [1, 2, 4, 9])
def test_parts_are_disjoint_and_complete(empty_cache, shapes, capsys, count):
    def identities(*more):
        return [
            row["identity"]
            for row in run_json(capsys, "prewarm", "--shapes", shapes, "--dry-run", *more)[
                "kernels"
            ]
        ]

    parts = [identities("--shard", f"{i}/{count}") for i in range(1, count + 1)]
    assert sorted(one for part in parts for one in part) == sorted(identities())
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_one_kernel_is_told_in_the_singular(empty_cache, tmp_path, capsys):
    one = ("prewarm", "--kernel", "tile_list", "--arch", "sm_80")
    archive = str(tmp_path / "one.zip")
    for argv, told in (
        ((*one, "--dry-run"), "1 kernel, 1 to compile."),
        ((*one, "--write", str(tmp_path / "one.toml")), "1 kernel written to"),
        (one, "1 kernel in "),
        (("cache", "info"), ": 1 kernel, "),
        (("cache", "verify"), "1 kernel and 1 memo in "),
        (("cache", "export", archive), "1 kernel in "),
        (("cache", "clear", "--yes"), "1 kernel removed from "),
        (("cache", "import", archive), "1 kernel brought into "),
        (("cache", "prune", "--max-size", "0"), "0 kernels removed ("),
    ):
        assert cli.main(argv) == 0
        assert told in capsys.readouterr().out, argv


def test_a_directory_of_its_own_is_complete(empty_cache, shapes, tmp_path, monkeypatch, capsys):
    """What other layers have does not count, or the directory could not be shipped."""
    run_json(capsys, "prewarm", "--kernel", "tile_list", "--arch", "sm_80")
    monkeypatch.setenv("GEMMJIT_CACHE_PATH", str(empty_cache))
    build.clear_memory()
    argv = ("prewarm", "--kernel", "tile_list", "--arch", "sm_80")
    assert run_json(capsys, *argv, "--cache-dir", str(tmp_path / "ship"))["compiled"] == 1
    monkeypatch.setenv("GEMMJIT_CACHE_DIR", str(tmp_path / "user"))
    assert run_json(capsys, *argv)["present"] == 1  # a layer has it
    assert os.environ["GEMMJIT_CACHE_PATH"] == str(empty_cache)
    assert os.environ["GEMMJIT_CACHE_DIR"] == str(tmp_path / "user")


def test_a_layer_that_is_only_read_serves_whatever_nvrtc_made_it_and_never_changes(
    empty_cache, shapes, tmp_path, monkeypatch, capsys
):
    """As in an image, a wheel, or on a shared file system."""
    ship = tmp_path / "ship"
    run_json(capsys, "prewarm", "--shapes", shapes, "--cache-dir", str(ship), "--jobs", "1")
    store = Store(ship)
    for stored in list(store.entries()):  # let an older compiler have made them
        entry = store.read(stored)
        assert store.remove(stored)
        assert store.publish(replace(entry, nvrtc_version="13.0.48"))

    def snapshot():
        paths = sorted(ship.rglob("*"))
        return [(path, path.stat().st_mtime_ns, path.stat().st_size) for path in paths]

    for path in [ship, *ship.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = snapshot()
    monkeypatch.setenv("GEMMJIT_CACHE_PATH", str(ship))
    told = run_json(capsys, "prewarm", "--shapes", shapes)
    assert (told["present"], told["compiled"]) == (6, 0)
    monkeypatch.setenv("GEMMJIT_DISABLE_JIT", "1")
    monkeypatch.setenv("GEMMJIT_EXECUTOR", "emulator")
    monkeypatch.setenv("GEMMJIT_ARCH", "sm_89")
    build.clear_memory()
    a, b = np.ones((7, 32), np.float32), np.ones((2, 32, 24), np.float32)
    assert (gemmjit.grouped_mm(a, b, offs=[3, 7]) == 32).all()
    assert snapshot() == before
    assert not empty_cache.exists()
    for path in [ship, *ship.rglob("*")]:
        path.chmod(0o755)


def test_nothing_is_evicted_meanwhile_and_the_size_is_told(
    empty_cache, shapes, monkeypatch, capsys
):
    from gemmjit.cache import store

    monkeypatch.setenv("GEMMJIT_CACHE_MAX_SIZE", "1K")
    monkeypatch.setattr(store, "GRACE_SECONDS", 0.0)
    monkeypatch.setattr(store.Store.prune, "__defaults__", (0.0,))
    assert cli.main(["prewarm", "--shapes", shapes, "--jobs", "1"]) == 0
    out, err = capsys.readouterr()
    assert "6 compiled" in out
    assert "more than 1.0 KiB" in err
    assert "GEMMJIT_CACHE_MAX_SIZE" in err
    assert run_json(capsys, "prewarm", "--shapes", shapes)["present"] == 6
    assert os.environ["GEMMJIT_CACHE_MAX_SIZE"] == "1K"


def test_one_failure_stops_nothing_and_comes_with_its_log(
    empty_cache, shapes, monkeypatch, tmp_path, capsys
):
    broken = tmp_path / "templates" / "kernels"
    broken.mkdir(parents=True)
    source = 'extern "C" __global__ void ${ entry }() { int x = ${ threads } y; }\n'
    (broken / "tile_list.cu.j2").write_text(source)
    monkeypatch.setenv("GEMMJIT_TEMPLATE_PATH", str(tmp_path / "templates"))
    told = run_json(capsys, "prewarm", "--shapes", shapes, "--jobs", "2", status=1)
    assert (told["compiled"], told["failed"]) == (4, 2)
    bad = [row for row in told["kernels"] if row["status"] == "failed"]
    assert {row["entry"] for row in bad} == {"gemmjit_tile_list"}
    for row in bad:
        assert "kernels/tile_list.cu.j2(1): error" in row["error"] + row["log"]
    assert cli.main(["prewarm", "--shapes", shapes]) == 1
    out, err = capsys.readouterr()
    assert "4 there already, 2 failed" in out
    assert len(re.findall(r"gemmjit_tile_list +- +- +- +failed", out)) == 2
    assert err.count("gemmjit prewarm: kernels/tile_list.cu.j2 does not compile") == 2
    assert 'expected a ";"' in err


def test_a_process_that_dies_is_a_failure_not_a_hang(empty_cache, monkeypatch):
    from gemmjit import prewarm

    spec = gemmjit.compile("k0", None, "sm_80").spec
    outcomes = prewarm.prewarm([_Deadly(spec, n) for n in range(3)], jobs=2)
    assert [outcome.status for outcome in outcomes] == ["failed"] * 3
    assert all("BrokenProcessPool" in outcome.error for outcome in outcomes)


class _Deadly:
    """A specification that kills the process that unpickles it."""

    def __init__(self, spec, number):
        self._spec, self._number = spec, number

    def __getattr__(self, name):
        return getattr(self._spec, name)

    @property
    def entry(self):
        return f"deadly_{self._number}"

    @property
    def variables(self):
        return {**self._spec.variables, "entry": self.entry}

    def __reduce__(self):
        return os._exit, (9,)
