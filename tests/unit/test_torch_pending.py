"""torch tensors whose values are not what lies in their memory: refused by name, never read."""

from __future__ import annotations

import warnings

import pytest
from fake_gpu import framework

import gemmjit
from gemmjit import offsets
from gemmjit.errors import InvalidProblemError

torch = pytest.importorskip("torch")

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


def test_a_gradient_whose_sign_is_pending():
    a, b = torch.ones(6, 8, requires_grad=True), torch.ones(2, 8, 16)
    y = gemmjit.grouped_mm(a, b, offs=ENDS)
    (got,) = torch.autograd.grad(y, a, negated(torch.full((6, 16), 3.0)))
    assert (got == 3 * 16).all()
