"""Which device, framework and telemetry a run uses."""

from __future__ import annotations

from collections.abc import Callable

from gemmjit.bench import cupy_backend, torch_backend
from gemmjit.bench.anchors import Anchors
from gemmjit.bench.backend import Backend
from gemmjit.bench.budget import Budget
from gemmjit.bench.cell import Bench
from gemmjit.bench.cuda_backend import CudaBackend
from gemmjit.bench.protocol import Protocol, State
from gemmjit.bench.simulated import ClockModel, SimulatedBackend
from gemmjit.bench.telemetry import Provider, find_provider
from gemmjit.cuda.driver import driver
from gemmjit.errors import InvalidProblemError

__all__ = ["BACKENDS", "choose_backend", "open_bench", "open_telemetry"]

#: What ``--backend`` takes. ``auto`` is torch where it can be used, else CuPy.
BACKENDS = ("auto", "torch", "cupy", "simulated")

_SIMULATED_COPY = 1 << 20


def choose_backend(name: str, device: int = 0) -> Backend:
    """Return a backend.

    Parameters
    ----------
    name : str
        One of `BACKENDS`.
    device : int
        CUDA device.

    Raises
    ------
    DriverNotFoundError
        If there is no GPU.
    InvalidProblemError
        If the framework cannot be used; with the reason.
    """
    if name not in BACKENDS:
        raise InvalidProblemError(f"backend: expected one of {', '.join(BACKENDS)}; got {name!r}")
    if name == "simulated":
        return SimulatedBackend(ClockModel(noise=0.01), l2_bytes=1 << 12)
    driver()  # says best what is missing on a machine without a GPU
    without_torch = torch_backend.missing() if name != "cupy" else "not asked for"
    if without_torch is None:
        return torch_backend.TorchBackend(device)
    if name == "torch":
        raise InvalidProblemError(f"backend: expected torch on a GPU; {without_torch}")
    without_cupy = cupy_backend.missing()
    if without_cupy is not None:
        raise InvalidProblemError(
            f"backend: expected torch or CuPy on a GPU; {without_torch}; {without_cupy}"
        )
    return cupy_backend.CupyBackend(device)


def open_telemetry(backend: Backend, say: Callable[[str], None]) -> Provider | None:
    """Return what samples the backend's device, or None with a line that says why."""
    if not isinstance(backend, CudaBackend):
        return None
    provider, why = find_provider(backend.pci_bus_id())
    if why:
        say(f"telemetry: {provider.name if provider else 'none'} ({why})")
    return provider


def open_bench(
    backend: Backend,
    protocol: Protocol,
    states: tuple[State, ...],
    cells: int,
    budget_seconds: float | None,
    say: Callable[[str], None],
) -> Bench:
    """Return what all cells of a run share, with the ceilings captured.

    Parameters
    ----------
    backend : Backend
    protocol : Protocol
    states : tuple of str
    cells : int
        Workloads times states, for the budget.
    budget_seconds : float or None
    say : callable
        Told about progress.
    """
    budget = Budget(budget_seconds, cells, backend.now, say)
    provider = open_telemetry(backend, say)
    if not backend.lead_in:
        say("the delay kernel cannot be compiled: cool times include launch latency")
    anchors = (
        Anchors(backend, _SIMULATED_COPY, 1024) if backend.facts.simulated else Anchors(backend)
    )
    return Bench(backend, provider, protocol, states, anchors, budget, say)
