"""A device that exists only as a clock: known times, noise, drift, heat. For testing the harness.

Arrays are NumPy's and calls really compute, so that verification is tested with it; only time is
invented. A call says how long it takes by an attribute ``simulated_seconds``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from gemmjit.bench.backend import Backend, DeviceFacts, Graph
from gemmjit.dtypes import F32, DType

__all__ = ["ClockModel", "SimulatedBackend"]


@dataclass
class ClockModel:
    """How a simulated device's times deviate from what calls say.

    Attributes
    ----------
    noise : float
        Standard deviation of the logarithm of each replay's time.
    drift : float
        Growth of all times per second of the clock, as a share: 0.01 for one percent.
    heat : float
        How much longer everything takes on a device that is fully loaded, as a share.
    heat_seconds : float
        Time constant with which load heats and idling cools it.
    launch_gap : float
        Seconds that an idle device waits for the host, counted with the first replay unless the
        device is held back meanwhile.
    default_seconds : float
        Time of a call that says nothing.
    """

    noise: float = 0.0
    drift: float = 0.0
    heat: float = 0.0
    heat_seconds: float = 0.2
    launch_gap: float = 0.0
    default_seconds: float = 100e-6


class SimulatedBackend(Backend):
    """NumPy arrays and an invented clock.

    Parameters
    ----------
    model : ClockModel, optional
    seed : int
        Of the noise.
    l2_bytes : int
        Size of the cache that inputs must exceed.
    """

    framework: ClassVar = "numpy"

    def __init__(
        self, model: ClockModel | None = None, seed: int = 0, l2_bytes: int = 1 << 16
    ) -> None:
        self.model = model or ClockModel()
        self.facts = DeviceFacts(
            name="simulated device",
            arch="sm_90",
            num_sms=132,
            memory_bytes=1 << 33,
            l2_bytes=l2_bytes,
            driver="",
            driver_cuda="",
            simulated=True,
        )
        #: Share of full heat, 0 to 1.
        self.heat = 0.0
        self._clock = 0.0
        self._random = np.random.default_rng(seed)

    @property
    def lead_in(self) -> bool:
        """Whether the device can be held back: it can."""
        return True

    @contextmanager
    def active(self) -> Iterator[None]:
        """Do nothing: there is no stream."""
        yield

    def empty(self, shape: tuple[int, ...], dtype: DType) -> Any:
        """Return an array of garbage."""
        array = np.empty(shape, dtype.numpy)
        array.view(np.uint8).fill(0x5A)
        return array

    def draw(self, array: Any, scale: float, seed: int) -> None:
        """Draw from NumPy's generator."""
        random = np.random.default_rng(seed)
        values = random.standard_normal(array.shape, np.float32) * np.float32(scale)
        array[...] = values.astype(array.dtype)

    def upload_ends(self, ends: Sequence[int]) -> Any:
        """Return an int32 array."""
        return np.asarray(ends, np.int32)

    def fill(self, array: Any, value: float) -> None:
        """Fill an array."""
        array.fill(value)

    def upcast(self, array: Any) -> Any:
        """Return a float64 array."""
        return np.asarray(array, np.float64)

    def sample(self, array: Any, count: int) -> Sequence[float]:
        """Return elements at random places."""
        flat = np.asarray(array).reshape(-1)
        where = np.random.default_rng(0).integers(flat.size, size=count)
        values: list[float] = flat[where].astype(np.float64).tolist()
        return values

    def swap_last(self, array: Any) -> Any:
        """Return the transposed view."""
        return array.swapaxes(-1, -2)

    def capture(self, calls: Sequence[Callable[[], Any]]) -> Graph:
        """Run the calls, and remember them with their outputs."""
        return Graph(tuple(calls), tuple([call() for call in calls]))

    def measure(
        self,
        graphs: Sequence[Graph],
        *,
        lead_in: bool = False,
        while_running: Callable[[], None] | None = None,
    ) -> list[float]:
        """Return invented times, and let the clock and the heat go on by them."""
        times = []
        for number, graph in enumerate(graphs):
            seconds = sum(
                getattr(call, "simulated_seconds", self.model.default_seconds)
                for call in graph.handle
            )
            seconds *= 1.0 + self.model.drift * self._clock
            seconds *= 1.0 + self.model.heat * self.heat
            seconds *= math.exp(self.model.noise * float(self._random.standard_normal()))
            if number == 0 and not lead_in:
                seconds += self.model.launch_gap
            times.append(seconds)
            self._pass(seconds, loaded=True)
        if while_running is not None:
            while_running()
        return times

    def replay(self, graph: Graph) -> None:
        """Run the calls again, into the outputs of the capture."""
        for call, output in zip(graph.handle, graph.outputs, strict=True):
            result = call()
            if result is not output:
                output[...] = result

    def copy_call(self, nbytes: int) -> Callable[[], Any]:
        """Return a call that lasts as long as 4 TB/s make it."""
        return _timed(2 * nbytes / 4e12)

    def dense_call(self, size: int) -> tuple[Callable[[], Any], str]:
        """Return a call that lasts as long as 700 TFLOP/s make it."""
        return _timed(2 * size**3 / 700e12), "simulated"

    def synchronize(self) -> None:
        """Do nothing."""

    def idle(self, seconds: float) -> None:
        """Let the clock go on and the device cool."""
        self._pass(seconds, loaded=False)

    def now(self) -> float:
        """Return the invented clock."""
        return self._clock

    def _pass(self, seconds: float, *, loaded: bool) -> None:
        self._clock += seconds
        goal = 1.0 if loaded else 0.0
        self.heat = goal + (self.heat - goal) * math.exp(-seconds / self.model.heat_seconds)


def _timed(seconds: float) -> Callable[[], Any]:
    nothing = np.zeros(1, F32.numpy)

    def call() -> Any:
        return nothing

    call.simulated_seconds = seconds  # type: ignore[attr-defined]
    return call
