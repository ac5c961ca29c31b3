import numpy as np
import pytest

from gemmjit.bench.statistics import (
    MIN_ROUNDS,
    Interval,
    median_interval,
    ratio_interval,
    smallest_sample,
)
from gemmjit.errors import InvalidProblemError


def test_interval_of_fifteen_values_drops_three_at_each_end():
    # P(Binomial(15, 1/2) <= 3) = 0.01758, so that 96.5 % are held.
    found = median_interval([float(v) for v in range(15, 0, -1)])
    assert (found.median, found.low, found.high) == (8.0, 4.0, 12.0)
    assert found.confidence == pytest.approx(1 - 2 * 576 / 2**15)


def test_six_values_are_the_fewest_with_an_interval():
    assert smallest_sample() == 6
    assert median_interval([1.0] * 5).low is None
    six = median_interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    assert (six.low, six.high, six.confidence) == (1.0, 6.0, 1 - 2 / 64)


@pytest.mark.parametrize("size", [6, 9, 15, 30])
@pytest.mark.parametrize("kind", ["normal", "skewed", "heavy"])
def test_interval_covers_the_true_median_as_often_as_it_says(size, kind):
    random = np.random.default_rng(size)
    draw = {
        "normal": (lambda: random.standard_normal(size), 0.0),
        "skewed": (lambda: random.exponential(1.0, size), np.log(2.0)),
        "heavy": (lambda: random.standard_cauchy(size), 0.0),
    }[kind]
    held = 0
    trials = 2000
    for _ in range(trials):
        found = median_interval(draw[0]().tolist())
        held += found.low <= draw[1] <= found.high
    # Three standard errors below 95 %.
    assert held / trials >= 0.95 - 3 * (0.95 * 0.05 / trials) ** 0.5


def test_ratios_are_formed_within_a_round():
    # The baseline's rounds differ by a factor of ten, the ratio never does.
    baseline = [1.0, 10.0, 2.0, 5.0, 3.0, 7.0]
    found = ratio_interval([v * 1.25 for v in baseline], baseline)
    assert found.median == pytest.approx(1.25)
    assert found.low == pytest.approx(1.25)
    assert found.high == pytest.approx(1.25)


def test_a_result_needs_fifteen_rounds_and_an_interval():
    values = [1.0] * MIN_ROUNDS
    assert median_interval(values).is_valid
    assert not median_interval(values[1:]).is_valid


def test_a_figure_is_reached_if_the_interval_reaches_it():
    found = Interval(0.80, 0.78, 0.82, 0.96, 15)
    assert found.reaches(0.79)
    assert not found.reaches(0.77)
    assert not Interval(0.80, 0.70, 0.90, 0.96, 14).reaches(0.79)


@pytest.mark.parametrize("values", [[], [1.0, float("nan")], [1.0, float("inf")]])
def test_no_median_of_nothing_or_of_what_is_no_number(values):
    with pytest.raises(InvalidProblemError, match="finite"):
        median_interval(values)


def test_ratios_of_times_that_cannot_be():
    with pytest.raises(InvalidProblemError, match="one time a round"):
        ratio_interval([1.0, 2.0], [1.0])
    with pytest.raises(InvalidProblemError, match="positive"):
        ratio_interval([1.0, 0.0], [1.0, 1.0])
