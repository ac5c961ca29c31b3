"""Where the templates lie: checkout, installed package, zipped wheel."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from gemmjit.errors import TemplateError
from gemmjit.templating import paths as template_paths
from gemmjit.templating import render


@pytest.fixture
def fresh_root():
    template_paths.templates_root.cache_clear()
    yield template_paths.templates_root
    template_paths.templates_root.cache_clear()


def _installed(tmp_path: Path, monkeypatch, pyproject: str | None) -> Path:
    package = tmp_path / "site" / "gemmjit"
    (package / "_templates").mkdir(parents=True)
    (tmp_path / "site" / "templates").mkdir()
    if pyproject is not None:
        (tmp_path / "site" / "pyproject.toml").write_text(pyproject)
    monkeypatch.setattr(template_paths, "_package", lambda: package)
    return package


def test_checkout_wins_over_packaged_copy(tmp_path, monkeypatch, fresh_root):
    package = _installed(tmp_path, monkeypatch, '[project]\nname = "gemmjit"\n')
    assert fresh_root() == package.parent / "templates"


@pytest.mark.parametrize("pyproject", [None, '[project]\nname = "other"\n', "not toml ["])
def test_foreign_templates_folder_is_never_taken(tmp_path, monkeypatch, fresh_root, pyproject):
    package = _installed(tmp_path, monkeypatch, pyproject)
    assert fresh_root() == package / "_templates"


def test_lost_package_data_is_an_error_that_says_how_to_mend_it(tmp_path, monkeypatch, fresh_root):
    package = _installed(tmp_path, monkeypatch, None)
    (package / "_templates").rmdir()
    with pytest.raises(TemplateError, match="--force-reinstall"):
        fresh_root()


def test_br137_templates_are_read_from_a_zipped_wheel(tmp_path, monkeypatch, fresh_root):
    with zipfile.ZipFile(tmp_path / "wheel.zip", "w") as archive:
        archive.writestr("gemmjit/_templates/kernels/z.cu.j2", "int z = ${ z };\n")
    root = zipfile.Path(tmp_path / "wheel.zip", "gemmjit/")
    monkeypatch.setattr(template_paths, "_package", lambda: root)
    assert render("kernels/z.cu.j2", {"z": 7}) == '#line 1 "kernels/z.cu.j2"\nint z = 7;\n'
