"""Results that k3 adds to, on a GPU."""

from __future__ import annotations

import pytest
from additions import CONFIGS, check_small_numbers, check_sum


@pytest.mark.parametrize("gap", [False, True], ids=["plain", "padded"])
@pytest.mark.parametrize(("m", "n"), [(136, 200), (192, 384), (72, 328)])
@pytest.mark.parametrize("form", ["fprop", "wgrad"])
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_sum(maker, config, form, m, n, gap):
    check_sum(maker, config, form, m, n, gap)


@pytest.mark.parametrize("form", ["fprop", "wgrad"])
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_small_numbers(maker, config, form):
    check_small_numbers(maker, config, form)
