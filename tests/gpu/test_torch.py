"""torch on a GPU: gradients, compilation, graphs, streams, and what a step waits for."""

from __future__ import annotations

import importlib.util
import shutil
import statistics
from pathlib import Path

import pytest

pytest.importorskip("torch")

from torch_gradients import assert_close, in_double

import gemmjit

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "train_moe.py"
SIZES = (130, 0, 1, 257, 64)


@pytest.fixture(autouse=True)
def seeded(torch):
    torch.manual_seed(0)
    torch._dynamo.reset()


def ends_of(sizes):
    ends, total = [], 0
    for size in sizes:
        total += size
        ends.append(total)
    return ends


def make(torch, dtype="bfloat16", sizes=SIZES, k=96, n=160, tail=12, grad=True):
    ends = ends_of(sizes)
    kind = {"device": "cuda", "dtype": getattr(torch, dtype)}
    x = torch.randn(ends[-1] + tail, k, **kind, requires_grad=grad)
    w = torch.randn(len(sizes), n, k, **kind, requires_grad=grad)
    offs = torch.tensor(ends, dtype=torch.int32, device="cuda")
    return x, w, offs, ends, torch.randn(ends[-1] + tail, n, **kind)


def on_cpu(*tensors):
    return [t.detach().cpu() for t in tensors]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_gradients_of_ragged_m(torch, dtype):
    x, w, offs, ends, dy = make(torch, dtype)
    bias = torch.randn(len(SIZES), 160, dtype=x.dtype, device="cuda", requires_grad=True)
    y = gemmjit.grouped_mm(x, w.mT, offs=offs, bias=bias)
    y.backward(dy)
    assert w.grad.is_contiguous()
    found = on_cpu(y, x.grad, w.grad.mT, bias.grad)
    assert_close(found, on_cpu(x, w.mT, bias), ends, dy.cpu(), x.dtype)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_gradients_of_ragged_k(torch, dtype):
    x, _, offs, ends, _ = make(torch, dtype)
    b = torch.randn(x.shape[0], 160, dtype=x.dtype, device="cuda", requires_grad=True)
    dy = torch.randn(len(SIZES), 96, 160, dtype=x.dtype, device="cuda")
    y = gemmjit.grouped_mm(x.mT, b, offs=offs)
    y.backward(dy)
    found = on_cpu(y, x.grad.mT, b.grad)
    assert_close(found, on_cpu(x.mT, b), ends, dy.cpu(), x.dtype)


def test_opcheck(torch):
    import gemmjit.integrations.torch_operator  # noqa: F401

    x, w, offs, _, dy = make(torch)
    operator = torch.ops.gemmjit.grouped_mm.default
    torch.library.opcheck(operator, (x, w.mT, offs))
    torch.library.opcheck(operator, (x.mT, dy, offs))
    out = torch.zeros(x.shape[0], 160, device="cuda")
    arguments = (x.detach(), w.detach().mT, offs, None, out, True)
    torch.library.opcheck(torch.ops.gemmjit.grouped_mm_out.default, arguments)


def test_a_step_waits_for_nothing(torch):
    x, w, offs, _, dy = make(torch)
    for turn in range(3):
        torch.cuda.synchronize()
        if turn:  # the first compiles and loads kernels
            torch.cuda.set_sync_debug_mode("error")
        try:
            gemmjit.grouped_mm(x, w.mT, offs=offs).backward(dy)
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_compiles_whole_with_dynamic_shapes(torch):
    if shutil.which("gcc") is None and shutil.which("cc") is None:
        pytest.skip("inductor needs a C compiler for its launchers")
    pytest.importorskip("triton")

    def layer(x, w, offs):
        return gemmjit.grouped_mm(x, w.mT, offs=offs).relu() * 2

    compiled = torch.compile(layer, fullgraph=True, dynamic=True)
    for rows in (64, 100):
        x, w, offs, _, dy = make(torch, sizes=(rows, 0, rows + 1))
        results = (f(x, w, offs) for f in (compiled, layer))
        found, want = ([y, *torch.autograd.grad(y, (x, w), dy)] for y in results)
        for got, expected in zip(found, want, strict=True):
            assert torch.equal(got, expected)


def test_a_step_in_a_graph_follows_its_offsets(torch):
    x, w, offs, ends, dy = make(torch)

    def step():
        y = gemmjit.grouped_mm(x, w.mT, offs=offs)
        return [y, *torch.autograd.grad(y, (x, w), dy)]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step()
    for sizes in (SIZES, (0, 400, 0, 3, 0), (1, 1, 1, 1, 1)):
        ends = ends_of(sizes)
        offs.copy_(torch.tensor(ends))
        graph.replay()
        y, dx, dw = on_cpu(*results)
        assert_close([y, dx, dw.mT], on_cpu(x, w.mT), ends, dy.cpu(), x.dtype)


def test_backward_runs_on_the_stream_of_forward(torch):
    x, w, offs, _, dy = make(torch)
    gemmjit.grouped_mm(x, w.mT, offs=offs).backward(dy)
    want = on_cpu(x.grad, w.grad)
    x.grad = w.grad = None
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)
        y = gemmjit.grouped_mm(x, w.mT, offs=offs)
    torch.cuda.current_stream().wait_stream(side)
    y.backward(dy)
    for got, expected in zip(on_cpu(x.grad, w.grad), want, strict=True):
        assert torch.equal(got, expected)


