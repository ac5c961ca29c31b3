"""Every exception outside the operator, provoked: what each message must hold."""

from __future__ import annotations

import os
import types

import cuda.bindings
import cuda.pathfinder
import numpy as np

import gemmjit
from gemmjit import Problem, Sm80MmaConfig, templating
from gemmjit.arch import Arch
from gemmjit.cache import Key, Store
from gemmjit.compiler import get_compiler, nvrtc
from gemmjit.compiler.resources import check_advisories, read_resources
from gemmjit.cuda import driver as driver_module
from gemmjit.cuda import executor
from gemmjit.emulator.executor import KernelLaunch, emulate
from gemmjit.errors import (
    CacheError,
    CaptureError,
    CompileError,
    DriverNotFoundError,
    EmulatorError,
    InvalidConfigError,
    InvalidDtypeError,
    InvalidEnvironmentError,
    InvalidProblemError,
    LaunchError,
    ManifestError,
    MissingKernelError,
    NvrtcNotFoundError,
    StalePickleError,
    TemplateError,
    UnsupportedArchError,
)
from gemmjit.manifest import load, read_log
from gemmjit.plan import Plan, Workspace


def override(t, text: str):
    """Let k0's template be a text, and compile it."""
    (t.path / "templates" / "kernels").mkdir(parents=True)
    (t.path / "templates" / "kernels" / "simt_grouped_mm.cu.j2").write_text(text)
    with templating.override(t.path / "templates"):
        return gemmjit.compile("k0", None, "sm_80")


#: Uses every variable, so that only the kernel is at fault.
def uses(body: str) -> str:
    names = templating.variables_of("kernels/simt_grouped_mm.cu.j2")
    return "".join(f"// ${{{name}}}\n" for name in sorted(names)) + body


def without_jit(t):
    t.patch.setenv("GEMMJIT_DISABLE_JIT", "1")
    gemmjit.compile("k1", Sm80MmaConfig(pad=16), "sm_86")


def half_a_switch(t):
    t.patch.setenv("GEMMJIT_DISABLE_JIT", "2")
    gemmjit.compile("k0", None, "sm_80")


def open_directory(t):
    (t.path / "cache").mkdir()
    (t.path / "cache").chmod(0o777)
    Store(t.path / "cache").check()


def file_as_directory(t):
    (t.path / "cache").write_text("")
    Store(t.path / "cache").check()


def loop(t):
    os.symlink(t.path / "cache", t.path / "cache")
    Store(t.path / "cache").check()


def without_library(t):
    def missing(name):
        raise RuntimeError(name)

    t.patch.setattr(cuda.pathfinder, "load_nvidia_dynamic_lib", missing)
    nvrtc._load.cache_clear()
    nvrtc.Compiler()


def without_bindings(t):
    t.patch.setitem(__import__("sys").modules, "cuda.bindings.nvrtc", None)
    t.patch.delattr(cuda.bindings, "nvrtc", raising=False)
    nvrtc._load.cache_clear()
    nvrtc.Compiler()


def without_builtins(t):
    compiler = get_compiler()
    result = compiler._nvrtc.nvrtcResult.NVRTC_ERROR_BUILTIN_OPERATION_FAILURE
    compiler._refuse(result, "nvrtc: error: failed to open libnvrtc-builtins.so.13.5.", "", "", ())


def older_nvrtc(t):
    compiler = get_compiler()
    t.patch.setattr(compiler, "supported", (75, 80, 90))
    gemmjit.compile("k0", None, "sm_103a")


class FakeDriver(types.SimpleNamespace):
    """A driver that answers what a case says."""

    CUresult = types.SimpleNamespace(CUDA_SUCCESS=0)


def with_driver(t, **answers):
    fake = FakeDriver(**{name: answer for name, answer in answers.items()})
    t.patch.setattr(cuda.bindings, "driver", fake, raising=False)
    t.patch.setitem(__import__("sys").modules, "cuda.bindings.driver", fake)
    driver_module.driver.cache_clear()


def no_driver(t):
    def missing():
        raise RuntimeError("libcuda.so.1 not found")

    with_driver(t, cuDriverGetVersion=missing)
    driver_module.driver()


def broken_driver(t):
    code = types.SimpleNamespace(name="CUDA_ERROR_SYSTEM_NOT_READY")
    with_driver(t, cuDriverGetVersion=lambda: (0, 13000), cuInit=lambda flags: (code,))
    driver_module.driver()


