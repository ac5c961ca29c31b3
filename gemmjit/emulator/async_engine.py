"""When asynchronous work completes: at once, as late as possible, or at random.

An operation (a bulk copy, a cp.async, a wgmma) is submitted with what it does at completion. It
reads its sources and writes its results only then, so an early reuse of a buffer shows.

* `eager`: an operation completes when it is issued.
* `lazy`: operations complete only when a wait demands them or when nothing else can run, oldest
  first; those that wake nobody (stores, products) are left to the last.
* `random`: as lazy, but between any two segments a random pending operation may complete. Every
  fourth operation is slow, and stays behind the others.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

__all__ = ["POLICIES", "AsyncEngine", "Operation"]

POLICIES = ("eager", "lazy", "random")
# Kinds whose completion arrives on an mbarrier; the others are completed by the waits for them.
_SIGNALLING = frozenset(("bulk load", "cp.async arrive", "tcgen05.commit"))
_SLOW_CHANCE = 0.25


class Operation:
    """One pending asynchronous operation.

    Attributes
    ----------
    kind : str
        `"bulk load"`, `"bulk store"`, `"cp.async"`, `"wgmma"`: shown in reports and traces.
    complete : callable
        Performs it.
    after : Operation or None
        An operation of the same in-order pipe that must complete first.
    owner : object
        Whatever the waiting instruction recognises its operations by.
    slow : bool
        Whether others overtake it under `random`.
    """

    __slots__ = ("after", "complete", "done", "kind", "owner", "slots", "slow", "where")

    def __init__(
        self,
        kind: str,
        complete: Callable[[], None],
        owner: Any = None,
        after: Operation | None = None,
        slots: tuple[Any, frozenset[int]] | None = None,
        where: str = "",
    ) -> None:
        self.kind = kind
        self.complete = complete
        self.owner = owner
        self.after = after
        self.slots = slots
        self.where = where
        self.done = False
        self.slow = False


class AsyncEngine:
    """Holds the pending operations of a machine.

    Parameters
    ----------
    policy : str
        One of `POLICIES`.
    rng : random.Random
        Source of the choices of `random`.
    """

    def __init__(self, policy: str, rng: random.Random) -> None:
        self.policy = policy
        self.eager = policy == "eager"
        self.rng = rng
        self.pending: list[Operation] = []
        self.completed = 0
        self.observer: Any = None
        self.machine: Any = None

    def submit(self, operation: Operation) -> None:
        """Issue an operation; eager completes it now."""
        if self.observer is not None:
            self.observer.issued(self.machine, operation)
        if self.eager:
            self._perform(operation)
        else:
            operation.slow = self.policy == "random" and self.rng.random() < _SLOW_CHANCE
            self.pending.append(operation)

    def finish(self, operation: Operation) -> None:
        """Complete one operation, and before it those that it must follow."""
        chain = []
        current: Operation | None = operation
        while current is not None and not current.done:
            chain.append(current)
            current = current.after
        for item in reversed(chain):
            self.pending.remove(item)
            self._perform(item)

    def _perform(self, operation: Operation) -> None:
        operation.complete()
        self._note(operation)

    def retire(self, operation: Operation) -> None:
        """Take out a pending operation whose effects its owner has completed piece by piece."""
        self.pending.remove(operation)
        self._note(operation)

    def _note(self, operation: Operation) -> None:
        operation.done = True
        self.completed += 1
        if self.observer is not None:
            self.observer.completed(self.machine, operation)

    def complete_one(self, idle: bool = True) -> bool:
        """Complete some pending operation; False when there is none.

        Parameters
        ----------
        idle : bool
            Whether nothing else can go on, so that slow operations must complete too.
        """
        if self.policy == "random":
            ready = [op for op in self.pending if not op.slow]
            if not ready and idle:
                ready = self.pending
            if not ready:
                return False
            self.finish(self.rng.choice(ready))
            return True
        chosen = next((op for op in self.pending if op.kind in _SIGNALLING), None)
        if chosen is None and self.pending:
            chosen = self.pending[0]
        if chosen is None:
            return False
        self.finish(chosen)
        return True

    def wait_for(self, belongs: Callable[[Operation], bool]) -> None:
        """Complete the pending operations that a wait instruction names, oldest first."""
        for operation in [op for op in self.pending if belongs(op)]:
            if not operation.done:
                self.finish(operation)
