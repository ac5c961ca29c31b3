"""torch tensors whose values are not what lies in their memory: refused by name, never read."""

from __future__ import annotations

import warnings
from contextlib import nullcontext

import pytest
from fake_gpu import framework

import gemmjit
from gemmjit import offsets
from gemmjit.errors import InvalidDtypeError, InvalidProblemError

torch = pytest.importorskip("torch")
FlopCounterMode = pytest.importorskip("torch.utils.flop_counter").FlopCounterMode
TorchRuntimeError = pytest.importorskip("torch._dynamo.exc").TorchRuntimeError

ENDS = [2, 6]


def negated(tensor):
    """Return a tensor of these values whose sign is pending."""
    found = torch.imag(torch.complex(torch.zeros_like(tensor), -tensor).conj())
    assert found.is_neg()
    return found


def nested(tensor):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.nested.nested_tensor(list(tensor))


def compressed(tensor):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return tensor.to_sparse_csr()


KINDS = {
    "negated": (negated, r"sign is pending\. Pass {}\.resolve_neg\(\)"),
    "coo": (torch.Tensor.to_sparse, r"layout torch.sparse_coo\. Pass {}\.to_dense\(\)"),
    "csr": (compressed, r"layout torch.sparse_csr\. Pass {}\.to_dense\(\)"),
    "nested": (nested, r"a nested one\. Join its parts"),
}


def arguments(make=torch.ones):
    return {
        "mat_a": make(6, 8),
        "mat_b": make(2, 8, 16),
        "out": make(6, 16),
        "bias": make(2, 16),
        "scale": make(6),
    }


