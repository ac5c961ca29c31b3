"""`gemmjit prewarm` without a GPU, used wrongly, and as the mend of an error."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

import pytest
from prewarming import CHECKOUT

import gemmjit
from gemmjit import cli
from gemmjit.arch import Arch


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
        (["--kernel", "k1", "--arch", ","], "argument --arch: expected a name such as"),
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
