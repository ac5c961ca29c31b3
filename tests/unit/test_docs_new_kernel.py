"""docs/how-to/write_a_kernel.md, followed word for word in a copy of the checkout."""

from __future__ import annotations

import re

import pytest
from recipes import (
    CHECKOUT,
    apply_diff,
    blocks,
    copy_checkout,
    gemmjit_command,
    python,
    write_files,
)

PAGE = (CHECKOUT / "docs" / "how-to" / "write_a_kernel.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A copy of the checkout that has the kernel."""
    copy = tmp_path_factory.mktemp("checkout")
    copy_checkout(copy)
    assert len(write_files(PAGE, copy)) == 2
    for diff in blocks(PAGE, "diff"):
        apply_diff(diff, copy)
    return copy


def test_the_commands_answer_as_the_page_says(root):
    (block,) = blocks(PAGE, "sh")
    *good, bad = block.splitlines()
    for command in good:
        shown = gemmjit_command(command, root)
        assert shown.returncode == 0, shown.stderr
        assert re.search(r"spill_store_bytes +0\n", shown.stdout)
    refused = gemmjit_command(bad, root)
    assert refused.returncode == 2
    assert re.search(r"answers `(.*?)`", PAGE)[1] in refused.stderr


def test_every_element_is_equal(root):
    (script,) = re.findall(r"<!-- recipe -->\n```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    done = python(["-c", script], root, GEMMJIT_EXECUTOR="emulator")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "every element is equal\n"


def test_the_kernel_meets_the_edges_of_the_contract(root):
    """What the page says of the tests: the registry brings the kernel into them."""
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from cases import Target\n"
        "from edges import EDGES, check, serves\n"
        "from makers import NumpyMaker\n"
        "from gemmjit import DotConfig\n"
        "from gemmjit.kernels import KERNELS\n"
        "mine = [e for e in EDGES.values() if serves(KERNELS['dot'], e)]\n"
        "for edge in mine: check(Target(NumpyMaker(), edge.offs, DotConfig()), edge)\n"
        "print(len(mine))\n"
    )
    done = python(["-c", program, str(CHECKOUT / "tests")], root, GEMMJIT_EXECUTOR="emulator")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 20
