"""The smallest kernel there is, and what tests of build() do with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

from gemmjit.arch import Arch
from gemmjit.cache import Store

TEMPLATE = """\
extern "C" __global__ void __launch_bounds__(${ threads }) ${ entry }(float* x) {
  x[threadIdx.x] *= ${ factor };
}
"""


@dataclass(frozen=True)
class Tiny:
    """A specification of the smallest kernel there is."""

    factor: int = 2
    target: Arch = field(default_factory=lambda: Arch(90, "a"))
    template: str = "kernels/tiny.cu.j2"
    smem_bytes: int = 0
    threads: int = 128
    compiled_threads: int = 128
    options: tuple[str, ...] = ()
    name: str = "tiny"
    config: str = "128"
    variant: str = "f32"

    @property
    def entry(self) -> str:
        return f"tiny_times_{self.factor}"

    @property
    def variables(self) -> dict[str, object]:
        return {"entry": self.entry, "factor": self.factor, "threads": self.compiled_threads}

    @property
    def prewarm_command(self) -> str:
        return f"gemmjit prewarm --kernel tiny --arch {self.target}"


def messages(caplog, level: int) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno == level]


def relabel(store: Store, version: str) -> None:
    """Let the entries of a store be the work of another NVRTC."""
    for stored in list(store.entries()):
        entry = store.read(stored)
        store.remove(stored)
        assert store.publish(replace(entry, nvrtc_version=version))


FRESH = """
import dataclasses, json, logging, sys
sys.path.insert(0, sys.argv[1])
import tiny_kernel as t
from gemmjit.build import build
from gemmjit.cache import stats
kernel = build(t.Tiny())
loaded = 'nvrtc' in open('/proc/self/maps').read()
print(json.dumps([kernel.from_cache, dataclasses.asdict(stats()), kernel.identity, loaded]))
"""


def fresh_process(**variables: str):
    """Build the kernel in a process of its own; return what it found, and what it logged."""
    done = subprocess.run(
        [sys.executable, "-c", FRESH, str(Path(__file__).parent)],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr
