"""How many rounds fit into the time that a run may take."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Budget"]

#: Fewer rounds than this have no interval at 95 %.
_FEWEST = 6

#: Share of a cell's time that is kept for preparing the next ones.
_RESERVE = 0.25


class Budget:
    """A deadline, shared by the cells that are left.

    Parameters
    ----------
    seconds : float or None
        None for no limit.
    cells : int
        How many cells are to come; one is a workload in one power state.
    now : callable
        The clock.
    say : callable
        Told what was cut.
    """

    def __init__(
        self,
        seconds: float | None,
        cells: int,
        now: Callable[[], float],
        say: Callable[[str], None],
    ) -> None:
        self._deadline = None if seconds is None else now() + seconds
        self._left = cells
        self._now = now
        self._say = say

    @property
    def remaining(self) -> float:
        """Seconds until the deadline."""
        return float("inf") if self._deadline is None else self._deadline - self._now()

    def is_spent(self) -> bool:
        """Return whether no further cell should be begun."""
        return self.remaining <= 0.0

    def skip(self, cells: int = 1) -> None:
        """Count cells that will not be measured."""
        self._left = max(self._left - cells, 0)

    def begin(self, asked: int, label: str) -> Callable[[float], int]:
        """Return what says, from the seconds of a round, how many rounds a cell may do.

        Parameters
        ----------
        asked : int
            Rounds without a limit.
        label : str
            Of the cell, for messages.
        """
        left = max(self._left, 1)
        self._left = left - 1

        def rounds_for(round_seconds: float) -> int:
            if self._deadline is None:
                return asked
            share = max(self.remaining, 0.0) / left * (1.0 - _RESERVE)
            fit = int(share / round_seconds) if round_seconds > 0 else asked
            rounds = min(asked, max(fit, _FEWEST))
            if rounds < asked:
                self._say(f"{label}: {rounds} rounds instead of {asked}, to stay within the budget")
            return rounds

        return rounds_for
