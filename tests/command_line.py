"""Running the command line inside a test."""

from __future__ import annotations

import json

from gemmjit import cli


def run_json(capsys, *argv: str, status: int = 0):
    """Run a command with ``--json``, check its exit status, and return what it printed."""
    assert cli.main([*argv, "--json"]) == status
    return json.loads(capsys.readouterr().out)
