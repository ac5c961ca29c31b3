"""``gemmjit bench profile`` and ``counters``: several products of one process, told apart."""

import csv
import io
import json
import shlex
from contextlib import contextmanager

import pytest

import gemmjit
from gemmjit import cli
from gemmjit.bench.cases import Case, Workload
from gemmjit.bench.launches import labelled
from gemmjit.bench.profile_run import Calls, launches_of, run_profile
from gemmjit.bench.profiling import METRICS, read_ncu
from gemmjit.bench.simulated import SimulatedBackend
from gemmjit.config import Sm80MmaConfig
from gemmjit.errors import InvalidProblemError, LaunchError, ManifestError

STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
COLUMNS = {
    "gpu__time_duration.sum": "ns",
    "smsp__cycles_elapsed.avg.per_second": "hz",
    "sm__pipe_tensor_op_gmma_cycles_active.avg.pct_of_peak_sustained_active": "%",
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": "%",
    "lts__throughput.avg.pct_of_peak_sustained_elapsed": "%",
    STALL.format("long_scoreboard"): "inst",
    STALL.format("barrier"): "inst",
    STALL.format("selected"): "inst",
}
WORDS = ("--case", "sizes=20/0/9:k=32:n=64,rows=200:groups=2:k=64:n=64", "--form", "fprop,wgrad")
RUN = ("--backend", "simulated", "--kernel", "k1", "--calls", "5", "--skip", "3")


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GEMMJIT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("GEMMJIT_EXECUTOR", "reference")  # the emulator is tested elsewhere


@pytest.fixture
def manifest(tmp_path):
    """What a run of two cases and two forms, two calls each, writes down."""
    file = tmp_path / "profile.json"
    assert cli.main(["bench", "profile", *RUN, *WORDS, "--json", str(file)]) == 0
    return file


def launches_in(profile):
    return [
        launch
        for product in profile["products"]
        for _ in range(product["calls"])
        for launch in product["launches"]
    ]


def table(launches, *, process="2529", before="4 calls of gemmjit_k1\n"):
    """Return what ncu prints of launches: its remarks, names, units, a line a launch.

    The launch with number i takes 100 + i us, and has stalls of 1 + i.
    """
    text = io.StringIO()
    lines = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n")
    head = ("ID", "Process ID", "Process Name", "Kernel Name", "Block Size", "Grid Size")
    lines.writerow([*head, *COLUMNS])
    lines.writerow([""] * len(head) + list(COLUMNS.values()))
    for number, launch in enumerate(launches):
        x, *rest = launch["grid"]
        grid = f"({x}, {', '.join(map(str, rest))})"
        values = (f"{100_000 + 1000 * number:,}", "1,507,989,964.10", "88.5", "71.6", "82.61")
        stalls = (f"{1 + number}.00", "0.50", "1.00")
        names = (str(number), process, "python3.12", launch["kernel"], "(384, 1, 1)", grid)
        lines.writerow([*names, *values, *stalls])
    return f"==PROF== Connected to process {process}\n{before}{text.getvalue()}"


def test_the_command_profiles_what_is_between_start_and_stop(capsys):
    words = (
        "--calls",
        "5",
        "--skip",
        "3",
        *WORDS,
        "--config",
        "k1:block_m=64,num_stages=3",
        "--json",
        "a dir/p.json",
    )
    assert cli.main(["bench", "profile", *words, "--print-ncu"]) == 0
    profiler, reader = map(shlex.split, capsys.readouterr().out.splitlines())
    assert profiler[:3] == ["ncu", "--clock-control", "none"]
    assert profiler[profiler.index("--profile-from-start") + 1] == "off"
    assert profiler[-2:] == [">", "ncu.csv"]
    start = profiler.index("-m")
    assert profiler[start : start + 4] == ["-m", "gemmjit", "bench", "profile"]
    given = dict(word.split("=", 1) for word in profiler[start + 4 : -2])
    assert given["--case"] == WORDS[1]
    assert given["--form"] == "fprop,wgrad"
    assert given["--config"] == "k1:block_m=64,num_stages=3"
    assert (given["--calls"], given["--skip"]) == ("5", "3")
    assert given["--json"] == "a dir/p.json"
    assert "--print-ncu" not in given
    assert reader == ["gemmjit", "bench", "counters", "ncu.csv", "--manifest", "a dir/p.json"]


