"""The layer with a main gradient, and the replacement of torch's own grouped product."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional  # noqa: E402
from torch_gradients import ROUNDOFF, assert_close, in_double  # noqa: E402

import gemmjit  # noqa: E402
from gemmjit.errors import InvalidDtypeError, InvalidProblemError  # noqa: E402
from gemmjit.integrations.torch import grouped_linear, grouped_mm  # noqa: E402

ENDS = [4, 4, 14]


@pytest.fixture(autouse=True)
def reference(monkeypatch):
    monkeypatch.setenv("GEMMJIT_EXECUTOR", "reference")
    torch._dynamo.reset()
    torch.manual_seed(0)


def layer(dtype=torch.float32, bias=False):
    x = torch.randn(16, 32).to(dtype).requires_grad_()
    w = torch.nn.Parameter(torch.randn(3, 24, 32).to(dtype))
    b = torch.randn(3, 24).to(dtype).requires_grad_() if bias else None
    return x, w, b, torch.tensor(ENDS, dtype=torch.int32), torch.randn(16, 24).to(dtype)


# grouped_linear


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_linear_layer_of_each_group(dtype, bias):
    x, w, b, offs, dy = layer(dtype, bias)
    y = grouped_linear(x, w, offs, b)
    y.backward(dy)
    found = [y, x.grad, w.grad.mT] + ([b.grad] if bias else [])
    assert_close(found, [x, w.mT] + ([b] if bias else []), ENDS, dy, dtype)


@pytest.mark.parametrize("bias", [False, True])
def test_a_main_gradient_is_added_to_without_rounding(bias):
    x, w, b, offs, dy = layer(torch.bfloat16, bias)
    w.main_grad = torch.randn(3, 24, 32)
    before = w.main_grad.clone()
    for _ in range(2):  # two micro-batches
        y = grouped_linear(x, w, offs, b, accumulate_main_grad=True)
        y.backward(dy)
    assert w.grad is None
    tensors = [x, w.mT] + ([b] if bias else [])
    want, magnitude = (
        in_double(tensors, ENDS, dy, change)[2].mT for change in (lambda t: t, torch.abs)
    )
    off = (w.main_grad.double() - before.double() - 2 * want).abs()
    # 16 rows at most, added up twice, to what was there: every step in FP32.
    assert (off <= (2 * 16 + 4) * 2.0**-24 * (2 * magnitude + before.abs())).all()
    assert torch.equal(w.main_grad[1], before[1])  # a group without rows
    twice = [None, x.grad / 2, None] + ([b.grad / 2] if bias else [])
    assert_close(twice, tensors, ENDS, dy, torch.bfloat16)


def test_a_main_gradient_of_a_frozen_input_computes_no_dgrad(monkeypatch):
    from gemmjit.integrations import torch_linear

    x, w, _, offs, dy = layer()
    w.main_grad = torch.zeros(3, 24, 32)
    y = grouped_linear(x.detach(), w, offs, accumulate_main_grad=True)
    calls = []
    real = torch_linear.grouped_mm
    monkeypatch.setattr(
        torch_linear, "grouped_mm", lambda *a, **k: calls.append(k) or real(*a, **k)
    )
    y.backward(dy)
    assert [k["out"].data_ptr() for k in calls] == [w.main_grad.data_ptr()]


def test_frozen_weights_leave_the_main_gradient_alone():
    x, w, _, offs, dy = layer()
    w.main_grad = torch.zeros(3, 24, 32)
    w.requires_grad_(False)
    grouped_linear(x, w, offs, accumulate_main_grad=True).backward(dy)
    assert (w.main_grad == 0).all()
    with torch.no_grad():
        assert not grouped_linear(x, w, offs, accumulate_main_grad=True).requires_grad


def test_hooks_of_a_weight_run_as_megatron_expects():
    x, w, _, offs, dy = layer()
    w.main_grad, w.grad_added_to_main_grad = torch.zeros(3, 24, 32), False
    w.zero_out_wgrad = True
    seen = []
    w.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad_added_to_main_grad))
    grouped_linear(x, w, offs, accumulate_main_grad=True).backward(dy)
    assert seen == [True]
    assert (w.grad == 0).all()
    assert (w.main_grad != 0).any()


def test_main_gradients_that_cannot_be():
    x, w, _, offs, _ = layer()
    with pytest.raises(InvalidProblemError, match=r"weight.main_grad: expected .*; got none"):
        grouped_linear(x, w, offs, accumulate_main_grad=True)
    w.main_grad = torch.zeros(3, 32, 24)
    with pytest.raises(InvalidProblemError, match=r"weight.main_grad: .*; got shape \(3, 32, 24\)"):
        grouped_linear(x, w, offs, accumulate_main_grad=True)
    w.main_grad = torch.zeros(3, 24, 32).bfloat16()
    with pytest.raises(InvalidDtypeError, match=r"weight.main_grad: expected float32"):
        grouped_linear(x, w, offs, accumulate_main_grad=True)


@pytest.mark.parametrize("backend", ["aot_eager"])
def test_a_main_gradient_compiles(backend):
    x, w, _, offs, dy = layer(torch.bfloat16)
    w.main_grad = torch.ones(3, 24, 32)

    def run(x, w, offs):
        return grouped_linear(x, w, offs, accumulate_main_grad=True).relu()

    run(x, w, offs).backward(dy)
    want = w.main_grad.clone(), x.grad.clone()
    w.main_grad.fill_(1)
    x.grad = None
    torch.compile(run, fullgraph=True, dynamic=True, backend=backend)(x, w, offs).backward(dy)
    assert torch.equal(w.main_grad, want[0])
    assert torch.equal(x.grad, want[1])
    assert w.grad is None


@pytest.mark.parametrize("main_grad", [False, True])
def test_autocast_casts_as_a_linear_layer_does(main_grad):
    x, w, b, offs, dy = layer(bias=True)
    w.main_grad = torch.zeros(3, 24, 32)
    with torch.autocast("cpu", torch.bfloat16):
        y = grouped_linear(x, w, offs, b, accumulate_main_grad=main_grad)
        assert functional.linear(x, w[0]).dtype is y.dtype is torch.bfloat16
    y.backward(dy.bfloat16())
    gradient = w.main_grad if main_grad else w.grad
    assert gradient.dtype is x.grad.dtype is b.grad.dtype is torch.float32
    tensors = [t.detach().bfloat16().requires_grad_() for t in (x, w, b)]
    tensors[1] = tensors[1].mT
    found = [y, x.grad, gradient.mT, b.grad]
    assert_close(found, tensors, ENDS, dy.bfloat16(), torch.bfloat16)


# The replacement


def forms(dtype=torch.float32):
    """Operands of torch's four forms, as torch's own kernels can take them on the CPU."""
    offs = torch.tensor([*ENDS[:2], 16], dtype=torch.int32)
    one = torch.randn
    return {
        "2d x 3d": (one(16, 32), one(3, 24, 32).mT, offs),
        "2d x 2d": (one(16, 32).mT, one(16, 24), offs),
        "3d x 2d": (one(3, 8, 32), one(16, 32).mT, offs),
        "3d x 3d": (one(3, 8, 32), one(3, 32, 24), None),
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("form", list(forms()))
def test_the_forms_of_torchs_grouped_product(form, dtype):
    a, b, offs = forms()[form]
    a, b = (t.to(dtype).requires_grad_() for t in (a, b))
    ours, theirs = grouped_mm(a, b, offs=offs), functional.grouped_mm(a, b, offs=offs)
    assert ours.shape == theirs.shape
    dy = torch.randn(ours.shape).to(dtype)
    both = [[y, *torch.autograd.grad(y, (a, b), dy)] for y in (ours, theirs)]
    big = [t.detach().double().abs().requires_grad_() for t in (a, b)]
    y = functional.grouped_mm(*[t.float() for t in big], offs=offs)
    magnitudes = [y, *torch.autograd.grad(y, big, dy.float().abs())]
    # Both round once, and each sums up to 32 products in FP32, in some order.
    for got, want, magnitude in zip(*both, magnitudes, strict=True):
        bound = 2 * (ROUNDOFF[dtype] + 34 * 2.0**-24) * magnitude
        assert ((got.double() - want.double()).abs() <= bound).all()


def misuses():
    a, b, offs = torch.randn(16, 32), torch.randn(3, 32, 24), torch.tensor([4, 8, 16]).int()
    three = torch.randn(3, 4, 32)
    return {
        "types": (a, b.bfloat16(), {"offs": offs}),
        "float64": (a.double(), b.double(), {"offs": offs}),
        "int64 offsets": (a, b, {"offs": offs.long()}),
        "float offsets": (a, b, {"offs": offs.float()}),
        "offsets of two dimensions": (a, b, {"offs": offs[None]}),
        "no offsets": (a, b, {}),
        "no offsets for 2d": (a.T, a, {}),
        "offsets for 3d x 3d": (three, b, {"offs": offs}),
        "bias": (a, b, {"offs": offs, "bias": torch.zeros(3, 24)}),
        "another result type": (a.half(), b.half(), {"offs": offs, "out_dtype": torch.float32}),
        "K": (a, torch.randn(3, 40, 24), {"offs": offs}),
        "groups": (a, b, {"offs": offs[:2]}),
        "groups of 3d x 2d": (three, torch.randn(32, 16), {"offs": offs[:2]}),
        "matrices": (three, b[:2], {}),
        "one dimension": (a[0], b, {"offs": offs}),
        "four dimensions": (a[None, None], b, {"offs": offs}),
        "a list": (a, b, {"offs": [4, 8, 16]}),
        "an array": (a.numpy(), b, {"offs": offs}),
    }


@pytest.mark.parametrize("name", list(misuses()))
def test_what_torch_refuses_is_refused_with_its_kind_of_error(name):
    a, b, more = misuses()[name]
    with pytest.raises((RuntimeError, TypeError)) as theirs:
        functional.grouped_mm(a, b, **more)
    with pytest.raises(theirs.type, match=r"^\w+(, \w+)?: expected"):
        grouped_mm(a, b, **more)


def test_the_signature_is_torchs():
    import inspect

    ours, theirs = (inspect.signature(f).parameters for f in (grouped_mm, functional.grouped_mm))
    assert [(p.name, p.kind, p.default) for p in ours.values()] == [
        (p.name, p.kind, p.default) for p in theirs.values()
    ]


def test_strides_that_torch_refuses_are_taken():
    a, b, offs = torch.randn(16, 32).bfloat16(), torch.randn(3, 32, 33).bfloat16(), [4, 8, 16]
    offs = torch.tensor(offs, dtype=torch.int32)
    with pytest.raises(RuntimeError, match="multiple of 16 bytes"):
        functional.grouped_mm(a, b, offs=offs)
    assert torch.equal(grouped_mm(a, b, offs=offs), gemmjit.grouped_mm(a, b, offs=offs))


@pytest.mark.parametrize("form", list(forms()))
def test_the_replacement_compiles(form):
    a, b, offs = forms()[form]
    compiled = torch.compile(grouped_mm, fullgraph=True, dynamic=True, backend="aot_eager")
    assert torch.equal(compiled(a, b, offs=offs), grouped_mm(a, b, offs=offs))
