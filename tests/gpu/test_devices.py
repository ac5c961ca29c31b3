"""More than one GPU in a process."""

from __future__ import annotations

import threading

import pytest
import references
from cases import integers
from references import assert_same, rounded

import gemmjit

ENDS = [11, 11, 40]


@pytest.fixture(autouse=True)
def two(torch):
    if torch.cuda.device_count() < 2:
        pytest.skip(f"needs two GPUs; there is {torch.cuda.device_count()}")


def operands(torch, device: int, seed: int = 1):
    a, b = integers((40, 64), seed=seed), integers((3, 64, 48), seed=seed + 1)
    want = rounded(references.fprop(a, b, ENDS), "bfloat16")
    where = torch.device("cuda", device)
    made = [torch.as_tensor(x).bfloat16().to(where) for x in (a, b)]
    return *made, torch.tensor(ENDS, dtype=torch.int32, device=where), want


@pytest.mark.parametrize("config", [None, "k0", "k1", "k2", "k3"])
def test_br068_arrays_decide_on_the_device(torch, config):
    torch.cuda.set_device(0)
    for device in (0, 1, 0, 1):
        a, b, offs, want = operands(torch, device)
        for given in (offs, ENDS):
            got = gemmjit.grouped_mm(a, b, offs=given, config=config)
            assert got.device.index == device
            assert_same(got.double().cpu().numpy(), want)
        assert torch.cuda.current_device() == 0


def test_br068_cupy_arrays_decide_on_the_device(cupy):
    import numpy as np

    a, b = integers((40, 64), seed=1), integers((3, 64, 48), seed=2)
    want = rounded(references.fprop(a, b, ENDS), "float16")
    for device in (0, 1, 0):
        with cupy.cuda.Device(device):
            given = [cupy.asarray(x.astype(np.float16)) for x in (a, b)]
            offs = cupy.asarray(np.asarray(ENDS, np.int32))
        with cupy.cuda.Device(0):
            got = gemmjit.grouped_mm(*given, offs=offs)
            assert cupy.cuda.runtime.getDevice() == 0
        assert got.device.id == device
        with cupy.cuda.Device(device):
            assert_same(got.get().astype(np.float64), want)


def test_br070_threads_on_two_devices(torch):
    failures: list[str] = []
    barrier = threading.Barrier(2)

    def body(device: int) -> None:
        try:
            a, b, offs, want = operands(torch, device, seed=5 + device)
            target = torch.as_tensor(want).to(a.device)
            different = torch.zeros((), dtype=torch.int64, device=a.device)
            barrier.wait(60)
            for turn in range(1000):
                config = (None, "k0", "k1")[turn % 3]
                got = gemmjit.grouped_mm(a, b, offs=offs, config=config)
                different += (got.double() != target).sum()
            if different.item():
                failures.append(f"cuda:{device}: {different.item()} elements differ")
        except BaseException as error:  # reported by the test, whatever it is
            failures.append(f"cuda:{device}: {error!r}")

    threads = [threading.Thread(target=body, args=(d,)) for d in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failures, "\n".join(failures)


def test_operands_on_two_devices_are_refused(torch):
    a, b, offs, _ = operands(torch, 0)
    with pytest.raises(gemmjit.errors.InvalidProblemError, match=r"mat_b: .*cuda:0.*cuda:1"):
        gemmjit.grouped_mm(a, b.to("cuda:1"), offs=offs)
    with pytest.raises(gemmjit.errors.InvalidProblemError, match=r"offs: .*cuda:0.*cuda:1"):
        gemmjit.grouped_mm(a, b, offs=offs.to("cuda:1"))