def test_all_combinations_are_called_in_order(manifest, capsys):
    profile = json.loads(manifest.read_text())
    first, second = WORDS[1].split(",")
    assert [(p["case"], p["form"]) for p in profile["products"]] == [
        *((first, "fprop"), (first, "wgrad")),
        *((second, "fprop"), (second, "wgrad")),
    ]
    assert profile["kind"] == "profile"
    assert profile["skipped"] == []
    assert "commit" in profile["source"]
    for product in profile["products"]:
        assert product["calls"] == 2
        assert product["check"]["ok"]
        (launch,) = product["launches"]
        assert launch["kernel"] == product["details"]["entry"]
        assert launch["kernel"].startswith("gemmjit_k1")
    grids = [launch["grid"] for launch in launches_in(profile)]
    assert len({tuple(grid) for grid in grids}) > 1


def test_only_the_last_calls_of_each_are_marked(monkeypatch):
    marked, calls = [], []

    class Marking(SimulatedBackend):
        @contextmanager
        def profiled(self):
            marked.append(len(calls))
            yield
            marked.append(len(calls))

    real = gemmjit.grouped_mm
    monkeypatch.setattr(
        gemmjit, "grouped_mm", lambda *a, **rest: calls.append(a[0].shape) or real(*a, **rest)
    )
    case = Case("small", (20, 0, 9), 32, 64)
    works = [Workload(case, "fprop"), Workload(case, "dgrad")]
    done = []
    assert run_profile(Marking(), works, Calls(3, 2), done.append, config="k1") == []
    assert marked == [3, 5, 8, 10]
    assert calls == [(29, 32)] * 5 + [(29, 64)] * 5
    assert [one["workload"] for one in done] == ["small fprop", "small dgrad"]


def test_a_wrong_result_is_written_down_and_ends_the_run(monkeypatch):
    real = gemmjit.grouped_mm
    monkeypatch.setattr(gemmjit, "grouped_mm", lambda *a, **rest: real(*a, **rest) * 2)
    works = [Workload(Case("small", (20, 0, 9), 32, 64), form) for form in ("fprop", "dgrad")]
    done = []
    with pytest.raises(LaunchError, match="small fprop"):
        run_profile(SimulatedBackend(), works, Calls(0, 1), done.append, config="k1")
    assert [one["check"]["ok"] for one in done] == [False]
    with pytest.raises(ManifestError, match="small fprop was wrong"):
        labelled([], {"kind": "profile", "products": done})


def test_no_product_is_begun_after_the_time(tmp_path, monkeypatch, capsys):
    """On a clock that goes on by a second whenever it is read."""
    ticks = iter(range(1000))
    monkeypatch.setattr(SimulatedBackend, "now", lambda self: float(next(ticks)))
    file = tmp_path / "p.json"
    words = (*RUN, *WORDS, "--budget", "2.5", "--json", str(file))
    assert cli.main(["bench", "profile", *words]) == 1
    profile = json.loads(file.read_text())
    first, second = WORDS[1].split(",")
    assert [p["workload"] for p in profile["products"]] == [f"{first} fprop", f"{first} wgrad"]
    assert profile["skipped"] == [f"{second} fprop", f"{second} wgrad"]
    assert "skipped" in capsys.readouterr().err


def test_a_call_of_two_kernels_has_both_in_order():
    work = Workload(Case("small", (20, 0, 9), 32, 64), "fprop")
    config = Sm80MmaConfig(block_m=64, schedule="compact")
    first, second = launches_of(work, SimulatedBackend(), config, "nn")
    assert first["kernel"] == "gemmjit_tile_list"
    assert second["kernel"].startswith("gemmjit_k1")
    profile = {
        "case": "small",
        "form": "fprop",
        "workload": "small fprop",
        "dtype": "bfloat16",
        "layout": "nn",
        "calls": 2,
        "launches": [first, second],
        "details": {},
        "check": {"ok": True},
    }
    whole = {"kind": "profile", "products": [profile]}
    found = labelled(read_ncu(table(launches_in(whole))), whole)
    assert [one["kernel"] for one in found] == [first["kernel"], second["kernel"]]
    assert [one["duration_us"] for one in found] == [101.0, 102.0]  # of 100, 102 and 101, 103
    with pytest.raises(ManifestError, match="launch 0: expected kernel gemmjit_tile_list"):
        labelled(read_ncu(table([second, first] * 2)), whole)


@pytest.mark.parametrize("calls", [(3, 0), (-1, 2)])
def test_calls_that_leave_nothing_to_profile(calls):
    with pytest.raises(InvalidProblemError, match="more than --skip"):
        Calls(*calls)


