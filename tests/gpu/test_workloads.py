"""Real sizes: the seed's workload and a real routing step, exact against float64 on the GPU."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from cases import REAL_EXPERTS, ends_of

import gemmjit
from gemmjit import SimtConfig, Sm80MmaConfig
from gemmjit.workloads import power_law

GROUPS, K, N = 64, 1024, 2688

SIZES = {
    "16k-even": power_law(16384, GROUPS, 0).tolist(),
    "16k-skew": power_law(16384, GROUPS, 1.2).tolist(),
    "2k-even": power_law(2048, GROUPS, 0).tolist(),
    "2k-skew": power_law(2048, GROUPS, 1.2).tolist(),
    "real": list(REAL_EXPERTS),
}

CONFIGS = {
    "auto": None,
    "k0": SimtConfig(),
    "k1-128": Sm80MmaConfig(block_m=128),
    "k1-64": Sm80MmaConfig(block_m=64, min_blocks_per_sm=3),
    "k1-64-fdb": Sm80MmaConfig(block_m=64, min_blocks_per_sm=3, double_buffer_fragments=True),
    "k1-32": Sm80MmaConfig(block_m=32, min_blocks_per_sm=4),
}


@pytest.fixture(scope="module")
def data(torch):
    """Whole numbers, and their products in float64, made once per grouping."""
    generator = torch.Generator("cuda").manual_seed(7)

    def integers(*shape):
        return torch.randint(-3, 4, shape, generator=generator, device="cuda").bfloat16()

    weights = integers(GROUPS, K, N)
    made = {}

    def make(name):
        if name not in made:
            made.clear()  # one grouping at a time: the float64 results are large
            sizes = SIZES[name]
            ends, rows, w = ends_of(sizes), sum(sizes), weights[: len(sizes)]
            x, dy = integers(rows, K), integers(rows, N)
            y, dx, dw = _products(torch, sizes, x, w, dy)
            made[name] = SimpleNamespace(sizes=sizes, ends=ends, x=x, w=w, dy=dy, y=y, dx=dx, dw=dw)
        return made[name]

    yield make
    made.clear()
    torch.cuda.empty_cache()


def _products(torch, sizes, x, w, dy):
    y = torch.zeros(x.shape[0], N, dtype=torch.float64, device="cuda")
    dx = torch.zeros(x.shape[0], K, dtype=torch.float64, device="cuda")
    dw = torch.zeros(len(sizes), K, N, dtype=torch.float32, device="cuda")
    start = 0
    for g, size in enumerate(sizes):
        rows = slice(start, start + size)
        y[rows] = x[rows].double() @ w[g].double()
        dx[rows] = dy[rows].double() @ w[g].double().T
        dw[g] = x[rows].double().T @ dy[rows].double()
        start += size
    for product in (y, dx, dw):
        assert product.abs().max() < 2**24  # so that float32 sums are exact, in any order
    return y, dx, dw


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("config", CONFIGS)
def test_fprop_dgrad_and_wgrad(torch, data, name, config):
    d = data(name)
    config = CONFIGS[config]
    for offs in (torch.tensor(d.ends, dtype=torch.int32, device="cuda"), d.ends):
        got = gemmjit.grouped_mm(d.x, d.w, offs=offs, config=config)
        assert torch.equal(got, d.y.float().bfloat16())
        got = gemmjit.grouped_mm(d.dy, d.w.mT, offs=offs, config=config)
        assert torch.equal(got, d.dx.float().bfloat16())
        got = gemmjit.grouped_mm(d.x.T, d.dy, offs=offs, config=config, out_dtype=torch.float32)
        assert torch.equal(got, d.dw)


@pytest.mark.parametrize("name", SIZES)
def test_weights_that_are_stored_k_major(torch, data, name):
    d = data(name)
    stored = d.w.mT.contiguous()
    offs = torch.tensor(d.ends, dtype=torch.int64, device="cuda")
    for config in (None, "k0", "k1"):
        got = gemmjit.grouped_mm(d.x, stored.mT, offs=offs, config=config)
        assert torch.equal(got, d.y.float().bfloat16())


@pytest.mark.parametrize("name", SIZES)
def test_accumulated_weight_gradients(torch, data, name):
    d = data(name)
    offs = torch.tensor(d.ends, dtype=torch.int32, device="cuda")
    main_grad = torch.ones(len(d.sizes), K, N, dtype=torch.float32, device="cuda")
    for _ in range(2):
        gemmjit.grouped_mm(d.x.T, d.dy, offs=offs, out=main_grad, accumulate=True)
    assert torch.equal(main_grad, 2 * d.dw + 1)


@pytest.mark.parametrize("name", SIZES)
def test_float16_on_cupy(torch, cupy, data, name):
    d = data(name)
    offs = cupy.asarray(torch.tensor(d.ends, dtype=torch.int32, device="cuda"))
    torch.cuda.synchronize()  # torch and CuPy are on different streams here
    a, b, g = (cupy.asarray(t.half()) for t in (d.x, d.w, d.dy))
    torch.cuda.synchronize()
    results = [
        (gemmjit.grouped_mm(a, b, offs=offs), d.y.float().half()),
        (gemmjit.grouped_mm(g, b.transpose(0, 2, 1), offs=offs), d.dx.float().half()),
        (gemmjit.grouped_mm(a.T, g, offs=offs, out_dtype="float32"), d.dw),
    ]
    cupy.cuda.get_current_stream().synchronize()
    for got, want in results:
        assert type(got) is cupy.ndarray
        assert torch.equal(torch.as_tensor(got, device="cuda"), want)


def test_br001_sizes_of_the_report(torch):
    sizes = [162, 0, 2577, 446, 0, 83]
    x = torch.randint(-3, 4, (sum(sizes), 2048), device="cuda").bfloat16()
    dy = torch.randint(-3, 4, (sum(sizes), 768), device="cuda").bfloat16()
    offs = torch.tensor(ends_of(sizes), dtype=torch.int32, device="cuda")
    out = torch.full((6, 2048, 768), float("nan"), device="cuda")
    gemmjit.grouped_mm(x.T, dy, offs=offs, out=out)
    start = 0
    for g, size in enumerate(sizes):
        rows = slice(start, start + size)
        assert torch.equal(out[g].double(), x[rows].double().T @ dy[rows].double())
        start += size


def test_br062_more_groups_than_a_grid_dimension(torch):
    for groups in (65535, 65536, 65537):
        a = torch.randint(-3, 4, (groups, 16), device="cuda").bfloat16()
        b = torch.randint(-3, 4, (groups, 16, 16), device="cuda").bfloat16()
        offs = torch.arange(1, groups + 1, dtype=torch.int32, device="cuda")
        want = torch.bmm(a.double()[:, None], b.double())[:, 0]
        for given in (offs, offs.tolist()):
            assert torch.equal(gemmjit.grouped_mm(a, b, offs=given).double(), want)
        wgrad = gemmjit.grouped_mm(a.T, a, offs=offs, out_dtype=torch.float32)
        assert torch.equal(wgrad.double(), a.double()[:, :, None] * a.double()[:, None, :])
