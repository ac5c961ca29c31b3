"""Calls to be repeated on a fake driver, and a count of what one of them does."""

from __future__ import annotations

import collections
import sys

import gemmjit

PACKAGE = gemmjit.__path__[0]
ENDS = [8, 8, 40, 64]


def operands(maker, form: str, rows: int = 64, k: int = 64, n: int = 128):
    """Operands of a form, as a training step has them."""
    if form == "fprop":
        return maker.empty(rows, k), maker.swapped(maker.empty(len(ENDS), n, k))
    if form == "dgrad":
        return maker.empty(rows, n), maker.empty(len(ENDS), n, k)
    return maker.swapped(maker.empty(rows, k)), maker.empty(rows, n)


def steps(call) -> collections.Counter[str]:
    """Count the functions of the project that a call enters, and the C functions they call."""
    counts: collections.Counter[str] = collections.Counter()

    def count(frame, event, argument):
        if event in ("call", "c_call") and frame.f_code.co_filename.startswith(PACKAGE):
            counts[event] += 1

    sys.setprofile(count)
    try:
        call()
    finally:
        sys.setprofile(None)
    return counts
