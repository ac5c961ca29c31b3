"""Host costs on a clock that is known, telemetry and profiler output as text."""

import pytest

from gemmjit.bench import host
from gemmjit.bench.host import MAX_BATCH, host_costs
from gemmjit.bench.profiling import METRICS, counters, ncu_command, read_ncu
from gemmjit.bench.telemetry import Provider, Telemetry, parse_smi
from gemmjit.errors import InvalidProblemError, ManifestError


class Machine:
    """A host whose calls cost a known time, and a device with a launch queue of 1,024 places."""

    def __init__(self, cost, on_device):
        self.time = 0.0
        self.cost = cost
        self.on_device = on_device
        self.ends = []
        self.waits = 0

    def call(self):
        self.time += self.cost
        self.ends = [end for end in self.ends if end > self.time]
        if len(self.ends) >= 1024:  # the host waits for a place
            self.time = self.ends[-1024]
        self.ends.append(max([self.time, *self.ends[-1:]]) + self.on_device)

    def synchronize(self):
        self.waits += 1
        self.time = max([self.time, *self.ends[-1:]])
        self.ends = []


def test_a_call_costs_what_the_host_pays_even_if_the_device_is_slower():
    machine = Machine(cost=5e-6, on_device=80e-6)
    found = host_costs(
        {"a": machine.call}, now=lambda: machine.time, synchronize=machine.synchronize
    )["a"]
    assert found["us"]["median"] == pytest.approx(5.0)
    assert found["mean_us"] == pytest.approx(5.0)
    assert found["calls"] == 1000
    assert machine.waits >= 10


def test_a_first_call_is_the_middle_one_of_several_processes(monkeypatch):
    times = iter([700.0, 5.0, 650.0, 9.0, 900.0, 4.0, 640.0, 6.0, 660.0, 5.5])
    places = []

    def in_a_process(framework, peer, device, case, environment):
        places.append(environment["GEMMJIT_CACHE_DIR"])
        return {"first_ms": next(times), "second_ms": 0.1}

    monkeypatch.setattr(host, "_first_call", in_a_process)
    found = host.first_calls("cupy", 0, "olmo-1k")
    assert found["compiled"]["first_ms"] == 660.0
    assert found["compiled"]["all_first_ms"] == [640.0, 650.0, 660.0, 700.0, 900.0]
    assert found["cached"]["first_ms"] == 5.5
    assert places[0] == places[1]  # what is cached was compiled there
    assert len(set(places)) == 5  # each compiles into an empty directory

    monkeypatch.setattr(host, "_first_call", lambda *_: {"error": "no device"})
    assert host.first_calls("cupy", 0, "olmo-1k")["compiled"] == {"error": "no device"}


def test_a_first_call_that_fails_is_not_repeated_and_leaves_nothing_cached(monkeypatch):
    asked = []

    def in_a_process(framework, peer, device, case, environment):
        asked.append(peer)
        if peer == "gemmjit" and asked.count("gemmjit") == 3:  # the second that compiles
            return {"error": "TimeoutExpired"}
        return {"first_ms": 1.0, "second_ms": 0.1}

    monkeypatch.setattr(host, "_first_call", in_a_process)
    found = host.first_calls("torch", 0, "olmo-1k")
    assert found["compiled"] == found["cached"] == {"error": "TimeoutExpired"}
    assert asked.count("gemmjit") == 3
    assert len(found["torch"]["all_first_ms"]) == 5


def test_batches_that_could_fill_the_queue_are_refused_because_they_measure_the_device():
    machine = Machine(cost=5e-6, on_device=80e-6)
    for _ in range(3000):
        machine.call()
    assert machine.time / 3000 > 40e-6  # what a loop without waits would have reported
    with pytest.raises(InvalidProblemError, match=f"1 to {MAX_BATCH} calls"):
        host_costs(
            {"a": machine.call},
            now=lambda: machine.time,
            synchronize=machine.synchronize,
            total=2000,
            batch=1000,
        )


def test_contenders_alternate_so_that_a_slow_spell_hits_all():
    machine = Machine(cost=5e-6, on_device=0.0)
    order = []

    def other():
        order.append("b")
        machine.call()

    def one():
        order.append("a")
        machine.call()

    host_costs(
        {"a": one, "b": other},
        now=lambda: machine.time,
        synchronize=machine.synchronize,
        total=100,
        batch=10,
    )
    blocks = [order[i] for i in range(20, len(order), 10)]
    assert len(blocks) == 20
    assert all(set(blocks[i : i + 2]) == {"a", "b"} for i in range(0, 20, 2))


