"""Fixtures that several files of unit tests share."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
from fake_gpu import framework
from prewarming import SHAPES
from tiny_kernel import TEMPLATE

from gemmjit import build as build_module
from gemmjit import logs, templating
from gemmjit.build import clear_memory
from gemmjit.cache import Store
from gemmjit.compiler import Compiler
from gemmjit.errors import NvrtcNotFoundError
from gemmjit.templating import override


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An empty memory, a cache directory, and the template in front of gemmjit's own."""
    (tmp_path / "templates" / "kernels").mkdir(parents=True)
    (tmp_path / "templates" / "kernels" / "tiny.cu.j2").write_text(TEMPLATE)
    monkeypatch.setenv("GEMMJIT_TEMPLATE_PATH", str(tmp_path / "templates"))
    monkeypatch.setenv("GEMMJIT_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("GEMMJIT_CACHE_PATH", "GEMMJIT_DISABLE_JIT", "GEMMJIT_CACHE_MAX_SIZE"):
        monkeypatch.delenv(name, raising=False)
    logs._warned.clear()
    clear_memory()
    yield tmp_path
    clear_memory()


@pytest.fixture
def compiles(monkeypatch):
    """The names of the kernels that NVRTC compiled, in order."""
    real, seen = Compiler.compile, []

    def compile_and_tell(self, source, **more):
        seen.append(source)
        return real(self, source, **more)

    monkeypatch.setattr(Compiler, "compile", compile_and_tell)
    return seen


@pytest.fixture
def rendered(monkeypatch):
    """Names of the templates that were rendered, in order."""
    real, seen = templating.render, []

    def render(template, variables):
        seen.append(template)
        return real(template, variables)

    monkeypatch.setattr(templating, "render", render)
    return seen


@pytest.fixture
def no_nvrtc(monkeypatch):
    def missing():
        raise NvrtcNotFoundError("The NVRTC library cannot be loaded.")

    def remove() -> None:
        monkeypatch.setattr(build_module, "get_compiler", missing)
        monkeypatch.setattr(build_module, "installed_version", lambda: None)
        clear_memory()

    return remove


@pytest.fixture
def torch_gpu():
    """A fake driver and torch."""
    pytest.importorskip("torch")
    with framework("torch") as made:
        yield made


@pytest.fixture
def each_warning_again():
    """Warnings that were logged once are logged once more."""
    logs._warned.clear()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty cache directory."""
    return Store(tmp_path / "cache")


@pytest.fixture
def empty_cache(monkeypatch, tmp_path):
    """A cache directory of its own, and nothing in memory."""
    monkeypatch.setenv("GEMMJIT_CACHE_DIR", str(tmp_path / "cache"))
    clear_memory()
    yield tmp_path / "cache"
    clear_memory()


@pytest.fixture
def shapes(tmp_path):
    """A manifest of a few kernels."""
    (tmp_path / "shapes.toml").write_text(SHAPES)
    return str(tmp_path / "shapes.toml")


@pytest.fixture(scope="session")
def simulated(tmp_path_factory):
    """Result files of every kind, on small problems under the names of the published ones."""
    from doc_figures import simulate

    return simulate(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def results(simulated):
    """A copy of them that a test may change."""
    return copy.deepcopy(simulated)


@pytest.fixture
def folder(tmp_path: Path):
    """A directory of templates in front of gemmjit's own, and a function that adds one."""

    def add(name: str, text: str) -> str:
        place = tmp_path / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
        return name

    with override(tmp_path):
        yield add
