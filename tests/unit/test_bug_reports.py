"""Faults of other libraries that no other file of tests has: pools, counts, interop, host cost."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from fake_gpu import framework
from tuned_device import tuned_backend  # noqa: F401

import gemmjit
from gemmjit import templating
from gemmjit.bench.protocol import Protocol
from gemmjit.bench.setup import open_bench
from gemmjit.build import clear_memory
from gemmjit.cache import Store
from gemmjit.cuda import device as device_module
from gemmjit.emulator.settings import emulating
from gemmjit.errors import LaunchError
from gemmjit.tuning import Storage, Tuner, measure, tasks_of

ENDS = [8, 8, 40, 64]


@pytest.mark.parametrize("offset", [0, 1, 16, 32, 64, 127])
def test_br032_workspaces_are_aligned_whatever_the_pool_gives(offset):
    """Offsets on the host go to the device through a workspace; its address is in the launch."""
    pytest.importorskip("torch")
    with framework("torch") as (fake, maker):
        given, copied = [], []
        torch = maker.torch

        def empty(shape, dtype, device):
            made = torch.empty(shape[0] + 256, dtype=torch.uint8)
            start = -made.data_ptr() % 256 + offset
            given.append(made[start : start + shape[0]])
            return given[-1]

        plain = maker.frontend.empty
        maker.frontend.empty = lambda shape, dtype, device: (
            empty(shape, dtype, device) if len(shape) == 1 else plain(shape, dtype, device)
        )
        fake.cuMemcpyHtoDAsync = lambda to, source, nbytes, stream: (
            copied.append((to, nbytes)) or (fake.CUresult.CUDA_SUCCESS,)
        )
        a, b = maker.empty(64, 128).mT, maker.empty(64, 64)
        gemmjit.grouped_mm(a, b, offs=ENDS, config="k1")  # ragged K
        gemmjit.grouped_mm(b, maker.empty(4, 64, 32), offs=ENDS, config="k0")
        assert len(copied) == len(given) == 2
        for (address, nbytes), scratch in zip(copied, given, strict=True):
            assert address % 128 == 0
            begin = scratch.data_ptr()
            assert begin <= address
            assert address + nbytes <= begin + scratch.numel()
        assert fake.launches[0].operands["offs"] == copied[0][0]


@pytest.mark.parametrize("executor", ["driver", "host"])
def test_br043_bfloat16_does_not_pass_through_dlpack(executor, monkeypatch):
    torch = pytest.importorskip("torch")
    used = []
    for name in ("__dlpack__", "__dlpack_device__", "__array__"):
        monkeypatch.setattr(torch.Tensor, name, lambda *a, **k: used.append(a), raising=False)
    a = torch.ones(8, 64).bfloat16()
    b, out = torch.ones(2, 64, 16).bfloat16(), torch.zeros(8, 16).bfloat16()
    offs = torch.tensor([3, 8], dtype=torch.int32)
    if executor == "driver":
        with framework("torch") as (fake, _):
            gemmjit.grouped_mm(a, b, offs=offs, out=out)
            assert fake.launches[0].operands["mat_a"] == a.data_ptr()
    else:
        gemmjit.grouped_mm(a, b, offs=offs, out=out)
        assert (out == 64).all()
    assert used == []


def test_br043_bfloat16_that_a_framework_cannot_export_is_an_error_not_a_crash():
    pytest.importorskip("torch")
    program = (
        "import numpy, torch, gemmjit\n"
        "a = torch.ones(4, 8).bfloat16()\n"
        "try:\n"
        "    gemmjit.grouped_mm(numpy.ones((4, 8), 'f4'), a[None].mT, offs=[4])\n"
        "except gemmjit.errors.InvalidDtypeError as error:\n"
        "    print('refused:', error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "refused: mat_b: expected a numpy array" in done.stdout


def test_br061_tuning_is_never_part_of_a_call():
    program = (
        "import sys, numpy as np, gemmjit\n"
        "a, b = np.ones((16, 4), 'f4'), np.ones((16, 8), 'f4')\n"
        "sizes = np.array([2, 0] * 8)\n"
        "gemmjit.grouped_mm(a.T, b, offs=sizes.cumsum())\n"
        "print([m for m in sys.modules if m.startswith(('gemmjit.tuning', 'gemmjit.bench'))])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_br061_a_candidate_that_fails_is_skipped_and_the_others_are_timed(backend, monkeypatch):
    """Ragged K, sixteen groups, half of them empty."""
    sizes = "/".join(["8", "0"] * 8)
    (task,) = tasks_of([f"sizes={sizes}:k=64:n=64"], ["wgrad"], [])
    own, failing = measure.own_contender, []

    def one_fails(name, *arguments, **keywords):
        contender = own(name, *arguments, **keywords)
        if failing:
            return contender
        failing.append(name)

        def prepare(operands):
            raise LaunchError("launch: the driver refused it")

        return replace(contender, prepare=prepare)

    monkeypatch.setattr(measure, "own_contender", one_fails)
    protocol = Protocol(rounds=6, warmup_seconds=0.01, slot_seconds=0.0002, graph_seconds=0.0001)
    bench = open_bench(backend, protocol, ("cool", "hot"), 4, None, lambda text: None)
    record = Tuner(bench, storage=Storage(), kernels=("k1",), within=10.0).measure(task)
    assert [one["name"] for one in record["rejected"]] == failing
    assert "the driver refused it" in record["rejected"][0]["reason"]
    timed = [f"{one['kernel']} {one['tile']}" for one in record["candidates"]]
    assert timed
    assert failing[0] not in timed


@pytest.mark.parametrize("num_sms", [1, 2, 132])
def test_br080_any_number_of_multiprocessors_computes_everything(num_sms):
    a, b = np.ones((40, 16), np.float32), np.ones((3, 16, 8), np.float32)
    with emulating(num_sms=num_sms):
        got = gemmjit.grouped_mm(a, b, offs=np.array([10, 10, 40], np.int32))
    assert (got == 16).all()


def test_br080_no_multiprocessors_are_refused():
    a, b = np.ones((40, 16), np.float32), np.ones((3, 16, 8), np.float32)
    with emulating(num_sms=0), pytest.raises(LaunchError, match=r"num_sms: expected .*; got 0"):
        gemmjit.grouped_mm(a, b, offs=np.array([10, 10, 40], np.int32))


def test_br080_the_grid_is_that_of_the_device_at_hand(monkeypatch):
    pytest.importorskip("torch")
    grids = []
    for count in (1, 78, 132):
        with framework("torch") as (fake, maker):
            attribute = fake.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
            monkeypatch.setattr(
                fake,
                "cuDeviceGetAttribute",
                lambda which, _, a=attribute, c=count, ok=fake.CUresult.CUDA_SUCCESS: (
                    ok,
                    c if which == a else which,
                ),
                raising=False,
            )
            launch = fake.cuLaunchKernel
            fake.cuLaunchKernel = lambda function, gx, *rest, run=launch: (
                grids.append(gx) or run(function, gx, *rest)
            )
            a, b = maker.empty(1 << 15, 64), maker.empty(4, 64, 256)
            gemmjit.grouped_mm(a, b, offs=maker.offsets([1 << 13] * 3 + [1 << 15]), config="k1")
            assert device_module.device(0).num_sms == count
    assert [grid / grids[0] for grid in grids] == [1, 78, 132]


def test_br084_a_warm_call_renders_hashes_and_reads_nothing(monkeypatch):
    """How many steps it takes is counted in test_repeated_calls; its time, by gemmjit bench."""
    pytest.importorskip("torch")
    clear_memory()
    with framework("torch") as (fake, maker):
        a, b, offs = maker.empty(8, 64), maker.empty(4, 64, 64), maker.offsets([2, 4, 4, 8])
        gemmjit.grouped_mm(a, b, offs=offs)
        opened = []
        watching = True
        sys.addaudithook(
            lambda event, arguments: (
                opened.append(arguments[0]) if watching and event == "open" else None
            )
        )

        def forbidden(*arguments, **keywords):
            raise AssertionError("a warm call came here")

        monkeypatch.setattr(templating, "render", forbidden)
        monkeypatch.setattr(hashlib, "sha256", forbidden)
        monkeypatch.setattr(Store, "load", forbidden)
        try:
            for _ in range(10_000):
                gemmjit.grouped_mm(a, b, offs=offs)
        finally:
            watching = False
        assert opened == []
        assert len(fake.launches) == 10_001
        clear_memory()  # a call of another kind does come there
        with pytest.raises(AssertionError, match="a warm call came here"):
            gemmjit.grouped_mm(a, b, offs=offs, config="k1")
