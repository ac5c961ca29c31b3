"""Every exception outside the operator, provoked once: argument, expected, got, mend.

The operator's own are in test_validation_messages.py, the manifest's in test_manifest.py.
"""

from __future__ import annotations

import re
import types
from pathlib import Path

import pytest
from command_line import run_json
from provocations import (
    CASES,
)

import gemmjit
from gemmjit import build, cli, errors
from gemmjit.compiler import nvrtc
from gemmjit.cuda import driver as driver_module
from gemmjit.errors import (
    CompileError,
    EmulatorError,
    GemmjitError,
)


@pytest.fixture
def t(tmp_path, monkeypatch):
    """What a case may need: a folder, a way to change things, a cold cache, a template."""
    monkeypatch.setenv("GEMMJIT_CACHE_DIR", str(tmp_path / "cache"))
    build.clear_memory()
    yield types.SimpleNamespace(path=tmp_path, patch=monkeypatch)
    build.clear_memory()
    driver_module.driver.cache_clear()
    nvrtc._load.cache_clear()


@pytest.mark.parametrize("name", CASES)
def test_a_message_has_its_four_parts(name, t):
    call, exception, *parts = CASES[name]
    with pytest.raises(exception) as caught:
        call(t)
    assert type(caught.value) is exception or exception is EmulatorError  # which has kinds
    for part in parts:
        assert part in str(caught.value), f"{part!r} is not in: {caught.value}"
    if exception is CompileError and "source" in name:
        assert "simt_grouped_mm.cu.j2" in caught.value.log
        assert "int x y;" in caught.value.source


def test_every_class_is_provoked():
    provoked = {case[1] for case in CASES.values()}
    public = {getattr(errors, name) for name in errors.__all__}
    assert public - provoked == {GemmjitError}


@pytest.mark.parametrize(
    ("argv", "kind", "parts"),
    [
        (["inspect", "k9"], "InvalidConfigError", ("kernel", "k0 (simt_grouped_mm)", "'k9'")),
        (["prewarm", "--kernel", "k1", "--arch", "sm_12"], "UnsupportedArchError",
         ("arch", "sm_75", "'sm_12'", "no kernels")),
        (["prewarm", "--shapes", "none.toml"], "ManifestError",
         ("none.toml", "a TOML file", "No such file", "Check the path")),
        (["cache", "import", "none.zip"], "CacheError",
         ("file", "can be read", "No such file", "Check the path")),
        (["cache", "export", "none/x.zip"], "CacheError",
         ("file", "can be written", "No such file", "Choose another place")),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_the_command_line_prints_one_message_and_names_the_class(argv, kind, parts, t, capsys):
    t.patch.chdir(t.path)
    gemmjit.compile("k0", None, "sm_80")  # something to export
    status = 1 if kind in ("ManifestError", "CacheError") else 2
    assert cli.main(argv) == status
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith(f"gemmjit {argv[0]}: ")
    assert "Traceback" not in err
    error = run_json(capsys, *argv, status=status)["error"]
    assert error["type"] == kind
    for part in parts:
        assert part in err
        assert part in error["message"]


def test_every_table_row_of_the_documentation_is_a_class():
    page = Path(__file__).parents[2] / "docs" / "reference" / "errors.md"
    told = set(re.findall(r"^## `(\w+)`$", page.read_text(encoding="utf-8"), re.MULTILINE))
    assert told == set(errors.__all__)
