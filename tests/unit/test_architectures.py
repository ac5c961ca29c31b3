"""Architectures: names, order, targets, and templates that depend on nothing around them."""

from __future__ import annotations

import re
import types
from dataclasses import replace

import pytest

import gemmjit
from gemmjit import elf
from gemmjit.arch import Arch, targets_for
from gemmjit.compiler import get_compiler, standard_options
from gemmjit.cuda import library
from gemmjit.errors import UnsupportedArchError
from gemmjit.templating import templates_root


def test_br130_architectures_are_compared_as_numbers():
    names = ["sm_120", "sm_100a", "sm_80", "sm_90a", "sm_100", "sm_90"]
    ordered = [arch.name for arch in sorted(map(Arch.parse, names))]
    assert ordered == ["sm_80", "sm_90", "sm_90a", "sm_100", "sm_100a", "sm_120"]
    assert Arch.parse("sm_100") > Arch.parse("sm_90")


def test_br123_a_device_never_gets_the_cubin_of_its_elder_sister():
    device = Arch.of_capability(10, 3)
    assert [t.name for t in targets_for(device, accelerated=True)] == [
        "sm_103a",
        "sm_103f",
        "sm_100f",
    ]
    assert not Arch.parse("sm_100a").runs_on(device)
    assert Arch.parse("sm_100f").runs_on(device)
    assert not Arch.parse("sm_103f").runs_on(Arch.of_capability(10, 0))


def test_br128_a_kernel_that_needs_sm_90a_is_never_compiled_for_sm_90():
    assert [t.name for t in targets_for(Arch.of_capability(9, 0), accelerated=True)] == ["sm_90a"]


def test_br109_a_device_without_a_target_is_named():
    with pytest.raises(UnsupportedArchError, match="sm_70"):
        Arch.parse("sm_70")


@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (10, 3),
                                        (11, 0), (12, 0), (12, 1)])  # fmt: skip
def test_every_target_of_every_device_compiles_and_runs_there(capability):
    device = Arch.of_capability(*capability)
    for target in targets_for(device):
        assert target.runs_on(device)
        done = get_compiler().compile(
            'extern "C" __global__ void k(float* x) { x[threadIdx.x] += 1; }',
            target=target,
            name="k",
            options=standard_options(target),
        )
        assert elf.arch_number(done.cubin) == target.number


def _texts(folder):
    for item in folder.iterdir():
        if item.is_dir():
            yield from _texts(item)
        elif item.name.endswith((".cuh", ".cu", ".j2")):
            yield item.name, item.read_text(encoding="utf-8")


def test_br134_br135_no_template_includes_a_header():
    texts = list(_texts(templates_root()))
    assert len(texts) > 5
    for name, text in texts:
        assert not re.search(r"^\s*#\s*(include|import)\b", text, re.MULTILINE), name


@pytest.mark.parametrize("nvrtc", ["13.0.48", "13.5.37", "13.9.99"])
def test_br131_a_driver_is_given_cubins_and_never_ptx(nvrtc, monkeypatch):
    """PTX of a newer NVRTC is refused by an older driver; a cubin of any NVRTC 13 is not."""
    given = []
    status = types.SimpleNamespace(value=0)

    class Api:
        def cuLibraryLoadData(self, data, *options):
            given.append(data)
            return status, "library"

        def cuLibraryGetKernel(self, loaded, name):
            return status, name

    monkeypatch.setattr(library, "driver", Api)
    monkeypatch.setattr(library, "_kernels", {})
    here = types.SimpleNamespace(name="GPU", arch=Arch(90))
    monkeypatch.setattr(library, "device", lambda ordinal: here)
    kernel = replace(gemmjit.compile("k0", None, "sm_90a"), nvrtc_version=nvrtc)
    assert library.load(kernel, 0) == kernel.entry.encode()
    (data,) = given
    assert data == kernel.cubin
    assert elf.is_cubin(data)
    assert b".version" not in data[:64]
