"""Orders of options and arguments, and what is told of those that there are not."""

from __future__ import annotations

import json

import pytest
from command_line import run_json

from gemmjit import cli
from gemmjit.bench.cases import CASES


def refused(capsys, *argv):
    """Run a command that must end as wrong usage; return what it says."""
    with pytest.raises(SystemExit) as end:
        cli.main(list(argv))
    assert end.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("at", [0, 1, 2])
def test_options_stand_before_between_and_after_arguments(at, capsys, tmp_path):
    words = ["export", str(tmp_path / "out.json")]
    words[at:at] = ["--records", str(tmp_path)]
    assert cli.main(["tune", *words]) == 1  # there is nothing to export, and the command says so
    assert f"got none in {tmp_path}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["k1", "--config", "block_m=64", "num_stages=3"],
        ["--config", "block_m=64", "num_stages=3", "k1"],
        ["--config", "block_m=64", "k1", "--config", "num_stages=3"],
        ["--config=block_m=64", "num_stages=3", "k1"],
        ["--conf", "block_m=64", "num_stages=3", "k1"],
        ["--config", '{"block_m": 64, "num_stages": 3}', "k1"],
        ["--config", "block_m=64", "--config", "num_stages=3", "--", "k1"],
    ],
    ids=" ".join,
)
def test_settings_of_a_tile_end_where_the_kernel_is_named(words, capsys):
    facts = run_json(capsys, "inspect", "--source", *words)
    assert facts["kernel"] == "k1"
    assert cli.main(["inspect", "--source", *words]) == 0
    shown = capsys.readouterr().out
    assert "BLOCK_M = 64" in shown
    assert "NUM_STAGES = 3" in shown


def test_every_command_with_settings_takes_them_before_its_argument(capsys):
    words = ["emulate", "--config", "block_m=32", "num_stages=2", "k1", "--sizes", "3"]
    facts = run_json(capsys, *words, "--problem", "n=64,k=32")
    assert facts["config"]["block_m"] == 32
    assert facts["config"]["num_stages"] == 2
    words = ["prewarm", "--variant", "out_dtype=float32", "b_k_major=true", "--kernel", "k1"]
    (kernel,) = run_json(capsys, *words, "--arch", "sm_90a", "--dry-run")["kernels"]
    assert "bt_fp32" in kernel["entry"] or "f32" in kernel["entry"]


def test_an_optional_value_is_not_the_name_of_an_action(capsys, tmp_path):
    kept = ("--records", str(tmp_path))
    assert cli.main(["tune", "--json", "ls", *kept]) == 0
    assert json.loads(capsys.readouterr().out)["records"] == []
    moved = tmp_path / "moved.json"
    for words in (["--json", "export", str(moved)], ["export", "--json", str(moved)]):
        assert cli.main(["tune", *words, *kept]) == 1
        assert (
            "expected records to export" in json.loads(capsys.readouterr().out)["error"]["message"]
        )
    said = refused(capsys, "tune", "ls", "--json", str(moved), *kept)
    assert "argument --json: expected no FILE with ls" in said


@pytest.mark.parametrize(
    ("argv", "usage", "mend"),
    [
        (["explain", "--rows", "3", "--grops", "2"], "gemmjit explain", "--groups"),
        (["cache", "clear", "--yess"], "gemmjit cache clear", "--yes"),
        (["bench", "grouped", "--rouns", "3"], "gemmjit bench grouped", "--rounds"),
        (["inspect", "k1", "--ptz"], "gemmjit inspect", "--ptx"),
        (["--verison"], "gemmjit", "--version"),
    ],
)
def test_an_unknown_option_is_told_with_its_commands_usage_and_the_nearest(
    argv, usage, mend, capsys
):
    said = refused(capsys, *argv)
    assert said.startswith(f"usage: {usage} [-h]")
    assert f"did you mean {mend}?" in said


@pytest.mark.parametrize(
    ("argv", "usage", "told"),
    [
        (["cache", "clear", "--bogus"], "gemmjit cache clear", "unrecognized arguments: --bogus\n"),
        (["inspect", "k1", "k2"], "gemmjit inspect", "unrecognized arguments: k2\n"),
        (["cache", "--yes", "clear"], "gemmjit cache", "stand after its name"),
        (["inspect", "k1", "--s"], "gemmjit inspect", "ambiguous option: --s could match"),
    ],
)
def test_what_is_near_to_nothing_is_told_alone(argv, usage, told, capsys):
    said = refused(capsys, *argv)
    assert said.startswith(f"usage: {usage} [-h]")
    assert told in said


def test_a_message_names_its_command_once(capsys, tmp_path):
    assert cli.main(["tune", "export", str(tmp_path / "x"), "--records", str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith("gemmjit tune: expected records to export")


def test_a_long_list_in_help_has_spaces_to_break_at(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
    with pytest.raises(SystemExit):
        cli.main(["tune", "--help"])
    assert f"(default: {', '.join(CASES)})" in capsys.readouterr().out
