"""Architectures: names, order, targets, and templates that depend on nothing around them."""

from __future__ import annotations

import logging
import re
import types
from dataclasses import replace

import numpy as np
import pytest

import gemmjit
from gemmjit import Problem, Sm80MmaConfig, Sm90TmaMmaConfig, Sm90WgmmaConfig, build, elf
from gemmjit.arch import Arch, targets_for
from gemmjit.compiler import get_compiler, standard_options
from gemmjit.cuda import library
from gemmjit.emulator import emulating
from gemmjit.errors import UnsupportedArchError
from gemmjit.ops.dispatch import plan_for, spec_for
from gemmjit.selection import choose
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


def test_br081_the_number_of_multiprocessors_is_no_part_of_a_kernel():
    problem = Problem.contiguous(num_groups=4, rows=500, n=256, k=64)
    for kernel in ("k1", "k2", "k3"):
        spec = spec_for(problem, Arch(90), kernel)
        grids = {}
        for num_sms in (132, 78, 1):  # the whole device, another part of the architecture, a slice
            plan = plan_for(problem, spec, num_sms=num_sms, offs_is_int64=False, group_sizes=None)
            (launch,) = plan.launches
            assert launch.kernel.identity == build.key_of(spec).identity
            grids[num_sms] = launch.grid[0]
        assert grids[132] >= grids[78] >= grids[1] >= 1


@pytest.mark.parametrize("config", [
    Sm80MmaConfig(block_m=32, block_n=64, schedule="persistent"),
    Sm90TmaMmaConfig(block_m=32, block_n=64, num_stages=2),
    Sm90WgmmaConfig(block_m=64, block_n=64, num_stages=2),
], ids=lambda config: config.kernel)  # fmt: skip
def test_br081_no_block_waits_for_another(config, monkeypatch):
    """Blocks that must be resident together would hang on a smaller part: here one at a time."""
    monkeypatch.setenv("GEMMJIT_ARCH", "sm_90a")
    rng = np.random.default_rng(0)
    x = rng.integers(-3, 4, (200, 64)).astype(np.float16)
    w = rng.integers(-3, 4, (3, 64, 128)).astype(np.float16)
    want = np.concatenate([x[:70] @ w[0], x[70:70] @ w[1], x[70:] @ w[2]])
    for num_sms in (1, 3):
        with emulating("eager", 0, num_sms=num_sms, resident_blocks=1) as reports:
            offs = np.array([70, 70, 200], np.int32)
            assert np.array_equal(gemmjit.grouped_mm(x, w, offs=offs, config=config), want)
        assert reports


def test_br088_a_slow_path_is_told_and_the_offsets_stay_on_the_device(caplog):
    problem = Problem.contiguous(num_groups=4, rows=500, n=256, k=64)
    with caplog.at_level(logging.INFO, "gemmjit.selection"):
        assert choose(problem, Arch(80))[0].name == "k1"
        assert not caplog.records  # tensor cores: not slow
        assert choose(problem, Arch(75))[0].name == "k0"
        (told,) = [record.getMessage() for record in caplog.records]
    assert "k0, FP32 FMA, serves this call: sm_75" in told
    for arch in (Arch(75), Arch(80)):  # one launch over all groups, which walks the offsets itself
        spec = spec_for(problem, arch)
        plan = plan_for(problem, spec, num_sms=40, offs_is_int64=False, group_sizes=None)
        assert len(plan.launches) == 1
        assert spec.variant.schedule == "scan"
