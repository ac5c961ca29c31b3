"""The parameter space is closed: a point is refused with a reason, or compiles and is right.

Points are tiles, variants and targets of every kernel, values that nobody should pass among them.
Never may one end in an error or a warning of NVRTC or ptxas, a `static_assert`, an empty kernel, a
spill, or a fault in the emulator. A sample is drawn here; ``pytest -m slow tests/compile`` draws
many more.
"""

from __future__ import annotations

import collections
import random
import re

import parameter_space
import pytest
from known_spills import known_spills
from makers import NumpyMaker

import gemmjit
from gemmjit.constraints import require, violations
from gemmjit.errors import InvalidConfigError
from gemmjit.kernels import KERNELS, KernelSpec
from gemmjit.ops.toolkit import LaunchableKernel

PRODUCTS = {"k0": "fma.rn.f32", "k1": "mma.sync", "k2": "mma.sync", "k3": "wgmma.mma_async"}

#: Array sets that each compiled kernel is launched on.
LAUNCHES = 2


@pytest.fixture(autouse=True)
def emulated(monkeypatch):
    monkeypatch.setenv("GEMMJIT_EXECUTOR", "emulator")


def compiled(spec: KernelSpec) -> LaunchableKernel:
    fields = {name: getattr(spec.variant, name) for name in spec.variant.__dataclass_fields__}
    return gemmjit.compile(spec.name, spec.config, spec.target, **fields)


def examine(spec: KernelSpec, monkeypatch) -> str:
    """Return what became of a point: refused, or compiled, and perhaps launched."""
    reasons = violations(spec.kernel, spec.config, spec.variant, spec.target)
    if reasons:
        for reason in reasons:
            assert re.match(r"[a-z_ ]+(:| must be )", reason), reason
            assert re.search(r"\bgot\b|allows", reason), reason
        with pytest.raises(InvalidConfigError) as caught:
            require(spec.kernel, spec.config, spec.variant, spec.target)
        assert all(reason in str(caught.value) for reason in reasons)
        return "refused"
    kernel = compiled(spec)
    assert PRODUCTS[spec.name] in kernel.ptx
    assert "warning" not in kernel.log.lower(), kernel.log
    assert kernel.occupancy >= 1
    resident = gemmjit.occupancy(kernel.registers, kernel.threads, 0, spec.target)
    assert resident >= spec.config.min_blocks_per_sm
    assert kernel.spills <= known_spills(spec), f"{kernel.spills} bytes with {spec.config!r}"
    monkeypatch.setenv("GEMMJIT_ARCH", str(spec.target))
    rng = random.Random(spec.entry)
    launched = sum(parameter_space.launch(rng, kernel, NumpyMaker()) for _ in range(LAUNCHES))
    return "launched" if launched else "compiled"


def examine_all(name: str, count: int, seed: int, monkeypatch) -> collections.Counter[str]:
    found: collections.Counter[str] = collections.Counter()
    for spec in parameter_space.specs(KERNELS[name], count, seed):
        try:
            found[examine(spec, monkeypatch)] += 1
        except Exception as error:
            error.add_note(f"{spec!r}")
            raise
    return found


def run_calls(name: str, count: int, seed: int, monkeypatch) -> collections.Counter[str]:
    found: collections.Counter[str] = collections.Counter()
    for call in parameter_space.calls(KERNELS[name], count, seed):
        monkeypatch.setenv("GEMMJIT_ARCH", str(call.target))
        try:
            call.run(NumpyMaker())
            found["right"] += 1
        except InvalidConfigError:  # needs more shared memory for these operands, say
            found["refused"] += 1
        except Exception as error:
            error.add_note(f"{call!r}")
            raise
    return found


@pytest.mark.parametrize("name", KERNELS)
def test_points_sample(name, monkeypatch):
    found = examine_all(name, 24, 0, monkeypatch)
    # The sample says something: it has points of both kinds.
    assert found["refused"] >= 3
    assert found["launched"] >= 4


@pytest.mark.parametrize("name", KERNELS)
def test_calls_sample(name, monkeypatch):
    found = run_calls(name, 4, 0, monkeypatch)
    assert found["right"] >= 3


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 9))
@pytest.mark.parametrize("name", KERNELS)
def test_points_at_length(name, seed, monkeypatch):
    found = examine_all(name, 60, seed, monkeypatch)
    assert found["refused"] >= 10
    assert found["launched"] >= 5


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 9))
@pytest.mark.parametrize("name", KERNELS)
def test_calls_at_length(name, seed, monkeypatch):
    assert run_calls(name, 20, seed, monkeypatch)["right"] >= 15


def test_every_field_and_value_is_drawn():
    for kernel in KERNELS.values():
        drawn = list(parameter_space.specs(kernel, 2000))
        for name in kernel.default_config.to_dict():
            # True and 1 are equal, and so are 64 and 64.0.
            seen = {(type(value := getattr(spec.config, name)), value) for spec in drawn}
            assert {(type(v), v) for v in parameter_space.FIELDS[name]} <= seen, name
        for name in kernel.default_config.to_dict().keys() & {"specialize", "schedule"}:
            sound = {getattr(s.config, name) for s in drawn
                     if not violations(s.kernel, s.config, s.variant, s.target)}  # fmt: skip
            assert len(sound) >= 2, name
        assert {spec.target for spec in drawn} == set(parameter_space.TARGETS)
