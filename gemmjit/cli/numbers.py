"""Arguments that are numbers, or lists of names."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Iterable

__all__ = [
    "at_least",
    "dimension",
    "integer",
    "integers",
    "names",
    "names_in",
    "positive",
    "row_counts",
    "whole",
]

# gemmjit.problem.LARGEST, which this module must not import: doctor runs where NumPy does not.
_LARGEST = 2**31 - 1


_INTEGER = re.compile("-?[0-9]+")


def integer(text: str) -> int:
    """Read an integer of ASCII digits; `int` alone takes underscores and digits of any script.

    Raises
    ------
    ValueError
        If it is none.
    """
    if not _INTEGER.fullmatch(text):
        raise ValueError(f"expected an integer; got {text!r}")
    return int(text)


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """Return what reads a whole number within limits, for argparse."""
    limits = f"from {least} " + ("on" if most is None else f"to {most}")

    def read(text: str) -> int:
        try:
            number = integer(text)
        except ValueError:
            number = least - 1
        if number < least or (most is not None and number > most):
            raise argparse.ArgumentTypeError(f"expected a whole number {limits}; got {text!r}")
        return number

    return read


#: A count, and the length of a dimension.
positive = whole(1)
dimension = whole(1, _LARGEST)


def row_counts(text: str) -> tuple[int, ...]:
    """Read the rows of each group, separated by commas.

    Raises
    ------
    argparse.ArgumentTypeError
        If one of them is no whole number, or negative.
    """
    try:
        rows = tuple(integer(part.strip()) for part in text.split(","))
    except ValueError:
        rows = (-1,)
    if min(rows) < 0:
        raise argparse.ArgumentTypeError(f"expected whole numbers >= 0, as in 5,0,70; got {text!r}")
    return rows


def integers(least: int, most: int) -> Callable[[str], str]:
    """Return what checks whole numbers within limits, separated by commas, for argparse."""
    one = whole(least, most)

    def read(text: str) -> str:
        try:
            for part in text.split(","):
                one(part.strip())
        except argparse.ArgumentTypeError:
            raise argparse.ArgumentTypeError(
                f"expected whole numbers from {least} to {most}, as in 8,64; got {text!r}"
            ) from None
        return text

    return read


def at_least(least: float, *, open_end: bool = False) -> Callable[[str], float]:
    """Return what reads a finite number from `least` on, for argparse; above it if `open_end`."""

    def read(text: str) -> float:
        try:
            if "_" in text or not text.isascii():  # as for whole numbers
                raise ValueError
            number = float(text)
        except ValueError:
            number = math.nan
        if not (math.isfinite(number) and number >= least) or (open_end and number == least):
            limit = f"above {least:g}" if open_end else f"from {least:g} on"
            raise argparse.ArgumentTypeError(f"expected a finite number {limit}; got {text!r}")
        return number

    return read


def names_in(known: Callable[[], Iterable[str]], *, or_none: bool = False) -> Callable[[str], str]:
    """Return what checks names separated by commas, for argparse; `or_none` allows no name."""

    def read(text: str) -> str:
        given = [part.strip() for part in text.split(",") if part.strip()]
        if not given and or_none:
            return text
        names = list(known())
        if not given or not set(given) <= set(names):
            raise argparse.ArgumentTypeError(f"expected some of {', '.join(names)}; got {text!r}")
        return text

    return read


def names(text: str) -> str:
    """Check that there is a name in a list with commas, for argparse; which, others look at.

    Raises
    ------
    argparse.ArgumentTypeError
        If there is none.
    """
    if not any(part.strip() for part in text.split(",")):
        raise argparse.ArgumentTypeError(f"expected one name or more, with commas; got {text!r}")
    return text
