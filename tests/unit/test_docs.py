"""The documentation: its code runs, its links lead somewhere, its tables are those of the code."""

from __future__ import annotations

import argparse
import doctest
import importlib
import importlib.util
import re
import shlex
import tomllib
from pathlib import Path

import pytest
from doc_blocks import CHECKOUT, GENERATED, PAGES, Block, blocks, blocks_of, name_of

import gemmjit
from gemmjit import cli, env
from gemmjit.cuda.driver import is_available
from gemmjit.kernels import KERNELS

README = CHECKOUT / "README.md"

#: Modules that may be missing. A GPU machine runs the pages that use the first two there.
_ON_GPUS = re.compile(r"\b(torch|cupy)\b")
_OPTIONAL = re.compile(r"^\s*(?:import|from) (torch|cupy|jax)\b", re.MULTILINE)

#: Where a page has a recipe, or files to write, the test that follows it.
RECIPES = {
    "templates/README.md": "tests/unit/test_docs_templates.py",
    "docs/how-to/write_a_kernel.md": "tests/unit/test_docs_new_kernel.py",
    "docs/how-to/prewarm.md": "tests/compile/test_kernels_in_a_wheel.py",
}
GPU = "runs on: gpu"
MARKS = re.compile(rf"|{GPU}|recipe|quoted|file: [\w./]+")

RUNNABLE = [
    block for block in blocks("python") if block.mark != "recipe" and block.mark[:5] != "file:"
]
ANYWHERE = list(dict.fromkeys(block.page for block in RUNNABLE if block.mark != GPU))
ON_GPUS = list(dict.fromkeys(block.page for block in RUNNABLE if _ON_GPUS.search(block.code)))


def run(page: str, on_gpu: bool) -> int:
    """Run the blocks of a page one after another, in one namespace; return how many."""
    names: dict[str, object] = {}
    ran = 0
    for block in RUNNABLE:
        if block.page == page and (on_gpu or block.mark != GPU):
            for module in _OPTIONAL.findall(block.code):
                pytest.importorskip(module, reason=f"{block} needs {module}")
            exec(compile(block.code, str(block), "exec"), names)
            ran += 1
    return ran


@pytest.mark.parametrize("page", ANYWHERE)
def test_code_without_a_gpu_runs_as_written(page, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert run(page, on_gpu=False)


@pytest.mark.gpu
@pytest.mark.skipif(not is_available(), reason="no usable CUDA driver and GPU")
@pytest.mark.parametrize("page", ON_GPUS)
def test_code_for_a_gpu_runs_as_written(page):
    assert run(page, on_gpu=True)


def complaint(block: Block) -> str | None:
    """Return why nobody would run or check a block, or None if somebody does."""
    if not MARKS.fullmatch(block.mark):
        return f"unknown mark {block.mark!r}"
    if block.mark == GPU:
        return None if block.language == "python" else "only Python runs on a GPU"
    if block.mark == "recipe" or block.mark.startswith("file:") or block.language == "diff":
        return None if block.page in RECIPES else "no test follows this page"
    if block.mark == "quoted":
        return None if block.language == "text" else "code that can run is not quoted"
    if block.language not in ("python", "sh", "toml"):
        return f"language {block.language!r}: it needs a mark"
    return None


def test_every_block_is_run_or_checked_by_somebody():
    assert len(blocks()) >= 40
    told = [f"{block}: {complaint(block)}" for block in blocks() if complaint(block)]
    assert told == []


def test_code_that_needs_a_gpu_is_marked_and_other_code_is_not():
    for block in RUNNABLE:
        needs = '"cuda"' in block.code and "is_available()" not in block.code
        assert (block.mark == GPU) is (needs or "import cupy" in block.code or (
            block.mark == GPU and _ON_GPUS.search(block.code) is not None
        )), block  # fmt: skip


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("```\nx = 1\n```", "needs a mark"),
        ("```py\nx = 1\n```", "needs a mark"),
        ("```python3\nx = 1\n```", "needs a mark"),
        ("    ```text\n    x\n    ```", "needs a mark"),
        ("~~~console\n$ x\n~~~", "needs a mark"),
        ("> ```cuda\n> x\n> ```", "needs a mark"),
        ("<!-- skip -->\n```python\nx = 1\n```", "unknown mark"),
        ("<!-- quoted -->\n```python\nx = 1\n```", "not quoted"),
        ("<!-- recipe -->\n```python\nx = 1\n```", "no test follows"),
        ("<!-- file: a/b.py -->\n```python\nx = 1\n```", "no test follows"),
        ("```diff\n+x\n```", "no test follows"),
        ("<!-- runs on: gpu -->\n```sh\nx\n```", "only Python"),
    ],
)
def test_a_block_that_nobody_would_run_is_seen(text, why):
    (block,) = blocks_of(f"# Page\n\n{text}\n", "docs/how-to/page.md")
    assert why in complaint(block)


