"""torch tensors in host memory: the whole contract, and what only torch has."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from cases import Target
from contract_groups import GroupsContract, check_fprop, operands
from contract_layouts import LayoutsContract
from contract_numerics import NumericsContract

import gemmjit
from gemmjit.arrays import frontend_of
from gemmjit.errors import InvalidDtypeError, InvalidProblemError

torch = pytest.importorskip("torch")


@pytest.fixture(params=["list", "int64"])
def target(request, monkeypatch):
    from makers import TorchMaker

    monkeypatch.setenv("GEMMJIT_EXECUTOR", "reference")
    return Target(TorchMaker("cpu"), request.param)


class TestGroups(GroupsContract):
    pass


class TestLayouts(LayoutsContract):
    pass


class TestNumerics(NumericsContract):
    pass


def test_tensors_run_through_the_emulator_too(monkeypatch):
    from makers import TorchMaker

    monkeypatch.setenv("GEMMJIT_EXECUTOR", "emulator")
    for config in ("k0", "k1"):
        a, b, ends = operands(Target(TorchMaker("cpu")), (5, 0, 9), n=24, k=40, tail=3)
        check_fprop(Target(TorchMaker("cpu"), "int32", config), a, b, ends)


def test_transposed_weights_are_views():
    a, w = torch.ones(8, 16), torch.ones(2, 24, 16)
    assert (gemmjit.grouped_mm(a, w.mT, offs=[3, 8]) == 16).all()


@pytest.mark.parametrize("which", ["mat_a", "mat_b"])
def test_gradients_are_recorded_unless_they_are_off(which):
    a, b = torch.ones(8, 16), torch.ones(2, 16, 24)
    (a if which == "mat_a" else b).requires_grad_()
    got = gemmjit.grouped_mm(a, b, offs=[3, 8])
    assert got.requires_grad
    assert (got == 16).all()
    with torch.no_grad():
        got = gemmjit.grouped_mm(a, b, offs=[3, 8])
    assert (got == 16).all()
    assert not got.requires_grad
    assert not gemmjit.grouped_mm(a.detach(), b.detach(), offs=[3, 8]).requires_grad


def test_a_kernel_of_the_toolkit_refuses_gradients():
    kernel = gemmjit.compile("k0", in_dtype="float32", out_dtype="float32")
    a, b = torch.ones(8, 16, requires_grad=True), torch.ones(2, 16, 24)
    with pytest.raises(InvalidProblemError, match="mat_a: expected a tensor without requires"):
        kernel.launch(a, b, offs=[3, 8])
    assert (kernel.launch(a.detach(), b, offs=[3, 8]) == 16).all()


def test_parameters_are_tensors():
    a, b = torch.ones(8, 16), torch.nn.Parameter(torch.ones(2, 16, 24))
    with torch.no_grad():
        assert (gemmjit.grouped_mm(a, b, offs=torch.tensor([3, 8])) == 16).all()


def test_frameworks_do_not_mix():
    a, b = torch.ones(8, 16), np.ones((2, 16, 24), np.float32)
    with pytest.raises(InvalidDtypeError, match=r"mat_b: expected a torch array.*got a numpy one"):
        gemmjit.grouped_mm(a, b, offs=[3, 8])
    with pytest.raises(InvalidDtypeError, match=r"out: expected a torch array.*got a numpy one"):
        gemmjit.grouped_mm(a, torch.ones(2, 16, 24), offs=[3, 8], out=np.ones((8, 24), np.float32))
    with pytest.raises(InvalidDtypeError, match=r"mat_b: expected a numpy array.*got a torch one"):
        gemmjit.grouped_mm(np.ones((8, 16), np.float32), torch.ones(2, 16, 24), offs=[3, 8])


def test_offsets_may_come_from_numpy():
    a, b = torch.ones(8, 16), torch.ones(2, 16, 24)
    assert (gemmjit.grouped_mm(a, b, offs=np.array([3, 8])) == 16).all()
    assert (gemmjit.grouped_mm(a.numpy(), b.numpy(), offs=torch.tensor([3, 8])) == 16).all()


@pytest.mark.parametrize("dtype", ["complex64", "int16", "float8_e4m3fn"])
def test_types_without_a_kernel(dtype):
    a = torch.zeros(8, 16).to(getattr(torch, dtype))
    with pytest.raises(
        InvalidDtypeError,
        match=f"mat_a: expected one of bfloat16, float16, float32; got torch.{dtype}",
    ):
        gemmjit.grouped_mm(a, torch.zeros(2, 16, 24), offs=[3, 8])


def test_tensors_on_other_devices():
    class Device:
        type = "xpu"

        def __str__(self):
            return "xpu:0"

    class Tensor:
        """What a tensor on a device that is not at hand answers."""

        dtype, device, is_cuda = torch.float32, Device(), False

    with pytest.raises(InvalidProblemError, match=r"mat_a: expected a tensor on a CUDA.*xpu:0"):
        frontend_of(torch.ones(1), "mat_a").view(Tensor(), "mat_a")


def test_out_dtype_may_be_a_torch_type():
    a, b = torch.ones(8, 16).bfloat16(), torch.ones(2, 16, 24).bfloat16()
    got = gemmjit.grouped_mm(a, b, offs=[3, 8], out_dtype=torch.float32)
    assert got.dtype is torch.float32
    assert (got == 16).all()


def test_torch_is_imported_only_by_those_who_have_it():
    program = (
        "import sys, numpy as np, gemmjit; "
        "gemmjit.grouped_mm(np.ones((4, 8), 'f4'), np.ones((1, 8, 2), 'f4'), offs=[4]); "
        "print(sorted({'torch', 'cupy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
