"""gemmjit::grouped_mm: what compiles, traces, counts, transforms or overrides torch's functions."""

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
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402
from torch_gradients import loop  # noqa: E402

import gemmjit  # noqa: E402
from gemmjit.errors import InvalidDtypeError, InvalidProblemError  # noqa: E402
from gemmjit.integrations import torch_operator  # noqa: E402

ENDS = [4, 4, 14]
OPERATOR = torch.ops.gemmjit.grouped_mm.default
INTO = torch.ops.gemmjit.grouped_mm_out.default


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


# The operator itself


@pytest.mark.parametrize("more", [{}, {"out_dtype": torch.float32}, {"config": "k0"}, "bias"])
def test_opcheck_of_ragged_m(more):
    x, w, offs = operands(dtype=torch.bfloat16)
    if more == "bias":
        more = {"bias": torch.randn(3, 24).bfloat16().requires_grad_()}
    torch.library.opcheck(OPERATOR, (x, w.mT, offs), more)


def test_opcheck_of_ragged_k():
    x, _, offs = operands()
    dy = torch.randn(16, 24, requires_grad=True)
    torch.library.opcheck(OPERATOR, (x.mT, dy, offs))
    torch.library.opcheck(OPERATOR, (torch.randn(8, 16), dy.detach(), offs.long()))


@pytest.mark.parametrize("accumulate", [False, True])
def test_opcheck_into_a_result(accumulate):
    x, w, offs = operands(grad=False)
    torch.library.opcheck(INTO, (x, w.mT, offs, None, torch.zeros(16, 24), accumulate))
    torch.library.opcheck(INTO, (x, w.mT, offs, torch.ones(3, 24), torch.zeros(24, 16).mT))


def test_a_call_on_plain_tensors_does_not_come_here(ran):
    x, w, offs = operands()
    layer(x, w, offs).sum().backward()  # recorded, without the dispatcher
    with torch.no_grad():
        layer(x, w, offs)
    assert ran == []
    OPERATOR(x, w.mT, offs)
    assert len(ran) == 1


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
    assert torch_operator._config(torch_operator._text(config)) == config


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


def test_broken_rules_are_found_while_tracing():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        x, w, offs = operands(grad=False)
        with pytest.raises(InvalidProblemError, match=r"mat_b: expected shape \(G, K, N\)"):
            gemmjit.grouped_mm(x, w, offs=offs)
        with pytest.raises(InvalidProblemError, match="offs: expected 3 end offsets"):
            gemmjit.grouped_mm(x, w.mT, offs=offs[:2])
        with pytest.raises(InvalidDtypeError, match=r"mat_b: expected float32.*got bfloat16"):
            gemmjit.grouped_mm(x, w.mT.bfloat16(), offs=offs)
        with pytest.raises(InvalidDtypeError, match="expected operands of one of"):
            gemmjit.grouped_mm(x.to(torch.complex64), w.mT, offs=offs)
        with pytest.raises(InvalidProblemError, match="stream: expected none"):
            gemmjit.grouped_mm(x, w.mT, offs=offs, stream=0)
        with pytest.raises(InvalidProblemError, match="epilogue: expected none"):
            gemmjit.grouped_mm(x, w.mT, offs=offs, epilogue=gemmjit.SwiGLU())


# Tensors without memory, modes, subclasses, transforms


def test_fake_tensors_have_shape_type_and_strides():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        x, w, offs = operands(dtype=torch.bfloat16)
        y = layer(x, w, offs)
        assert (y.shape, y.dtype, y.stride()) == ((16, 24), torch.bfloat16, (24, 1))
        y.sum().backward()
        assert w.grad.stride() == w.stride()
        wide = gemmjit.grouped_mm(x.mT.detach(), y.detach(), offs=offs, out_dtype="float32")
        assert (wide.shape, wide.dtype) == ((3, 32, 24), torch.float32)


def test_meta_tensors():
    x, w, offs = (t.to("meta") for t in operands(grad=False))
    y = gemmjit.grouped_mm(x, w.mT, offs=offs)
    assert (y.shape, y.device.type) == ((16, 24), "meta")


def test_flops_are_counted_forward_and_backward():
    x, w, offs = operands()
    with FlopCounterMode(display=False) as counter:
        y = gemmjit.grouped_mm(x, w.mT, offs=offs)
        forward = counter.get_total_flops()
        y.sum().backward()
    assert forward == 2 * 16 * 32 * 24
    assert counter.get_total_flops() == 3 * forward
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        gemmjit.grouped_mm(x, w.mT, offs=offs, out=torch.zeros(16, 24))
    assert counter.get_total_flops() == forward


