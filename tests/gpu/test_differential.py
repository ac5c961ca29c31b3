"""The emulator against hardware: the same cubins, the same operands, equal bit for bit.

Every byte that a kernel could have written is compared: result, tail, gaps, what lies around them,
and the operands. Whole numbers leave no room for another order of summation; the model of the
tensor cores is compared on any numbers.
"""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest
from differential import emulated, kernel_cases, launchable, run_case, run_micro
from micro_kernels import micros, model_micros

from gemmjit.arch import Arch, targets_for
from gemmjit.cuda.driver import is_available

pytestmark = pytest.mark.gpu


def _device_arch() -> Arch:
    """Architecture of the GPU; where there is none, of the cases that are only collected."""
    if not is_available():
        return Arch.parse("sm_90a")
    from gemmjit.cuda.device import device

    arch = device(0).arch
    return (targets_for(arch, True) or targets_for(arch))[0]


TARGET = _device_arch()
NUMERICS = {"test_model_of_the_tensor_cores": "tensor_core"}


@pytest.fixture(scope="module")
def emulation(request):
    """Results of the emulator, computed by all cores while the GPU's are compared.

    The processes compile too, into the cache of the run, where the tests find the cubins.
    """
    wanted = []
    for item in request.session.items:
        if item.path == request.path:
            (case,) = item.callspec.params.values()
            wanted.append((case, NUMERICS.get(item.originalname, "fp32")))
    if os.environ.get("PYTEST_XDIST_WORKER"):  # the cores are taken already
        yield lambda case, numerics="fp32": emulated(case, TARGET, numerics)
        return
    spawn = multiprocessing.get_context("spawn")  # a forked process could not use CUDA
    with ProcessPoolExecutor(os.cpu_count(), mp_context=spawn) as pool:
        futures = {
            (str(case), numerics): pool.submit(emulated, case, TARGET, numerics)
            for case, numerics in wanted
        }
        yield lambda case, numerics="fp32": futures[str(case), numerics].result()
        for future in futures.values():
            future.cancel()


def _compare(device: dict[str, np.ndarray], emulated: dict[str, np.ndarray]) -> None:
    assert device.keys() == emulated.keys()
    for name, ours in emulated.items():
        theirs = device[name]
        assert theirs.shape == ours.shape
        different = np.flatnonzero(theirs != ours)
        if different.size:
            word = slice(int(different[0]) // 4 * 4, int(different[0]) // 4 * 4 + 4)
            raise AssertionError(
                f"{name}: {different.size} of {ours.size} bytes differ, the first in the word at "
                f"{word.start}: GPU {theirs[word].tolist()}, emulator {ours[word].tolist()}"
            )


@pytest.mark.parametrize("micro", list(micros(TARGET)), ids=lambda m: m.name)
def test_instructions(cupy_maker, emulation, micro):
    expected = emulation(micro)
    _compare(run_micro(micro), expected)


@pytest.mark.parametrize("micro", list(model_micros(TARGET)), ids=lambda m: m.name)
def test_model_of_the_tensor_cores(cupy_maker, emulation, micro):
    expected = emulation(micro, "tensor_core")
    _compare(run_micro(micro), expected)


@pytest.mark.parametrize("case", list(kernel_cases(TARGET)), ids=str)
def test_kernels(cupy_maker, emulation, case):
    expected = emulation(case)
    _compare(run_case(case, cupy_maker, launchable(case, TARGET)), expected)
