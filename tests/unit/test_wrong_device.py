"""Arrays on different devices are refused before anything is launched. The driver is fake."""

from __future__ import annotations

import pytest
from fake_gpu import framework

import gemmjit
from gemmjit.arrays import CPU
from gemmjit.errors import InvalidProblemError


@pytest.fixture
def machine():
    """A fake driver, torch, and a way to say which device a tensor is on."""
    pytest.importorskip("torch")
    with framework("torch", num_devices=2) as (fake, maker):
        elsewhere: dict[int, int] = {}
        view = type(maker.frontend).view

        def placed(array, argument="array"):
            found = view(maker.frontend, array, argument)
            return found._replace(device=elsewhere.get(found.pointer, 0))

        maker.frontend.view = placed
        # Signatures are those of tensors on the host, whose device number is always the same.
        maker.frontend.identify = lambda *arrays: None
        yield fake, maker, elsewhere


def arrays(maker):
    return {
        "mat_a": maker.empty(64, 64),
        "mat_b": maker.empty(4, 64, 128),
        "out": maker.empty(64, 128),
        "offs": maker.offsets([8, 8, 40, 64]),
    }


@pytest.mark.parametrize(
    ("name", "device"),  # offsets may be on the host
    [("mat_b", CPU), ("mat_b", 1), ("out", CPU), ("out", 1), ("offs", 1)],
)
def test_an_array_on_another_device_is_refused(machine, name, device):
    fake, maker, elsewhere = machine
    given = arrays(maker)
    gemmjit.grouped_mm(**given)
    assert len(fake.launches) == 1
    elsewhere[given[name].data_ptr()] = device
    where = "the CPU" if device == CPU else "cuda:1"
    with pytest.raises(InvalidProblemError, match=rf"{name}: expected .*cuda:0.*{where}"):
        gemmjit.grouped_mm(**given)
    assert len(fake.launches) == 1


def test_all_arrays_on_another_device_run_there(machine):
    fake, maker, elsewhere = machine
    given = arrays(maker)
    elsewhere.update({array.data_ptr(): 1 for array in given.values()})
    gemmjit.grouped_mm(**given)
    assert [seen.device for seen in fake.launches] == [1]
