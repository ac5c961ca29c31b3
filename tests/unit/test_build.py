"""build(): from a specification to a kernel, with a tiny template of its own."""

from __future__ import annotations

import logging
import os
import shutil

import pytest
from tiny_kernel import TEMPLATE, Tiny, messages

from gemmjit import build as build_module
from gemmjit import templating
from gemmjit.arch import Arch
from gemmjit.build import build, clear_memory
from gemmjit.cache import stats
from gemmjit.compiler import get_compiler, nvrtc
from gemmjit.errors import (
    CompileError,
    TemplateError,
)

pytestmark = pytest.mark.usefixtures("place")


def test_a_kernel_says_what_it_is():
    kernel = build(Tiny())
    assert kernel.name == "tiny"
    assert kernel.entry == "tiny_times_2"
    assert kernel.target == Arch(90, "a")
    assert "x[threadIdx.x] *= 2;" in kernel.source
    assert ".entry tiny_times_2(" in kernel.ptx
    assert kernel.cubin[:4] == b"\x7fELF"
    assert 0 < kernel.registers == kernel.resources.registers < 32
    assert kernel.spills == 0
    assert kernel.occupancy == 16
    assert kernel.nvrtc_version == get_compiler().version
    assert not kernel.from_cache
    assert len(kernel.identity) == 64
    assert (kernel.config, kernel.variant, kernel.threads) == ("128", "f32", 128)


def test_memory_serves_the_same_object(monkeypatch, place):
    monkeypatch.delenv("GEMMJIT_TEMPLATE_PATH")
    monkeypatch.setattr(templating.paths, "templates_root", lambda: place / "templates")
    kernel = build(Tiny())
    monkeypatch.setattr(templating, "render", None)  # nothing is rendered, hashed or read again
    shutil.rmtree(place / "cache")
    assert build(Tiny()) is kernel


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(build_module, "MEMORY_LIMIT", 2)
    for factor in (2, 3, 4):
        build(Tiny(factor))
    assert len(build_module._by_key) == 2


def test_specifications_with_the_same_text_share_the_cubin_and_keep_their_own_facts(compiles):
    one = build(Tiny(smem_bytes=0))
    two = build(Tiny(smem_bytes=4096, config="other"))
    assert len(compiles) == 1
    assert two.cubin is one.cubin
    assert (two.smem_bytes, two.config) == (4096, "other")
    assert (one.smem_bytes, one.config) == (0, "128")


def test_br106_an_edited_template_is_another_kernel(place, compiles):
    first = build(Tiny())
    path = place / "templates" / "kernels" / "tiny.cu.j2"
    times = path.stat()
    path.write_text(TEMPLATE.replace("*=", "+="))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    second = build(Tiny())
    assert second.identity != first.identity
    assert len(compiles) == 2
    path.write_text(TEMPLATE)
    assert build(Tiny()).cubin == first.cubin
    assert len(compiles) == 2


def test_an_override_does_not_leak_into_what_comes_after(place, monkeypatch):
    monkeypatch.delenv("GEMMJIT_TEMPLATE_PATH")
    monkeypatch.setattr(templating.paths, "templates_root", lambda: place / "templates")
    plain = build(Tiny())
    (place / "mine" / "kernels").mkdir(parents=True)
    (place / "mine" / "kernels" / "tiny.cu.j2").write_text(TEMPLATE.replace("*=", "-="))
    with templating.override(place / "mine"):
        assert "-=" in build(Tiny()).source
    assert build(Tiny()) is plain


def test_a_wrong_template_is_told_each_time_and_can_be_mended(place, compiles):
    path = place / "templates" / "kernels" / "tiny.cu.j2"
    path.write_text(TEMPLATE.replace("*= ", "*= oops"))
    for _ in range(2):
        with pytest.raises(CompileError, match=r"kernels/tiny\.cu\.j2\(2\): error"):
            build(Tiny())
    assert len(compiles) == 2
    path.write_text(TEMPLATE)
    assert build(Tiny()).registers > 0


def test_a_template_that_defines_another_kernel_is_told(place):
    path = place / "templates" / "kernels" / "tiny.cu.j2"
    path.write_text(TEMPLATE.replace("${ entry }", "x${ entry }"))
    with pytest.raises(CompileError, match="expected a kernel named tiny_times_2"):
        build(Tiny())


def test_a_missing_template_is_told():
    with pytest.raises(TemplateError, match="kernels/none"):
        build(Tiny(template="kernels/none.cu.j2"))


@pytest.mark.parametrize(
    ("spec", "number"),
    [(Tiny(threads=256), "compiled for 128"), (Tiny(smem_bytes=300_000), "300000")],
)
def test_br065_br067_what_can_never_be_launched_is_told_offline(spec, number):
    with pytest.raises(CompileError, match=f"can never be launched: .*{number}"):
        build(spec)


def test_spills_are_reported_and_no_error(place, caplog):
    path = place / "templates" / "kernels" / "tiny.cu.j2"
    body = "float a[64]; for (int i = 0; i < 64; i++) a[i] = x[i * n + threadIdx.x];"
    body += "for (int j = 0; j < n; j++) for (int i = 0; i < 64; i++) a[i] *= a[(i + 7) % 64];"
    body += "for (int i = 0; i < 64; i++) x[i * n + threadIdx.x] = a[i] * ${ factor };"
    path.write_text(
        'extern "C" __global__ void __launch_bounds__(${ threads }, 2) ${ entry }'
        "(float* x, int n) {" + body + "}"
    )
    kernel = build(Tiny(threads=1024, compiled_threads=1024))
    assert kernel.spills > 100
    assert f"spills {kernel.spills} bytes" in messages(caplog, logging.WARNING)[0]


def test_counts_are_kept():
    before = stats()
    build(Tiny())
    clear_memory()
    build(Tiny())
    after = stats()
    assert (after.hits - before.hits, after.misses - before.misses) == (1, 1)
    assert after.compiles - before.compiles == 1


@pytest.mark.skipif(nvrtc.installed_version() is None, reason="NVRTC is not the package's")
def test_versions_are_those_of_the_package():
    assert build(Tiny()).nvrtc_version == nvrtc.installed_version()