def call(found, offs):
    bias, out = found.get("bias"), found.get("out")
    epilogue = gemmjit.RowScale(found["scale"]) if "scale" in found else None
    return gemmjit.grouped_mm(
        found["mat_a"], found["mat_b"], offs=offs, out=out, bias=bias, epilogue=epilogue
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("argument", ["mat_a", "mat_b", "out", "bias", "scale"])
@pytest.mark.parametrize("fused", [False, True])
def test_on_the_cpu(kind, argument, fused):
    make, message = KINDS[kind]
    found = arguments()
    if not fused and argument in ("bias", "scale"):
        found = {name: found[name] for name in ("mat_a", "mat_b", argument)}
    elif not fused:
        found = {name: found[name] for name in ("mat_a", "mat_b", "out")}
    if (kind, argument) == ("csr", "scale"):
        pytest.skip("CSR has two dimensions or more")
    found[argument] = make(found[argument])
    with pytest.raises(InvalidProblemError, match=f"^{argument}: .*" + message.format(argument)):
        call(found, ENDS)


@pytest.mark.parametrize("kind", ["negated", "coo", "nested"])
def test_offsets(kind):
    ends = torch.tensor(ENDS, dtype=torch.int32)
    given = {
        "negated": lambda: torch._neg_view(ends),
        "coo": ends.to_sparse,
        "nested": lambda: nested(ends[:, None]),
    }[kind]()
    message = "^offs: .*" + KINDS[kind][1].format("offs")
    with pytest.raises(InvalidProblemError, match=message):
        gemmjit.grouped_mm(torch.ones(6, 8), torch.ones(2, 8, 16), offs=given)
    with pytest.raises(InvalidProblemError, match=message):
        offsets.check_offsets(given, 6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("argument", ["mat_a", "mat_b", "out", "bias", "scale"])
def test_a_call_like_one_that_is_remembered(kind, argument):
    """Shapes, strides, types and alignments are those of a call that ran."""
    make, message = KINDS[kind]
    if (kind, argument) == ("csr", "scale"):
        pytest.skip("CSR has two dimensions or more")
    with framework("torch") as (fake, maker):
        found = arguments(lambda *shape: maker.empty(*shape).zero_().float() + 1)
        if argument not in ("bias", "scale"):
            found = {name: found[name] for name in ("mat_a", "mat_b", "out")}
        given = make(found[argument])
        if kind == "negated":
            # As the pending one lies: every second element.
            found[argument] = given.resolve_neg().new_empty((*given.shape, 2))[..., 0]
            assert found[argument].stride() == given.stride()
        offs = maker.offsets(ENDS)
        for _ in range(2):
            call(found, offs)
        launches = len(fake.launches)
        found[argument] = given
        with pytest.raises(InvalidProblemError, match=f"^{argument}: .*{message.format(argument)}"):
            call(found, offs)
        assert len(fake.launches) == launches


def bf16_arguments():
    """Return bfloat16 operands of small whole numbers, all different from their negatives."""
    torch.manual_seed(0)
    return {
        "mat_a": torch.randint(1, 4, (6, 8)).bfloat16(),
        "mat_b": torch.randint(1, 4, (2, 8, 16)).bfloat16(),
        "offs": torch.tensor(ENDS, dtype=torch.int32),
    }


@pytest.mark.parametrize("argument", ["mat_a", "mat_b", "offs", "out"])
def test_bfloat16_whose_sign_is_pending_is_refused_by_every_call(argument):
    found = bf16_arguments() | {"out": torch.zeros(6, 16, dtype=torch.bfloat16)}
    found[argument] = torch._neg_view(found[argument])
    for _ in range(3):
        with pytest.raises(InvalidProblemError, match=rf"^{argument}: .*{argument}\.resolve_neg"):
            gemmjit.grouped_mm(**found)


@pytest.mark.parametrize("argument", ["mat_a", "mat_b", "offs", "out"])
def test_bfloat16_whose_sign_is_pending_is_no_call_that_is_remembered(argument):
    with framework("torch") as (fake, maker):
        found = {
            "mat_a": maker.empty(6, 64), "mat_b": maker.empty(2, 64, 16),
            "offs": maker.offsets(ENDS), "out": maker.empty(6, 16),
        }  # fmt: skip
        assert found["mat_a"].dtype is torch.bfloat16
        for out in (None, found["out"]):
            for _ in range(2):
                gemmjit.grouped_mm(**{**found, "out": out})
        launches = len(fake.launches)
        for out in (None, found["out"])[argument == "out" :]:
            given = {**found, "out": out}
            given[argument] = torch._neg_view(given[argument])
            with pytest.raises(InvalidProblemError, match=f"^{argument}: .*sign is pending"):
                gemmjit.grouped_mm(**given)
        assert len(fake.launches) == launches


def compiled():
    return torch.compile(lambda **x: gemmjit.grouped_mm(**x), backend="aot_eager", fullgraph=True)


@pytest.mark.parametrize("argument", ["mat_a", "mat_b"])
@pytest.mark.parametrize("into", [False, True])
@pytest.mark.parametrize("way", ["compiled", "counted"])
def test_an_operand_whose_sign_is_pending_where_torch_resolves_it(argument, way, into):
    found = bf16_arguments()
    want = -gemmjit.grouped_mm(**found)
    if into:
        found["out"] = torch.zeros_like(want)
    found[argument] = torch._neg_view(found[argument])
    function = compiled() if way == "compiled" else gemmjit.grouped_mm
    with FlopCounterMode(display=False) if way == "counted" else nullcontext():
        for _ in range(3):
            assert torch.equal(function(**found), want)


@pytest.mark.parametrize("argument", ["mat_a", "mat_b"])
def test_complex_operands_are_refused_by_every_call(argument):
    """No kernel has them, so that no conjugation can be pending."""
    found = bf16_arguments()
    found[argument] = found[argument].to(torch.complex64).conj()
    for _ in range(2):
        with pytest.raises(InvalidDtypeError, match=f"{argument}: .*complex64"):
            gemmjit.grouped_mm(**found)


def test_a_result_whose_sign_is_pending_in_a_compiled_call():
    found = bf16_arguments() | {"out": torch._neg_view(torch.zeros(6, 16).bfloat16())}
    function = compiled()
    for _ in range(2):
        with pytest.raises(TorchRuntimeError, match=r"out: .*Pass out\.resolve_neg"):
            function(**found)


def test_a_gradient_whose_sign_is_pending():
    a, b = torch.ones(6, 8, requires_grad=True), torch.ones(2, 8, 16)
    y = gemmjit.grouped_mm(a, b, offs=ENDS)
    (got,) = torch.autograd.grad(y, a, negated(torch.full((6, 16), 3.0)))
    assert (got == 3 * 16).all()
