"""Arguments that are numbers."""

from __future__ import annotations

import argparse

__all__ = ["positive"]


def positive(text: str) -> int:
    """Read a whole number from 1 on.

    Raises
    ------
    argparse.ArgumentTypeError
        If it is none.
    """
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 on; got {text!r}")
    return number
