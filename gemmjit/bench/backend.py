"""What the harness asks of a device and its array framework, and nothing more.

The protocol above it is the same for every backend: CuPy alone, torch where peers need it, and a
simulated device on which the harness itself is tested.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from gemmjit.dtypes import DType

__all__ = ["Backend", "DeviceFacts", "Graph"]


@dataclass(frozen=True)
class DeviceFacts:
    """What a result must say of the device that it was measured on.

    Attributes
    ----------
    name : str
    arch : str
        Compute capability as an architecture, as in ``sm_90``.
    num_sms : int
    memory_bytes, l2_bytes : int
    driver : str
        Version of the kernel driver, as in ``580.159.03``; empty where it cannot be read.
    driver_cuda : str
        CUDA version that the driver serves.
    simulated : bool
        Whether no device was measured at all.
    """

    name: str
    arch: str
    num_sms: int
    memory_bytes: int
    l2_bytes: int
    driver: str
    driver_cuda: str
    simulated: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a JSON-compatible mapping."""
        return asdict(self)


@dataclass(frozen=True)
class Graph:
    """A captured sequence of calls that can be replayed.

    Attributes
    ----------
    handle : object
        The framework's graph, and what must live as long as it.
    outputs : tuple of object
        What each call returned while it was captured; a replay writes there again.
    """

    handle: Any
    outputs: tuple[Any, ...] = field(default=())

    @property
    def calls(self) -> int:
        """How many calls one replay runs."""
        return len(self.outputs)


class Backend(ABC):
    """A device, a stream and an array framework.

    Attributes
    ----------
    framework : str
        Whose arrays it hands out: ``cupy``, ``torch`` or ``numpy``.
    facts : DeviceFacts
    """

    framework: ClassVar[str]
    facts: DeviceFacts

    @property
    def lead_in(self) -> bool:
        """Whether `measure` can hold the device back until all work is enqueued."""
        return False

    @abstractmethod
    def active(self) -> AbstractContextManager[None]:
        """Make the backend's device and stream the framework's current ones for a block."""

    @contextmanager
    def profiled(self) -> Iterator[None]:
        """Mark what a profiler that waits for it is to look at; nothing else changes."""
        yield

    @abstractmethod
    def empty(self, shape: tuple[int, ...], dtype: DType) -> Any:
        """Return a new C-contiguous array on the device."""

    @abstractmethod
    def draw(self, array: Any, scale: float, seed: int) -> None:
        """Overwrite an array with normally distributed values of a standard deviation."""

    @abstractmethod
    def upload_ends(self, ends: Sequence[int]) -> Any:
        """Return end offsets as an int32 array on the device."""

    @abstractmethod
    def fill(self, array: Any, value: float) -> None:
        """Overwrite an array with NaN or zero."""

    @abstractmethod
    def upcast(self, array: Any) -> Any:
        """Return a float64 array that supports ``@``, ``-``, ``abs`` and ``.max()``."""

    @abstractmethod
    def sample(self, array: Any, count: int) -> Sequence[float]:
        """Return about `count` elements from all over an array, on the host."""

    @abstractmethod
    def swap_last(self, array: Any) -> Any:
        """Return a view with the last two dimensions exchanged."""

    @abstractmethod
    def capture(self, calls: Sequence[Callable[[], Any]]) -> Graph:
        """Run calls once, so that they compile what they need, then capture them."""

    @abstractmethod
    def measure(
        self,
        graphs: Sequence[Graph],
        *,
        lead_in: bool = False,
        while_running: Callable[[], None] | None = None,
    ) -> list[float]:
        """Replay graphs back to back.

        Parameters
        ----------
        graphs : sequence of Graph
        lead_in : bool
            Hold the device back until everything is enqueued, so that an idle device's launch
            latency is not counted.
        while_running : callable, optional
            Called on the host after everything is enqueued and before it is waited for.

        Returns
        -------
        list of float
            Seconds that each replay took on the device.
        """

    @abstractmethod
    def replay(self, graph: Graph) -> None:
        """Replay a graph and wait for it."""

    @abstractmethod
    def copy_call(self, nbytes: int) -> Callable[[], Any]:
        """Return a call that copies this many bytes from device memory to device memory."""

    @abstractmethod
    def dense_call(self, size: int) -> tuple[Callable[[], Any], str]:
        """Return a call of the vendor library's dense product of square matrices, and its type."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait for the device."""

    @abstractmethod
    def idle(self, seconds: float) -> None:
        """Do nothing for a while."""

    @abstractmethod
    def now(self) -> float:
        """Return the host's clock in seconds."""

    def release(self) -> None:  # noqa: B027
        """Give memory that nothing uses any more back to the device."""