def old_driver(t):
    """BR-131: cubins of NVRTC 13 do not load on it, and PTX would be no better."""
    with_driver(t, cuDriverGetVersion=lambda: (0, 12080), cuInit=lambda flags: (0,))
    driver_module.driver()


def refused_call(t):
    with_driver(
        t,
        cuDriverGetVersion=lambda: (0, 13000),
        cuInit=lambda flags: (0,),
        cuGetErrorString=lambda status: (0, b"invalid argument"),
    )
    status = types.SimpleNamespace(name="CUDA_ERROR_INVALID_VALUE", value=1)
    driver_module.check((status,), "launch of k1 with grid (0, 1, 1)")


def host_offsets_under_capture(t):
    t.patch.setattr(executor, "is_capturing", lambda stream, ordinal: True)
    t.patch.setattr(executor, "driver", lambda: types.SimpleNamespace(cuCtxGetDevice=None))
    bound = executor.BoundPlan.__new__(executor.BoundPlan)
    bound.plan, bound.ordinal = Plan(launches=()), 0
    contents = np.zeros(4, np.int32)
    bound._fill(Workspace("ends", nbytes=16, contents=contents), 0, 1)


def emulated_nonsense(t):
    ptx = ".version 9.0\n.target sm_90a\n.address_size 64\n.entry f() { frobnicate.b32; }"
    emulate([KernelLaunch(ptx=ptx, entry="f", grid=(1, 1, 1), block=(32, 1, 1), target="sm_90a")])


ADVISORY = "ptxas info : (C7508) Potential Performance Loss: 'setmaxnreg' ignored"

