"""The command that a record holds: what was asked, and nothing of the machine."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from gemmjit.cli import tune
from gemmjit.cli.bench_common import command_of


def test_a_command_says_nothing_of_this_machine(tmp_path):
    parser = argparse.ArgumentParser()
    tune.add_arguments(parser)
    arguments = parser.parse_args(["--kernel", "k3", "--json", str(tmp_path / "x.json")])
    arguments.command = "tune"
    arguments.json_file = Path(arguments.json)
    said = command_of(arguments)
    assert said[:3] == ["gemmjit", "tune", "run"]
    assert [one for one in said if one.startswith("--json")] == ["--json=x.json"]
    assert not any(str(tmp_path) in one or "<" in one for one in said)
    for record in (Path(__file__).parents[2] / "docs" / "benchmarks").glob("*.json"):
        command = json.loads(record.read_text(encoding="utf-8")).get("command", "")
        assert not any(sign in str(command) for sign in ("=/", "<bound", " /")), record.name
