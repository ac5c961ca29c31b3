"""A manifest's problem compiles what a call needs that multiplies nothing, too."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from command_line import run_json

import gemmjit
from gemmjit import Problem, build
from gemmjit.arch import Arch, devices_of, targets_for
from gemmjit.errors import MissingKernelError
from gemmjit.kernels import KERNELS
from gemmjit.manifest import parse
from gemmjit.ops.dispatch import spec_for

BF16 = ml_dtypes.bfloat16


def ones(*shape, dtype=BF16):
    return np.ones(shape, dtype)


def ends(*given):
    return np.array(given, np.int32)


CALLS = {
    "wgrad by k3": (
        'form = "ragged_k"\nnum_groups = 2\nkernel = "k3"',
        lambda: gemmjit.grouped_mm(ones(0, 64).T, ones(0, 64), offs=ends(0, 0), config="k3"),
    ),
    "wgrad by k1, its operand the other way round": (
        'form = "ragged_k"\nnum_groups = 2\nkernel = "k1"\na_k_major = true\nb_k_major = true',
        lambda: gemmjit.grouped_mm(ones(0, 64).T, ones(0, 64), offs=ends(0, 0), config="k1"),
    ),
    "fprop by k3 without groups": (
        'kernel = "k3"\nrows = [1, 8]',
        lambda: gemmjit.grouped_mm(ones(8, 64), ones(0, 64, 64), offs=ends(), config="k3"),
    ),
    "fprop by k2 without groups, on the host": (
        'kernel = "k2"\nrows = [1, 8]\noffsets = "host"\nb_k_major = true',
        lambda: gemmjit.grouped_mm(ones(8, 64), ones(0, 64, 64), offs=[], config="k2"),
    ),
    "a bias without groups": (
        'dtype = "float32"\nepilogue = "bias"\nrows = [1, 8]',
        lambda: gemmjit.grouped_mm(
            ones(8, 64, dtype=np.float32),
            ones(0, 64, 64, dtype=np.float32),
            offs=ends(),
            bias=ones(0, 64, dtype=np.float32),
        ),
    ),
    "a bias with strides, of k3, without groups": (
        'kernel = "k3"\nepilogue = "bias_strided"\nrows = [1, 8]',
        lambda: gemmjit.grouped_mm(
            ones(8, 64), ones(0, 64, 64), offs=ends(), bias=ones(0, 64), config="k3"
        ),
    ),
}


@pytest.mark.parametrize("case", CALLS)
def test_a_call_without_products_runs_without_compiling(
    empty_cache, tmp_path, monkeypatch, capsys, case
):
    text, call = CALLS[case]
    manifest = tmp_path / "manifest.toml"
    manifest.write_text(f'targets = ["sm_90a"]\n[[problems]]\nn = 64\nk = 64\n{text}\n')
    monkeypatch.setenv("GEMMJIT_ARCH", "sm_90a")
    monkeypatch.setenv("GEMMJIT_EXECUTOR", "emulator")
    monkeypatch.setenv("GEMMJIT_DISABLE_JIT", "1")
    with pytest.raises(MissingKernelError):
        call()
    monkeypatch.delenv("GEMMJIT_DISABLE_JIT")
    told = run_json(capsys, "prewarm", "--shapes", str(manifest), "--jobs", "1")
    assert told["failed"] == 0
    monkeypatch.setenv("GEMMJIT_DISABLE_JIT", "1")
    build.clear_memory()
    assert not call().astype(np.float32).any()


@pytest.mark.parametrize("offsets", ["device", "host"])
@pytest.mark.parametrize("form", ["ragged_m", "ragged_k"])
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_90a", "sm_100f", "sm_120"])
def test_a_kernel_that_is_named_covers_every_number_of_rows_and_groups(target, name, form, offsets):
    kernel, arch = KERNELS[name], Arch.parse(target)
    if form not in kernel.forms or not kernel.min_arch.number <= arch.number:
        pytest.skip(f"{name} has no {form} on {target}")
    if kernel.max_arch is not None and arch.number > kernel.max_arch.number:
        pytest.skip(f"{name} does not exist on {target}")
    dtype = kernel.in_dtypes[0]
    text = f'''targets = ["{target}"]
    [[problems]]
    form = "{form}"
    n = 64
    k = 64
    rows = [1, 300]
    dtype = "{dtype}"
    b_k_major = {str(form == "ragged_m").lower()}
    offsets = "{offsets}"
    kernel = "{name}"
    '''
    covered = {one.spec for one in parse(text).wanted()}
    sizes = {"n": 64, "k": 64, "dtype": dtype, "b_k_major": form == "ragged_m"}
    for device in devices_of(targets_for(arch)[0]):
        for rows in (0, 1, 2, 64, 300):
            for groups in (0, 1, 2, 9):
                schedule = "list" if offsets == "host" else "scan"
                asked = Problem.contiguous(
                    form, num_groups=groups, rows=rows, schedule=schedule, **sizes
                )
                if not asked.is_empty:
                    needed = set(spec_for(asked, device, name).alternatives)
                    assert needed & covered, (str(device), rows, groups)
