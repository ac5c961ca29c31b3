"""build_first(): several targets that serve one device."""

from __future__ import annotations

import pytest
from tiny_kernel import TEMPLATE, Tiny, relabel

from gemmjit.arch import Arch
from gemmjit.build import build, build_first, clear_memory, find_first
from gemmjit.cache import Store
from gemmjit.compiler import get_compiler
from gemmjit.errors import (
    MissingKernelError,
    NvrtcNotFoundError,
    UnsupportedArchError,
)

pytestmark = pytest.mark.usefixtures("place")


def on(*targets: str) -> list[Tiny]:
    return [Tiny(target=Arch.parse(target)) for target in targets]


def test_what_a_cache_has_for_a_later_target_serves_before_anything_is_compiled(compiles):
    build(*on("sm_80"))
    clear_memory()
    for _ in range(2):  # from the directory, then from memory
        kernel = build_first(on("sm_86", "sm_80"))
        assert (kernel.target, kernel.from_cache) == (Arch(80), True)
    assert len(compiles) == 1


def test_the_first_target_is_compiled_if_no_cache_has_any(compiles):
    assert build_first(on("sm_86", "sm_80")).target == Arch(86)
    assert len(compiles) == 1
    # And it is preferred once it is there.
    build(*on("sm_80"))
    clear_memory()
    assert build_first(on("sm_86", "sm_80")).target == Arch(86)


def test_an_exact_build_never_takes_another_target():
    build_first(on("sm_86", "sm_80"))
    assert build(*on("sm_80")).target == Arch(80)


def test_a_target_that_nvrtc_does_not_know_is_passed_over(monkeypatch):
    compiler = get_compiler()
    monkeypatch.setattr(compiler, "supported", tuple(n for n in compiler.supported if n != 86))
    assert build_first(on("sm_86", "sm_80")).target == Arch(80)
    with pytest.raises(UnsupportedArchError, match="sm_86"):
        build_first(on("sm_86"))


def test_without_jit_every_target_is_looked_for(monkeypatch, place):
    build(*on("sm_80"))
    clear_memory()
    monkeypatch.setenv("GEMMJIT_DISABLE_JIT", "1")
    assert build_first(on("sm_86", "sm_80")).target == Arch(80)
    with pytest.raises(MissingKernelError, match="--arch sm_89"):
        build_first(on("sm_89", "sm_86"))


def test_br132_without_nvrtc_another_nvrtcs_work_for_a_later_target_serves(place, no_nvrtc):
    build(*on("sm_80"))
    relabel(Store(place / "cache"), "13.0.48")
    no_nvrtc()
    assert build_first(on("sm_86", "sm_80")).target == Arch(80)
    with pytest.raises(NvrtcNotFoundError):
        build_first(on("sm_90a", "sm_90"))


def test_looking_compiles_nothing(compiles):
    assert find_first(on("sm_86", "sm_80")) is None
    assert not compiles
    build(*on("sm_80"))
    clear_memory()
    found = find_first(on("sm_86", "sm_80"))
    assert found is not None
    assert found.target == Arch(80)
    assert len(compiles) == 1


def test_an_edit_of_a_template_is_seen_by_a_choice_of_targets(place):
    build_first(on("sm_86", "sm_80"))
    (place / "templates" / "kernels" / "tiny.cu.j2").write_text(TEMPLATE.replace("*=", "+="))
    assert "+=" in build_first(on("sm_86", "sm_80")).source
