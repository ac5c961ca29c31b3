"""``gemmjit tune`` as a command."""

from __future__ import annotations

import json

import pytest
from tuned_device import GPU, SMALL, tuned_backend  # noqa: F401

from gemmjit import cli, env
from gemmjit.arch import Arch
from gemmjit.cuda.driver import driver
from gemmjit.selection import choose, records
from gemmjit.tuning import Tuner, tasks_of


def run(*argv):
    return cli.main(["tune", *argv])


RUN = ("--backend", "simulated", "--case", SMALL, "--form", "fprop", "--kernel", "k1",
       "--rounds", "6", "--warmup", "0.01", "--within", "10")  # fmt: skip


def test_the_command_measures_checks_lists_and_moves_records(
    backend, capsys, tmp_path, monkeypatch
):
    written = tmp_path / "tune.json"
    kept = ("--records", str(tmp_path / "cache"))
    assert run(*RUN, *kept, "--json", str(written)) == 0
    assert "k1 64x128x32_s2" in capsys.readouterr().out
    record = json.loads(written.read_text())
    assert record["kind"] == "tune"
    assert record["device"]["simulated"]
    assert record["command"][:2] == ["gemmjit", "tune"]
    (result,) = record["results"]
    assert result["measured_now"]
    assert result["check"]["best"] == "k1 64x128x32_s2"
    # The model picks another, a fifth slower: the check fails, from what is recorded.
    assert result["check"]["model"]["ratio"] == pytest.approx(1.2, rel=0.02)
    assert run(*RUN, *kept, "--check", "--json") == 1
    output = capsys.readouterr()
    assert not json.loads(output.out)["results"][0]["measured_now"]
    assert "above its limit" in output.err
    assert run("ls") == 0
    assert "1 record in" in capsys.readouterr().out
    moved = tmp_path / "moved.json"
    assert run("export", str(moved)) == 0
    assert run("export", str(moved)) == 1
    assert "Name another" in capsys.readouterr().err
    assert run("clear", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"removed": 1}
    assert run("ls", "--json") == 0
    assert json.loads(capsys.readouterr().out)["records"] == []
    monkeypatch.setenv("GEMMJIT_CACHE_DIR", str(tmp_path / "elsewhere"))
    assert run("import", str(moved)) == 0
    assert run("import", str(moved)) == 0
    assert capsys.readouterr().out == "1 record imported.\n0 records imported.\n"
    (task,) = tasks_of([SMALL], ["fprop"], [])
    assert str(choose(task.problem, Arch(90), GPU)[1]) == "64x128x32_s2"


def test_nothing_is_kept_of_a_simulated_device_unless_asked(backend, capsys, tmp_path):
    own, named = tmp_path / "cache" / records.FILE, tmp_path / "named"
    assert run(*RUN) == 0
    assert "simulated times are recorded nowhere; --records DIR" in capsys.readouterr().err
    assert not own.exists()
    assert run(*RUN, "--records", str(named)) == 0
    assert "nowhere" not in capsys.readouterr().err
    assert (named / records.FILE).exists()
    assert not own.exists()
    assert run("ls") == 0
    assert "0 records in" in capsys.readouterr().out
    assert run("ls", "--records", str(named)) == 0
    assert "1 record in" in capsys.readouterr().out


def test_there_is_nothing_to_export(backend, capsys, tmp_path):
    kept, moved = ("--records", str(tmp_path / "named")), tmp_path / "moved.json"
    assert run("export", str(moved)) == 1
    assert "expected records to export; got none in" in capsys.readouterr().err
    assert run(*RUN, *kept) == 0
    assert run("export", str(moved), *kept, "--gpu", "another") == 1
    assert "got none of 'another' in" in capsys.readouterr().err
    assert not moved.exists()
    assert run("export", str(moved), *kept) == 0
    assert moved.exists()


@pytest.mark.parametrize("lost", ["us", "predicted_us"])
def test_a_broken_record_is_measured_again(backend, capsys, tmp_path, lost):
    for again in (False, True):
        assert run(*RUN, "--json", "--records", str(tmp_path / "cache")) == 0
        assert json.loads(capsys.readouterr().out)["results"][0]["measured_now"]
        if again:
            break
        path = tmp_path / "cache" / records.FILE
        whole = json.loads(path.read_text())
        del whole["records"][0]["candidates"][0][lost]
        path.write_text(json.dumps(whole))


def test_an_interrupted_command_says_so(backend, capsys, monkeypatch):
    def stop(self, tasks, finished):
        raise KeyboardInterrupt

    monkeypatch.setattr(Tuner, "run", stop)
    assert run(*RUN) == 130
    assert "0 of 1 products are done" in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv", [("export",), ("ls", "file"), ("--shapes", "x", "--case", "y"), ("nothing",)]
)
def test_wrong_usage_exits_with_2(argv, capsys):
    with pytest.raises(SystemExit) as end:
        run(*argv)
    assert end.value.code == 2


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--form", ""), ("--form", "fprop,xx"), ("--random", "-5"), ("--random", "0"),
        ("--seed", "-1"), ("--kernel", "k9"), ("--layout", "xx"), ("--within", "nan"),
        ("--within", "0"), ("--within", "inf"), ("--budget", "-1"), ("--budget", "nan"),
        ("--dtype", "float64"), ("--rounds", "0"), ("--state", "warm"), ("--warmup", "-1"),
        ("--device", "-1"),
    ],
)  # fmt: skip
def test_an_argument_that_says_nothing_is_named(backend, option, value, capsys):
    with pytest.raises(SystemExit) as end:
        run(*RUN, "--random", "1", f"{option}={value}")
    assert end.value.code == 2
    assert f"argument {option}: " in capsys.readouterr().err


def test_a_name_that_no_file_has(capsys):
    for action in ("export", "import"):
        with pytest.raises(SystemExit) as end:
            run(action, "a\0b")
        assert end.value.code == 2
        assert "argument FILE: expected the name of a file" in capsys.readouterr().err


def test_broken_files_are_told(backend, tmp_path, capsys):
    path = tmp_path / "broken.json"
    for text in (
        "no",
        json.dumps({"schema": 1, "records": [{"digest": records.kernels_digest()}]}),
    ):
        path.write_text(text)
        assert run("import", str(path)) == 1
        assert str(path) in capsys.readouterr().err
    assert run("import", str(tmp_path / "missing.json")) == 1
    assert "Check the path" in capsys.readouterr().err


def test_the_switch_is_documented():
    assert any(v.name == "GEMMJIT_IGNORE_TUNED" and v.is_switch for v in env.VARIABLES)


def test_without_a_driver_nothing_is_said_of_arrays(monkeypatch, capsys):
    def missing():
        raise RuntimeError("no libcuda")

    monkeypatch.setattr("cuda.bindings.driver.cuDriverGetVersion", missing)
    driver.cache_clear()
    try:
        assert run("run", "--case", SMALL) == 1
    finally:
        driver.cache_clear()
    told = capsys.readouterr().err
    assert "expected NVIDIA driver 580 or newer" in told
    assert "NumPy" not in told
