"""Offsets beyond 2^31 elements, with 4 to 9 GiB of GPU memory each: pytest -m "gpu and slow"."""

from __future__ import annotations

import pytest

import gemmjit

pytestmark = [pytest.mark.slow]

CONFIGS = [None, "k0", "k1", "k2", "k3"]
WGRAD = [None, "k0", "k1", "k3"]


@pytest.fixture(autouse=True)
def room(torch):
    """Skip where the memory is not there, and give it back."""
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    if free < 12 << 30:
        pytest.skip(f"needs 12 GiB of free GPU memory; there are {free >> 30}")
    yield
    torch.cuda.empty_cache()


def integers(torch, *shape):
    return torch.randint(-3, 4, shape, device="cuda").bfloat16()


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("host", [False, True])
def test_br048_result_beyond_2_31_elements(torch, config, host):
    rows, n, k = 262160, 8192, 16
    assert rows * n > 2**31
    a, b = integers(torch, rows, k), integers(torch, 1, k, n)
    offs = [rows] if host else torch.tensor([rows], dtype=torch.int32, device="cuda")
    got = gemmjit.grouped_mm(a, b, offs=offs, config=config)
    for part in (slice(0, 16), slice(rows // 2, rows // 2 + 16), slice(rows - 16, rows)):
        assert torch.equal(got[part].double(), a[part].double() @ b[0].double())


@pytest.mark.parametrize("config", CONFIGS)
def test_br049_weights_beyond_2_31_elements(torch, config):
    groups, size = 129, 4096
    b = torch.full((groups, size, size), float("nan"), dtype=torch.bfloat16, device="cuda")
    b[-1] = integers(torch, size, size)
    a = integers(torch, 8, size)
    ends = [0] * (groups - 1) + [8]
    want = (a.double() @ b[-1].double()).bfloat16()
    for offs in (ends, torch.tensor(ends, dtype=torch.int64, device="cuda")):
        assert torch.equal(gemmjit.grouped_mm(a, b, offs=offs, config=config), want)


@pytest.mark.parametrize("config", CONFIGS)
def test_br052_rows_far_apart(torch, config):
    rows, stride, k = 65537, 32768 + 8, 16
    base = torch.full((rows, stride), float("nan"), dtype=torch.bfloat16, device="cuda")
    a = base[:, :k]
    a.copy_(integers(torch, rows, k))
    b = integers(torch, 2, k, 24)
    offs = torch.tensor([7, rows], dtype=torch.int32, device="cuda")
    got = gemmjit.grouped_mm(a, b, offs=offs, config=config)
    assert torch.equal(got[:7].double(), a[:7].double() @ b[0].double())
    assert torch.equal(got[7:].double(), a[7:].double() @ b[1].double())


@pytest.mark.parametrize("config", WGRAD)
def test_br052_contraction_far_apart(torch, config):
    # wgrad of rows that lie far apart, in both operands' last columns
    rows, stride, width = 65537, 32768 + 8, 16
    base = torch.full((rows, stride), float("nan"), dtype=torch.bfloat16, device="cuda")
    x = base[:, -width:]
    x.copy_(integers(torch, rows, width))
    offs = torch.tensor([7, rows], dtype=torch.int32, device="cuda")
    got = gemmjit.grouped_mm(x.T, x, offs=offs, config=config, out_dtype=torch.float32)
    for g, part in enumerate((slice(0, 7), slice(7, rows))):
        assert torch.equal(got[g].double(), x[part].double().T @ x[part].double())


@pytest.mark.parametrize("config", WGRAD)
def test_weight_gradients_beyond_2_31_elements(torch, config):
    groups, size = 129, 4096
    x, dy = integers(torch, 8, size), integers(torch, 8, size)
    out = torch.full((groups, size, size), float("nan"), dtype=torch.bfloat16, device="cuda")
    offs = torch.tensor([0] * (groups - 1) + [8], dtype=torch.int32, device="cuda")
    gemmjit.grouped_mm(x.T, dy, offs=offs, out=out, config=config)
    assert torch.equal(out[-1].double(), x.double().T @ dy.double())
    assert not out[:-1].any()


@pytest.mark.parametrize("config", CONFIGS)
def test_strided_result_beyond_2_31_elements(torch, config):
    rows, stride, n, k = 65537, 32768 + 8, 24, 16
    base = torch.full((rows, stride), 7.0, dtype=torch.bfloat16, device="cuda")
    out = base[:, 8 : 8 + n]
    a, b = integers(torch, rows, k), integers(torch, 1, k, n)
    offs = torch.tensor([rows], dtype=torch.int32, device="cuda")
    gemmjit.grouped_mm(a, b, offs=offs, out=out, config=config)
    assert torch.equal(out.double(), a.double() @ b[0].double())
    assert (base[:, :8] == 7).all()
    assert (base[:, 8 + n :] == 7).all()
