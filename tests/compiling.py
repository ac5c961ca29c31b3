"""A small source and the compiler's answer to it."""

from __future__ import annotations

import os
import subprocess
import sys

from gemmjit.arch import Arch
from gemmjit.compiler import Compiler, get_compiler, standard_options

SCALE = """\
#line 1 "kernels/scale.cu.j2"
static __device__ float twice(float x) { return 2 * x; }
extern "C" __global__ void __launch_bounds__(128) scale(float* x) {
  __shared__ float tile[128];
  tile[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = twice(tile[127 - threadIdx.x]);
}
"""


def compiled(source: str = SCALE, target: str = "sm_90a", *extra: str):
    arch = Arch.parse(target)
    options = standard_options(arch, extra)
    return get_compiler().compile(source, target=arch, name="scale", options=options)


def compiled_with_lines(source: str = SCALE, target: str = "sm_90a", *extra: str) -> str:
    arch = Arch.parse(target)
    options = standard_options(arch, extra)
    return get_compiler().ptx_with_lines(source, target=arch, name="scale", options=options)


def run(program: str, *arguments: str, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def compilations_of(monkeypatch) -> list[str]:
    """Return a list that grows by the architecture of each compilation from here on."""
    real, seen = Compiler._run, []

    def run_and_tell(self, source, name, options, *more):
        seen.append(options[0].removeprefix("--gpu-architecture="))
        return real(self, source, name, options, *more)

    monkeypatch.setattr(Compiler, "_run", run_and_tell)
    return seen