def test_pages_with_recipes_are_read_by_the_tests_that_follow_them():
    for page, test in RECIPES.items():
        assert Path(page).name in (CHECKOUT / test).read_text(), (page, test)
    assert {b.page for b in blocks("diff")} <= set(RECIPES)


def test_indented_code_runs_too():
    (block,) = blocks_of("- a list\n\n  ```python\n  if True:\n      x = 1\n  ```\n")
    assert block.code == "if True:\n    x = 1\n"


@pytest.mark.parametrize("block", blocks("toml"), ids=str)
def test_tables_are_well_formed(block):
    assert tomllib.loads(block.code)


MODULES = sorted(
    {
        ".".join(path.relative_to(CHECKOUT).with_suffix("").parts)
        for path in (CHECKOUT / "gemmjit").rglob("*.py")
        if re.search(r"^ *>>> ", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_docstrings_run_as_written(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_templates").mkdir()
    if name.startswith("gemmjit.integrations."):
        pytest.importorskip(name.split(".")[2].partition("_")[0])
    module = importlib.import_module(name.removesuffix(".__init__"))
    failed, tried = doctest.testmod(module, extraglobs={"gemmjit": gemmjit})
    assert tried
    assert failed == 0
    assert "+SKIP" not in Path(module.__file__).read_text()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_every_page_is_listed_in_the_index():
    index = (CHECKOUT / "docs" / "README.md").read_text(encoding="utf-8")
    for page in (CHECKOUT / "docs").rglob("*.md"):
        path = page.relative_to(CHECKOUT / "docs").as_posix()
        assert path == "README.md" or path.startswith("benchmarks/") or f"({path})" in index, path


def test_commands_of_the_documentation_are_understood(monkeypatch):
    """Every line that begins with ``gemmjit`` parses; nothing is run."""
    understood = []
    for line in lines("sh"):
        if not line.startswith("gemmjit "):
            continue
        argv = shlex.split(line, comments=True)[1:]
        module = importlib.import_module(f"gemmjit.cli.{argv[0]}")
        monkeypatch.setattr(module, "run", lambda arguments: 0)
        assert cli.main(argv) == 0, line
        understood.append(argv[0])
    assert {"inspect", "prewarm", "cache"} <= set(understood)


def lines(language: str) -> list[str]:
    """Return the lines of all blocks of a language."""
    return [line for block in blocks(language) for line in block.code.splitlines() if line]


def test_other_commands_name_what_there_is():
    """Targets of make, scripts, extras, variables; a program that is none of these is refused."""
    targets = set(re.findall(r"^([\w-]+):", (CHECKOUT / "Makefile").read_text(), re.MULTILINE))
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    known = {variable.name for variable in env.VARIABLES}
    for line in lines("sh"):
        words = shlex.split(line, comments=True)
        while words and re.fullmatch(r"[A-Z_]+=\w+", words[0]):
            assert words.pop(0).partition("=")[0] in known, line
        if words[0] == "make":
            assert set(words[1:]) <= targets, line
        elif words[:2] == ["pip", "install"]:
            for extra in re.findall(r"^\.\[(.*)\]$", words[2]):
                assert set(extra.split(",")) <= set(project["optional-dependencies"]), line
        elif words[0] == "python" and words[1] != "train.py":  # which is the reader's own
            assert (CHECKOUT / words[1]).is_file(), line
        elif words[0] == "export":
            assert words[1].partition("=")[0] in known, line
        else:
            assert words[0] in ("gemmjit", "python", ".ci/run") or line.startswith(
                ("python3 -m venv ", "pip wheel ", "cd ~")
            ), line


# Tables


def test_the_table_of_kernels_is_that_of_the_registry():
    # Up to the first empty line: a row behind it would be no row.
    text = README.read_text(encoding="utf-8").split("## Kernels\n\n")[1].split("\n\n")[0]
    rows = [
        [c.strip() for c in line.strip("|").split("|")] for line in text.splitlines() if "|" in line
    ]
    rows = {row[0]: row[1:] for row in rows[2:]}
    assert list(rows) == list(KERNELS)
    for name, (template, architectures, _, run_on, compiled_for) in rows.items():
        kernel = KERNELS[name]
        assert template == f"`{kernel.template.split('/')[1].split('.')[0]}`"
        only = kernel.max_arch is not None and kernel.max_arch == kernel.min_arch
        assert architectures == (f"{kernel.min_arch}a" if only else f"{kernel.min_arch} up")
        proved = {int(n) for n in re.findall(r"sm_(\d+)", run_on)}
        assert proved == set(kernel.proved_on)
        others = {int(n) for n in re.findall(r"sm_(\d+)", compiled_for)}
        assert not others & proved
        assert min(others | proved) == kernel.min_arch.number


def test_the_readme_lists_what_is_installed():
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    text = README.read_text(encoding="utf-8").split("## Install")[1].split("\n## ")[0]
    listed = set(re.findall(r"`([a-z][a-z0-9-]+)`", text))
    assert {re.split("[><=]", one)[0] for one in project["dependencies"]} <= listed


def test_reference_pages_are_up_to_date():
    spec = importlib.util.spec_from_file_location("generate", CHECKOUT / "docs" / "generate.py")
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    pages = generate.pages()
    assert sorted(path.name for path in pages) == sorted(GENERATED)
    for path, text in pages.items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run make docs"


def options_of(name: str) -> set[str]:
    parser = argparse.ArgumentParser()
    importlib.import_module(f"gemmjit.cli.{name}").add_arguments(parser)
    found = set()
    waiting = [parser]
    while waiting:
        for action in waiting.pop()._actions:
            if isinstance(action, argparse._SubParsersAction):
                waiting += action.choices.values()
                found |= set(action.choices)
            found |= {option for option in action.option_strings if option.startswith("--")}
    return found - {"--help", "--json"}


def test_the_page_of_the_command_line_names_every_command_and_action():
    text = (CHECKOUT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    for name in cli.COMMANDS:
        section = text.split(f"## `gemmjit {name}`")[1].split("\n## ")[0]
        for action in sorted(option for option in options_of(name) if not option.startswith("--")):
            assert f"| `{action}` |" in section, (name, action)


# The options of bench are too many to repeat; its own --help has them.
@pytest.mark.parametrize("name", [n for n in cli.COMMANDS if n != "bench"])
def test_the_page_of_the_command_line_names_every_option(name):
    text = (CHECKOUT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    section = text.split(f"## `gemmjit {name}`")[1].split("\n## ")[0]
    missing = {option for option in options_of(name) if f"{option}`" not in section}
    assert not missing
    told = {o for o in re.findall(r"`(--[a-z-]+)`", section)}
    assert told <= options_of(name)


def test_the_readme_lists_every_extra():
    text = README.read_text(encoding="utf-8").split("## Install")[1].split("\n## ")[0]
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    listed = re.findall(r"^\| `([\w-]+)` \|", text, re.MULTILINE)
    assert sorted(listed) == sorted(project["optional-dependencies"])
