"""Polling that never ends: the same threads at the same place with the same registers.

A loop that only reads is no progress. When the state of a grid repeats exactly, with nothing
pending, it will repeat forever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gemmjit.emulator.deadlock import deadlock_report
from gemmjit.emulator.faults import Deadlock

if TYPE_CHECKING:
    from gemmjit.emulator.machine import Machine

__all__ = ["LivelockWatch"]

_GIVE_UP = 20_000
_FIRST = 64


class LivelockWatch:
    """Looks for a repeated state; called each time the machine has waited in vain."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._progress = -1
        self._looks = 0
        self._next_snapshot = _FIRST
        self._snapshot: Any = None

    def look(self) -> None:
        """Compare with the last snapshot.

        Raises
        ------
        Deadlock
            The state repeats, or nothing has happened for very long.
        """
        machine = self.machine
        if machine.progress != self._progress or machine.engine.pending:
            self._progress, self._looks, self._next_snapshot = machine.progress, 0, _FIRST
            self._snapshot = None
            return
        self._looks += 1
        if self._looks > _FIRST and machine.fill():
            return
        if self._snapshot is not None and self._same():
            raise Deadlock("threads poll without an end\n" + deadlock_report(machine))
        if self._looks >= self._next_snapshot:
            self._next_snapshot *= 2
            self._snapshot = self._state()
        if self._looks > _GIVE_UP:
            raise Deadlock("no progress for very long\n" + deadlock_report(machine))

    def _places(self) -> list[dict[int, Any]]:
        return [dict(d.ready) for g in self.machine.grids for d in g.scheduler.domains]

    def _state(self) -> Any:
        files = [f.copy() for g in self.machine.grids for f in g.registers.values()]
        return self._places(), files

    def _same(self) -> bool:
        places, files = self._snapshot
        if places != self._places():
            return False
        current = [f for g in self.machine.grids for f in g.registers.values()]
        return all(np.array_equal(a, b) for a, b in zip(files, current, strict=True))
