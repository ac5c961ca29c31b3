"""build() and its layers: what is only read, no JIT, no NVRTC."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from pathlib import Path

import pytest
from tiny_kernel import Tiny, messages, relabel

from gemmjit import build as build_module
from gemmjit.build import build, clear_memory
from gemmjit.cache import Store, stats
from gemmjit.compiler import Compiler, get_compiler
from gemmjit.errors import (
    MissingKernelError,
    NvrtcNotFoundError,
)

pytestmark = pytest.mark.usefixtures("place")


def shared(place: Path, monkeypatch, version: str | None = None) -> Path:
    """Move what the user's directory has into a directory that is only read."""
    if version is not None:
        relabel(Store(place / "cache"), version)
    (place / "cache").rename(place / "image")
    monkeypatch.setenv("GEMMJIT_CACHE_PATH", f"{place / 'none'}{os.pathsep}{place / 'image'}")
    clear_memory()
    return place / "image"


@pytest.mark.parametrize("version", [None, "13.0.48", "13.99.0"])
def test_a_layer_to_read_serves_whatever_nvrtc_of_the_major_release_made_it(
    place, compiles, monkeypatch, version
):
    build(Tiny())
    image = shared(place, monkeypatch, version)
    before = sorted((p, p.stat().st_mtime_ns) for p in image.rglob("*"))
    kernel = build(Tiny())
    assert kernel.from_cache
    assert kernel.nvrtc_version == (version or get_compiler().version)
    assert len(compiles) == 1
    assert sorted((p, p.stat().st_mtime_ns) for p in image.rglob("*")) == before


def test_a_layer_of_another_major_release_does_not_serve(place, compiles, monkeypatch):
    build(Tiny())
    shared(place, monkeypatch, "12.9.86")
    assert not build(Tiny()).from_cache
    assert len(compiles) == 2


def test_ones_own_compilers_work_is_preferred_over_an_earlier_layers(place, monkeypatch):
    build(Tiny())
    shared(place, monkeypatch)
    shutil.copytree(place / "image", place / "none")
    relabel(Store(place / "none"), "13.0.48")
    assert build(Tiny()).nvrtc_version == get_compiler().version


def test_without_jit_a_miss_names_the_command_and_the_places(place, compiles, monkeypatch):
    monkeypatch.setenv("GEMMJIT_DISABLE_JIT", "1")
    monkeypatch.setenv("GEMMJIT_CACHE_PATH", str(place / "image"))
    with pytest.raises(MissingKernelError) as caught:
        build(Tiny())
    message = str(caught.value)
    assert "gemmjit prewarm --kernel tiny --arch sm_90a" in message
    assert (
        f"{place / 'cache'} (it does not exist); {place / 'image'} (it does not exist)" in message
    )
    assert "GEMMJIT_DISABLE_JIT" in message
    assert compiles == []
    monkeypatch.delenv("GEMMJIT_DISABLE_JIT")
    build(Tiny())
    monkeypatch.setenv("GEMMJIT_DISABLE_JIT", "1")
    clear_memory()
    assert build(Tiny()).from_cache


def test_without_jit_a_miss_says_of_each_place_why_it_does_not_serve(place, monkeypatch):
    build(Tiny())
    image = shared(place, monkeypatch)
    names = ("missing", "open", "file", "empty", "locked", "older", "damaged", "others")
    for name in ("older", "damaged", "others"):
        shutil.copytree(image, place / name)
    relabel(Store(place / "older"), "12.9.1")
    for cubin in (place / "damaged").rglob("kernel.cubin"):
        cubin.write_bytes(b"")
    (place / "file").write_text("")
    for name in ("open", "empty", "locked"):
        (place / name).mkdir()
    (place / "open").chmod(0o777)
    for stored in Store(place / "others").entries():
        os.rename(stored.path.parent, stored.path.parent.with_name("gemmjit_k9-" + "0" * 32))
    real = os.listdir

    def listdir(path):
        if Path(path) == place / "locked":
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "listdir", listdir)
    monkeypatch.setenv("GEMMJIT_CACHE_PATH", os.pathsep.join(str(place / n) for n in names))
    monkeypatch.setenv("GEMMJIT_DISABLE_JIT", "1")
    clear_memory()
    with pytest.raises(MissingKernelError) as caught:
        build(Tiny())
    reasons = {
        "cache": "it does not exist",
        "missing": "it does not exist",
        "open": "refused, everybody can write to it",
        "file": "refused, it is a file",
        "empty": "it is empty",
        "locked": "it cannot be read: Permission denied",
        "older": "it has it from NVRTC 12.9.1, which CUDA 13 cannot use",
        "damaged": "what it has of it cannot be used",
        "others": "it has 1 other kernels for sm_90a",
    }
    told = "; ".join(f"{place / name} ({reason})" for name, reason in reasons.items())
    assert f"it is in none of: {told}. Compile it beforehand" in str(caught.value)


def test_without_jit_another_nvrtcs_work_serves(place, compiles, monkeypatch):
    build(Tiny())
    relabel(Store(place / "cache"), "13.0.48")
    clear_memory()
    monkeypatch.setenv("GEMMJIT_DISABLE_JIT", "1")
    assert build(Tiny()).nvrtc_version == "13.0.48"
    assert len(compiles) == 1


def test_br132_without_nvrtc_cached_kernels_run_and_others_say_what_is_missing(
    place, no_nvrtc, caplog
):
    build(Tiny(2))
    build(Tiny(3))
    relabel(Store(place / "cache"), "13.0.48")
    no_nvrtc()
    assert build(Tiny(2)).from_cache
    assert build(Tiny(3)).from_cache
    assert len(messages(caplog, logging.WARNING)) == 1
    misses = stats().misses
    with pytest.raises(NvrtcNotFoundError):
        build(Tiny(4))
    assert stats().misses == misses + 1


def test_br132_without_builtins_another_nvrtcs_work_serves(place, monkeypatch):
    build(Tiny())
    relabel(Store(place / "cache"), "13.0.48")
    clear_memory()

    def compile_without_builtins(self, source, **more):
        raise NvrtcNotFoundError("The builtins of NVRTC cannot be loaded.")

    monkeypatch.setattr(Compiler, "compile", compile_without_builtins)
    assert build(Tiny()).nvrtc_version == "13.0.48"
    with pytest.raises(NvrtcNotFoundError):
        build(Tiny(3))


def test_a_second_nvrtc_in_the_process_finds_its_own_work(place, compiles, monkeypatch):
    """The package says one version, the library that was loaded first is another."""
    monkeypatch.setattr(build_module, "installed_version", lambda: "13.0.48")
    build(Tiny())
    clear_memory()
    assert build(Tiny()).from_cache
    assert len(compiles) == 1


def test_lineinfo_is_another_kernel(monkeypatch, compiles):
    plain = build(Tiny())
    monkeypatch.setenv("GEMMJIT_LINEINFO", "1")
    lines = build(Tiny())
    assert lines.identity != plain.identity
    assert b".debug_line" in lines.cubin
