"""``gemmjit doctor --startup``: the split of a process's first moments."""

from __future__ import annotations

import inspect
import json
import runpy
import sys
import time
import types

import numpy as np
import pytest
from command_line import run_json

import gemmjit
from gemmjit import Problem, build, cli
from gemmjit.arch import Arch
from gemmjit.arrays import frontend_of
from gemmjit.cli import startup
from gemmjit.cuda.driver import is_available
from gemmjit.errors import GemmjitError
from gemmjit.ops.dispatch import build_all, spec_for
from gemmjit.ops.validation import problem_of

STEPS = [
    "interpreter", "import numpy", "import ml_dtypes, platformdirs",
    "import gemmjit", "look for a driver: import cuda.bindings, cuInit",
    "choose kernel and tile", "find the kernel and read it, with checksums",
]  # fmt: skip
GPU_STEPS = [
    "driver: primary context", "load the cubin into the driver", "import cupy",
    "make the operands", "first call: plan, launch, wait", "second call: launch, wait",
]  # fmt: skip


def test_every_step_is_timed(capsys):
    told = run_json(capsys, "doctor", "--startup", "--runs", "2")
    names = [step["name"] for step in told["steps"]]
    assert [name for name in names if name in STEPS] == STEPS
    assert [name for name in names if name not in STEPS] == (GPU_STEPS if is_available() else [])
    assert told["runs"] == 2
    assert told["on_gpu"] is is_available()
    assert told["rendered"] is False  # the process before the measured ones left a memo
    assert told["kernel"].startswith("gemmjit_")
    for step in told["steps"]:
        assert 0 <= step["ms_min"] <= step["ms"] <= step["ms_max"]
    assert told["total_ms"] == pytest.approx(sum(s["ms"] for s in told["steps"]), rel=0.5)


class FakeGpu:
    """cuda.bindings.driver on an H200 that is not there; calls must fit the real signatures."""

    def __init__(self) -> None:
        from cuda.bindings import driver

        self._real = driver
        self.calls: list[str] = []

    def __getattr__(self, name):
        real = getattr(self._real, name)
        if not name.startswith("cu"):
            return real  # types and enumerations
        ok = self._real.CUresult.CUDA_SUCCESS
        capability = self._real.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
        minor = self._real.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR
        answers = {
            "cuDriverGetVersion": 13000, "cuDeviceGetCount": 1, "cuDeviceGet": 0,
            "cuDeviceGetName": b"NVIDIA H200\0", "cuDevicePrimaryCtxRetain": object(),
            "cuLibraryLoadData": object(), "cuLibraryGetKernel": object(), "cuCtxPopCurrent": None,
        }  # fmt: skip

        def call(*arguments):
            inspect.signature(real).bind(*arguments)
            self.calls.append(name)
            if name == "cuCtxGetDevice":
                return (self._real.CUresult.CUDA_ERROR_INVALID_CONTEXT, None)
            if name == "cuDeviceGetAttribute":
                return (ok, {capability: 9, minor: 0}.get(arguments[0], 132))
            return (ok, answers[name]) if name in answers else (ok,)

        return call


@pytest.fixture
def gpu(monkeypatch):
    """A process that believes in a GPU, with CuPy and the operator stood in for."""
    import cuda.bindings

    from gemmjit.cuda import device, driver, library

    fake = FakeGpu()
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", fake)
    monkeypatch.setattr(cuda.bindings, "driver", fake, raising=False)
    monkeypatch.setattr(library, "_kernels", {})
    monkeypatch.setattr(library, "_allowed", {})
    synchronized = types.SimpleNamespace(synchronize=lambda: fake.calls.append("synchronize"))
    cupy = types.ModuleType("cupy")
    cupy.zeros, cupy.asarray = np.zeros, np.asarray
    cupy.cuda = types.SimpleNamespace(Device=lambda ordinal: synchronized)
    monkeypatch.setitem(sys.modules, "cupy", cupy)

    def grouped_mm(a, b, *, offs):
        fake.calls.append("grouped_mm")
        fake.operands = a, b, offs

    monkeypatch.setattr(gemmjit, "grouped_mm", grouped_mm)
    for cached in (driver.driver, device.device):
        cached.cache_clear()
    yield fake
    for cached in (driver.driver, device.device):
        cached.cache_clear()