def test_make_fx_records_the_operator():
    from torch.fx.experimental.proxy_tensor import make_fx

    x, w, offs = operands(grad=False)
    for mode in ("real", "fake", "symbolic"):
        traced = make_fx(layer, tracing_mode=mode)(x, w, offs)
        assert "gemmjit.grouped_mm.default" in traced.code
        assert_same([traced(x, w, offs)], [layer(x, w, offs)])


def test_modes_of_torch_functions_see_the_call():
    seen = []

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    x, w, offs = operands(grad=False)
    gemmjit.grouped_mm(x, w.mT, offs=offs)  # remembered, or would be on a GPU
    with Mode():
        gemmjit.grouped_mm(x, w.mT, offs=offs)
    assert OPERATOR in seen


def test_a_default_device_is_a_mode_that_changes_nothing():
    x, w, offs = operands()
    want = step(layer, x, w, offs)
    with torch.device("cpu"):
        assert_same(step(layer, x, w, offs), want)


def test_subclasses_decide_for_themselves(ran):
    seen = []

    class Named(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            seen.append(function)
            return super().__torch_function__(function, types, args, kwargs or {})

    x, w, offs = operands(grad=False)
    y = gemmjit.grouped_mm(x.as_subclass(Named), w.mT, offs=offs)
    assert OPERATOR in seen
    assert type(y) is Named  # the result has the type of mat_a
    assert torch.equal(y.as_subclass(torch.Tensor), gemmjit.grouped_mm(x, w.mT, offs=offs))
    y = gemmjit.grouped_mm(x, w.mT.as_subclass(Named), offs=offs.as_subclass(Named))
    assert torch.equal(y.as_subclass(torch.Tensor), gemmjit.grouped_mm(x, w.mT, offs=offs))
    assert len(ran) == 2


def test_wrapper_subclasses_are_never_looked_into():
    class Wrapper(torch.Tensor):
        """A tensor without memory of its own, as a quantised or a distributed one is."""

        @staticmethod
        def __new__(cls, inner):
            made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
            made.inner = inner
            return made

        __torch_function__ = torch._C._disabled_torch_function_impl

        @classmethod
        def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
            inner = [a.inner if isinstance(a, Wrapper) else a for a in args]
            return cls(function(*inner, **(kwargs or {})))

    x, w, offs = operands(grad=False)
    y = gemmjit.grouped_mm(Wrapper(x), w.mT, offs=offs)
    assert type(y) is Wrapper
    assert torch.equal(y.inner, gemmjit.grouped_mm(x, w.mT, offs=offs))


def test_functional_transforms():
    x, w, offs = operands(grad=False)

    def loss(x, w):
        return layer(x, w, offs).square().sum()

    found = torch.func.grad(loss, argnums=(0, 1))(x, w)
    want = step(layer, x.clone().requires_grad_(), w.clone().requires_grad_(), offs)[1:]
    assert_same(found, want)
    several = torch.randn(2, 16, 32)
    mapped = torch.func.vmap(lambda x: layer(x, w, offs))(several)
    assert torch.equal(mapped, torch.stack([layer(x, w, offs) for x in several]))
    each = torch.func.vmap(torch.func.grad(loss), in_dims=(0, None))(several, w)
    assert torch.equal(each, torch.stack([torch.func.grad(loss)(x, w) for x in several]))


# Checkpointing and autocast


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


def test_br040_autocast_casts_nothing_as_with_torchs_own():
    """torch casts neither operand of its grouped product, and refuses types that differ."""
    x, w, offs = operands(grad=False)
    theirs = torch.nn.functional.grouped_mm
    with torch.autocast("cpu", torch.bfloat16):
        assert theirs(x, w.mT, offs=offs).dtype is torch.float32
        assert gemmjit.grouped_mm(x, w.mT, offs=offs).dtype is torch.float32
        with pytest.raises(RuntimeError):
            theirs(x, w.mT.bfloat16(), offs=offs)
        with pytest.raises(InvalidDtypeError, match=r"mat_b: expected float32.*got bfloat16"):
            gemmjit.grouped_mm(x, w.mT.bfloat16(), offs=offs)


def test_the_loop_that_tests_compare_with_is_torchs_grouped_product():
    x, w, offs = operands(grad=False)
    theirs = torch.nn.functional.grouped_mm(x, w.mT, offs=offs)[:14]
    assert torch.allclose(loop(x, w.mT, ENDS)[:14], theirs, atol=1e-5)
