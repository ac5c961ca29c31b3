"""Which way launches go to the driver: by CuPy, if it is what we know; else by the bindings."""

from __future__ import annotations

import sys
import types

import pytest
from fake_gpu import framework

from gemmjit.cuda import starter

SHAPE = ((132, 1, 1), (384, 1, 1), 1024)


def module(signature=starter._SIGNATURE, error=RuntimeError, trouble=None):
    """Return what stands for CuPy's module."""

    def launch(*arguments):
        return None

    def current():
        if trouble is not None:
            raise trouble

    launch.__doc__ = signature + "\n"
    return types.SimpleNamespace(launchKernel=launch, CUDADriverError=error, ctxGetCurrent=current)


@pytest.mark.parametrize(
    ("found", "used"),
    [
        (module(), True),
        (module(signature="launchKernel(intptr_t f)"), False),
        (module(error=None), False),
        (module(trouble=RuntimeError("CuPy failed to load libcuda.so.1")), False),
        (types.SimpleNamespace(), False),
        (None, False),
    ],
)
def test_cupy_is_used_if_it_is_what_we_know(monkeypatch, found, used):
    monkeypatch.setitem(sys.modules, "cupy_backends.cuda.api.driver", found)
    monkeypatch.setitem(sys.modules, "cupy", types.ModuleType("cupy"))
    assert (starter._of_cupy() is found and found is not None) == used
    monkeypatch.delitem(sys.modules, "cupy")
    assert starter._of_cupy() is None  # and nothing of it is imported


def test_the_function_of_the_cupy_that_is_installed_is_known():
    pytest.importorskip("cupy")
    driver = sys.modules["cupy_backends.cuda.api.driver"]
    assert driver.launchKernel.__doc__.startswith(starter._SIGNATURE)
    assert issubclass(driver.CUDADriverError, Exception)


@pytest.mark.parametrize("name", ["torch", "cupy"])
def test_handles_that_no_graph_can_capture(name, monkeypatch):
    pytest.importorskip(name)
    with framework(name) as (fake, _):
        found = starter.starter(1, *SHAPE)
        assert found.takes_handles == (name == "cupy")
        assert found.never_captured == 0
        # As the bindings can be told: 0 is the default stream of the thread.
        real = fake.cuStreamGetId
        monkeypatch.setattr(fake, "cuStreamGetId", lambda s: real(2 if s == 0 else s), False)
        assert starter.starter(1, *SHAPE).never_captured == (0 if name == "cupy" else -1)
