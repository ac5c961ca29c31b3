"""gemmjit::grouped_mm: what traces, counts, transforms or overrides torch's functions."""

from __future__ import annotations

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

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


# Tensors without memory, modes, subclasses, transforms


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


def test_flops_of_the_very_first_call_are_counted():
    """The operator is loaded while the counter counts already."""
    program = (
        "import torch, gemmjit\n"
        "from torch.utils.flop_counter import FlopCounterMode\n"
        "with FlopCounterMode(display=False) as counter:\n"
        "    gemmjit.grouped_mm(torch.ones(4, 8), torch.ones(1, 8, 2), offs=[4])\n"
        "print(counter.get_total_flops())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == str(2 * 4 * 8 * 2), done.stderr


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
