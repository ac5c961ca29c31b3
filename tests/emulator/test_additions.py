"""Results that k3 adds to, instruction by instruction."""

from __future__ import annotations

import pytest
from additions import CONFIGS, check_small_numbers, check_sum
from makers import NumpyMaker

from gemmjit.emulator import emulating


@pytest.fixture(autouse=True)
def _target(monkeypatch):
    monkeypatch.setenv("GEMMJIT_ARCH", "sm_90a")


@pytest.mark.parametrize(
    ("m", "n", "gap"),
    [
        (136, 200, False),
        (72, 328, True),
        *(pytest.param(*case, marks=pytest.mark.slow)
          for case in ((136, 200, True), (192, 384, False), (192, 384, True), (72, 328, False))),
    ],
)  # fmt: skip
@pytest.mark.parametrize("form", ["fprop", "wgrad"])
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_sum(config, form, m, n, gap):
    policy = ("eager", "lazy", "random")[CONFIGS.index(config) % 3]
    with emulating(policy, 3, unwaited_stores="error", num_sms=2):
        check_sum(NumpyMaker(), config, form, m, n, gap)


@pytest.mark.parametrize("form", ["fprop", "wgrad"])
@pytest.mark.parametrize("config", CONFIGS[:2], ids=str)
def test_small_numbers(config, form):
    with emulating("eager", num_sms=1):
        check_small_numbers(NumpyMaker(), config, form)
