"""Repeated calls on torch tensors that autograd records, or a mode sees. The driver is fake."""

from __future__ import annotations

import sys

from repeated import ENDS, operands, steps

import gemmjit

CALLS = sys.modules[gemmjit.grouped_mm.__module__]


def test_gradients_are_looked_at_in_every_call(torch_gpu):
    fake, maker = torch_gpu
    torch = maker.torch
    (a, b), offs = operands(maker, "fprop"), maker.offsets(ENDS)
    assert not gemmjit.grouped_mm(a, b, offs=offs).requires_grad
    remembered = len(CALLS._calls)
    for array in (a, b):
        array.requires_grad_()
        before = len(fake.launches)
        assert gemmjit.grouped_mm(a, b, offs=offs).requires_grad
        assert len(fake.launches) == before + 1
        with torch.no_grad():
            assert not gemmjit.grouped_mm(a, b, offs=offs).requires_grad
        array.requires_grad_(False)
    assert len(CALLS._calls) == remembered  # a recorded call runs what a plain one runs


def test_modes_are_looked_at_in_every_call(torch_gpu):
    fake, maker = torch_gpu
    (a, b), offs = operands(maker, "fprop"), maker.offsets(ENDS)
    want = gemmjit.grouped_mm(a, b, offs=offs).shape
    from torch.utils.flop_counter import FlopCounterMode

    for _ in range(2):
        with FlopCounterMode(display=False) as counter:
            assert gemmjit.grouped_mm(a, b, offs=offs).shape == want
        assert counter.get_total_flops() == 2 * 64 * 64 * 128
    assert len(fake.launches) == 3
    assert len(CALLS._calls) == 1


def test_steps_of_a_call_that_is_recorded(torch_gpu):
    """It goes past the dispatcher: few functions more than a plain call, forward and backward."""
    fake, maker = torch_gpu
    (a, b), offs = operands(maker, "fprop"), maker.offsets(ENDS)
    alive = []  # so that every result has an address of its own

    def call():
        alive.append(gemmjit.grouped_mm(a, b, offs=offs))

    call()
    plain = steps(call)["call"]
    a.requires_grad_()
    b.requires_grad_()
    call()
    # identify, which says no; frontend_of, operator and two comprehensions; record, GroupedMM's
    # forward, what it runs; grouped_mm and overridden once more.
    assert steps(call)["call"] <= plain + 10
    dy = alive[-1].detach()
    result = alive[-2]
    alive.append(torch_backward(result, dy, (a, b)))
    before = len(fake.launches)
    backward = steps(lambda: alive.append(torch_backward(result, dy, (a, b))))
    assert len(fake.launches) == before + 2
    # GroupedMM's backward, loadable; and for the counters by which wgrad's tiles are claimed, what
    # finds them (two steps), and a place more to write an address to.
    assert backward["call"] <= 2 * plain + 5


def torch_backward(result, dy, leaves):
    import torch

    return torch.autograd.grad(result, leaves, dy, retain_graph=True)


def test_a_parameter_is_remembered_like_a_tensor(torch_gpu):
    _, maker = torch_gpu
    torch = maker.torch
    (a, b), offs = operands(maker, "fprop"), maker.offsets(ENDS)
    gemmjit.grouped_mm(a, b, offs=offs)
    parameter = torch.nn.Parameter(b)
    with torch.no_grad():
        remembered = len(CALLS._calls)
        gemmjit.grouped_mm(a, parameter, offs=offs)
        assert len(CALLS._calls) == remembered
