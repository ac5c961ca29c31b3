"""The command line as a program: help, usage, exit statuses."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

import pytest
from command_line import run_json

import gemmjit
from gemmjit import cli
from gemmjit.cli import explain  # noqa: F401  # loaded, to be changed
from gemmjit.errors import UnsupportedArchError

COMMANDS = tuple(cli.COMMANDS)


def test_help_names_every_command_and_loads_nothing_heavy():
    code = (
        "import sys\nfrom gemmjit.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit as end: assert end.code == 0\n"
        "heavy = {'numpy', 'jinja2', 'cuda', 'cupy', 'torch', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name in COMMANDS:
        assert name in done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main([name, "--help"])
    assert end.value.code == 0
    assert "usage: gemmjit " + name in capsys.readouterr().out


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["nothing"],
        ["demo", "--nothing"],
        ["inspect"],
        ["inspect", "k1", "--problem", "rows=1,groups=1,n=1,k=1"],
        ["inspect", "k1", "--config", "block_m"],
        ["inspect", "k1", "--source", "--sass"],
        ["prewarm", "--kernel", "k1"],
        ["prewarm", "--kernel", "k1", "--arch", "sm_90a", "--config", "[1]"],
        ["cache"],
        ["cache", "prune", "--max-size", "much"],
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_with_2(argv, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(argv)
    assert end.value.code == 2
    assert "usage: gemmjit" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["inspect", "k9"], "k9"),
        (["inspect", "k1", "--arch", "sm_12"], "sm_12"),
        (["inspect", "k1", "--arch", "sm_75"], "needs sm_80 or newer"),
        (["inspect", "k1", "--config", "block_m=48"], "got 48"),
        (["inspect", "k1", "--config", "depth=2"], "unknown field depth"),
        (["inspect", "k1", "--variant", "in_dtype=float32"], "got float32"),
        (["inspect", "k1", "--variant", "out_dtype=int8"], "out_dtype: expected one of"),
        (["inspect", "--problem", "rows=8"], "groups=None"),
        (["inspect", "--problem", "rows=5,grps=2"], "unknown name grps; there are rows, groups, n"),
        (["inspect", "--problem", "rows=8,groups=1,n=8,k=8,color=3"], "unknown name color"),
        (["prewarm", "--kernel", "k1", "--arch", "sm_75"], "for sm_75: k1 cannot be built"),
        (["prewarm", "--kernel", "k9", "--arch", "sm_90a"], "got 'k9'"),
        (["explain", "--sizes", "8", "--n", "8", "--k", "8", "--dtype", "float8"], "got float8"),
        (["explain", "--sizes", "8", "--n", "8", "--k", "8", "--arch", "sm_12"], "got 'sm_12'"),
        (["emulate", "k1", "--sizes", "3", "--problem", "colour=3"], "unknown name colour"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_values_that_no_command_takes_exit_with_2_and_one_message(argv, told, capsys):
    assert cli.main(argv) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith(f"gemmjit {argv[0]}: ")
    assert told in err
    assert "Traceback" not in err
    error = run_json(capsys, *argv, status=2)["error"]
    assert told in error["message"]
    assert error["type"].endswith("Error")


def test_an_architecture_is_told_without_a_suffix_that_nobody_typed(capsys):
    assert cli.main(["inspect", "k3", "--arch", "sm_100"]) == 2
    assert capsys.readouterr().err.endswith("exists up to sm_90; got sm_100\n")


def test_wrong_values_of_environment_variables_exit_with_2(empty_cache, monkeypatch, capsys):
    with monkeypatch.context() as one:
        one.setenv("GEMMJIT_ARCH", "sm_12")
        assert cli.main(["inspect", "k1"]) == 2
        assert "GEMMJIT_ARCH: expected one of" in capsys.readouterr().err
    with monkeypatch.context() as one:
        one.setenv("GEMMJIT_DISABLE_JIT", "perhaps")
        assert cli.main(["inspect", "k1"]) == 2
        assert "GEMMJIT_DISABLE_JIT: expected" in capsys.readouterr().err


def test_work_that_fails_exits_with_1(monkeypatch, capsys):
    """What is wrong is neither an argument nor a variable."""
    with monkeypatch.context() as one:
        one.setattr(gemmjit.cli.explain, "default_arch", _no_arch)
        assert cli.main(["explain", "--sizes", "3", "--n", "8", "--k", "8"]) == 1
        assert "arch: of the GPU" in capsys.readouterr().err
    assert cli.main(["cache", "import", "/no/such.zip"]) == 1
    assert "/no/such.zip" in capsys.readouterr().err
    assert cli.main(["prewarm", "--shapes", "/no/such.toml"]) == 1


def _no_arch():
    raise UnsupportedArchError("arch: of the GPU, which no kernel has")


def test_help_says_what_exit_statuses_mean(capsys):
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    told = " ".join(capsys.readouterr().out.split())
    for part in ("0 success", "1 the work failed", "2 wrong usage", "130 interrupted"):
        assert part in told


def test_python_m_gemmjit_is_the_same_program():
    for module in ("gemmjit", "gemmjit.cli"):
        argv = [sys.executable, "-m", module, "--version"]
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
        assert done.stdout == f"gemmjit {gemmjit.__version__}\n"


def test_a_closed_pipe_is_no_error():
    line = f"{shlex.quote(sys.executable)} -m gemmjit inspect k0 --source | head -c 10"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", line], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == '#line 1 "k'
    assert not done.stderr


@pytest.mark.parametrize("with_rich", [False, True])
def test_tables_say_the_same_with_and_without_rich(with_rich, capsys, monkeypatch):
    from gemmjit.cli import output

    if with_rich:
        pytest.importorskip("rich")
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        monkeypatch.setenv("COLUMNS", "120")
    rows = [["k0", 79, "[rich] text", None, 0.25], ["k1", 121, "plain", 3, 10.0]]
    output.print_table(("kernel", "registers", "text", "left", "ms"), rows)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
    assert [line.split() for line in lines if line.strip()] == [
        ["kernel", "registers", "text", "left", "ms"],
        ["k0", "79", "[rich]", "text", "-", "0.2"],
        ["k1", "121", "plain", "3", "10.0"],
    ]
    ends = [
        line.index(number) + len(number)
        for line, number in zip(lines[1:], ("79", "121"), strict=True)
    ]
    assert ends[0] == ends[1]  # numbers are right-aligned


def test_names_and_numbers_stay_whole_on_a_narrow_terminal(capsys, monkeypatch):
    from gemmjit.cli import output

    pytest.importorskip("rich")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    name = "pp128x192x64_s4c3r8_claimed"
    numbers = [1234.5] * 8
    rows = [["k3", name, *numbers, "memory and arithmetic take about as long here"]] * 2
    output.print_table(("kernel", "tile", *"abcdefgh", "why"), rows)
    out = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert out.count(name) == 2
    assert out.count("1234.5") == 16
    assert "kernel" in out
    assert "take" in out


def test_the_program_needs_no_rich():
    code = (
        "import sys\nsys.modules['rich'] = None\n"
        "from gemmjit.cli import main\nraise SystemExit(main(['inspect', '--problem', "
        "'rows=64,groups=2,n=64,k=64']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_cache_directory_that_names_none_is_no_other_directory(monkeypatch, capsys):
    monkeypatch.setenv("GEMMJIT_CACHE_DIR", "~nobody_of_that_name/cache")
    with pytest.raises(SystemExit) as left:
        sys.exit(cli.main(["cache", "clear"]))
    assert left.value.code not in (0, None)
    assert "GEMMJIT_CACHE_DIR" in capsys.readouterr().err
