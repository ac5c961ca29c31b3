"""Events of the CUDA backends, on a driver that only keeps time."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from gemmjit.bench import cuda_backend
from gemmjit.bench.backend import Graph

SUCCESS, NOT_READY = SimpleNamespace(value=0, name="OK"), SimpleNamespace(value=600, name="LATER")


class Clockwork:
    """A device whose queue begins when it is free, and a host whose calls take time."""

    CUevent_flags = SimpleNamespace(CU_EVENT_DEFAULT=0)

    def __init__(self, enqueue):
        self.host = 0.0
        self.device = 0.0  # when it has done everything
        self.enqueue = enqueue
        self.stamps = {}

    def work(self, seconds):
        self.host += self.enqueue
        self.device = max(self.device, self.host) + seconds

    def cuEventCreate(self, flags):
        return SUCCESS, object()

    def cuEventRecord(self, event, stream):
        self.work(0.0)
        self.stamps[event] = self.device
        return (SUCCESS,)

    def cuEventQuery(self, event):
        return (SUCCESS if self.stamps[event] <= self.host else NOT_READY,)

    def cuEventSynchronize(self, event):
        self.host = max(self.host, self.stamps[event])
        return (SUCCESS,)

    def cuEventElapsedTime(self, first, last):
        return SUCCESS, (self.stamps[last] - self.stamps[first]) * 1e3


class Backend(cuda_backend.CudaBackend):
    framework = "none"
    stream = 0
    lead_in = True

    def active(self):
        return nullcontext()

    def _launch(self, graph):
        self._api.work(graph.handle)


Backend.__abstractmethods__ = frozenset()


@pytest.fixture
def make(monkeypatch):
    def build(enqueue):
        api = Clockwork(enqueue)
        backend = object.__new__(Backend)
        backend.ordinal = 0
        backend._api = api
        backend._events = []
        backend._lead_in_seconds = cuda_backend._LEAD_IN
        monkeypatch.setattr(cuda_backend, "current", lambda ordinal: nullcontext())
        monkeypatch.setattr(
            cuda_backend, "delay", lambda seconds, stream, ordinal: api.work(seconds)
        )
        return backend

    return build


def test_replays_back_to_back_are_timed_one_by_one(make):
    backend = make(enqueue=1e-6)
    graphs = [Graph(seconds) for seconds in (1e-3, 2e-3, 5e-4)]
    assert backend.measure(graphs, lead_in=True) == pytest.approx([1e-3, 2e-3, 5e-4])


def test_without_a_lead_in_the_launch_of_a_short_graph_is_counted(make):
    backend = make(enqueue=20e-6)
    # The device waits for the launch, and then for the second event.
    assert backend.measure([Graph(10e-6)])[0] == pytest.approx(40e-6)
    assert backend.measure([Graph(10e-6)], lead_in=True)[0] == pytest.approx(10e-6)


def test_a_lead_in_that_is_too_short_grows(make):
    backend = make(enqueue=90e-6)  # a host that was asleep
    first = backend.measure([Graph(10e-6)], lead_in=True)[0]
    assert first > 20e-6
    for _ in range(3):
        backend.measure([Graph(10e-6)], lead_in=True)
    assert backend.measure([Graph(10e-6)], lead_in=True)[0] == pytest.approx(10e-6)


def test_what_runs_meanwhile_runs_before_the_device_is_waited_for(make):
    backend = make(enqueue=1e-6)
    seen = []
    backend.measure([Graph(1e-3)], while_running=lambda: seen.append(backend._api.host))
    assert seen[0] < 1e-4 < backend._api.host
