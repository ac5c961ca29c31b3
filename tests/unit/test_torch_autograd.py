"""Gradients of grouped_mm on torch tensors, against autograd of a loop in float64."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch_gradients import assert_close, in_double  # noqa: E402

import gemmjit  # noqa: E402
from gemmjit.epilogue import Bias  # noqa: E402
from gemmjit.errors import InvalidDtypeError, InvalidProblemError  # noqa: E402
from gemmjit.integrations import torch_autograd  # noqa: E402

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
SIZES = {
    "uneven": (3, 1, 7, 5),
    "empty first": (0, 4, 6),
    "empty middle": (4, 0, 6),
    "empty last": (4, 6, 0),
    "all empty": (0, 0, 0),
    "one group": (9,),
}


@pytest.fixture(autouse=True)
def reference(monkeypatch):
    monkeypatch.setenv("GEMMJIT_EXECUTOR", "reference")


def ends_of(sizes):
    return torch.tensor(sizes).cumsum(0).tolist()


def make(form, sizes, dtype, tail=3, k=16, n=24, bias=False, swapped=False, seed=0):
    """Operands and the gradient of the result, which torch rounds to the type."""
    torch.manual_seed(seed)
    ends = ends_of(sizes)
    rows = ends[-1] + tail

    def random(*shape):
        return torch.randn(shape).to(dtype)

    if form == "ragged_m":
        a = random(rows, k)
        b = random(len(sizes), n, k).mT if swapped else random(len(sizes), k, n)
        dy = random(rows, n)
    else:
        a = random(rows, k).mT if swapped else random(k, rows)
        b, dy = random(rows, n), random(len(sizes), k, n)
    tensors = [a, b] + ([random(len(sizes), n)] if bias else [])
    return [t.requires_grad_() for t in tensors], ends, dy


def run(tensors, ends, dy, **more):
    a, b, *bias = tensors
    y = gemmjit.grouped_mm(
        a, b, offs=torch.tensor(ends, dtype=torch.int32), bias=bias[0] if bias else None, **more
    )
    return [y, *torch.autograd.grad(y, tensors, dy)]


@pytest.mark.parametrize("swapped", [False, True], ids=["plain", "transposed"])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("form", ["ragged_m", "ragged_k"])
def test_gradients_of_both_operands(form, dtype, sizes, swapped):
    tensors, ends, dy = make(form, sizes, dtype, swapped=swapped)
    found = run(tensors, ends, dy)
    assert [t.dtype for t in found] == [dtype] * 3
    assert_close(found, tensors, ends, dy, dtype)


@pytest.mark.parametrize("form", ["ragged_m", "ragged_k"])
@pytest.mark.parametrize(("dtype", "kernel"), [("float32", "k0"), ("bfloat16", "k3")])
def test_gradients_by_the_kernels_themselves(form, dtype, kernel, monkeypatch):
    monkeypatch.setenv("GEMMJIT_EXECUTOR", "emulator")
    # As a training step has them: x (M, K), and x.T where groups cut the contraction.
    tensors, ends, dy = make(form, (3, 0, 7), DTYPES[dtype], tail=6, swapped=form == "ragged_k")
    assert_close(run(tensors, ends, dy, config=kernel), tensors, ends, dy, DTYPES[dtype])


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_gradient_of_a_bias(dtype):
    tensors, ends, dy = make("ragged_m", (3, 0, 7, 5), dtype, bias=True)
    assert_close(run(tensors, ends, dy), tensors, ends, dy, dtype)


def test_gradient_of_a_float32_bias_beside_bfloat16():
    (a, b, _), ends, dy = make("ragged_m", (3, 0, 7), torch.bfloat16, bias=True)
    bias = torch.randn(3, 24).requires_grad_()
    found = run([a, b, bias], ends, dy)
    assert found[3].dtype is torch.float32
    assert_close([None, None, None, found[3]], [a, b, bias], ends, dy, torch.float32)


def test_a_wider_result_has_its_gradient_rounded_first():
    tensors, ends, dy = make("ragged_m", (3, 0, 7), torch.bfloat16)
    wide = torch.randn(dy.shape)
    found = run(tensors, ends, wide, out_dtype=torch.float32)
    assert found[0].dtype is torch.float32
    rounded = wide.to(torch.bfloat16)
    assert_close([None, *found[1:]], tensors, ends, rounded, torch.bfloat16)


def test_br014_the_tail_has_no_part_in_any_gradient():
    for form in ("ragged_m", "ragged_k"):
        tensors, ends, dy = make(form, (8, 8), torch.float32, tail=8)
        clean = run(tensors, ends, dy)
        with torch.no_grad():
            if form == "ragged_m":
                tensors[0][16:] = torch.nan
                dy[16:] = torch.nan
            else:
                tensors[0][:, 16:] = torch.nan
                tensors[1][16:] = torch.nan
        for got, want in zip(run(tensors, ends, dy), clean, strict=True):
            assert torch.equal(got, want)
        tails = [clean[1][16:]] if form == "ragged_m" else [clean[1][:, 16:], clean[2][16:]]
        assert all((tail == 0).all() for tail in tails)


def test_br001_the_gradient_of_an_empty_group_is_zero(monkeypatch):
    monkeypatch.setenv("GEMMJIT_EXECUTOR", "emulator")
    tensors, ends, dy = make("ragged_m", (8, 0, 8), torch.bfloat16, tail=0, k=16, n=16)
    gradient = run(tensors, ends, dy)[2]
    assert (gradient[1] == 0).all()
    assert (gradient[0] != 0).any()


@pytest.mark.parametrize("k", [0, 1])
def test_br018_a_contraction_of_no_length_has_gradients(k):
    tensors, ends, dy = make("ragged_m", (2, 2, 2, 2), torch.bfloat16, tail=0, k=k, n=16)
    y, da, db = run(tensors, ends, dy)
    assert (y.shape, da.shape, db.shape) == ((8, 16), (8, k), (4, k, 16))
    if k == 0:
        assert (y == 0).all()


@pytest.mark.parametrize("form", ["ragged_m", "ragged_k"])
def test_no_rows_at_all(form):
    tensors, ends, dy = make(form, (0, 0), torch.float32, tail=0)
    y, da, db = run(tensors, ends, dy)
    assert (y == 0).all()
    assert da.numel() == 0
    assert (db == 0).all()


@pytest.mark.parametrize("form", ["ragged_m", "ragged_k"])
@pytest.mark.parametrize("wanted", [(True, False), (False, True)], ids=["a", "b"])
def test_nothing_is_computed_that_is_not_wanted(form, wanted, monkeypatch):
    tensors, ends, dy = make(form, (3, 7), torch.float32)
    for tensor, wants in zip(tensors, wanted, strict=True):
        tensor.requires_grad_(wants)
    y = gemmjit.grouped_mm(*tensors, offs=torch.tensor(ends))
    saved = [t for t in y.grad_fn.saved_tensors if t is not None and t.is_floating_point()]
    (kept,) = saved  # the operand that its gradient needs is the other one
    assert kept.data_ptr() == tensors[1 if wanted[0] else 0].data_ptr()
    calls = []
    real = torch_autograd.grouped_mm
    monkeypatch.setattr(
        torch_autograd, "grouped_mm", lambda *a, **k: calls.append(a) or real(*a, **k)
    )
    y.backward(dy)
    assert len(calls) == 1
    assert [t.grad is not None for t in tensors] == list(wanted)


def test_a_bias_alone():
    (a, b, bias), ends, dy = make("ragged_m", (3, 7), torch.float32, bias=True)
    y = gemmjit.grouped_mm(a.detach(), b.detach(), offs=ends, bias=bias)
    assert [t for t in y.grad_fn.saved_tensors if t is not None] == []
    y.backward(dy)
    assert_close([None, None, None, bias.grad], [a, b, bias], ends, dy, torch.float32)


def test_weights_get_gradients_in_their_own_order():
    """What autograd would copy into that order otherwise."""
    _, ends, dy = make("ragged_m", (3, 7), torch.float32)
    x = torch.randn(13, 16)
    w = torch.nn.Parameter(torch.randn(2, 24, 16))
    made = []
    w.register_hook(lambda g: made.append((g.data_ptr(), g.is_contiguous())))
    gemmjit.grouped_mm(x, w.mT, offs=ends).backward(dy)
    assert made == [(w.grad.data_ptr(), True)]
    assert w.grad.is_contiguous()


def test_operands_are_not_copied(monkeypatch):
    tensors, ends, dy = make("ragged_m", (3, 7), torch.float32, swapped=True)
    a, b = tensors
    seen = []
    real = torch_autograd.grouped_mm
    y = gemmjit.grouped_mm(a, b, offs=ends)
    monkeypatch.setattr(
        torch_autograd, "grouped_mm", lambda *p, **k: seen.append(p) or real(*p, **k)
    )
    y.backward(dy)
    (dgrad_a, dgrad_b), (wgrad_a, wgrad_b) = seen
    assert (dgrad_a.data_ptr(), dgrad_b.data_ptr()) == (dy.data_ptr(), b.data_ptr())
    assert (wgrad_a.data_ptr(), wgrad_b.data_ptr()) == (dy.data_ptr(), a.data_ptr())
    assert dgrad_b.stride() == b.mT.stride()


def test_a_sum_has_an_expanded_gradient():
    tensors, ends, dy = make("ragged_m", (3, 7), torch.float32)
    y = gemmjit.grouped_mm(*tensors, offs=ends)
    y.sum().backward()
    found = [None, tensors[0].grad, tensors[1].grad]
    assert_close(found, tensors, ends, torch.ones_like(dy), torch.float32)


def test_offsets_on_the_host_of_any_kind():
    import numpy as np

    tensors, ends, dy = make("ragged_m", (3, 7), torch.float32)
    want = run(tensors, ends, dy)
    for offs in (ends, tuple(ends), np.array(ends), torch.tensor(ends)):
        y = gemmjit.grouped_mm(*tensors, offs=offs)
        for got, expected in zip(torch.autograd.grad(y, tensors, dy), want[1:], strict=True):
            assert torch.equal(got, expected)


@pytest.mark.parametrize("form", ["ragged_m", "ragged_k"])
def test_gradients_of_gradients(form):
    tensors, ends, dy = make(form, (3, 0, 7), torch.float32, bias=form == "ragged_m")
    dy.requires_grad_()
    offs = torch.tensor(ends)

    def second(values, product):
        y = product(*values[:2], *values[3:])
        first = torch.autograd.grad(y, values[:2], values[2], create_graph=True)
        return torch.autograd.grad(sum((g**2).sum() for g in first), values[:3])

    def ours(a, b, bias=None):
        return gemmjit.grouped_mm(a, b, offs=offs, bias=bias)

    from torch_gradients import loop

    a, b, *bias = tensors
    values = [a, b, dy, *bias]
    doubles = [t.detach().double().requires_grad_() for t in values]
    found = second(values, ours)
    want = second(doubles, lambda a, b, bias=None: loop(a, b, ends, bias))
    magnitudes = second(
        [t.detach().abs().requires_grad_() for t in doubles],
        lambda a, b, bias=None: loop(a, b, ends, bias),
    )
    # Two products one behind the other, each of at most 24 terms, and the factor 2 of the square.
    slack = 2 * (24 + 3) * 2.0**-24
    for got, expected, magnitude in zip(found, want, magnitudes, strict=True):
        assert ((got.double() - expected).abs() <= slack * magnitude).all()


def test_offsets_that_change_before_the_gradient_is_taken():
    tensors, ends, dy = make("ragged_m", (3, 7), torch.float32)
    offs = torch.tensor(ends)
    y = gemmjit.grouped_mm(*tensors, offs=offs)
    offs[0] += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward(dy)


def test_what_has_no_gradient_is_refused():
    (a, b), ends, dy = make("ragged_m", (3, 7), torch.float32)
    for more, message in (
        ({"out": torch.zeros_like(dy)}, "out: expected none where a gradient is wanted"),
        ({"stream": 7}, "stream: expected none where a gradient is wanted"),
        ({"epilogue": gemmjit.RowScale(torch.ones(13))}, r"got RowScale\(\).*torch\.no_grad\(\)"),
        (
            {"epilogue": gemmjit.SwiGLU("split")},
            r"epilogue: expected none where.*got SwiGLU\(.*spl",
        ),
        ({"epilogue": "swiglu"}, r"got 'swiglu'\. Pass gemmjit\.SwiGLU"),
        ({"epilogue": Bias(b[:, 0]), "bias": b[:, 0]}, "expected each step once"),
        ({"accumulate": True}, "accumulate: expected out= to add into"),
    ):
        with pytest.raises(InvalidProblemError, match=message):
            gemmjit.grouped_mm(a, b, offs=ends, **more)
    scale = torch.ones(13, requires_grad=True)
    with pytest.raises(InvalidProblemError, match="epilogue: expected none where"):
        gemmjit.grouped_mm(a.detach(), b.detach(), offs=ends, epilogue=gemmjit.RowScale(scale))
    # Without a gradient they all go through.
    out = torch.zeros_like(dy)
    with torch.no_grad():
        assert gemmjit.grouped_mm(a, b, offs=ends, out=out) is out
        scaled = gemmjit.grouped_mm(a, b, offs=ends, epilogue=gemmjit.RowScale(2 * scale))
    assert torch.equal(scaled, 2 * out)


def test_wrong_arguments_raise_as_they_do_without_a_gradient():
    (a, b), ends, _ = make("ragged_m", (3, 7), torch.float32)
    with pytest.raises(InvalidProblemError, match=r"mat_b: expected shape \(G, K, N\)"):
        gemmjit.grouped_mm(a, b.mT, offs=ends)
    with pytest.raises(InvalidProblemError, match="offs: expected the end offset"):
        gemmjit.grouped_mm(a, b)
    with pytest.raises(InvalidProblemError, match=r"mat_a: expected two dimensions.* matmul"):
        gemmjit.grouped_mm(b, b.mT)
    with pytest.raises(InvalidDtypeError, match=r"mat_b: expected float32.*got bfloat16"):
        gemmjit.grouped_mm(a, b.bfloat16(), offs=ends)
    with pytest.raises(InvalidDtypeError, match=r"mat_b: expected a torch array.*got ndarray"):
        gemmjit.grouped_mm(a, b.detach().numpy(), offs=ends)
    with pytest.raises(InvalidProblemError, match="offs: expected offsets up to 13"):
        gemmjit.grouped_mm(a, b, offs=[3, 99])


def test_views_of_leaves_and_results():
    torch.manual_seed(0)
    base = torch.randn(20, 40, requires_grad=True)
    w = torch.randn(2, 16, 24)
    y = gemmjit.grouped_mm(base[3:16, 8:24], w, offs=[3, 10])
    y[2:5].sum().backward()
    dy = torch.zeros(13, 24)
    dy[2:5] = 1
    a = base[3:16, 8:24]
    (_, want, _) = in_double([a, w], [3, 10], dy)
    assert (base.grad[3:16, 8:24].double() - want).abs().max() < 26 * 2.0**-24 * 24 * 4
    assert base.grad.count_nonzero() == want.count_nonzero()


def test_hooks_and_detached_results():
    (a, b), ends, dy = make("ragged_m", (3, 7), torch.float32)
    seen = []
    y = gemmjit.grouped_mm(a, b, offs=ends)
    y.register_hook(lambda g: seen.append(g))
    (y.detach() + y).backward(dy)
    assert torch.equal(seen[0], dy)
    assert not y.detach().requires_grad


def test_inference_mode():
    (a, b), ends, _ = make("ragged_m", (3, 7), torch.float32)
    with torch.inference_mode():
        y = gemmjit.grouped_mm(a, b, offs=ends)
    assert not y.requires_grad
    assert y.is_inference()