#: name: (call, exception, argument, expected, got, mend)
CASES = {
    "architecture of no known form": (
        lambda t: Arch.parse("banana"),
        UnsupportedArchError, "arch", "such as sm_80", "'banana'", "Correct",
    ),
    "architecture that is too old": (
        lambda t: Arch.parse("sm_61"),
        UnsupportedArchError, "arch", "sm_75, sm_80", "'sm_61'", "no kernels",
    ),
    "suffix that an architecture has not": (
        lambda t: Arch.parse("sm_90f"),
        UnsupportedArchError, "arch", "suffix 'f'", "'sm_90f'", "Use sm_90",
    ),
    "architecture without limits": (
        lambda t: Arch(61).limits,
        UnsupportedArchError, "arch", "limits are known", "sm_61", "no kernels",
    ),
    "BR-120 architecture that is too new for NVRTC": (
        older_nvrtc,
        UnsupportedArchError, "arch", "compiles for (sm_75, sm_80, sm_90)", "sm_103a",
        "pip install -U",
    ),
    "kernel that an architecture has not": (
        lambda t: gemmjit.compile("k3", None, "sm_80"),
        InvalidConfigError, "arch", "sm_90 or newer", "sm_80", "k3 cannot be built",
    ),
    "config of another kernel": (
        lambda t: gemmjit.compile("k0", Sm80MmaConfig()),
        InvalidConfigError, "config", "SimtConfig", "Sm80MmaConfig", "k0 takes",
    ),
    "variant that does not exist": (
        lambda t: gemmjit.compile("k1", shape_m=3),
        InvalidConfigError, "variant", "there are form", "shape_m", "unknown field",
    ),
    "element type that does not exist": (
        lambda t: gemmjit.compile("k1", in_dtype="float12"),
        InvalidDtypeError, "dtype", "bfloat16", "float12", "Cast",
    ),
    "problem of a negative size": (
        lambda t: Problem.contiguous(num_groups=1, rows=-1, n=8, k=8),
        InvalidProblemError, "rows", "from 0 to 2147483647", "-1", "expected a whole number",
    ),
    "template that does not exist": (
        lambda t: templating.render("kernels/none.cu.j2", {}),
        TemplateError, "template", "name of a template", "'kernels/none.cu.j2'", "Correct",
    ),
    "template outside": (
        lambda t: templating.render("../secret", {}),
        TemplateError, "template", "below the templates", "'../secret'", "Name it as in",
    ),
    "override that is no directory": (
        lambda t: templating.override(t.path / "none"),
        TemplateError, "override", "directory of templates", "none", "Check the path",
    ),
    "variable that a template does not use": (
        lambda t: override(t, "int x;\n"),
        TemplateError, "template kernels/simt_grouped_mm.cu.j2", "variables that it uses",
        "also a_k_major", "Remove them",
    ),
    "variable that nobody gives": (
        lambda t: override(t, uses("${ colour }\n")),
        TemplateError, "simt_grouped_mm.cu.j2, line", "colour", "undefined", "line",
    ),
    "source that does not compile": (
        lambda t: override(t, uses("int x y;\n")),
        CompileError, "kernels/simt_grouped_mm.cu.j2", 'expected a ";"', "error", "(2",
    ),
    "template whose kernel has another name": (
        lambda t: override(t, uses('extern "C" __global__ void other() {}\n')),
        CompileError, "simt_grouped_mm.cu.j2", "a kernel named gemmjit_k0", "got other",
        "Name it ${entry}",
    ),
    "BR-067 kernel that can never be launched": (
        lambda t: override(t, uses(
            'extern "C" __global__ void __launch_bounds__(64) ${entry}(int* p) { *p = 1; }\n'
        )),
        CompileError, "kernel k0", "compiled for 64", "256 threads", "smaller tile",
    ),
    "advisory of ptxas": (
        lambda t: check_advisories(ADVISORY),
        CompileError, "ptxas", "setmaxnreg", "C7508", "something else than its source says",
    ),
    "cubin that is none": (
        lambda t: read_resources(b"text", ""),
        CompileError, "resources", "a cubin", "something else", "expected",
    ),
    "NVRTC that is missing": (
        without_library,
        NvrtcNotFoundError, "nvrtc", "libnvrtc.so.13", "none", "pip install",
    ),
    "bindings that are missing": (
        without_bindings,
        NvrtcNotFoundError, "nvrtc", "cuda.bindings", "error", "pip install",
    ),
    "BR-132 builtins that are missing": (
        without_builtins,
        NvrtcNotFoundError, "nvrtc", "builtins of 13", "libnvrtc-builtins", "--force-reinstall",
    ),
    "kernel that must not be compiled": (
        without_jit,
        MissingKernelError, "kernel k1", "Compile it beforehand", "in none of", "gemmjit prewarm",
    ),
    "switch that is neither on nor off": (
        half_a_switch,
        InvalidEnvironmentError, "GEMMJIT_DISABLE_JIT", "1, true, yes, on", "'2'", "unset it",
    ),
    "cache that others can write to": (
        open_directory,
        CacheError, "cache", "only its owner", "everybody can write", "chmod go-w",
    ),
    "BR-103 cache that is a file": (
        file_as_directory,
        CacheError, "cache", "a directory", "the file", "GEMMJIT_CACHE_DIR",
    ),
    "cache that cannot be reached": (
        loop,
        CacheError, "cache", "can be used", "symbolic links", "GEMMJIT_CACHE_DIR",
    ),
    "key that could be a path": (
        lambda t: Key("../x", "entry", "0" * 64),
        CacheError, "target", "text like sm_", "'../x'", "expected",
    ),
    "manifest that is missing": (
        lambda t: load(t.path / "none.toml"),
        ManifestError, "none.toml", "a TOML file", "No such file", "Check the path",
    ),
    "log of nothing": (
        lambda t: read_log("", "run.log"),
        ManifestError, "run.log", "gemmjit prewarm --arch", "none", "GEMMJIT_LOG_LEVEL=debug",
    ),
    "pickled config without names": (
        lambda t: Sm80MmaConfig().__setstate__([128, 128, 32]),
        StalePickleError, "pickle", "names of its fields", "an older gemmjit", "anew",
    ),
    "driver that is missing": (
        no_driver,
        DriverNotFoundError, "driver", "580 or newer", "found none", "Install the driver",
    ),
    "driver that does not start": (
        broken_driver,
        DriverNotFoundError, "driver", "cuInit", "CUDA_ERROR_SYSTEM_NOT_READY", "nvidia-smi",
    ),
    "BR-131 driver that is too old": (
        old_driver,
        DriverNotFoundError, "driver", "CUDA 13.0 or newer", "CUDA 12.8", "Update",
    ),
    "call that the driver refuses": (
        refused_call,
        LaunchError, "launch of k1", "grid (0, 1, 1)", "CUDA_ERROR_INVALID_VALUE",
        "invalid argument",
    ),
    "offsets on the host in a capture": (
        host_offsets_under_capture,
        CaptureError, "offs", "on the device", "offsets on the host", "Pass offs",
    ),
    "stream that is none": (
        lambda t: executor.stream_handle("main"),
        InvalidProblemError, "stream", "__cuda_stream__", "str", "Pass a stream",
    ),
    "instruction that the emulator does not know": (
        emulated_nonsense,
        EmulatorError, "frobnicate.b32", "unknown instruction", "PTX line 4", "frobnicate",
    ),
}  # fmt: skip
