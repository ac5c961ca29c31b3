"""torch.compile, torch.export and activation checkpoints over grouped_mm."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from torch.utils.checkpoint import (  # noqa: E402
    checkpoint,
    create_selective_checkpoint_contexts,
)

import gemmjit  # noqa: E402
from gemmjit.integrations import torch_operator  # noqa: E402
from gemmjit.integrations.config_text import from_text, to_text  # noqa: E402

ENDS = [4, 4, 14]
OPERATOR = torch.ops.gemmjit.grouped_mm.default


@pytest.fixture(autouse=True)
def reference(monkeypatch):
    monkeypatch.setenv("GEMMJIT_EXECUTOR", "reference")
    torch._dynamo.reset()
    torch.manual_seed(0)


@pytest.fixture
def ran(monkeypatch):
    """How often the operator's implementation ran."""
    seen = []
    real = torch_operator.grouped_mm
    monkeypatch.setattr(
        torch_operator, "grouped_mm", lambda *a, **k: seen.append(k) or real(*a, **k)
    )
    return seen


def operands(rows=16, k=32, n=24, grad=True, dtype=torch.float32):
    x = torch.randn(rows, k, dtype=dtype, requires_grad=grad)
    w = torch.randn(3, n, k, dtype=dtype, requires_grad=grad)
    return x, w, torch.tensor(ENDS, dtype=torch.int32)


def layer(x, w, offs):
    return gemmjit.grouped_mm(x, w.mT, offs=offs).relu() * 2


def step(function, x, w, offs):
    y = function(x, w, offs)
    return [y.detach(), *torch.autograd.grad(y.square().sum(), [x, w])]


def assert_same(found, want):
    for got, expected in zip(found, want, strict=True):
        assert got.stride() == expected.stride()
        assert torch.equal(got, expected)


# torch.compile


BACKENDS = [
    "aot_eager",
    pytest.param(
        "inductor",
        marks=pytest.mark.skipif(
            shutil.which("g++") is None, reason="inductor needs a C++ compiler for CPU tensors"
        ),
    ),
]


@pytest.mark.parametrize("backend", BACKENDS)
def test_compiles_whole_with_dynamic_shapes(backend, ran):
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=backend)
    x, w, offs = operands()
    assert_same(step(compiled, x, w, offs), step(layer, x, w, offs))
    assert len(ran) == 3  # forward, dgrad, wgrad
    frames = torch._dynamo.utils.counters["frames"]["ok"]
    for rows in (20, 33, 64):  # other sizes, the same code
        x = torch.randn(rows, 32, requires_grad=True)
        assert_same(step(compiled, x, w, offs), step(layer, x, w, offs))
    assert torch._dynamo.utils.counters["frames"]["ok"] == frames
    assert not torch._dynamo.utils.counters["graph_break"]


