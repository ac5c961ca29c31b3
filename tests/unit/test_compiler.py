"""The compiler: what it makes, what it reads from it, what it refuses. NVRTC, but no GPU."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from compiling import SCALE, compiled, compiled_with_lines, run

from gemmjit import elf
from gemmjit.arch import Arch
from gemmjit.compiler import (
    get_compiler,
    installed_version,
    nvrtc,
    read_resources,
    sass,
)
from gemmjit.errors import CompileError

SM90A = Arch.parse("sm_90a")

SPILLING = """\
extern "C" __global__ void __launch_bounds__(1024, 2) crowded(float* x, int n) {
  float a[64];
  for (int i = 0; i < 64; i++) a[i] = x[i * n + threadIdx.x];
  for (int j = 0; j < n; j++)
    for (int i = 0; i < 64; i++) a[i] = a[i] * a[(i + 7) % 64] + x[j];
  for (int i = 0; i < 64; i++) x[i * n + threadIdx.x] = a[i];
}
"""


def test_version_has_a_patch_level_and_stands_in_the_ptx():
    compiler = get_compiler()
    assert re.fullmatch(r"13\.\d+\.\d+", compiler.version)
    assert f"V{compiler.version}" in compiled().ptx
    assert compiler._from_banner() == compiler.version
    assert installed_version() == compiler.version


def test_version_of_a_library_from_elsewhere_is_read_from_its_ptx(monkeypatch):
    compiler = nvrtc.Compiler()
    monkeypatch.setattr(compiler, "_path", "/opt/cuda/lib64/libnvrtc.so.13")
    assert compiler._from_package() is None
    assert compiler.version == get_compiler().version


@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_90a", "sm_100f", "sm_103a", "sm_120f"])
def test_cubin_is_for_the_target(target):
    done = compiled(SCALE, target)
    assert elf.is_cubin(done.cubin)
    assert elf.arch_number(done.cubin) == Arch.parse(target).number
    assert f".target {target}" in done.ptx
    assert done.seconds > 0


def test_resources_of_a_small_kernel():
    done = compiled()
    (resources,) = read_resources(done.cubin, done.log).values()
    assert resources.smem_bytes == 128 * 4
    assert resources.max_threads == 128
    assert resources.barriers == 1
    assert 1 < resources.registers < 32
    assert resources.spill_store_bytes == resources.spill_load_bytes == resources.stack_bytes == 0


@pytest.mark.skipif(sass._find("cuobjdump") is None, reason="needs nvidia-cuda-cuobjdump")
@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_120f"])
@pytest.mark.parametrize("source", [SCALE, SPILLING])
def test_resources_agree_with_cuobjdump(tmp_path, source, target):
    done = compiled(source, target)
    ((name, resources),) = read_resources(done.cubin, done.log).items()
    (tmp_path / "k.cubin").write_bytes(done.cubin)
    told = subprocess.run(
        [sass._find("cuobjdump"), "-res-usage", str(tmp_path / "k.cubin")],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    facts = dict(re.findall(r"(REG|STACK|SHARED):(\d+)", told.split(name, 1)[1]))
    # cuobjdump adds the reserved kibibyte of sm_90 and up to a kernel that has shared memory
    reserved = 1024 if Arch.parse(target).number >= 90 and resources.smem_bytes else 0
    assert int(facts["REG"]) == resources.registers
    assert int(facts["STACK"]) == resources.stack_bytes
    assert int(facts["SHARED"]) - reserved == resources.smem_bytes


def test_spills_are_data():
    done = compiled(SPILLING)
    resources = read_resources(done.cubin, done.log)["crowded"]
    assert resources.registers == 32
    assert resources.spill_store_bytes > 100
    assert resources.spill_load_bytes > 100
    assert elf.read_kernels(done.cubin)["crowded"].frame_bytes == resources.stack_bytes > 100


def test_spills_of_a_function_that_is_not_inlined_count():
    source = SPILLING.replace(
        'extern "C" __global__ void __launch_bounds__(1024, 2) crowded',
        "__device__ __noinline__ void work",
    )
    source += (
        'extern "C" __global__ void __launch_bounds__(1024, 2) caller(float* x, int n)'
        "{ work(x, n); }\n"
    )
    done = compiled(source)
    assert read_resources(done.cubin, done.log)["caller"].spill_load_bytes > 100


def test_resources_need_the_log_that_belongs_to_the_cubin():
    with pytest.raises(CompileError, match="-Xptxas=-v"):
        read_resources(compiled().cubin, compiled(SPILLING).log)
    with pytest.raises(CompileError, match="expected a cubin"):
        read_resources(b"text", "")


def test_ptx_with_lines_names_the_template_and_what_the_cubin_came_from_does_not():
    ptx, done = compiled_with_lines(), compiled()
    assert re.search(r'\.file\s+1 "kernels/scale\.cu\.j2"', ptx)
    lines = {int(line) for line in re.findall(r"\.loc\s+1 (\d+)", ptx)}
    assert {4, 5, 6} <= lines
    assert lines <= set(range(1, 9))
    assert b".debug_line" not in done.cubin
    assert ".loc" not in done.ptx


def test_a_source_is_compiled_once(monkeypatch):
    real, seen = nvrtc.Compiler._run, []

    def run_and_tell(self, source, name, options, *more):
        seen.append(options)
        return real(self, source, name, options, *more)

    monkeypatch.setattr(nvrtc.Compiler, "_run", run_and_tell)
    threads = threading.active_count()
    compiled()
    assert [options[0] for options in seen] == ["--gpu-architecture=sm_90a"]
    assert threading.active_count() == threads
    compiled_with_lines()
    assert [options[0] for options in seen[1:]] == ["--gpu-architecture=compute_90a"]


def test_lineinfo_variable_puts_lines_into_the_cubin(monkeypatch):
    monkeypatch.setenv("GEMMJIT_LINEINFO", "1")
    with_lines = compiled()
    monkeypatch.delenv("GEMMJIT_LINEINFO")
    assert b".debug_line" in with_lines.cubin
    assert with_lines.ptx == compiled_with_lines()


def test_ptx_with_lines_is_the_ptx_that_the_cubin_came_from():
    plain = compiled().ptx
    kept = [
        line
        for line in compiled_with_lines().split(".section")[0].splitlines()
        if not re.match(r"\s*\.(loc|file)\b|\$L__(tmp|func)", line)
    ]
    wanted = [line for line in plain.splitlines() if not re.match(r"\s*\.file", line)]
    assert [k for k in kept if k.strip()] == [w for w in wanted if w.strip()]


def test_br110_br140_output_does_not_depend_on_the_working_directory(tmp_path):
    program = (
        "import sys, hashlib\nsys.path.insert(0, sys.argv[1])\n"
        "from gemmjit.arch import Arch\nfrom gemmjit.compiler import *\n"
        "t = Arch.parse('sm_90a')\n"
        "r = get_compiler().compile(sys.argv[2], target=t, name='n', options=standard_options(t))\n"
        "print(hashlib.sha256(r.cubin + r.ptx.encode()).hexdigest())\n"
    )
    root = str(Path(nvrtc.__file__).parents[2])
    seen = set()
    for name in ("plain", 'tést 测试 "dir"'):
        (tmp_path / name).mkdir()
        done = subprocess.run(
            [sys.executable, "-c", program, root, SCALE],
            cwd=tmp_path / name,
            env={**os.environ, "LANG": "C", "LC_ALL": "C"},
            capture_output=True,
            text=True,
            check=True,
        )
        seen.add(done.stdout)
    assert len(seen) == 1


def test_br138_nothing_needs_a_driver():
    program = (
        "import json, sys\n"
        "from gemmjit.arch import Arch\nfrom gemmjit.compiler import *\n"
        "t = Arch.parse('sm_90a')\n"
        "r = get_compiler().compile(sys.argv[1], target=t, name='n', options=standard_options(t))\n"
        "print(json.dumps([len(r.cubin), 'libcuda.so' in open('/proc/self/maps').read()]))\n"
    )
    num_bytes, driver = json.loads(run(program, SCALE, CUDA_VISIBLE_DEVICES=""))
    assert num_bytes > 1000
    assert not driver


def test_br089_importing_loads_no_library_and_writes_nothing(tmp_path):
    program = (
        "import sys, threading\nimport gemmjit, gemmjit.build, gemmjit.cache\n"
        "maps = open('/proc/self/maps').read()\n"
        "assert 'nvrtc' not in maps and 'libcuda.so' not in maps, maps\n"
        "assert not {'cupy', 'torch', 'cuda.bindings'} & set(sys.modules), 'imported too much'\n"
        "assert threading.active_count() == 1\n"
    )
    run(program, HOME=str(tmp_path), XDG_CACHE_HOME="", GEMMJIT_CACHE_DIR="")
    assert list(tmp_path.iterdir()) == []


def test_threads_compile_the_same_bytes():
    results: list[tuple[bytes, str]] = []

    def work() -> None:
        done = compiled()
        results.append((done.cubin, done.ptx))

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 6
    assert len(set(results)) == 1


@pytest.mark.parametrize("part", [0, 10, 64, 0.3, 0.6, 0.9, 0.99])
def test_a_cut_cubin_is_refused_and_never_misread(part):
    cubin = compiled().cubin
    cut = cubin[: part if isinstance(part, int) else int(part * len(cubin))]
    with pytest.raises(ValueError, match="cubin"):
        elf.read_kernels(cut)


def test_a_host_library_is_no_cubin():
    with open(sys.executable, "rb") as file:
        image = file.read(4096)
    assert image[:4] == b"\x7fELF"
    assert not elf.is_cubin(image)
    with pytest.raises(ValueError, match="expected a cubin"):
        elf.arch_number(image)


@pytest.mark.skipif(sass._find("nvdisasm") is None, reason="needs nvidia-cuda-nvdisasm")
def test_sass_is_readable():
    assert "BAR.SYNC" in sass.disassemble(compiled().cubin)


def test_sass_without_a_disassembler_names_the_extra(monkeypatch):
    monkeypatch.setattr(sass, "_find", lambda tool: None)
    with pytest.raises(CompileError, match=r'pip install "gemmjit\[inspect\]"'):
        sass.disassemble(compiled().cubin)
