"""The documentation: its code runs, its links lead somewhere, its tables are those of the code."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from gemmjit import cli
from gemmjit.cuda.driver import is_available
from gemmjit.kernels import KERNELS

CHECKOUT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path
    for path in (
        *CHECKOUT.glob("*.md"),
        *(CHECKOUT / "docs").rglob("*.md"),
        CHECKOUT / "templates" / "README.md",
    )
)
GENERATED = ("api.md", "environment.md", "errors.md")
README = CHECKOUT / "README.md"

_FRAMEWORKS = re.compile(r"\b(torch|cupy)\b")
#: What a page says whose code finds out whether there is a GPU.
_EITHER = "torch.cuda.is_available()"


def name_of(page: Path) -> str:
    return page.relative_to(CHECKOUT).as_posix()


def blocks(page: Path, language: str) -> list[str]:
    text = page.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def needs_gpu(page: Path, code: str) -> bool:
    """Return whether code is written for a GPU."""
    return bool(_FRAMEWORKS.search(code)) and _EITHER not in page.read_text(encoding="utf-8")


def uses_gpu(page: Path, code: str) -> bool:
    """Return whether code runs on a GPU where there is one."""
    return bool(_FRAMEWORKS.search(code))


def code_pages(kind: Callable[[Path, str], bool], is_so: bool) -> list[Path]:
    """Return the pages that have code of a kind; pages written from docstrings show signatures."""
    return [
        page
        for page in PAGES
        if page.name not in GENERATED
        and page.parent.name != "templates"  # its code belongs to a recipe, tested as such
        and any(kind(page, code) is is_so for code in blocks(page, "python"))
    ]


@pytest.mark.parametrize("page", code_pages(needs_gpu, False), ids=name_of)
def test_code_without_a_gpu_runs_as_written(page, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    ran = 0
    for code in blocks(page, "python"):
        if not needs_gpu(page, code):
            for framework in set(_FRAMEWORKS.findall(code)):
                pytest.importorskip(framework)
            exec(compile(code, name_of(page), "exec"), names)
            ran += 1
    assert ran


@pytest.mark.gpu
@pytest.mark.skipif(not is_available(), reason="no usable CUDA driver and GPU")
@pytest.mark.parametrize("page", code_pages(uses_gpu, True), ids=name_of)
def test_code_for_a_gpu_runs_as_written(page):
    names: dict[str, object] = {}
    for code in blocks(page, "python"):
        for framework in set(_FRAMEWORKS.findall(code)):
            pytest.importorskip(framework)
        exec(compile(code, name_of(page), "exec"), names)


def test_every_piece_of_code_is_python():
    seen = 0
    for page in PAGES:
        if page.name in GENERATED:
            continue
        for code in blocks(page, "python"):
            compile(code, name_of(page), "exec")
            seen += 1
    assert seen >= 20


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
    for page in PAGES:
        for line in "\n".join(blocks(page, "sh")).splitlines():
            if not line.startswith("gemmjit "):
                continue
            argv = shlex.split(line, comments=True)[1:]
            module = importlib.import_module(f"gemmjit.cli.{argv[0]}")
            monkeypatch.setattr(module, "run", lambda arguments: 0)
            assert cli.main(argv) == 0, line
            understood.append(argv[0])
    assert {"inspect", "prewarm", "cache"} <= set(understood)


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
    import tomllib

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
