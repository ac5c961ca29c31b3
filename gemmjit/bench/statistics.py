"""Medians, ratios and their intervals. Pure functions on numbers.

Everything that is reported is a median with a distribution-free interval: the order statistics
between which the true median lies with at least the asked confidence, whatever the noise looks
like (Conover, Practical Nonparametric Statistics, chapter 3: the interval from the binomial
distribution). Ratios are formed within a round, so that a drift which all contenders share cancels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from gemmjit.errors import InvalidProblemError

__all__ = ["MIN_ROUNDS", "Interval", "median_interval", "ratio_interval", "smallest_sample"]

#: Rounds that a cell needs before its interval counts as a result.
MIN_ROUNDS = 15

_CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """A median and the interval that holds the true one.

    Attributes
    ----------
    median : float
    low, high : float or None
        Ends of the interval; None where the sample is too small for the asked confidence.
    confidence : float
        Confidence that the interval reaches, at least what was asked; 0.0 without an interval.
    samples : int
        Number of values.
    """

    median: float
    low: float | None
    high: float | None
    confidence: float
    samples: int

    @property
    def is_valid(self) -> bool:
        """Whether there is an interval from at least `MIN_ROUNDS` values."""
        return self.low is not None and self.samples >= MIN_ROUNDS

    def reaches(self, figure: float) -> bool:
        """Return whether a ratio that should be at most `figure` holds: the interval reaches it."""
        return self.is_valid and self.low is not None and self.low <= figure

    def to_dict(self) -> dict[str, float | int | bool | None]:
        """Return the fields as a JSON-compatible mapping."""
        return {
            "median": self.median,
            "low": self.low,
            "high": self.high,
            "confidence": self.confidence,
            "samples": self.samples,
            "valid": self.is_valid,
        }


def median_interval(values: Sequence[float], confidence: float = _CONFIDENCE) -> Interval:
    """Return the median of a sample and its order-statistic interval.

    Parameters
    ----------
    values : sequence of float
        At least one; independent, of any distribution.
    confidence : float
        Probability with which the interval must hold the true median, between 0 and 1.

    Raises
    ------
    InvalidProblemError
        If there is no value, or one that is not finite.

    Examples
    --------
    >>> median_interval([float(i) for i in range(15)])
    Interval(median=7.0, low=3.0, high=11.0, confidence=0.96484375, samples=15)
    """
    ordered = sorted(values)
    if not ordered or not all(math.isfinite(v) for v in ordered):
        raise InvalidProblemError(
            f"values: expected at least one number, all finite; got {list(values)}"
        )
    n = len(ordered)
    drop, reached = _dropped(n, confidence)
    if drop is None:
        return Interval(median(ordered), None, None, 0.0, n)
    return Interval(median(ordered), ordered[drop], ordered[n - 1 - drop], reached, n)


def ratio_interval(
    values: Sequence[float], baseline: Sequence[float], confidence: float = _CONFIDENCE
) -> Interval:
    """Return the median over rounds of ``values / baseline``, with its interval.

    Parameters
    ----------
    values, baseline : sequence of float
        Times of two contenders; equal positions are of the same round.

    Raises
    ------
    InvalidProblemError
        If the lengths differ or a time is not positive.
    """
    if len(values) != len(baseline):
        raise InvalidProblemError(
            f"baseline: expected one time a round, {len(values)}; got {len(baseline)}"
        )
    if any(not v > 0 for v in (*values, *baseline)):
        raise InvalidProblemError("values, baseline: expected positive times")
    return median_interval([v / b for v, b in zip(values, baseline, strict=True)], confidence)


def smallest_sample(confidence: float = _CONFIDENCE) -> int:
    """Return the smallest number of values that has an interval of this confidence."""
    n = 1
    while _dropped(n, confidence)[0] is None:
        n += 1
    return n


def _dropped(n: int, confidence: float) -> tuple[int | None, float]:
    """Return how many values to drop at each end, and the confidence that is left.

    The interval from the (d+1)-th to the (n-d)-th value misses the true median if at most d values
    lie on one side of it: probability ``2 P(Binomial(n, 1/2) <= d)``.
    """
    tail, best, reached = 0.0, None, 0.0
    for drop in range((n + 1) // 2):
        tail += math.comb(n, drop) / 2**n
        held = 1.0 - 2.0 * tail
        if held < confidence:
            break
        best, reached = drop, held
    return best, reached
