"""PTX whose positions name templates: made on demand, and done without where it cannot be."""

from __future__ import annotations

import pytest
from compiling import compilations_of
from tiny_kernel import Tiny, relabel

from gemmjit import compiled as compiled_module
from gemmjit.build import build, clear_memory
from gemmjit.cache import current_layers
from gemmjit.errors import NvrtcNotFoundError

LINE = '.file\t1 "kernels/tiny.cu.j2"'


@pytest.fixture
def runs(monkeypatch):
    """The architecture of each compilation, in order: sm_* to a cubin, compute_* to PTX."""
    return compilations_of(monkeypatch)


pytestmark = pytest.mark.usefixtures("place")


def test_a_kernel_is_compiled_once_and_gets_lines_on_demand(runs):
    kernel = build(Tiny())
    assert runs == ["sm_90a"]
    assert ".loc" not in kernel.ptx
    assert LINE in kernel.ptx_with_lines()
    assert runs == ["sm_90a", "compute_90a"]


def test_a_kernel_of_the_cache_gets_lines_on_demand(runs):
    build(Tiny())
    clear_memory()
    del runs[:]
    kernel = build(Tiny())
    assert kernel.from_cache
    assert not runs
    assert LINE in kernel.ptx_with_lines()
    assert runs == ["compute_90a"]


def test_options_of_the_kernel_hold_for_its_lines():
    plain, other = build(Tiny()), build(Tiny(options=("--fmad=false", "-DGREETING=hello")))
    assert other.options == (*plain.options, "--fmad=false", "-DGREETING=hello")
    assert LINE in other.ptx_with_lines()


def test_ptx_that_has_lines_is_not_compiled_again(monkeypatch, runs):
    monkeypatch.setenv("GEMMJIT_LINEINFO", "1")
    kernel = build(Tiny())
    assert LINE in kernel.ptx
    assert kernel.ptx_with_lines() is kernel.ptx
    assert runs == ["sm_90a"]


def test_without_a_compiler_the_ptx_stands_as_it_is(monkeypatch, runs):
    kernel = build(Tiny())
    with monkeypatch.context() as patch:
        patch.setenv("GEMMJIT_DISABLE_JIT", "1")
        assert kernel.ptx_with_lines() is kernel.ptx

    def missing():
        raise NvrtcNotFoundError("The NVRTC library cannot be loaded.")

    monkeypatch.setattr(compiled_module, "get_compiler", missing)
    assert kernel.ptx_with_lines() is kernel.ptx
    assert runs == ["sm_90a"]


def test_another_nvrtc_is_not_asked_for_lines(monkeypatch, runs):
    """It may choose other instructions."""
    build(Tiny())
    relabel(current_layers().user, "13.0.1")
    clear_memory()
    monkeypatch.setenv("GEMMJIT_DISABLE_JIT", "1")
    kernel = build(Tiny())
    monkeypatch.delenv("GEMMJIT_DISABLE_JIT")
    assert kernel.nvrtc_version == "13.0.1"
    assert kernel.ptx_with_lines() is kernel.ptx
    assert runs == ["sm_90a"]
