"""Every kernel with every epilogue on a GPU; repeated calls, capture, and arrays that move."""

from __future__ import annotations

import numpy as np
import pytest
from epilogue_cases import check, epilogue_cases
from references import assert_same

import gemmjit
from gemmjit import RowScale, SwiGLU
from gemmjit.errors import InvalidProblemError

CASES = epilogue_cases()


@pytest.mark.parametrize("case", CASES[::3], ids=str)
def test_case(maker, case):
    check(maker, case)


def test_operands_that_move_and_change_are_read_anew(torch, torch_maker):
    torch.manual_seed(0)
    a = torch.randint(-2, 3, (96, 64), device="cuda").to(torch.bfloat16)
    b = torch.randint(-2, 3, (2, 64, 128), device="cuda").to(torch.bfloat16)
    offs = torch.tensor([40, 96], device="cuda", dtype=torch.int32)
    for turn in range(3):
        bias = torch.full((2, 128), float(turn), device="cuda")
        scale = torch.full((96,), float(turn + 1), device="cuda")
        got = gemmjit.grouped_mm(a, b, offs=offs, bias=bias, epilogue=RowScale(scale))
        plain = gemmjit.grouped_mm(a, b, offs=offs, out_dtype=torch.float32)
        assert torch.equal(got, ((plain + turn) * (turn + 1)).to(torch.bfloat16))


def test_a_captured_call_reads_its_operands_at_replay(torch, torch_maker):
    a = torch.ones((64, 64), device="cuda", dtype=torch.bfloat16)
    b = torch.ones((1, 64, 256), device="cuda", dtype=torch.bfloat16)
    offs = torch.tensor([64], device="cuda", dtype=torch.int32)
    scale = torch.ones(64, device="cuda")
    epilogue = (SwiGLU("split"), RowScale(scale))
    gemmjit.grouped_mm(a, b, offs=offs, epilogue=epilogue)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = gemmjit.grouped_mm(a, b, offs=offs, epilogue=epilogue)
    scale.fill_(2.0)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out.float(), torch.full_like(out, 8192.0).float())  # silu(64) 64 2


def test_the_default_choice_takes_epilogues(torch, torch_maker):
    """Sizes at which the choice is the widest tile of k3, and where it changes for split gates."""
    a = torch.randint(-1, 2, (1024, 64), device="cuda").to(torch.bfloat16)
    offs = torch.tensor([1000], device="cuda", dtype=torch.int32)
    for k_major in (False, True):
        b = torch.randint(-1, 2, (1, 64, 384), device="cuda").to(torch.bfloat16)
        if k_major:
            b = b.mT.contiguous().mT
        x = torch.zeros((1024, 384), device="cuda", dtype=torch.float64)
        x[:1000] = a[:1000].double() @ b[0].double()
        for layout in ("split", "interleaved"):
            got = gemmjit.grouped_mm(a, b, offs=offs, epilogue=SwiGLU(layout))
            gate, up = (x[:, :192], x[:, 192:]) if layout == "split" else (x[:, ::2], x[:, 1::2])
            want = torch.nn.functional.silu(gate) * up
            assert ((got.double() - want).abs() <= want.abs() * 2**-7.9 + 1e-30).all()


def test_operands_elsewhere_are_refused(torch, torch_maker):
    a = torch.ones((4, 8), device="cuda", dtype=torch.bfloat16)
    b = torch.ones((1, 8, 8), device="cuda", dtype=torch.bfloat16)
    offs = torch.tensor([4], device="cuda", dtype=torch.int32)
    with pytest.raises(InvalidProblemError, match="scale: expected an array on cuda:0"):
        gemmjit.grouped_mm(a, b, offs=offs, epilogue=RowScale(torch.ones(4)))
    grads = torch.ones((1, 8), device="cuda", dtype=torch.bfloat16, requires_grad=True)
    with pytest.raises(InvalidProblemError, match="epilogue: expected none where a gradient"):
        gemmjit.grouped_mm(a, b, offs=offs, bias=grads, epilogue=RowScale(offs.float().expand(4)))
    out = torch.zeros((4, 8), device="cuda")
    with pytest.raises(InvalidProblemError, match="out: expected memory that scale does not use"):
        gemmjit.grouped_mm(a, b, offs=offs, out=out, epilogue=RowScale(out[:, 0]))


def test_a_result_is_the_same_every_time(maker):
    a = maker.array(np.random.default_rng(0).standard_normal((300, 64)), "bfloat16")
    b = maker.array(np.random.default_rng(1).standard_normal((2, 64, 256)), "bfloat16")
    offs = maker.array(np.array([170, 290]), "int32")
    first = maker.read(gemmjit.grouped_mm(a, b, offs=offs, epilogue=SwiGLU("split")))
    for _ in range(20):
        again = maker.read(gemmjit.grouped_mm(a, b, offs=offs, epilogue=SwiGLU("split")))
        assert_same(again, first)
