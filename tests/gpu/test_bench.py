"""The measuring itself, on a GPU, against quantities that are known."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from gemmjit.bench import cupy_backend, torch_backend
from gemmjit.bench.anchors import Anchors
from gemmjit.bench.cases import Case, Workload
from gemmjit.bench.cell import Bench, Entry, measure_cell
from gemmjit.bench.entrant import enter, verify_all
from gemmjit.bench.epilogues import STORE_F32, epilogue_contender, epilogue_names
from gemmjit.bench.host import host_costs
from gemmjit.bench.inputs import Inputs
from gemmjit.bench.peers import PEERS, Contender, Prepared
from gemmjit.bench.peers.own import own_contender
from gemmjit.bench.profile_run import Calls, run_profile
from gemmjit.bench.protocol import Protocol
from gemmjit.bench.report import ratio_of
from gemmjit.bench.setup import open_bench, open_telemetry
from gemmjit.bench.statistics import median_interval
from gemmjit.cuda.driver import check, driver, is_available

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not is_available(), reason="no CUDA driver, or no GPU"),
]

CASE = Case("ragged", (500, 0, 1, 190, 333), 256, 384)
QUICK = Protocol(warmup_seconds=0.2, settle_seconds=0.1)


def make(name):
    module = {"torch": torch_backend, "cupy": cupy_backend}[name]
    reason = module.missing()
    if reason is not None:
        pytest.skip(reason)
    return {"torch": torch_backend.TorchBackend, "cupy": cupy_backend.CupyBackend}[name]()


@pytest.fixture(params=["torch", "cupy"])
def backend(request):
    return make(request.param)


def delays(backend, seconds):
    """Return a contender that keeps the device busy for a known time."""
    from gemmjit.bench.delay import delay

    def prepare(operands):
        a, b, ends = operands.mat_a, operands.mat_b(), operands.ends

        def call():
            import gemmjit

            delay(seconds, backend._capturing_stream(), backend.ordinal)
            return gemmjit.grouped_mm(a, b, offs=ends)

        return Prepared(call)

    name = f"{seconds * 1e6:.0f} us"
    return Contender(name, name, prepare)


def test_events_measure_a_known_time(backend):
    assert backend.lead_in
    for seconds in (200e-6, 1e-3, 5e-3):
        found = [backend.time_delay(seconds) for _ in range(9)]
        assert seconds - 2e-6 <= float(np.median(found)) <= seconds + 15e-6


def test_differences_and_ratios_of_known_times(backend):
    bench = open_bench(backend, QUICK, ("cool", "hot"), 2, None, lambda text: None)
    # Weights beyond any cache, so that two copies are enough, and a product of a few dozen us.
    work = Workload(Case("weights", (1,) * 64, 1024, 1024), "fprop")
    pair = (delays(backend, 2e-3), delays(backend, 1e-3))
    cell = measure_cell(bench, "known", [Entry(work, pair)])
    assert not cell.rejected
    for state in ("cool", "hot"):
        seconds = cell.timings[state].seconds
        longer, shorter = (median_interval(seconds[f"{us} us"]).median for us in (2000, 1000))
        assert longer - shorter == pytest.approx(1e-3, rel=0.01)
        assert 1e-3 < shorter < 1.2e-3
        ratio = ratio_of(cell, state, "2000 us", "1000 us")
        assert ratio.low <= longer / shorter <= ratio.high
        assert ratio.high - ratio.low < 0.02


def test_a_copy_of_known_bytes_is_within_what_memory_can_do(backend):
    values = Anchors(backend).measure("cool", QUICK)
    assert 0.1e12 < values.copy_bytes_per_second < 10e12
    assert values.dense_flops_per_second is None or 1e12 < values.dense_flops_per_second < 5e15
    assert backend.facts.l2_bytes > 1 << 20
    assert backend.facts.driver


def test_the_copy_copies_and_is_no_slower_than_the_driver_s(backend):
    nbytes = 1 << 30  # so that neither pays for starting
    call = backend.copy_call(nbytes)
    with backend.active():  # the stream on which the operands were drawn
        source, target = call()
    backend.synchronize()
    for count in (1000, 999):  # samples at two spacings
        assert list(backend.sample(source, count)) == list(backend.sample(target, count))

    def by_the_driver():
        check(
            driver().cuMemcpyDtoDAsync(
                backend._address(target), backend._address(source), nbytes,
                backend._capturing_stream(),
            ),
            "cuMemcpyDtoDAsync",
        )  # fmt: skip

    graphs = [backend.capture([one]) for one in (call, by_the_driver)]
    ours, theirs = np.median([backend.measure(graphs) for _ in range(7)], axis=0)
    assert ours < 1.1 * theirs


@pytest.mark.parametrize("form", ["fprop", "dgrad", "wgrad"])
def test_gemmjit_is_captured_verified_and_timed(backend, form):
    bench = open_bench(backend, replace(QUICK, rounds=15), ("cool",), 1, None, lambda text: None)
    work = Workload(CASE, form)
    contenders = tuple(PEERS["gemmjit"].contenders(work, backend))
    cell = measure_cell(bench, work.label, [Entry(work, contenders)])
    assert not cell.rejected
    for entrant in cell.entrants:
        assert entrant.check.ok
        assert entrant.check.relative_error < 3e-3
        found = median_interval(cell.timings["cool"].seconds[entrant.name])
        assert found.is_valid
        assert 1e-6 < found.median < 1e-2


@pytest.mark.parametrize("peer", ["torch", "cublas", "padded"])
@pytest.mark.parametrize("form", ["fprop", "dgrad", "wgrad"])
def test_torch_peers_are_right_on_routings_without_empty_groups(peer, form):
    backend = make("torch")
    work = Workload(Case("nearly even", (128, 136, 120, 144), 256, 384), form)
    contenders = PEERS[peer].contenders(work, backend)
    inputs = Inputs(backend, work, copies=2, seed=1)
    entrants, rejected = enter(backend, inputs, contenders, QUICK.graph_seconds)
    good, bad = verify_all(backend, entrants, seed=2)
    assert [r.reason for r in rejected + bad] == []
    assert len(good) == len(contenders)


def test_a_kernel_that_does_nothing_is_caught(backend):
    work = Workload(CASE, "fprop")
    inputs = Inputs(backend, work, copies=2, seed=1)

    def idle(operands):
        import gemmjit

        out = gemmjit.grouped_mm(operands.mat_a, operands.mat_b(), offs=operands.ends)
        scratch = backend.empty((1 << 20,), work.dtype)
        source, target = backend._address(scratch), backend._address(scratch) + (1 << 20)

        def call(alive=scratch):  # a pool that gets it back may unmap it
            from gemmjit.cuda.driver import check, driver

            # Some work, so that the graph is not empty, but not the product.
            stream = backend._capturing_stream()
            check(driver().cuMemcpyDtoDAsync(target, source, 1 << 20, stream), "copy")
            return out

        return Prepared(call)

    entrants, rejected = enter(backend, inputs, [Contender("idle", "x", idle)], 1e-3)
    assert not rejected
    good, bad = verify_all(backend, entrants, seed=2)
    assert not good
    assert "not written" in bad[0].reason


def test_rows_behind_the_last_group_are_neither_counted_nor_written(backend):
    work = Workload(CASE.with_spare(3000), "fprop")
    inputs = Inputs(backend, work, copies=2, seed=1)
    contender = own_contender("roomy", work, backend, into=True)
    entrants, rejected = enter(backend, inputs, [contender], 1e-3)
    good, bad = verify_all(backend, entrants, seed=2)
    assert [r.reason for r in rejected + bad] == []
    output = good[0].graphs[0].outputs[0]
    tail = backend.sample(output[work.case.rows :], 1000)
    assert all(value != value for value in tail)  # still the NaN that was put there
    assert work.flops == Workload(CASE, "fprop").flops


def test_hot_is_hotter_than_cool(backend):
    provider = open_telemetry(backend, lambda text: None)
    if provider is None:
        pytest.skip("no telemetry")
    case = Case("large", (2048,) * 8, 2048, 2048)
    bench = Bench(
        backend,
        provider,
        replace(QUICK, warmup_seconds=2.0),
        ("cool", "hot"),
        Anchors(backend),
        open_bench(backend, QUICK, (), 1, None, lambda text: None).budget,
        lambda text: None,
    )
    work = Workload(case, "fprop")
    contenders = tuple(PEERS["gemmjit"].contenders(work, backend))
    cell = measure_cell(bench, "power", [Entry(work, contenders)])
    power = {state: cell.timings[state].telemetry["power_w"] for state in ("cool", "hot")}
    if None in power.values():
        pytest.skip("the device does not say its power")
    assert power["hot"]["median"] > power["cool"]["median"]
    assert cell.timings["hot"].telemetry["sm_clock_mhz"]["median"] > 100


def test_host_costs_are_microseconds(backend):
    operands = Inputs(backend, Workload(Case("tiny", (8, 0, 22, 30), 64, 64), "fprop"), 1).copies[0]
    import gemmjit

    with backend.active():
        found = host_costs(
            {
                "own": lambda: gemmjit.grouped_mm(
                    operands.mat_a, operands.mat_b(), offs=operands.ends
                )
            },
            now=backend.now,
            synchronize=backend.synchronize,
        )["own"]
    assert 1.0 < found["us"]["median"] < 1000.0
    assert found["calls"] == 1000


def test_products_are_run_for_a_profiler(backend):
    """Without one: the driver takes start and stop, and every result is right."""
    works = [Workload(CASE, form) for form in ("fprop", "dgrad", "wgrad")]
    done = []
    assert run_profile(backend, works, Calls(2, 1), done.append) == []
    assert [one["workload"] for one in done] == [work.label for work in works]
    for one in done:
        assert one["check"]["ok"], one
        assert [x["kernel"] for x in one["launches"]] == [one["details"]["entry"]]


@pytest.mark.parametrize("form", ["fprop", "wgrad"])
def test_sums_are_captured_and_verified(backend, form):
    work = Workload(CASE, form)
    names = epilogue_names(["accumulate"], form)
    contenders = [epilogue_contender(name, work, backend) for name in names]
    entered, rejected = enter(backend, Inputs(backend, work, seed=1), contenders, 1e-3)
    good, wrong = verify_all(backend, entered, seed=2)
    assert [*rejected, *wrong] == []
    assert [one.name for one in good] == ["store", STORE_F32, "accumulate"]
    for one in good[1:]:
        assert one.check.relative_error < 2.0**-16


def test_the_command_line_writes_a_whole_result(tmp_path):
    file = tmp_path / "r.json"
    words = "grouped --case rows=2048:groups=8:k=256:n=384:skew=1 --vs torch,cublas,padded"
    done = subprocess.run(
        [sys.executable, "-m", "gemmjit.cli", "bench", *words.split(), "--json", str(file)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    record = json.loads(file.read_text())
    assert record["device"]["simulated"] is False
    assert record["device"]["driver"]
    (result,) = record["results"]
    assert set(result["states"]) == {"cool", "hot"}
    for state in result["states"].values():
        assert state["rounds"] == 15
        assert state["telemetry"]["provider"]
        for entrant in state["entrants"]:
            assert entrant["over_floor"] > 0.7
