"""What a contender must offer to be measured, and how it says that it cannot."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, ClassVar

from gemmjit.bench.backend import Backend
from gemmjit.bench.cases import Workload
from gemmjit.bench.inputs import Operands
from gemmjit.dtypes import DType

__all__ = ["Contender", "Peer", "Prepared", "missing_module"]


@dataclass(frozen=True)
class Prepared:
    """A contender made ready for one copy of the operands.

    Attributes
    ----------
    call : callable
        Runs the product on the current stream, and returns the array that it wrote. It must do
        the same work each time and be capturable into a graph.
    result : callable, optional
        Turns that array into one of the workload's result shape, for the comparison; by default
        it has that shape already.
    refresh : callable, optional
        Called after the operands were overwritten in place: packs copies that `call` reads again.
    accumulates : bool
        Whether `call` adds to its output instead of overwriting it.
    dtype : DType, optional
        Element type of the result, if not the workload's.
    finish : callable, optional
        What becomes of a group's product, for the comparison: ``finish(group, rows, product)``
        returns the expected result in float64.
    """

    call: Callable[[], Any]
    result: Callable[[Any], Any] | None = None
    refresh: Callable[[], None] | None = None
    accumulates: bool = False
    dtype: DType | None = None
    finish: Callable[[int, slice, Any], Any] | None = None


@dataclass(frozen=True)
class Contender:
    """One way to compute a workload.

    Attributes
    ----------
    name : str
        Unique in a run, as in ``torch nt``.
    peer : str
        Contenders of one peer are alternatives; the fastest stands for it.
    prepare : callable
        ``prepare(operands) -> Prepared``, called once for each copy of the operands.
    layout : {"nn", "nt"}
        Layout of the weights that it takes.
    note : str
        What a reader must know, as in "padding is not timed".
    details : mapping, optional
        JSON-compatible facts: config, registers, resident blocks.
    """

    name: str
    peer: str
    prepare: Callable[[Operands], Prepared]
    layout: str = "nn"
    note: str = ""
    details: dict[str, Any] | None = None


class Peer(ABC):
    """A library, or a way to use one, that computes grouped products.

    Attributes
    ----------
    name : str
    title : str
        One line on what it is.
    """

    name: ClassVar[str]
    title: ClassVar[str]

    @abstractmethod
    def available(self, backend: Backend) -> str | None:
        """Return why the peer cannot be measured on a backend, or None if it can."""

    @abstractmethod
    def contenders(self, workload: Workload, backend: Backend) -> Sequence[Contender]:
        """Return the ways in which the peer computes a workload; none if it has no such form."""

    def version(self) -> str | None:
        """Return the version of the library, if it has one."""
        return None


def missing_module(name: str) -> str | None:
    """Return a reason if a module cannot be imported, without importing it."""
    try:
        found = find_spec(name) is not None
    except (ImportError, ValueError):
        found = False
    return None if found else f"module {name} is not installed"
