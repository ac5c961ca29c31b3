"""templates/README.md: its table and its recipe are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from recipes import apply_diff, blocks, copy_checkout, gemmjit_command, python

from gemmjit import templates
from gemmjit.kernels import KERNELS, Variant

CHECKOUT = Path(__file__).resolve().parents[2]
README = (CHECKOUT / "templates" / "README.md").read_text(encoding="utf-8")
FILES = sorted(
    path.relative_to(CHECKOUT / "templates").as_posix()
    for path in (CHECKOUT / "templates").rglob("*")
    if path.is_file() and path.name != "README.md"
)
KERNEL_FILES = [name for name in FILES if name.startswith("kernels/")]


def table() -> tuple[list[str], dict[str, list[str]]]:
    """Return the templates of the table's head, and its rows by variable."""
    lines = README.split("## Variables")[1].split("\n## ")[0].splitlines()
    rows = [[c.strip() for c in line.strip("|").split("|")] for line in lines if "|" in line]
    head, _, *body = rows
    names = [re.search(r"`(\w+)`", cell)[1] for cell in head[1:-2]]
    return names, {re.fullmatch(r"`(\w+)`", row[0])[1]: row[1:] for row in body}


def test_the_table_has_a_column_for_each_kernel():
    names, _ = table()
    assert sorted(f"kernels/{name}.cu.j2" for name in names) == KERNEL_FILES


@pytest.mark.parametrize("file", KERNEL_FILES)
def test_the_table_lists_the_variables_of_each_kernel(file):
    names, rows = table()
    column = names.index(file.removeprefix("kernels/").removesuffix(".cu.j2"))
    marks = {cells[column] for cells in rows.values()}
    assert marks <= {"x", ""}
    told = {variable for variable, cells in rows.items() if cells[column] == "x"}
    assert told == templates.variables_of(file)


def test_every_row_of_the_table_is_taken_by_some_kernel():
    names, rows = table()
    for variable, cells in rows.items():
        assert "x" in cells[: len(names)], variable
        assert all(cells[-2:]), variable


@pytest.mark.parametrize("name", sorted(KERNELS))
def test_kernels_pass_what_their_templates_take(name):
    kernel = KERNELS[name]
    for config in kernel.shipped_configs():
        given = kernel.variables(config, Variant(), "entry")
        assert set(given) == templates.variables_of(kernel.template)


@pytest.mark.parametrize("file", [name for name in FILES if not name.startswith("kernels/")])
def test_a_part_with_variables_says_so_by_its_name(file):
    variables = templates.variables_of(file)
    assert file.endswith(".cuh.j2" if variables else ".cuh")
    for variable in variables:
        line = next(line for line in README.splitlines() if line.startswith(f"| `{variable}`"))
        assert f"`{file}`" in line


def test_every_file_says_what_it_is():
    for name in FILES:
        assert templates.read_template(name).startswith("// "), name


def test_the_recipe_for_a_tile_works_as_written(tmp_path):
    """Follow the recipe in a copy of the checkout, word for word."""
    recipe = README.split("## Add a tile size to k1")[1].split("\n## ")[0]
    if any(c.block_m == 96 for c in KERNELS["k1"].shipped_configs()):
        pytest.skip("the recipe has been followed in this checkout")
    copy_checkout(tmp_path)
    commands = [
        line for block in blocks(recipe, "sh") for line in block.splitlines() if line.strip()
    ]
    assert len(commands) == 2

    refused = gemmjit_command(commands[0], tmp_path)
    told = re.search(r"answers `(.*?)`", recipe)[1]
    assert refused.returncode == 2
    assert told in refused.stderr

    for diff in blocks(recipe, "diff"):
        apply_diff(diff, tmp_path)
    for command in commands:
        shown = gemmjit_command(command, tmp_path)
        assert shown.returncode == 0, shown.stderr
        assert re.search(r"spill_store_bytes +0\n", shown.stdout)
        assert re.search(r"spill_load_bytes +0\n", shown.stdout)
        assert "block_m=96" in shown.stdout
    (script,) = blocks(recipe, "python")
    done = python(["-c", script], tmp_path, GEMMJIT_EXECUTOR="emulator")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "every element is equal\n"
