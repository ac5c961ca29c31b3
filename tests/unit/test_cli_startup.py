"""``gemmjit doctor --startup``: the split of a process's first moments."""

from __future__ import annotations

import pytest
from command_line import run_json

from gemmjit import build, cli
from gemmjit.cli import startup
from gemmjit.cuda.driver import is_available

STEPS = [
    "interpreter", "import numpy", "import jinja2, ml_dtypes, platformdirs, filelock",
    "import gemmjit", "look for a driver: import cuda.bindings, cuInit",
    "choose kernel and tile", "render the template", "read the cubin, with checksums",
]  # fmt: skip
GPU_STEPS = [
    "driver: primary context", "load the cubin into the driver", "import cupy",
    "make the operands", "first call: plan, launch, wait", "second call: launch, wait",
]  # fmt: skip


def test_every_step_is_timed(capsys):
    told = run_json(capsys, "doctor", "--startup", "--runs", "2")
    names = [step["name"] for step in told["steps"]]
    assert [name for name in names if name in STEPS] == STEPS
    assert [name for name in names if name not in STEPS] == (GPU_STEPS if is_available() else [])
    assert told["runs"] == 2
    assert told["on_gpu"] is is_available()
    assert told["kernel"].startswith("gemmjit_")
    for step in told["steps"]:
        assert 0 <= step["ms_min"] <= step["ms"] <= step["ms_max"]
    assert told["total_ms"] == pytest.approx(sum(s["ms"] for s in told["steps"]), rel=0.5)


def test_it_is_printed_as_a_table(monkeypatch, capsys):
    steps = [{"name": "interpreter", "ms": 20.0, "ms_min": 19.0, "ms_max": 30.0}]
    told = {"arch": "sm_90", "kernel": "gemmjit_k3", "on_gpu": False, "runs": 5, "steps": steps}
    monkeypatch.setattr(startup, "measure", lambda runs: {**told, "total_ms": 20.0})
    assert cli.main(["doctor", "--startup"]) == 0
    out = capsys.readouterr().out
    assert "interpreter  20.0   19.0  30.0" in out
    assert "20 ms from the start of the process until the cubin is in memory" in out


def test_a_cold_cache_is_not_measured(monkeypatch, tmp_path, capsys):
    build.clear_memory()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GEMMJIT_CACHE_DIR", str(tmp_path / "file" / "none"))
    assert cli.main(["doctor", "--startup", "--runs", "1"]) == 1
    assert "expected a cache that keeps the kernel" in capsys.readouterr().err


def test_a_gpu_process_never_imports_the_emulator():
    """It is a third of what there is to import."""
    import subprocess
    import sys

    code = (
        "import sys, gemmjit; gemmjit.grouped_mm; from gemmjit.ops import gpu_call, dispatch\n"
        "print([n for n in sys.modules if n.startswith(('gemmjit.emulator', 'torch'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
