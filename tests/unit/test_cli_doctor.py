"""``gemmjit doctor``."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import run_json

from gemmjit import cli
from gemmjit.arch import Arch
from gemmjit.cli import environment
from gemmjit.env import VARIABLES
from gemmjit.errors import NvrtcNotFoundError


def test_doctor_finds_nothing_missing(capsys, empty_cache):
    facts = run_json(capsys, "doctor")
    assert facts["ok"]
    assert facts["problems"] == []
    assert facts["nvrtc"]["version"].startswith("13.")
    assert Path(facts["nvrtc"]["library"]).is_file()
    assert "sm_90" in facts["nvrtc"]["targets"]
    for target in facts["nvrtc"]["targets"]:  # no more than what --arch takes
        Arch.parse(target)
    assert facts["cache"]["user"]["path"] == str(empty_cache)
    assert facts["cache"]["user"]["writable"]
    assert facts["templates"]["count"] >= 10
    assert {v["name"] for v in facts["environment"]} == {v.name for v in VARIABLES}
    assert not empty_cache.exists()  # looking creates nothing
    assert cli.main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert "Nothing is missing." in shown
    if facts["driver"] is None:
        assert re.search(r"^driver +no driver \(needed only to run on a GPU\)\n", shown, re.M)


def test_doctor_says_how_to_get_nvrtc(capsys, monkeypatch):
    def missing():
        raise NvrtcNotFoundError("The NVRTC library cannot be loaded.")

    monkeypatch.setattr("gemmjit.compiler.get_compiler", missing)
    facts = run_json(capsys, "doctor", status=1)
    assert not facts["ok"]
    (problem,) = facts["problems"]
    assert problem["mend"] == 'pip install "nvidia-cuda-nvrtc>=13.0,<14"'
    assert problem["needed_to"] == "compile"


def test_doctor_says_which_package_to_install(capsys, monkeypatch):
    true = environment._version
    versions = {"jinja2": "2.11.3", "cupy-cuda13x": None}
    monkeypatch.setattr(environment, "_version", lambda name: versions.get(name, true(name)))
    monkeypatch.setitem(versions, "torch", None)
    facts = run_json(capsys, "doctor", status=1)
    mends = {problem["mend"]: problem["needed_to"] for problem in facts["problems"]}
    assert mends == {
        'pip install "jinja2>=3.1"': "compile",
        'pip install "cupy-cuda13x>=14.0"': "run on a GPU",
    }


def test_doctor_lives_without_a_package_that_it_needs(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.bindings.nvrtc", None)  # makes its import fail
    monkeypatch.setattr(environment, "_version", _without(environment._version, "cuda-python"))
    facts = run_json(capsys, "doctor", status=1)
    assert 'pip install "cuda-python>=13.0,<14"' in [p["mend"] for p in facts["problems"]]


def _without(true, package):
    return lambda name: None if name == package else true(name)


def test_doctor_reports_a_cache_that_cannot_be_written(capsys, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GEMMJIT_CACHE_DIR", str(tmp_path / "file" / "cache"))
    facts = run_json(capsys, "doctor")  # kernels can be compiled all the same
    assert facts["ok"]
    (problem,) = facts["problems"]
    assert problem["needed_to"] == "keep kernels on disk"
    assert "GEMMJIT_CACHE_DIR" in problem["mend"]


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs Linux's /proc")
def test_doctor_tries_whether_a_cache_can_be_made(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("GEMMJIT_CACHE_DIR", "/proc/no-such/cache")  # nobody can, and root may
    facts = run_json(capsys, "doctor")
    assert not facts["cache"]["user"]["writable"]
    assert "kernels cannot be kept" in facts["problems"][0]["what"]
    monkeypatch.setenv("GEMMJIT_CACHE_DIR", str(tmp_path / "new" / "cache"))
    assert run_json(capsys, "doctor")["cache"]["user"]["writable"]
    assert not list(tmp_path.iterdir())


def test_doctor_reports_a_cache_that_others_can_write(capsys, empty_cache):
    empty_cache.mkdir()
    empty_cache.chmod(0o777)
    facts = run_json(capsys, "doctor")
    assert f"chmod go-w {empty_cache}" in [problem["mend"] for problem in facts["problems"]]


@pytest.mark.parametrize(
    ("name", "value", "part", "ok"),
    [
        ("GEMMJIT_ARCH", "hopper", "GEMMJIT_ARCH: expected a name", True),
        ("GEMMJIT_ARCH", "sm_61", "GEMMJIT_ARCH: expected one of", True),
        ("GEMMJIT_EXECUTOR", "gpu", "GEMMJIT_EXECUTOR: expected one of auto, emulator", True),
        ("GEMMJIT_LOG_LEVEL", "loud", "GEMMJIT_LOG_LEVEL: expected one of debug", True),
        ("GEMMJIT_CHECK", "2", "GEMMJIT_CHECK: expected 1, true", True),
        ("GEMMJIT_DISABLE_JIT", "2", "GEMMJIT_DISABLE_JIT: expected 1, true", False),
        ("GEMMJIT_CACHE_MAX_SIZE", "much", "GEMMJIT_CACHE_MAX_SIZE: expected a size", True),
        ("GEMMJIT_CACHE_PATH", "~nobody-at-all/x", "GEMMJIT_CACHE_PATH: expected a dir", True),
    ],
)
def test_doctor_reports_variables_with_wrong_values(capsys, monkeypatch, name, value, part, ok):
    monkeypatch.setenv(name, value)
    facts = run_json(capsys, "doctor", status=2)  # as of every command
    assert facts["ok"] is ok
    (told,) = [problem for problem in facts["problems"] if part in problem["what"]]
    assert repr(value) in told["what"]
    assert name in told["mend"]
    assert cli.main(["doctor"]) == 2
    assert told["what"] in capsys.readouterr().out


def test_doctor_reports_layers_that_serve_nothing(capsys, empty_cache, monkeypatch, tmp_path):
    for name in ("open", "sound/v1", "empty"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "file").write_text("")
    (tmp_path / "open").chmod(0o777)
    names = ("missing", "open", "sound", "empty", "file")
    monkeypatch.setenv("GEMMJIT_CACHE_PATH", os.pathsep.join(str(tmp_path / n) for n in names))
    told = run_json(capsys, "doctor")["problems"]
    parts = {"missing": "it does not exist", "open": "everybody can write to it",
             "empty": "it is empty", "file": "got the file"}  # fmt: skip
    assert len(told) == len(parts)
    for problem, (name, part) in zip(told, parts.items(), strict=True):
        assert str(tmp_path / name) in problem["what"]
        assert part in problem["what"]
        assert (
            "GEMMJIT_CACHE_PATH" in problem["mend"] or f"go-w {tmp_path / name}" in problem["mend"]
        )
        assert "GEMMJIT_CACHE_DIR" not in problem["what"] + problem["mend"]


def test_doctor_reports_overrides_of_templates(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("GEMMJIT_TEMPLATE_PATH", f"{tmp_path}{os.pathsep}{tmp_path / 'none'}")
    facts = run_json(capsys, "doctor", status=1)
    assert facts["templates"]["overrides"] == [str(tmp_path), str(tmp_path / "none")]
    (problem,) = facts["problems"]
    assert str(tmp_path / "none") in problem["what"]


@pytest.mark.parametrize(
    ("version", "wanted", "expected"),
    [
        ("13.0", ">=13.0,<14", True),
        ("13.5.37", ">=13.0,<14", True),
        ("12.9.1", ">=13.0,<14", False),
        ("14.0.0", ">=13.0,<14", False),
        ("2.13.0+cpu", ">=2.8", True),
        ("3.0.9", ">=3.1", False),
        ("10.0", ">=3.1", True),
    ],
)
def test_versions_are_compared_as_numbers(version, wanted, expected):
    assert environment.satisfies(version, wanted) is expected


@pytest.mark.parametrize("package", ["jinja2", "numpy", "platformdirs", "ml_dtypes"])
def test_doctor_runs_where_a_package_is_broken(package):
    """What is installed but cannot be imported is reported, by name and with its mend."""
    code = (
        f"import sys\nsys.modules[{package!r}] = None\n"
        "from gemmjit.cli import main\nraise SystemExit(main(['doctor']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    assert done.returncode == 1, done.stdout
    missing = done.stdout.split("Missing or wrong:")[1]
    assert package.replace("_", "-") in missing.replace("_", "-")
    assert f'pip install --force-reinstall "{package.replace("_", "-")}' in missing


def test_the_limit_of_the_command_line_is_that_of_problems():
    from gemmjit.cli import numbers
    from gemmjit.problem import LARGEST

    assert numbers._LARGEST == LARGEST