def test_compiles_in_a_process_that_never_ran_it():
    """Nothing has registered the operator there; nor was torch imported first."""
    program = (
        "from gemmjit import grouped_mm\n"
        "import torch\n"
        "f = torch.compile(lambda a, b, o: grouped_mm(a, b, offs=o), fullgraph=True, "
        "dynamic=True, backend='aot_eager')\n"
        "o = torch.tensor([3, 8], dtype=torch.int32)\n"
        "print(f(torch.ones(8, 16), torch.ones(2, 16, 24), o).unique().tolist())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[16.0]", done.stderr


def test_compiled_calls_take_what_plain_ones_take():
    x, w, offs = operands(grad=False, dtype=torch.bfloat16)
    bias = torch.randn(3, 24).bfloat16()
    config = gemmjit.Sm80MmaConfig(block_m=64)

    def calls(x, w, offs, bias):
        return (
            gemmjit.grouped_mm(x, w.mT, offs=offs, bias=bias, config="k1"),
            gemmjit.grouped_mm(x, w.mT, offs=ENDS, out_dtype=torch.float32),
            gemmjit.grouped_mm(x.mT, x, offs=offs),
            gemmjit.grouped_mm(x, w.mT, offs=gemmjit.offsets.from_group_sizes(offs.new_ones(3))),
        )

    compiled = torch.compile(calls, fullgraph=True, dynamic=True, backend="aot_eager")
    assert_same(compiled(x, w, offs, bias), calls(x, w, offs, bias))
    assert from_text(to_text(config)) == config


@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_results_of_the_callers_own(ran, backend):
    x, w, offs = operands(grad=False)

    def into(x, w, offs, out):
        gemmjit.grouped_mm(x, w.mT, offs=offs, out=out, accumulate=True)
        return out * 2

    found, want = torch.ones(16, 24), torch.ones(16, 24)
    compiled = torch.compile(into, fullgraph=True, dynamic=True, backend=backend)
    assert_same([compiled(x, w, offs, found), found], [into(x, w, offs, want), want])
    assert len(ran) == 1


def test_br018_compiled_calls_without_a_contraction():
    def call(a, b, offs):
        return gemmjit.grouped_mm(a, b, offs=offs)

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    a, b = torch.zeros(8, 0).bfloat16(), torch.zeros(4, 0, 16).bfloat16()
    for ends in ([2, 4, 6, 8], [0, 0, 0, 0]):
        y = compiled(a, b, torch.tensor(ends, dtype=torch.int32))
        assert y.shape == (8, 16)
        assert (y == 0).all()


def test_numpy_arrays_in_compiled_code_stay_numpy_arrays():
    import numpy as np

    compiled = torch.compile(lambda a, b: gemmjit.grouped_mm(a, b, offs=[4]), backend="aot_eager")
    y = compiled(np.ones((4, 8), np.float32), np.ones((1, 8, 2), np.float32))
    assert type(y) is np.ndarray
    assert (y == 8).all()


def test_sizes_that_only_the_device_knows():
    """The number of rows comes from the data, as where tokens are dropped."""

    def routed(x, w, keep):
        rows = keep.nonzero().squeeze(1)
        offs = (keep.long().cumsum(0)[torch.tensor([3, 9, 15])]).int()
        return gemmjit.grouped_mm(x[rows], w.mT, offs=offs)

    x, w, _ = operands(grad=False)
    keep = torch.arange(16) % 3 != 1
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(routed, fullgraph=True, dynamic=True, backend="aot_eager")
        assert_same([compiled(x, w, keep)], [routed(x, w, keep)])


def test_export():
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.randn(3, 24, 32))

        def forward(self, x, offs):
            return layer(x, self.w, offs)

    module, (x, _, offs) = Layer(), operands(grad=False)
    rows = torch.export.Dim("rows", min=2)
    exported = torch.export.export(module, (x, offs), dynamic_shapes=({0: rows}, None))
    names = [str(node.target) for node in exported.graph.nodes]
    assert "gemmjit.grouped_mm.default" in names
    longer = torch.randn(50, 32)
    assert_same([exported.module()(longer, offs)], [module(longer, offs)])


# Checkpoints


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_activation_checkpoints(use_reentrant):
    x, w, offs = operands()
    want = step(layer, x, w, offs)
    y = checkpoint(layer, x, w, offs, use_reentrant=use_reentrant)
    y.square().sum().backward()
    assert_same([y.detach(), x.grad, w.grad], want)


@pytest.mark.parametrize("compiled", [False, True])
def test_selective_checkpoints_name_the_operator(ran, compiled):
    def save(context, function, *args, **kwargs):
        must = function is OPERATOR
        policy = torch.utils.checkpoint.CheckpointPolicy
        return policy.MUST_SAVE if must else policy.PREFER_RECOMPUTE

    def saved(*args):
        return checkpoint(
            layer, *args, use_reentrant=False,
            context_fn=functools.partial(create_selective_checkpoint_contexts, save),
        )  # fmt: skip

    x, w, offs = operands()
    want = step(layer, x, w, offs)
    function = torch.compile(saved, fullgraph=True, backend="aot_eager") if compiled else saved
    assert_same(step(function, x, w, offs), want)
    # Not once more forward. Compiled, dgrad and wgrad are operators too.
    assert len(ran) == (3 if compiled else 1)
