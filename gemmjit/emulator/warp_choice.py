"""Which warp runs next under policy `random`.

Uniform choice alone would keep all warps close together, and miss a barrier whose absence matters
only to a warp that is very early or very late. So now and then one of them runs on without a pause,
and one stands still.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gemmjit.emulator.scheduler import Domain

__all__ = ["WarpChoice"]

# Segments that the chosen warp may run on for, or stand still for at most, and how often.
_RUN_ON, _RUN_ON_CHANCE = 64, 1 / 32
_SLEEP, _SLEEP_CHANCE = 2048, 1 / 128


class WarpChoice:
    """Chooses among runnable domains.

    Parameters
    ----------
    queue : list of Domain
        Those that have something to run.
    rng : random.Random
        Source of the choices.
    """

    def __init__(self, queue: list[Domain], rng: random.Random) -> None:
        self.queue = queue
        self.draw = rng.random
        self._current: Domain | None = None
        self._position = 0
        self._run_on = 0
        self._sleeper: Domain | None = None
        self._asleep = 0

    def next(self) -> int:
        """Return the position of the domain that runs next in the queue, which is not empty."""
        queue, draw = self.queue, self.draw
        self._asleep -= 1
        current = self._current
        if self._run_on and current is not None and current.queued:
            self._run_on -= 1
            if self._position >= len(queue) or queue[self._position] is not current:
                self._position = queue.index(current)
            return self._position
        number = int(draw() * len(queue))
        if self._asleep > 0 and queue[number] is self._sleeper:
            number = (number + 1) % len(queue)
        chance = draw()
        self._run_on = _RUN_ON if chance < _RUN_ON_CHANCE else 0
        if chance > 1 - _SLEEP_CHANCE and self._asleep <= 0:
            self._sleeper, self._asleep = queue[number], int(draw() * _SLEEP)
        self._current, self._position = queue[number], number
        return number