def test_each_product_gets_its_counters(manifest, tmp_path, capsys):
    profile = json.loads(manifest.read_text())
    (tmp_path / "ncu.csv").write_text(table(launches_in(profile)))
    out = tmp_path / "counters.json"
    words = [str(tmp_path / "ncu.csv"), "--manifest", str(manifest), "--json", str(out)]
    assert cli.main(["bench", "counters", *words]) == 0
    record = json.loads(out.read_text())
    assert record["kind"] == "counters"
    for name in ("schema", "date", "device", "source", "versions", "command"):
        assert record[name] == profile[name]
    assert [one["workload"] for one in record["launches"]] == [
        product["workload"] for product in profile["products"]
    ]
    for number, (one, product) in enumerate(
        zip(record["launches"], profile["products"], strict=True)
    ):
        # Two calls each, the median of which lies between them.
        assert one["duration_us"] == pytest.approx(100.5 + 2 * number)
        assert one["stalls"] == {"long_scoreboard": 1.5 + 2 * number, "barrier": 0.5}
        assert one["sm_clock_mhz"] == pytest.approx(1507.98996)
        assert (one["tensor_pipe_pct"], one["dram_throughput_pct"]) == (88.5, 71.6)
        assert one["l2_throughput_pct"] == 82.61
        assert one["tile"] == product["details"]["tile"]
        assert (one["case"], one["form"], one["calls"]) == (product["case"], product["form"], 2)
        assert set(METRICS) < set(one)
    printed = capsys.readouterr().out
    assert f"{profile['products'][3]['workload']} gemmjit_k1" in printed


def spoiled(profile):
    """Yield ways in which a profile may not be that of the manifest, and what is said."""
    launches = launches_in(profile)
    other = {**launches[2], "kernel": "gemmjit_k3_other"}
    wider = {**launches[5], "grid": [launches[5]["grid"][0] + 1, 1, 1]}
    swapped = [*launches[4:], *launches[:4]]
    yield launches[:-1], "expected 8 launches, as the manifest has; got 7"
    yield [*launches, launches[-1]], "expected 8 launches, as the manifest has; got 9"
    yield [], "expected 8 launches, as the manifest has; got 0"
    yield [*launches[:2], other, *launches[3:]], "launch 2: expected kernel gemmjit_k1"
    yield [*launches[:5], wider, *launches[6:]], "launch 5: expected grid"
    yield swapped, "launch 2: expected grid"
    yield [launches[0], *launches[2:4], launches[1], *launches[4:]], "launch 1: expected"


def test_a_profile_that_is_not_the_manifests_is_refused(manifest):
    profile = json.loads(manifest.read_text())
    assert len(labelled(read_ncu(table(launches_in(profile))), profile)) == 4
    for launches, why in spoiled(profile):
        with pytest.raises(ManifestError, match=why):
            labelled(read_ncu(table(launches)), profile)
    mixed = read_ncu(table(launches_in(profile)))
    mixed[3] |= {"process": "2530"}
    with pytest.raises(ManifestError, match="one process; got 2"):
        labelled(mixed, profile)


def test_kernel_names_with_their_parameters_are_the_same_kernels(manifest):
    profile = json.loads(manifest.read_text())
    launches = [{**x, "kernel": x["kernel"] + "(Arguments)"} for x in launches_in(profile)]
    assert len(labelled(read_ncu(table(launches)), profile)) == 4


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[]", "expected a JSON object"),
        ("{", "expected a JSON file"),
        ('{"kind": "grouped", "products": [1]}', "got kind 'grouped'"),
        ('{"kind": "profile", "products": []}', "one product or more"),
        (None, "No such file or directory"),
    ],
)
def test_a_manifest_that_is_none(tmp_path, text, why, capsys):
    (tmp_path / "ncu.csv").write_text(table([{"kernel": "gemmjit_k1", "grid": [1, 1, 1]}]))
    file = tmp_path / "p.json"
    if text is not None:
        file.write_text(text)
    words = [str(tmp_path / "ncu.csv"), "--manifest", str(file)]
    assert cli.main(["bench", "counters", *words]) == 1
    assert why in capsys.readouterr().err


def test_without_a_manifest_counters_have_kernels_alone(tmp_path, capsys):
    (tmp_path / "ncu.csv").write_text(table([{"kernel": "gemmjit_k1", "grid": [7, 1, 1]}]))
    out = tmp_path / "c.json"
    assert cli.main(["bench", "counters", str(tmp_path / "ncu.csv"), "--json", str(out)]) == 0
    (launch,) = json.loads(out.read_text())["launches"]
    assert launch["kernel"] == "gemmjit_k1"
    assert launch["duration_us"] == 100.0
    assert "workload" not in launch
