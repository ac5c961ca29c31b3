"""Recipes of the documentation, followed word for word in a copy of the checkout."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]


def blocks(text: str, language: str) -> list[str]:
    """Return the code blocks of a language."""
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def copy_checkout(to: Path) -> None:
    """Copy what the package is made from."""
    for folder in ("gemmjit", "templates"):
        shutil.copytree(
            CHECKOUT / folder, to / folder, ignore=shutil.ignore_patterns("__pycache__")
        )
    shutil.copy(CHECKOUT / "pyproject.toml", to)


def write_files(text: str, root: Path) -> list[str]:
    """Write every block that is marked as a file, which must be new; return their paths."""
    found = re.findall(r"^<!-- file: (\S+) -->\n```\w+\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    for path, body in found:
        assert not (root / path).exists(), path
        (root / path).write_text(body)
    return [path for path, _ in found]


def apply_diff(diff: str, root: Path) -> None:
    """Apply one hunk whose old lines must stand in the file exactly once."""
    head, *lines = diff.splitlines()
    path = root / head.removeprefix("--- ")
    old = "\n".join(line[1:] for line in lines if not line or line[0] in " -")
    new = "\n".join(line[1:] for line in lines if not line or line[0] in " +")
    text = path.read_text()
    assert text.count(old) == 1, f"{path.name} no longer has:\n{old}"
    path.write_text(text.replace(old, new))


def gemmjit_command(command: str, root: Path) -> subprocess.CompletedProcess[str]:
    """Run a line that begins with ``gemmjit`` with the copy's code."""
    program, *argv = command.split()
    assert program == "gemmjit"
    return python(["-m", "gemmjit", *argv], root)


def python(argv: list[str], root: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the interpreter with the copy's code."""
    return subprocess.run(
        [sys.executable, *argv],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
