"""The examples run as they are, top to bottom, on a machine without a GPU."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gemmjit.cuda.driver import is_available

CHECKOUT = Path(__file__).resolve().parents[2]
EXAMPLES = CHECKOUT / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))
# How train_moe.py is run here, in its short form, is in test_train_moe.py.
SCRIPTS = sorted(EXAMPLES.glob("*.py"))
SCRIPTS = [path for path in SCRIPTS if path.name != "train_moe.py"]
PICTURES = {
    "01_from_template_to_result.ipynb": 3,
    "02_ladder_and_skew.ipynb": 5,
    "03_without_a_gpu.ipynb": 2,
}
NEVER_TIMED = ("03_without_a_gpu.ipynb",)

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")


def test_there_are_examples():
    assert NOTEBOOKS
    assert SCRIPTS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_is_kept_without_outputs(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_runs(path, monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", str(CHECKOUT))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("MPLCONFIGDIR", str(tmp_path / "matplotlib"))
    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    )
    client.execute()
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert any("assert" in cell.source for cell in code)
    outputs = [output for cell in code for output in cell.outputs]
    printed = "".join(o.get("text", "") for o in outputs if o.output_type == "stream")
    assert "equal to the reference" in printed
    skipped = not is_available() and path.name not in NEVER_TIMED
    assert ("Skipped: timing needs a GPU." in printed) is skipped
    pictures = [o.data["image/png"] for o in outputs if "image/png" in o.get("data", {})]
    assert len(pictures) == PICTURES[path.name]
    assert all(len(base64.b64decode(picture)) > 5000 for picture in pictures)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_script_runs(path, tmp_path):
    done = subprocess.run(
        [sys.executable, str(path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
