"""Operands of torch that are known by one comparison: what must not be taken for something else."""

from __future__ import annotations

import sys
import threading

import pytest
from fake_gpu import framework
from repeated import ENDS, operands

import gemmjit

torch = pytest.importorskip("torch")
torch_guards = pytest.importorskip("gemmjit.integrations.torch_guards")
torch_frontend = pytest.importorskip("gemmjit.integrations.torch")
CALLS = sys.modules[gemmjit.grouped_mm.__module__]


@pytest.fixture
def gpu():
    """A fake driver and torch."""
    with framework("torch") as made:
        yield made


def kind_of(maker, a, b, offs):
    """Return what stands for operands, asked for twice: as they are known, and as they are met."""
    known = maker.frontend.identify(a, b, offs)
    maker.frontend._known_at.clear()
    met = maker.frontend.identify(a, b, offs)
    assert known == met
    return known and known[0]


def test_the_comparison_is_used(gpu):
    _, maker = gpu
    assert torch_guards.works()
    (a, b), offs = operands(maker, "fprop"), maker.offsets(ENDS)
    for _ in range(2):
        maker.frontend.identify(a, b, offs)
    (known,) = maker.frontend._known_at.values()
    assert known[0](a, b, offs)
    assert maker.frontend.identify(a, b, offs)[0] is known[1]


def test_what_differs_is_told_apart_at_the_same_addresses(gpu):
    _, maker = gpu
    memory = torch.empty(1 << 15, dtype=torch.bfloat16)
    b, offs = maker.empty(4, 64, 128), maker.offsets(ENDS)
    a = memory[: 64 * 64].view(64, 64)
    kinds = [kind_of(maker, a, b, offs)]
    for other in (
        (memory[: 96 * 64].view(96, 64), b, offs),
        (memory[: 64 * 72].view(64, 72)[:, :64], b, offs),
        (a.T, b, offs),
        (a.view(torch.float16), b, offs),
        (a, b.view(4, 128, 64).transpose(1, 2), offs),
        (a, b[:3], offs),
        (a, b, offs[:3]),
        (a, b, offs.long()),
        (a, b, torch.stack([offs, offs], 1)[:, 0]),
    ):
        kinds.append(kind_of(maker, *other))
        assert kind_of(maker, a, b, offs) is kinds[0]
    assert len(set(kinds)) == len(kinds)


def test_what_no_repeated_call_can_take(gpu):
    _, maker = gpu
    (a, b), offs = operands(maker, "fprop"), maker.offsets(ENDS)
    assert kind_of(maker, a, b, offs) is not None
    for other in (
        (a, b.float().numpy(), offs),
        (a, b, ENDS),
        (a, b, None),
        (a, None, offs),
        (a.to_sparse(), b, offs),
        (torch._neg_view(a), b, offs),
        (a, torch._neg_view(b), offs),
        (a, b, torch._neg_view(offs)),
    ):
        assert kind_of(maker, *other) is None
    a.requires_grad_()
    assert kind_of(maker, a, b, offs) is None
    with torch.no_grad():
        assert kind_of(maker, a, b, offs) is not None
    assert kind_of(maker, a, b, offs) is None


def test_states_of_torch_change_nothing(gpu):
    """Each has its own dispatch keys, by which the comparison fails; then a new one is made."""
    _, maker = gpu
    (a, b), offs = operands(maker, "fprop"), maker.offsets(ENDS)
    kind = kind_of(maker, a, b, offs)
    states = (
        torch.no_grad,
        torch.inference_mode,
        lambda: torch.autocast("cpu", torch.bfloat16),
        torch.enable_grad,
    )
    for state in states * 2:
        with state():
            for _ in range(3):
                assert kind_of(maker, a, b, offs) is kind
                gemmjit.grouped_mm(a, b, offs=offs)
    assert len(CALLS._calls) == 1
    assert kind_of(maker, torch.nn.Parameter(a, requires_grad=False), b, offs) is kind


def test_a_tensor_that_is_there_twice(gpu):
    _, maker = gpu
    a, offs = maker.empty(64, 64), maker.offsets(ENDS)
    for _ in range(3):
        assert gemmjit.grouped_mm(a, a, offs=offs).shape == (4, 64, 64)
    assert len(CALLS._calls) == 1


def test_what_is_known_does_not_grow_without_end(gpu, monkeypatch):
    _, maker = gpu
    monkeypatch.setattr(torch_frontend, "_MAX_KNOWN", 16)
    memory, b, offs = maker.empty(400, 64), maker.empty(4, 64, 128), maker.offsets(ENDS)
    for rows in range(64, 264):
        kind = kind_of(maker, memory[:rows], b, offs)
        assert kind_of(maker, memory[:rows, :32], b[:, :32], offs) is not kind
        assert len(maker.frontend._known) <= 16
        assert len(maker.frontend._known_at) <= 16


def test_without_the_comparison(gpu, monkeypatch):
    fake, maker = gpu
    maker.frontend._guarded = False
    (a, b), offs = operands(maker, "fprop"), maker.offsets(ENDS)
    for _ in range(3):
        gemmjit.grouped_mm(a, b, offs=offs)
    assert len(fake.launches) == 3
    assert len(CALLS._calls) == 1
    assert not maker.frontend._known_at


@pytest.mark.parametrize("attribute", ["type", "shape", "nothing"])
def test_a_comparison_of_another_torch_is_not_used(monkeypatch, attribute):
    """One that overlooks something, one that fails, and none at all."""
    real = torch_guards._Guards

    class Blind:
        def __init__(self, *tensors, **more):
            self._real = real(*tensors, **more)

        def check(self, a, b):
            if attribute == "type":
                return self._real.check(a.as_subclass(torch.Tensor), b.as_subclass(torch.Tensor))
            raise TypeError("shapes")

    monkeypatch.setattr(torch_guards, "_Guards", None if attribute == "nothing" else Blind)
    torch_guards._tells_apart.cache_clear()
    assert not torch_guards.works()
    torch_guards._tells_apart.cache_clear()


def test_a_mode_is_waited_for(gpu):
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False):
        assert torch_guards.works() is None
    assert torch_guards.works()
    with torch.device("meta"):  # what makes tensors elsewhere is a mode too
        assert torch_guards.works() is None


def test_threads_know_the_same_operands(gpu):
    _, maker = gpu
    sets = [operands(maker, form) for form in ("fprop", "dgrad", "wgrad") * 2]
    offs = maker.offsets(ENDS)
    kinds = [kind_of(maker, *pair, offs) for pair in sets]
    wrong = []

    def body():
        for turn in range(300):
            which = turn % len(sets)
            found = maker.frontend.identify(*sets[which], offs)
            if found is None or found[0] is not kinds[which]:
                wrong.append((turn, found))

    threads = [threading.Thread(target=body) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