def test_the_steps_on_a_gpu(gpu, monkeypatch, capsys):
    problem = Problem.contiguous(num_groups=8, rows=1024, n=1024, k=1024)
    build_all(spec_for(problem, Arch(90)))
    monkeypatch.setattr(sys, "argv", ["startup_run.py", str(time.monotonic_ns())])
    runpy.run_path(str(startup._CHILD), run_name="__main__")
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["on_gpu"] is True
    assert told["arch"] == "sm_90"
    assert told["from_cache"] in (True, False)  # memory may have it in this process
    names = [name for name, _ in told["steps"]]
    assert [name for name in names if name in STEPS] == STEPS
    assert [name for name in names if name in GPU_STEPS] == GPU_STEPS
    assert len(names) == len(STEPS) + len(GPU_STEPS)
    assert all(ms >= 0 for _, ms in told["steps"])
    order = ["cuInit", "cuDevicePrimaryCtxRetain", "cuCtxPushCurrent", "cuLibraryLoadData",
             "cuLibraryGetKernel", "cuKernelSetAttribute", "cuCtxPopCurrent"]  # fmt: skip
    assert [name for name in gpu.calls if name in order] == order
    assert gpu.calls[-5:] == ["synchronize", *("grouped_mm", "synchronize") * 2]
    # What is called is what was looked for in the cache: nothing is compiled in the timed call.
    a, b, offs = gpu.operands
    views = [frontend_of(a, "mat_a").view(x) for x in (a, b, offs)]
    called = problem_of(*views, offs.shape[0], None, None, False)
    assert spec_for(called, Arch(90)) == spec_for(problem, Arch(90))


def test_a_call_that_compiles_is_not_a_warm_one(monkeypatch):
    told = {"from_cache": True, "compiles": 1, "steps": []}
    done = types.SimpleNamespace(returncode=0, stdout=json.dumps(told), stderr="")
    monkeypatch.setattr(startup.subprocess, "run", lambda *a, **k: done)
    with pytest.raises(GemmjitError, match="it was compiled"):
        startup._one()


def test_it_is_printed_as_a_table(monkeypatch, capsys):
    steps = [{"name": "interpreter", "ms": 20.0, "ms_min": 19.0, "ms_max": 30.0}]
    told = {"arch": "sm_90", "kernel": "gemmjit_k3", "on_gpu": False, "runs": 5, "steps": steps}
    told |= {"rendered": False, "total_ms": 20.0}
    monkeypatch.setattr(startup, "measure", lambda runs: told)
    assert cli.main(["doctor", "--startup"]) == 0
    out = capsys.readouterr().out
    assert "rendered" not in out
    assert "interpreter  20.0   19.0  30.0" in out
    assert "20 ms from the start of the process until the cubin is in memory" in out
    told["rendered"] = True
    assert cli.main(["doctor", "--startup"]) == 0
    assert "had to be rendered" in capsys.readouterr().out


def test_a_cold_cache_is_not_measured(monkeypatch, tmp_path, capsys):
    build.clear_memory()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GEMMJIT_CACHE_DIR", str(tmp_path / "file" / "none"))
    assert cli.main(["doctor", "--startup", "--runs", "1"]) == 1
    assert "expected a cache that keeps the kernel" in capsys.readouterr().err


def test_a_gpu_process_never_imports_the_emulator():
    """It is a third of what there is to import."""
    import subprocess
    import sys

    code = (
        "import sys, gemmjit; gemmjit.grouped_mm; from gemmjit.ops import gpu_call, dispatch\n"
        "print([n for n in sys.modules if n.startswith(('gemmjit.emulator', 'torch'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
