"""From a problem to kernels: every target of the device is looked for before one is compiled."""

from __future__ import annotations

import types
from dataclasses import replace

import numpy as np
import pytest

import gemmjit
from gemmjit import Problem, build
from gemmjit.arch import Arch
from gemmjit.arrays import frontend_of
from gemmjit.compiler import Compiler
from gemmjit.config import Sm80MmaConfig
from gemmjit.errors import CaptureError
from gemmjit.ops import gpu_call
from gemmjit.ops.dispatch import build_all, must_compile, plan_for, spec_for

PROBLEM = Problem.contiguous(num_groups=3, rows=20, n=24, k=32)
COMPACT = Sm80MmaConfig(schedule="compact")


@pytest.fixture
def compiled(tmp_path, monkeypatch):
    """An empty cache, on disk and in memory; and what NVRTC compiles from here on."""
    monkeypatch.setenv("GEMMJIT_CACHE_DIR", str(tmp_path))
    build.clear_memory()
    real, seen = Compiler.compile, []

    def compile_and_tell(self, source, *, target, **more):
        seen.append(target.name)
        return real(self, source, target=target, **more)

    monkeypatch.setattr(Compiler, "compile", compile_and_tell)
    yield seen
    build.clear_memory()


def plan(arch: str, config=COMPACT):
    return plan_for(
        PROBLEM,
        spec_for(PROBLEM, Arch.parse(arch), config),
        num_sms=4,
        offs_is_int64=False,
        group_sizes=None,
    )


@pytest.mark.parametrize(
    ("prewarmed", "device"), [("sm_80", "sm_86"), ("sm_100f", "sm_103"), ("sm_120f", "sm_121")]
)
def test_cubins_for_a_family_serve_its_devices(compiled, prewarmed, device):
    build_all(spec_for(PROBLEM, Arch.parse(prewarmed), COMPACT))
    assert compiled == [prewarmed, prewarmed]  # the kernel, and the one that lists its tiles
    build.clear_memory()
    launches = plan(device).launches
    assert [launch.kernel.target.name for launch in launches] == [prewarmed, prewarmed]
    assert len(compiled) == 2


def test_blocks_are_counted_for_the_device_not_for_the_target(compiled):
    # sm_80 has room for more blocks than sm_86: the grid must follow the device.
    config = Sm80MmaConfig(block_m=32, min_blocks_per_sm=1, num_stages=4)
    problem = Problem.contiguous(num_groups=3, rows=100_000, n=24, k=32)

    def grid(arch):
        spec = spec_for(problem, Arch.parse(arch), config)
        options = {"num_sms": 1, "offs_is_int64": False, "group_sizes": None}
        (launch,) = plan_for(problem, spec, **options).launches
        return launch.kernel.target.name, launch.grid[0]

    name, on_80 = grid("sm_80")
    assert name == "sm_80"
    build.clear_memory()
    name, with_80 = grid("sm_86")
    assert name == "sm_80"
    assert with_80 < on_80
    build.build(spec_for(problem, Arch.parse("sm_86"), config))
    build.clear_memory()
    assert grid("sm_86") == ("sm_86", with_80)


def test_whether_a_plan_must_compile(compiled):
    spec = spec_for(PROBLEM, Arch.parse("sm_86"), COMPACT)
    assert must_compile(spec)
    main, tile_list = build_all(spec)
    assert not must_compile(spec)
    assert [main.target.name, tile_list.target.name] == compiled == ["sm_86", "sm_86"]
    build.clear_memory()
    assert not must_compile(spec)
    assert not must_compile(spec_for(PROBLEM, Arch.parse("sm_89"), COMPACT))
    assert must_compile(spec_for(PROBLEM, Arch.parse("sm_80"), COMPACT))
    # A kernel of one's own still needs the one that lists its tiles.
    given = gemmjit.compile("k1", COMPACT, "sm_80", schedule="compact")
    assert must_compile(given.spec, given)
    assert len(compiled) == 3


def test_br074_nothing_is_compiled_while_a_stream_is_captured(compiled, monkeypatch):
    a, b = np.zeros((20, 32), np.float16), np.zeros((3, 32, 24), np.float16)
    offs = np.array([4, 9, 20], np.int32)
    monkeypatch.setattr(
        gpu_call, "device", lambda n: types.SimpleNamespace(name="", arch=Arch(90), num_sms=4)
    )
    monkeypatch.setattr(gpu_call.executor, "is_capturing", lambda stream, ordinal: True)
    frontend = frontend_of(a, "mat_a")
    monkeypatch.setattr(type(frontend), "current_stream", lambda self, device: 0, raising=False)
    with pytest.raises(CaptureError, match=r"got the first of its kind.*must be compiled.*prepare"):
        gpu_call.GpuCall(frontend, a, b, offs, None, None, None, False, None, None)
    assert compiled == []


@pytest.mark.parametrize("sizes", [{"rows": 1}, {"n": 1}, {"k": 1}, {"num_groups": 1}])
@pytest.mark.parametrize("form", ["ragged_m", "ragged_k"])
@pytest.mark.parametrize("b_k_major", [False, True])
def test_a_described_problem_is_that_of_the_call(sizes, form, b_k_major):
    """A dimension of length 1 has no stride, in a description as in an array."""
    from gemmjit.ops.validation import problem_of

    size = {"num_groups": 3, "rows": 16, "n": 24, "k": 32, **sizes}
    g, rows, n, k = size.values()
    if form == "ragged_m":
        a, b = np.zeros((rows, k)), np.zeros((g, n, k)).mT if b_k_major else np.zeros((g, k, n))
    else:
        a, b = np.zeros((rows, k)).T, np.zeros((n, rows)).T if b_k_major else np.zeros((rows, n))
    arrays = [x.astype(np.float16, order="K") for x in (a, b)]
    view = frontend_of(arrays[0], "mat_a").view
    call = problem_of(*map(view, arrays), None, g, None, None, False)
    told = Problem.contiguous(form, **size, dtype="float16", b_k_major=b_k_major, schedule="list")
    assert told.strides == call.strides
    assert told == replace(call, a_alignment=16, b_alignment=16)
