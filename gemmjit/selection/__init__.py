"""Which kernel and tile serve a problem."""

from gemmjit.selection.coverage import ANY_ROWS, Choice, every_choice
from gemmjit.selection.heuristic import choose

__all__ = ["ANY_ROWS", "Choice", "choose", "every_choice"]
