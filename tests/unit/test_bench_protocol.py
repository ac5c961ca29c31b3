"""The protocol on a device whose times are known."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from gemmjit.bench.anchors import Anchors
from gemmjit.bench.backend import Graph
from gemmjit.bench.budget import Budget
from gemmjit.bench.cases import Case, Workload
from gemmjit.bench.entrant import Entrant, enter
from gemmjit.bench.inputs import Inputs
from gemmjit.bench.peers import Contender, Prepared
from gemmjit.bench.protocol import Protocol, time_cell
from gemmjit.bench.simulated import ClockModel, SimulatedBackend
from gemmjit.bench.statistics import ratio_interval
from gemmjit.bench.telemetry import Provider, Telemetry

QUICK = Protocol(warmup_seconds=0.05)


def entrant(backend, name, seconds, calls=1):
    def call():
        return np.zeros(1)

    call.simulated_seconds = seconds
    graph = Graph((call,) * calls, (np.zeros(1),) * calls)
    contender = Contender(name, name, lambda operands: Prepared(call))
    return Entrant(name, contender, None, (), (graph,), ((0,) * calls,), seconds * calls)


def timed(model, state, times=(80e-6, 100e-6), protocol=QUICK, seed=0):
    backend = SimulatedBackend(model, seed=seed)
    entrants = [entrant(backend, chr(97 + i), seconds) for i, seconds in enumerate(times)]
    return time_cell(backend, entrants, protocol, state, Telemetry(None))


@pytest.mark.parametrize("state", ["hot", "cool"])
def test_a_clock_without_noise_gives_the_exact_ratio(state):
    found = timed(ClockModel(), state)
    ratio = ratio_interval(found.seconds["a"], found.seconds["b"])
    assert ratio.median == pytest.approx(0.8)
    assert (ratio.low, ratio.high) == (pytest.approx(0.8), pytest.approx(0.8))
    assert found.rounds == 15


@pytest.mark.parametrize("state", ["hot", "cool"])
def test_the_interval_holds_the_true_ratio_under_noise(state):
    held = 0
    for seed in range(60):
        found = timed(ClockModel(noise=0.02), state, protocol=replace(QUICK, seed=seed), seed=seed)
        ratio = ratio_interval(found.seconds["a"], found.seconds["b"])
        held += ratio.low <= 0.8 <= ratio.high
        assert ratio.high - ratio.low < 0.08
    assert held >= 52  # 95 % of 60, less three standard errors


def test_drift_cancels_by_interleaving_and_would_not_otherwise():
    # Everything becomes slower by a third in the course of the cell.
    model = ClockModel(drift=0.33 / 0.24, noise=0.002)
    steady = replace(QUICK, settle_seconds=0.0, idle_seconds=(0.008, 0.008))
    found = timed(model, "cool", protocol=steady)
    first, last = found.seconds["a"][0], found.seconds["a"][-1]
    assert last / first > 1.2
    ratio = ratio_interval(found.seconds["a"], found.seconds["b"])
    assert ratio.low <= 0.8 <= ratio.high
    assert abs(ratio.median - 0.8) < 0.01
    # One after the other, as a naive loop does it: the second contender pays for the drift.
    backend = SimulatedBackend(model)
    blocks = {}
    for name, seconds in (("b", 100e-6), ("a", 80e-6)):
        alone = [entrant(backend, name, seconds)]
        times = time_cell(backend, alone, steady, "cool", Telemetry(None)).seconds[name]
        blocks[name] = float(np.median(times))
    assert blocks["a"] / blocks["b"] > 0.85


def test_orders_are_random_and_every_second_is_the_reverse_of_the_one_before():
    found = timed(ClockModel(), "cool", times=(1e-6,) * 4, protocol=replace(QUICK, rounds=40))
    assert all(sorted(order) == list("abcd") for order in found.orders)
    pairs = list(zip(found.orders[::2], found.orders[1::2], strict=True))
    assert all(second == first[::-1] for first, second in pairs)
    # Nobody always comes first, and each precedes each other one equally often.
    assert len(Counter(order[0] for order in found.orders)) == 4
    before = sum(order.index("a") < order.index("b") for order in found.orders)
    assert before == 20


def test_a_hot_device_is_loaded_and_a_cool_one_is_not():
    # Heat costs 30 %: hot times pay nearly all of it, cool times next to nothing.
    model = ClockModel(heat=0.3, heat_seconds=0.05)
    hot = timed(model, "hot", protocol=replace(QUICK, warmup_seconds=1.0))
    cool = timed(model, "cool")
    assert min(hot.seconds["b"]) > 100e-6 * 1.29
    assert max(cool.seconds["b"]) < 100e-6 * 1.01


def test_what_went_before_does_not_decide_the_state():
    # The same cell after a long load, and after a long pause, gives the same cool times.
    model = ClockModel(heat=0.3, heat_seconds=0.05)
    medians = []
    for load in (True, False):
        backend = SimulatedBackend(model)
        entrants = [entrant(backend, "a", 100e-6)]
        if load:
            time_cell(backend, entrants, replace(QUICK, warmup_seconds=5), "hot", Telemetry(None))
            assert backend.heat > 0.9
        found = time_cell(backend, entrants, QUICK, "cool", Telemetry(None))
        medians.append(float(np.median(found.seconds["a"])))
    assert medians[0] == pytest.approx(medians[1], rel=1e-3)


def test_a_contender_that_heats_does_not_spoil_the_ratio_of_the_others():
    # A long contender in the mix changes times, for all of them alike.
    model = ClockModel(heat=0.3, heat_seconds=0.02)
    found = timed(model, "hot", times=(80e-6, 100e-6, 5e-3), protocol=replace(QUICK, rounds=30))
    ratio = ratio_interval(found.seconds["a"], found.seconds["b"])
    assert ratio.median == pytest.approx(0.8, rel=0.02)


def test_launch_latency_of_an_idle_device_is_not_counted():
    model = ClockModel(launch_gap=8e-6)
    for state in ("hot", "cool"):
        found = timed(model, state, times=(10e-6,))
        assert max(found.seconds["a"]) == pytest.approx(10e-6)


def test_a_graph_of_many_calls_counts_each_call_once():
    backend = SimulatedBackend()
    entrants = [entrant(backend, "a", 20e-6, calls=7)]
    for state in ("hot", "cool"):
        found = time_cell(backend, entrants, QUICK, state, Telemetry(None))
        assert found.seconds["a"] == pytest.approx([20e-6] * 15)


def test_contenders_of_one_name_are_refused():
    backend = SimulatedBackend()
    twins = [entrant(backend, "a", 1e-6), entrant(backend, "a", 2e-6)]
    with pytest.raises(ValueError, match="distinct names"):
        time_cell(backend, twins, QUICK, "hot", Telemetry(None))


class Thermometer(Provider):
    name = "made up"

    def __init__(self, backend):
        self.backend = backend

    def read(self):
        return {"temperature_c": 30.0 + 40.0 * self.backend.heat, "power_w": 100.0}

    def reasons(self):
        return ["power cap"] if self.backend.heat > 0.5 else []


def test_telemetry_is_sampled_under_the_load_of_the_state():
    backend = SimulatedBackend(ClockModel(heat_seconds=0.05))
    entrants = [entrant(backend, "a", 100e-6)]
    summaries = {
        state: time_cell(
            backend,
            entrants,
            replace(QUICK, warmup_seconds=0.5),
            state,
            Telemetry(Thermometer(backend)),
        ).telemetry
        for state in ("hot", "cool")
    }
    assert summaries["hot"]["temperature_c"]["median"] > 65
    assert summaries["cool"]["temperature_c"]["median"] < 35
    assert summaries["hot"]["clock_limited_by"]["power cap"] > 0.9
    assert summaries["cool"]["clock_limited_by"] == {}
    assert summaries["hot"]["samples"] >= 15
    assert summaries["hot"]["sm_clock_mhz"] is None  # what the device does not say is not made up


@pytest.mark.parametrize(
    ("seconds", "copies", "calls"),
    [
        (100e-6, 2, {10}),  # a millisecond's worth, in whole rotations
        (100e-6, 4, {12}),
        (400e-6, 2, {4}),
        (5e-3, 3, {1}),  # long calls: a graph for each copy
        (400e-6, 5, {3, 2}),  # several graphs, each copy in one of them
    ],
)
def test_graphs_last_about_a_millisecond_and_visit_every_copy(seconds, copies, calls):
    backend = SimulatedBackend()
    work = Workload(Case("small", (64,) * 4, 64, 64), "fprop")
    inputs = Inputs(backend, work, copies=copies)

    def prepare(operands):
        def call():
            return np.zeros(work.result_shape)

        call.simulated_seconds = seconds
        return Prepared(call)

    (found,), rejected = enter(backend, inputs, [Contender("x", "x", prepare)], 1e-3)
    assert not rejected
    assert {graph.calls for graph in found.graphs} == calls
    visits = Counter(copy for plan in found.copies for copy in plan)
    assert set(visits) == set(range(copies))
    assert len(set(visits.values())) == 1
    assert found.graph_seconds == pytest.approx(seconds * found.graphs[0].calls)


def test_the_floor_is_the_slower_of_bytes_and_operations():
    backend = SimulatedBackend(ClockModel(heat=0.5, heat_seconds=1e-4))
    anchors = Anchors(backend, copy_bytes=1 << 26, dense_size=1024)
    values = anchors.measure("cool", QUICK)
    assert values.copy_bytes_per_second == pytest.approx(4e12, rel=0.1)
    assert anchors.measure("hot", QUICK).copy_bytes_per_second < 3e12
    many = Workload(Case("many", (4096,) * 2, 4096, 4096), "fprop")
    few = Workload(Case("few", (1,) * 64, 4096, 4096), "fprop")
    assert values.floor_seconds(many)[1] == "compute"
    seconds, set_by = values.floor_seconds(few)
    assert set_by == "memory"
    assert seconds == pytest.approx(few.min_bytes / values.copy_bytes_per_second)


class Clock:
    def __init__(self):
        self.time = 0.0

    def __call__(self):
        return self.time


def test_a_budget_cuts_rounds_and_says_so():
    clock, said = Clock(), []
    budget = Budget(10.0, cells=4, now=clock, say=said.append)
    assert budget.begin(15, "first")(0.1) == 15
    assert not said
    rounds = budget.begin(15, "second")(0.25)  # a third of 10 s, a quarter of it kept back
    assert rounds == 10
    assert said == ["second: 10 rounds instead of 15, to stay within the budget"]
    clock.time = 9.0
    assert budget.begin(15, "third")(1.0) == 6  # never fewer than an interval needs
    clock.time = 10.5
    assert budget.is_spent()


def test_without_a_budget_all_rounds_are_done():
    budget = Budget(None, cells=1, now=Clock(), say=lambda text: pytest.fail(text))
    assert budget.begin(15, "x")(1e9) == 15
    assert not budget.is_spent()
