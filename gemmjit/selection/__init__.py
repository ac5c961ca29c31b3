"""Which kernel and tile serve a problem, and what a tile is expected to take."""

from gemmjit.selection.choice import choose, taken_for
from gemmjit.selection.coverage import ANY_ROWS, Choice, every_choice
from gemmjit.selection.explanation import Explanation, Refusal, explain
from gemmjit.selection.model import Prediction

__all__ = [
    "ANY_ROWS",
    "Choice",
    "Explanation",
    "Prediction",
    "Refusal",
    "choose",
    "every_choice",
    "explain",
    "taken_for",
]
