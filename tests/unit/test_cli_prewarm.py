"""``gemmjit prewarm`` with many kernels: manifests, logs, processes, parts, directories."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from command_line import run_json

import gemmjit
from gemmjit import build, cli
from gemmjit.arch import Arch
from gemmjit.cache import Store, stats
from gemmjit.errors import MissingKernelError

CHECKOUT = os.path.dirname(os.path.dirname(gemmjit.__file__))

SHAPES = """
targets = ["sm_80", "sm_90a"]

[[problems]]
n = 24
k = 32
dtype = "float32"
offsets = ["device", "host"]

[[kernels]]
kernel = "tile_list"
"""


@pytest.fixture
def empty_cache(monkeypatch, tmp_path):
    """A cache directory of its own, and nothing in memory."""
    monkeypatch.setenv("GEMMJIT_CACHE_DIR", str(tmp_path / "cache"))
    build.clear_memory()
    yield tmp_path / "cache"
    build.clear_memory()


@pytest.fixture
def shapes(tmp_path):
    (tmp_path / "shapes.toml").write_text(SHAPES)
    return str(tmp_path / "shapes.toml")


def program(*argv: str, **variables: str) -> subprocess.CompletedProcess:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GEMMJIT_")}
    return subprocess.run(
        [sys.executable, "-m", "gemmjit", *argv],
        env={**environment, "PYTHONPATH": CHECKOUT, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


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


# From the log of a run


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


# Without a GPU, and in other ways wrong


def test_br138_a_machine_without_gpu_torch_and_rich_will_do(empty_cache):
    code = (
        "import sys\n"
        "for name in ('torch', 'rich', 'cupy'): sys.modules[name] = None\n"
        "from gemmjit.cli import main\n"
        "raise SystemExit(main(sys.argv[1:]))\n"
    )
    argv = [sys.executable, "-c", code, "prewarm", "--kernel", "k0", "--arch", "sm_75,sm_100f"]
    environment = {**os.environ, "PYTHONPATH": CHECKOUT, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "2 compiled" in done.stdout


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        ([], "one of the arguments --shapes --kernel --from-log is required"),
        (["--kernel", "k1"], "expected --arch too"),
        (["--kernel", "k1", "--arch", ","], "expected --arch too"),
        (["--kernel", "k1", "--shapes", "x"], "not allowed with argument"),
        (["--shapes", "x", "--config", "{}"], "not allowed without --kernel"),
        (["--from-log", "x", "--arch", "sm_80"], "chosen for the architecture of that run"),
        (["--shapes", "x", "--jobs", "0"], "expected a whole number from 1 on; got '0'"),
        (["--shapes", "x", "--jobs", "two"], "expected a whole number from 1 on; got 'two'"),
        (["--shapes", "x", "--shard", "0/4"], "as in 1/4, counted from 1; got '0/4'"),
        (["--shapes", "x", "--shard", "5/4"], "as in 1/4, counted from 1; got '5/4'"),
        (["--shapes", "x", "--shard", "2"], "as in 1/4, counted from 1; got '2'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage(argv, told, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["prewarm", *argv])
    assert end.value.code == 2
    assert told in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["--shapes", "/no/such.toml"], "/no/such.toml: expected a TOML file; got No such file"),
        (["--from-log", "/no/such.log"], "/no/such.log: expected the log of a run; got No such"),
        (["--kernel", "k0", "--arch", "sm_12"], "got 'sm_12'"),
        (["--kernel", "k0", "--arch", "sm_80", "--write", "/no/such/x.toml"], "--write: expected"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_work_that_cannot_begin(argv, told, capsys):
    assert cli.main(["prewarm", *argv]) == 1
    err = capsys.readouterr().err
    assert err.startswith("gemmjit prewarm: ")
    assert told in err


def test_the_very_command_of_the_error_heals_the_run(empty_cache, tmp_path):
    """As a person would: run, copy the command from the error into a shell, run again."""
    code = (
        "import numpy as np, gemmjit\n"
        "a, b = np.ones((7, 32), np.float16), np.ones((2, 32, 24), np.float16)\n"
        "print(int(gemmjit.grouped_mm(a, b, offs=[3, 7])[0, 0]))\n"
    )
    variables = {
        **os.environ,
        "PYTHONPATH": CHECKOUT,
        "GEMMJIT_DISABLE_JIT": "1",
        "GEMMJIT_EXECUTOR": "emulator",
        "GEMMJIT_ARCH": "sm_86",
    }

    def run():
        return subprocess.run(
            [sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=False
        )

    cold = run()
    assert cold.returncode == 1
    command = cold.stderr.strip().rpartition("Compile it beforehand: ")[2]
    assert command.startswith("gemmjit prewarm --arch sm_86 --kernel k1 ")
    shim = tmp_path / "gemmjit"
    shim.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m gemmjit "$@"\n')
    shim.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(
        ["sh", "-c", command], env={**variables, "PATH": path}, check=True, capture_output=True
    )
    warm = run()
    assert (warm.returncode, warm.stdout) == (0, "32\n"), warm.stderr


def test_targets_of_the_fleet_are_those_that_run_time_looks_for():
    assert Arch.parse("sm_80") in [s.target for s in _spec("sm_89").alternatives]
    assert Arch.parse("sm_100f") in [s.target for s in _spec("sm_103").alternatives]
    assert Arch.parse("sm_120f") in [s.target for s in _spec("sm_121").alternatives]


def _spec(arch):
    from gemmjit.ops.dispatch import spec_for

    return spec_for(gemmjit.Problem.contiguous(num_groups=2, rows=64, n=64, k=64), Arch.parse(arch))
