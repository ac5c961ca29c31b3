"""Which kernel and tile serve a problem."""

from gemmjit.selection.heuristic import choose

__all__ = ["choose"]
