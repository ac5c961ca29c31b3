"""What the compiler refuses, and what it lacks, is told by name."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
from compiling import SCALE, compiled, run

from gemmjit import elf
from gemmjit.arch import Arch
from gemmjit.compiler import (
    get_compiler,
    nvrtc,
)
from gemmjit.compiler.resources import check_advisories
from gemmjit.errors import CompileError, NvrtcNotFoundError, UnsupportedArchError


def test_errors_name_template_and_line():
    source = SCALE.replace("2 * x", "2 * y")
    with pytest.raises(CompileError, match=r"kernels/scale\.cu\.j2\(1\): error: .*\"y\"") as caught:
        compiled(source)
    assert caught.value.source == source
    assert "1 error detected" in caught.value.log


@pytest.mark.parametrize("lines", ["0", "1"])
def test_errors_of_ptxas_name_template_and_line_too(monkeypatch, lines):
    monkeypatch.setenv("GEMMJIT_LINEINFO", lines)
    source = SCALE.replace("__syncthreads();", 'asm volatile("frobnicate.sync;");')
    with pytest.raises(CompileError, match=r"kernels/scale\.cu\.j2\(5\): ptxas error"):
        compiled(source)
    inlined = SCALE.replace("return 2 * x;", 'asm volatile("frobnicate.sync;"); return x;')
    with pytest.raises(CompileError, match=r"kernels/scale\.cu\.j2\(1\): ptxas error") as caught:
        compiled(inlined)
    assert "frobnicate" in caught.value.log


def test_br128_an_instruction_that_the_target_lacks_is_an_error():
    source = SCALE.replace("__syncthreads();", 'asm("wgmma.fence.sync.aligned;");')
    compiled(source, "sm_90a")
    with pytest.raises(CompileError, match=r"not supported on \.target 'sm_90'"):
        compiled(source, "sm_90")


def test_unknown_option_is_named():
    with pytest.raises(CompileError, match="--no-such-option"):
        compiled(SCALE, "sm_90a", "--no-such-option")


def test_ignored_setmaxnreg_is_an_error():
    body = '{ asm volatile("setmaxnreg.dec.sync.aligned.u32 40;"); x[threadIdx.x] = 1; }'
    bounded = 'extern "C" __global__ void __launch_bounds__(384, 1) k(float* x)'
    with pytest.raises(CompileError, match="C7508") as caught:
        compiled('extern "C" __global__ void k(float* x)' + body)
    assert "launch bounds" in str(caught.value)
    compiled(bounded + body)


@pytest.mark.parametrize("code", ["C7504", "C7508", "C7514", "C7517", "C7519"])
def test_every_harmful_advisory_is_an_error(code):
    line = f"ptxas info    : ({code}) Potential Performance Loss: something is serialized"
    with pytest.raises(CompileError, match=code) as caught:
        check_advisories(f"ptxas info    : 0 bytes gmem\n{line}\n", "source")
    assert caught.value.source == "source"


def test_a_kernel_that_prints_may_be_slow(caplog):
    line = (
        "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are "
        "serialized due to wgmma pipeline crossing function boundary at a function call"
    )
    check_advisories(line, 'printf("%d", x);')
    assert "a kernel that prints is slow: ptxas info    : (C7510)" in caplog.text
    with pytest.raises(CompileError, match="C7510"):
        check_advisories(line, "x = f(x);")


@pytest.mark.parametrize("code", ["C7515", "C7520", "C7599"])
def test_serialised_products_are_an_error_whatever_their_number(code):
    with pytest.raises(CompileError, match=f"serialised\n.*{code}"):
        check_advisories(
            f"ptxas info    : ({code}) Potential Performance Loss: wgmma.mma_async instructions "
            "are serialized due to program dependence on compiler-inserted WG.AR in divergent path"
        )


def test_other_advisories_are_not():
    check_advisories("ptxas info    : (C7510) something else\nptxas info    : Used 9 registers\n")


@pytest.mark.parametrize("spelling", ["sm_61", "sm_21", "banana", "sm_90f", "sm_80a"])
def test_br121_an_architecture_that_does_not_exist_here_is_named(spelling):
    with pytest.raises(UnsupportedArchError, match=rf"{spelling}|sm_\d+"):
        compiled(SCALE, spelling)


@pytest.mark.parametrize("spelling", ["90", "sm90", "sm_90", "compute_90", " SM_90 "])
def test_br121_other_spellings_are_taken(spelling):
    assert elf.arch_number(compiled(SCALE, spelling).cubin) == 90


def test_br120_br125_nvrtc_that_is_too_old_for_the_architecture_says_what_it_knows(monkeypatch):
    compiler = nvrtc.Compiler()
    monkeypatch.setattr(compiler, "supported", (75, 80, 90))
    with pytest.raises(UnsupportedArchError) as caught:
        compiler.compile(SCALE, target=Arch.parse("sm_120f"), name="scale")
    message = str(caught.value)
    assert "got sm_120f" in message
    assert f"NVRTC {compiler.version}" in message
    assert "sm_75, sm_80, sm_90" in message
    assert "pip install -U nvidia-cuda-nvrtc" in message


def test_br132_nvrtc_missing_names_the_package(monkeypatch):
    from cuda import pathfinder

    def nothing(name: str):
        raise RuntimeError(f"no {name}")

    monkeypatch.setattr(pathfinder, "load_nvidia_dynamic_lib", nothing)
    nvrtc._load.cache_clear()
    try:
        with pytest.raises(NvrtcNotFoundError, match=r'pip install "nvidia-cuda-nvrtc>=13.0,<14"'):
            nvrtc.Compiler()
    finally:
        nvrtc._load.cache_clear()


def test_br132_bindings_missing_name_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    nvrtc._load.cache_clear()
    try:
        with pytest.raises(NvrtcNotFoundError, match=r'pip install "cuda-python>=13.0,<14"'):
            nvrtc.Compiler()
    finally:
        nvrtc._load.cache_clear()


def lonely_library(folder: Path) -> Path:
    """A copy of libnvrtc in a place where its builtins are not."""
    get_compiler()
    library = Path(nvrtc._load()[1]).resolve()
    copy = folder / library.name
    try:
        os.link(library, copy)
    except OSError:
        shutil.copy(library, copy)
    return copy


def test_br132_builtins_missing_names_the_package(tmp_path):
    program = (
        "import ctypes, sys\nctypes.CDLL(sys.argv[1])\n"
        "from gemmjit.arch import Arch\nfrom gemmjit.compiler import *\n"
        "from gemmjit.errors import NvrtcNotFoundError\n"
        "try:\n"
        "    get_compiler().compile(sys.argv[2], target=Arch(90), name='n')\n"
        "except NvrtcNotFoundError as error:\n"
        "    print(error)\n"
    )
    told = run(program, str(lonely_library(tmp_path)), SCALE)
    assert "libnvrtc-builtins" in told
    assert 'pip install "nvidia-cuda-nvrtc>=13.0,<14" --force-reinstall' in told