def test_smi_lines_with_refused_fields():
    assert parse_smi("1980, 3201, 412.50, 61") == {
        "sm_clock_mhz": 1980.0,
        "memory_clock_mhz": 3201.0,
        "power_w": 412.5,
        "temperature_c": 61.0,
    }
    assert parse_smi("1980, [N/A], [N/A], 61") == {"sm_clock_mhz": 1980.0, "temperature_c": 61.0}
    assert parse_smi("") == {}


def test_a_slow_provider_is_not_asked_in_every_round():
    class Slow(Provider):
        name = "slow"
        quick = False

        def read(self):
            return {"power_w": 5.0}

    telemetry = Telemetry(Slow())
    telemetry.sample()
    assert telemetry.summary()["samples"] == 0
    telemetry.take()
    assert telemetry.summary()["power_w"] == {"median": 5.0, "min": 5.0, "max": 5.0}


_STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"


def table(*rows):
    return "\n".join(",".join(f'"{cell}"' for cell in row) for row in rows) + "\n"


RAW = """==PROF== Connected to process 7
==PROF== Profiling "gemmjit_k1": 0%....100% - 8 passes
14 calls of gemmjit_k1
""" + table(
    (
        *("ID", "Process ID", "Kernel Name", "Block Size", "gpu__time_duration.sum"),
        "smsp__issue_active.avg.per_cycle_active",
        "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active",
        "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active",
        *("dram__bytes.sum.per_second", "launch__registers_per_thread"),
        *(_STALL.format(stall) for stall in ("barrier", "wait", "selected")),
    ),
    ("", "", "", "", "ns", "inst/cycle", "%", "%", "byte/second", "register/thread", *["inst"] * 3),
    (
        *("0", "7", "gemmjit_k1", "(256, 1, 1)", "401,120", "0.46", "41.5", "39.9"),
        *("1,250,000,000,000", "95", "1.25", "2.31", "1.00"),
    ),
    (
        *("1", "7", "gemmjit_k1", "(256, 1, 1)", "399,000", "0.47", "n/a", "40.1"),
        *("1,250,000,000,000", "95", "1.20", "2.30", "1.00"),
    ),
)

DETAILS = """"ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"
"0","gemmjit_k2","GPU Speed Of Light Throughput","gpu__time_duration.sum","ns","150,000"
"0","gemmjit_k2","Scheduler Statistics","smsp__issue_active.avg.per_cycle_active","","0.28"
"1","gemmjit_k2","GPU Speed Of Light Throughput","gpu__time_duration.sum","ns","151,000"
"""


def test_counters_from_the_raw_page():
    first, second = (counters(launch) for launch in read_ncu(RAW))
    assert first["kernel"] == "gemmjit_k1"
    assert first["duration_us"] == pytest.approx(401.12)
    assert first["issue_rate"] == 0.46
    assert first["dram_gb_per_s"] == pytest.approx(1250.0)
    assert first["registers"] == 95.0
    assert first["tensor_pipe_pct"] == 41.5  # the first pattern that matches
    assert second["tensor_pipe_pct"] == 40.1  # and the next, where that says nothing
    assert list(first["stalls"].items()) == [("wait", 2.31), ("barrier", 1.25)]
    assert first["occupancy_pct"] is None


def test_counters_from_the_details_page():
    first, second = (counters(launch) for launch in read_ncu(DETAILS))
    assert (first["duration_us"], first["issue_rate"]) == (150.0, 0.28)
    assert (second["duration_us"], second["issue_rate"]) == (151.0, None)
    assert set(METRICS) < set(first)


def test_a_second_table_is_read_only_if_its_columns_are_the_same():
    once = read_ncu(RAW)
    assert len(once) == 2
    again = "\n".join(RAW.splitlines()[3:])
    assert read_ncu(f"{RAW}{again}\n") == [*once, *once]
    with pytest.raises(ManifestError, match="same columns"):
        read_ncu(RAW + again.replace("dram__bytes.sum.per_second", "other__bytes.sum"))


def test_text_without_a_table():
    with pytest.raises(ManifestError, match="found none"):
        read_ncu("==ERROR== no kernels were profiled\n")


def test_the_profilers_command_leaves_the_clocks_alone():
    words = ncu_command(["python", "-m", "x", "--config", "k1:a b"]).split()
    assert words[:3] == ["ncu", "--clock-control", "none"]
    assert words[words.index("--profile-from-start") + 1] == "off"
    assert "'k1:a" in words  # quoted for a shell
