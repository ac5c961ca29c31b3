"""Fixtures that several files of unit tests share."""

from __future__ import annotations

import pytest
from tiny_kernel import TEMPLATE

from gemmjit import build as build_module
from gemmjit import logs
from gemmjit.build import clear_memory
from gemmjit.compiler import Compiler
from gemmjit.errors import NvrtcNotFoundError


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
def no_nvrtc(monkeypatch):
    def missing():
        raise NvrtcNotFoundError("The NVRTC library cannot be loaded.")

    def remove() -> None:
        monkeypatch.setattr(build_module, "get_compiler", missing)
        monkeypatch.setattr(build_module, "installed_version", lambda: None)
        clear_memory()

    return remove
