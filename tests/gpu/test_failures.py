"""What must fail on a GPU fails by name, and the next call works."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import references
from cases import integers
from references import assert_same, rounded

import gemmjit
from gemmjit.arch import Arch
from gemmjit.cuda.device import device
from gemmjit.errors import InvalidDtypeError, InvalidProblemError, LaunchError

ENDS = [11, 11, 40]


@pytest.fixture
def operands(maker):
    a = maker.array(integers((40, 64), seed=1), "bfloat16")
    b = maker.array(integers((3, 64, 48), seed=2), "bfloat16")
    return a, b, maker.array(np.asarray(ENDS), "int32")


@pytest.fixture
def kernel():
    return gemmjit.compile("k1", arch=device(0).arch)


@pytest.fixture(autouse=True)
def works_afterwards(maker, operands):
    """After every failure the context is as good as before."""
    yield
    a, b, offs = operands
    want = references.fprop(maker.read(a), maker.read(b), ENDS)
    for config in (None, "k0", "k1"):
        got = gemmjit.grouped_mm(a, b, offs=offs, config=config)
        assert_same(maker.read(got), rounded(want, "bfloat16"))


def test_a_compiled_kernel_launches(maker, operands, kernel):
    a, b, offs = operands
    want = references.fprop(maker.read(a), maker.read(b), ENDS)
    assert_same(maker.read(kernel.launch(a, b, offs=offs)), rounded(want, "bfloat16"))


def test_br064_a_launch_that_the_driver_refuses(operands, kernel):
    a, b, offs = operands
    wrong = replace(kernel, threads=512)  # compiled for 256
    with pytest.raises(LaunchError) as caught:
        wrong.launch(a, b, offs=offs)
    text = str(caught.value)
    for part in (kernel.entry, "grid", "block", "512", "shared memory"):
        assert part in text


def test_br065_more_shared_memory_than_there_is(operands, kernel):
    a, b, offs = operands
    wrong = replace(kernel, smem_bytes=400_000)
    with pytest.raises(LaunchError, match=r"400000 bytes.*smaller tile or fewer stages"):
        wrong.launch(a, b, offs=offs)


@pytest.mark.parametrize("damage", ["text", "header"])
def test_a_cubin_that_is_none(operands, kernel, damage):
    a, b, offs = operands
    cubin = {
        "text": b"this is not a cubin, and long enough to be read as one" * 10,
        "header": kernel.cubin[:64] + bytes(len(kernel.cubin) - 64),
    }[damage]
    wrong = replace(kernel, cubin=cubin, identity=f"damaged {damage}")
    with pytest.raises(LaunchError) as caught:
        wrong.launch(a, b, offs=offs)
    assert kernel.entry in str(caught.value) or "cuLibraryGetKernel" in str(caught.value)


def test_a_cubin_without_the_kernel(operands, kernel):
    a, b, offs = operands
    wrong = replace(kernel, entry="gemmjit_nobody", identity="without the kernel")
    with pytest.raises(LaunchError, match="gemmjit_nobody"):
        wrong.launch(a, b, offs=offs)


def test_br108_a_cubin_of_another_architecture(operands):
    a, b, offs = operands
    here = device(0).arch
    other = next(t for t in map(Arch.parse, ("sm_120f", "sm_100f", "sm_86")) if not t.runs_on(here))
    with pytest.raises(LaunchError, match=f"for {other}"):
        gemmjit.compile("k1", arch=other).launch(a, b, offs=offs)


def test_a_kernel_of_another_variant(maker, operands, kernel):
    a, _, offs = operands
    stored = maker.array(integers((3, 48, 64), seed=2), "bfloat16")
    with pytest.raises(gemmjit.errors.InvalidConfigError, match="b_k_major False"):
        kernel.launch(a, stored.swapaxes(1, 2), offs=offs)


def test_br008_no_rows_and_null_pointers(maker, operands):
    _, b, _ = operands
    a = maker.array(np.zeros((0, 64)), "bfloat16")
    offs = maker.array(np.zeros(3), "int32")
    got = gemmjit.grouped_mm(a, b, offs=offs)
    assert maker.owns(got)
    assert tuple(got.shape) == (0, 48)


def test_host_and_device_arrays_do_not_mix(maker, operands):
    a, b, offs = operands
    if maker.name == "torch":
        with pytest.raises(InvalidProblemError, match=r"mat_b: .*cuda:0.*the CPU"):
            gemmjit.grouped_mm(a, b.cpu(), offs=offs)
        out = maker.torch.empty(40, 48, dtype=a.dtype)
        with pytest.raises(InvalidProblemError, match=r"out: .*cuda:0.*the CPU"):
            gemmjit.grouped_mm(a, b, offs=offs, out=out)
        host = gemmjit.grouped_mm(a, b, offs=offs.cpu())  # offsets on the host are welcome
        assert maker.torch.equal(host, gemmjit.grouped_mm(a, b, offs=offs))
    else:
        with pytest.raises(InvalidDtypeError, match="mat_b: expected a cupy array"):
            gemmjit.grouped_mm(a, np.zeros((3, 64, 48), np.float32), offs=offs)


def test_offsets_of_another_framework(cupy_maker, torch_maker, operands, maker):
    a, b, _ = operands
    other = cupy_maker if maker.name == "torch" else torch_maker
    offs = other.array(np.asarray(ENDS), "int32")
    with pytest.raises(InvalidDtypeError, match="offs: expected an array of the framework"):
        gemmjit.grouped_mm(a, b, offs=offs)


def test_parameters_and_gradients(torch_maker):
    torch = torch_maker.torch
    a = torch.nn.Parameter(torch.ones(40, 64, device="cuda").bfloat16())
    b = torch.nn.Parameter(torch.ones(3, 64, 48, device="cuda").bfloat16())
    offs = torch.tensor(ENDS, dtype=torch.int32, device="cuda")
    gemmjit.grouped_mm(a, b, offs=offs).sum().backward()
    assert (a.grad == 48).all()
    rows = torch.diff(offs, prepend=offs.new_zeros(1))
    assert (b.grad == rows[:, None, None]).all()
    out = torch.empty(40, 48, device="cuda", dtype=torch.bfloat16)
    with pytest.raises(InvalidProblemError, match="out: expected none where a gradient is wanted"):
        gemmjit.grouped_mm(a, b, offs=offs, out=out)
    with torch.no_grad():
        assert (gemmjit.grouped_mm(a, b, offs=offs) == 64).all()
        assert (gemmjit.grouped_mm(a, b, offs=ENDS) == 64).all()


def test_out_over_an_operand_of_a_remembered_call(maker, operands):
    # The check is of addresses, so it must not be remembered with the shapes.
    a, _, offs = operands
    b = maker.array(integers((3, 64, 64), seed=3), "bfloat16")
    out = maker.full((40, 64), 0, "bfloat16")
    gemmjit.grouped_mm(a, b, offs=offs, out=out)
    with pytest.raises(InvalidProblemError, match="out: expected memory that mat_a does not use"):
        gemmjit.grouped_mm(a, b, offs=offs, out=a)
