"""The figures of the stress command: a sample always, the full count with ``-m slow``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = Path(__file__).parents[1] / "stress" / "cache_under_fire.py"


def figures(trials: int, kills: int) -> dict[str, dict]:
    done = subprocess.run(
        [sys.executable, str(COMMAND), "--trials", str(trials), "--kills", str(kills), "--json"],
        env={k: v for k, v in os.environ.items() if not k.startswith("GEMMJIT_")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def check(told: dict[str, dict], trials: int, kills: int) -> None:
    cold = told["cold_starts"]
    assert cold["trials"] == cold["trials_that_compiled_once"] == trials
    assert cold["warnings"] == []
    for name in ("cold_starts", "cold_starts_without_locks", "cold_starts_with_late_visibility"):
        assert told[name]["failures"] == []
        assert told[name]["trials_with_different_bytes"] == 0
    # The simulated file systems do bite:
    assert told["cold_starts_without_locks"]["most_compiles_in_a_trial"] > 1
    assert told["cold_starts_with_late_visibility"]["most_compiles_in_a_trial"] > 1
    assert told["kills"]["failures"] == []
    assert told["kills"]["kills"] == kills
    assert told["kills"]["kills_in_the_middle_of_a_write"] > kills // 4
    assert told["kills"]["entries_checked"] > 0


def test_br091_br095_br114_br117_cold_starts_and_kills_sample():
    check(figures(trials=4, kills=20), trials=4, kills=20)


@pytest.mark.slow
def test_br091_br095_br114_br117_cold_starts_and_kills():
    check(figures(trials=100, kills=200), trials=100, kills=200)
