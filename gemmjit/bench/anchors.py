"""Two ceilings, measured in the same run and power state: a large copy, and a dense product.

They give the floor line of a workload: no version of it runs much faster than its fewest bytes at
the copy's bandwidth, or its useful operations at the dense product's rate, whichever takes longer.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any

from gemmjit.bench.backend import Backend, Graph
from gemmjit.bench.cases import Workload
from gemmjit.bench.protocol import Protocol, State
from gemmjit.logs import logger

__all__ = ["AnchorValues", "Anchors"]

_COPY_BYTES = 1 << 30
_DENSE_SIZE = 8192
_REPEATS = 5


@dataclass(frozen=True)
class AnchorValues:
    """The ceilings in one power state.

    Attributes
    ----------
    copy_bytes_per_second : float
        Bytes read plus bytes written.
    dense_flops_per_second : float or None
        None where there is no vendor library.
    dense : str
        Which product.
    """

    copy_bytes_per_second: float
    dense_flops_per_second: float | None
    dense: str

    def floor_seconds(self, workload: Workload) -> tuple[float, str]:
        """Return the floor of a workload in seconds, and which ceiling sets it."""
        by_bytes = workload.min_bytes / self.copy_bytes_per_second
        by_flops = 0.0
        if self.dense_flops_per_second:
            by_flops = workload.flops / self.dense_flops_per_second
        return max((by_bytes, "memory"), (by_flops, "compute"))

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a JSON-compatible mapping."""
        dense = self.dense_flops_per_second
        return {
            "copy_tb_per_s": self.copy_bytes_per_second / 1e12,
            "dense_tflop_per_s": dense / 1e12 if dense else None,
            "dense": self.dense,
        }


class Anchors:
    """A copy and a dense product, captured once.

    Parameters
    ----------
    backend : Backend
    copy_bytes : int
        Size of the copy; far beyond the L2 cache.
    dense_size : int
        Rows and columns of the dense product.
    """

    def __init__(
        self, backend: Backend, copy_bytes: int = _COPY_BYTES, dense_size: int = _DENSE_SIZE
    ) -> None:
        self._backend = backend
        self._copy_bytes = copy_bytes
        self._dense_size = dense_size
        self._copy = backend.capture([backend.copy_call(copy_bytes)])
        self._dense: Graph | None = None
        try:
            call, self._dense_name = backend.dense_call(dense_size)
            self._dense = backend.capture([call])
        except Exception as error:  # the vendor's library may be missing in many ways
            self._dense_name = f"none: {error}"
            logger("bench").warning("no dense product to compare with: %s", error)

    def measure(self, state: State, protocol: Protocol) -> AnchorValues:
        """Measure both in a power state, as the device is now.

        Hot: back to back, after each other's load. Cool: with a pause before each replay.
        """
        graphs = [self._copy] + ([self._dense] if self._dense is not None else [])
        times: list[list[float]] = [[] for _ in graphs]
        if state == "hot":
            for _ in range(_REPEATS):
                found = self._backend.measure([g for g in graphs for _ in range(2)])
                for number in range(len(graphs)):
                    times[number].append(found[2 * number + 1])
        else:
            for _ in range(_REPEATS):
                for number, graph in enumerate(graphs):
                    self._backend.idle(sum(protocol.idle_seconds) / 2)
                    times[number] += self._backend.measure([graph], lead_in=True)
        dense = None
        if self._dense is not None:
            dense = 2 * self._dense_size**3 / median(times[1])
        return AnchorValues(2 * self._copy_bytes / median(times[0]), dense, self._dense_name)