def test_main_gradients(torch):
    from gemmjit.integrations.torch import grouped_linear

    x, w, offs, ends, dy = make(torch)
    w.main_grad = torch.randn(w.shape, device="cuda")
    before = w.main_grad.clone()
    for _ in range(2):
        grouped_linear(x, w, offs, accumulate_main_grad=True).backward(dy)
    assert w.grad is None
    want, magnitude = (
        in_double(on_cpu(x, w.mT), ends, dy.cpu(), change)[2].mT
        for change in (lambda t: t, torch.abs)
    )
    start = before.cpu().double()
    off = (w.main_grad.cpu().double() - start - 2 * want).abs()
    bound = (2 * max(SIZES) + 4) * 2.0**-24 * (2 * magnitude + start.abs())
    assert (off <= bound).all()
    assert torch.equal(w.main_grad[1], before[1])


def test_autocast(torch):
    from gemmjit.integrations.torch import grouped_linear

    x, w, offs, _, dy = make(torch, "float32")
    with torch.autocast("cuda", torch.bfloat16):
        assert gemmjit.grouped_mm(x, w.mT, offs=offs).dtype is torch.float32
        y = grouped_linear(x, w, offs)
    assert y.dtype is torch.bfloat16
    y.backward(dy.bfloat16())
    assert w.grad.dtype is torch.float32


@pytest.mark.parametrize("form", ["2d x 3d", "2d x 2d", "3d x 2d", "3d x 3d"])
def test_the_replacement_gives_what_torch_gives(torch, form):
    from gemmjit.integrations.torch import grouped_mm

    theirs = getattr(torch.nn.functional, "grouped_mm", None) or torch._grouped_mm
    kind = {"device": "cuda", "dtype": torch.bfloat16}
    offs = torch.tensor([64, 128, 192], dtype=torch.int32, device="cuda")
    a, b, offs = {
        "2d x 3d": (torch.randn(192, 64, **kind), torch.randn(3, 96, 64, **kind).mT, offs),
        "2d x 2d": (torch.randn(192, 64, **kind).mT, torch.randn(192, 96, **kind), offs),
        "3d x 2d": (torch.randn(3, 64, 96, **kind), torch.randn(192, 96, **kind).mT, offs),
        "3d x 3d": (torch.randn(3, 64, 96, **kind), torch.randn(3, 32, 96, **kind).mT, None),
    }[form]
    got, want = grouped_mm(a, b, offs=offs), theirs(a, b, offs=offs)
    assert got.shape == want.shape
    # Both sum up to 96 products in FP32 and round once; two roundings of 2^-8 of the value, and
    # what the sums may differ by, relative to the sum of magnitudes.
    magnitude = theirs(a.abs(), b.abs(), offs=offs).double()
    bound = 2.0**-7 * want.double().abs() + 2 * 98 * 2.0**-24 * magnitude * (1 + 2.0**-8)
    assert ((got.double() - want.double()).abs() <= bound).all()


def test_a_transformer_learns_the_same_by_both_backends():
    spec = importlib.util.spec_from_file_location("train_moe", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    sizes = "--steps 20 --layers 2 --model 128 --hidden 128 --experts 8 --batch 4 --length 128"
    report = example.main([*sizes.split(), "--sentences", "2000", "--noise", "--device", "cuda"])
    runs, far = report["runs"], report["furthest_from_torch"]
    assert runs["gemmjit"]["loss"][-1] < runs["gemmjit"]["loss"][0] - 0.3
    # About as far as rounding the weights takes it, of which the third run is one draw; and as far
    # as the mean of 512 tokens is rounded, twice, in FP32.
    rounding = 2 * (512 + 2) * 2.0**-24 * max(runs["torch"]["loss"])
    assert far["gemmjit"] <= 2 * far["torch, perturbed"] + rounding


def test_br085_one_giant_expert_beside_small_ones_is_no_slower_than_a_loop(torch):
    """4,096 rows, 32 experts, (6144, 2048); the loop knows its sizes on the host."""
    sizes = [4096 - 31 * 4] + [4] * 31
    x, w, offs, ends, _ = make(torch, sizes=sizes, k=2048, n=6144, tail=0, grad=False)
    out = torch.empty(4096, 6144, dtype=x.dtype, device="cuda")
    pieces = list(zip([0, *ends[:-1]], ends, strict=True))

    def loop():
        for group, (i, j) in enumerate(pieces):
            torch.mm(x[i:j], w[group].mT, out=out[i:j])

    def grouped():
        gemmjit.grouped_mm(x, w.mT, offs=offs, out=out)

    def timed(function):
        graph = torch.cuda.CUDAGraph()
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            function()
        side.synchronize()
        with torch.cuda.graph(graph):
            for _ in range(10):
                function()
        return graph

    graphs = {f.__name__: timed(f) for f in (loop, grouped)}
    ratios = []
    for _ in range(15):
        seconds = {}
        for name, graph in graphs.items():
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            stop.record()
            stop.synchronize()
            seconds[name] = start.elapsed_time(stop)
        ratios.append(seconds["grouped"] / seconds["loop"])
    ratio = statistics.median(ratios)
    assert ratio <= 1.1, f"grouped takes {ratio:.2f} times the loop's time"
