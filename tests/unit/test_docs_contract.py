"""docs/explanation/contract.md: every test that it names exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
TEXT = (TESTS.parent / "docs" / "explanation" / "contract.md").read_text(encoding="utf-8")


def names_of(path: Path) -> set[str]:
    """Return the functions and classes of a file, methods too."""
    kinds = (ast.FunctionDef, ast.ClassDef)
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds)}


def test_every_test_that_is_named_exists():
    named = re.findall(r"`([\w/*]+\.py)(?:::(\w+))?`", TEXT)
    assert len(named) > 60
    for file, name in named:
        if "*" in file or file == "reference.py":
            continue
        assert (TESTS / file).is_file(), file
        assert not name or name in names_of(TESTS / file), f"{file}::{name}"


def test_every_row_has_a_test_and_every_line_of_the_readmes_contract_a_row():
    rows = [line for line in TEXT.splitlines() if line.startswith("| ")][1:]
    assert len(rows) >= 20
    for row in rows:
        assert re.search(r"`\w[\w/]*\.py", row), row
    table = " ".join(row.split("|")[1] for row in rows)
    for word in ("group sizes", "tails", "offsets", "strides", "out=", "graphs", "types"):
        assert word in table
