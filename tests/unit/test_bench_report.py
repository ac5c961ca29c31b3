"""What results say: origin, tables, pictures; and the command line on the simulated device."""

import json
import shlex
import subprocess
import sys

import pytest

from gemmjit import cli
from gemmjit.bench.first_call import first_call
from gemmjit.bench.peers import Contender, Peer, Prepared, registry
from gemmjit.bench.provenance import commit_of, source_digest
from gemmjit.bench.report import text_table, write_json
from gemmjit.bench.simulated import SimulatedBackend

CASE = "sizes=4/0/17/9:k=64:n=32"
QUICK = ("--backend", "simulated", "--warmup", "0.05")


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GEMMJIT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("GEMMJIT_EXECUTOR", "reference")  # the emulator is tested elsewhere


def run(*words):
    return cli.main(["bench", *words])


@pytest.fixture
def twice(monkeypatch):
    """A peer that takes exactly twice as long as gemmjit says it takes, and one that is wrong."""
    import gemmjit

    class Other(Peer):
        name = "twice"
        title = "twice as slow"

        def available(self, backend):
            return None

        def contenders(self, workload, backend):
            def prepare(operands):
                def call():
                    return gemmjit.grouped_mm(operands.mat_a, operands.mat_b(), offs=operands.ends)

                call.simulated_seconds = 2 * backend.model.default_seconds
                return Prepared(call)

            return [Contender("twice", self.name, prepare)]

    class Wrong(Peer):
        name = "wrong"
        title = "wrong"

        def available(self, backend):
            return None

        def contenders(self, workload, backend):
            def prepare(operands):
                out = gemmjit.grouped_mm(operands.mat_a, operands.mat_b(), offs=operands.ends)
                return Prepared(lambda: out)

            return [Contender("wrong", self.name, prepare)]

    monkeypatch.setitem(registry.PEERS, "twice", Other())
    monkeypatch.setitem(registry.PEERS, "wrong", Wrong())


def test_grouped_writes_what_a_result_must_say(tmp_path, capsys, twice):
    file = tmp_path / "sub" / "result.json"
    status = run("grouped", *QUICK, "--case", CASE, "--form", "fprop,wgrad", "--vs",
                 "twice,wrong,torch", "--json", str(file), "--commit", "abc123-dirty")  # fmt: skip
    assert status == 0
    record = json.loads(file.read_text())
    device = record["device"]
    assert device["name"] == "simulated device"
    assert device["simulated"] is True
    for key in ("arch", "driver", "driver_cuda", "l2_bytes", "power_limit_w", "framework"):
        assert key in device
    assert set(record["source"]) == {"commit", "dirty", "commit_from", "gemmjit", "sha256"}
    assert record["source"]["sha256"] == source_digest()
    assert {"python", "numpy", "nvrtc", "cuda-bindings"} <= set(record["versions"])
    assert record["date"].startswith("20")
    assert record["protocol"]["rounds"] == 15
    assert record["command"][:3] == ["gemmjit", "bench", "grouped"]
    assert "--json=result.json" in record["command"]
    assert str(tmp_path) not in file.read_text()  # nothing of the machine's directories
    assert record["missing"] == [
        {
            "peer": "torch",
            "title": "torch.nn.functional.grouped_mm",
            "reason": "needs torch tensors on a GPU; this run uses numpy",
        }
    ]
    assert record["baseline"] == "twice"
    assert [r["form"] for r in record["results"]] == ["fprop", "wgrad"]
    for result in record["results"]:
        assert result["group_sizes"] == [4, 0, 17, 9]
        assert result["flops"] == 2 * 30 * 64 * 32
        assert [r["name"] for r in result["rejected"]] == ["wrong"]
        assert result["rejected"][0]["reason"].startswith("wrong: group")
        assert set(result["states"]) == {"hot", "cool"}
        for state in result["states"].values():
            assert state["rounds"] == 15
            assert len(state["orders"]) == 15
            assert state["telemetry"]["provider"] is None
            assert state["best"]["twice"] == "twice"
            for ratio in state["ratios"]:
                assert ratio["baseline"] == "twice"
                assert ratio["low"] <= 0.5 <= ratio["high"]
                assert ratio["valid"] is True
            names = [entrant["name"] for entrant in state["entrants"]]
            assert "wrong" not in names
            for entrant in state["entrants"]:
                assert len(entrant["samples_us"]) == 15
                assert entrant["check"]["ok"] is True
                seconds = entrant["us"]["median"] * 1e-6
                assert entrant["tflop_per_s"] == pytest.approx(result["flops"] / seconds / 1e12)
    own = record["results"][0]["states"]["hot"]["entrants"][0]
    assert own["details"]["registers"] > 0
    out, err = capsys.readouterr()
    assert "95 % interval" in out
    assert "wrong: not timed: wrong: group" in out
    assert "missing: torch" in out
    assert "preparing gemmjit nn" in err  # progress does not mix with results


def test_fewer_rounds_are_marked_as_no_result(capsys, tmp_path):
    file = tmp_path / "r.json"
    words = ("--case", CASE, "--rounds", "7", "--state", "cool", "--json", str(file))
    assert run("grouped", *QUICK, *words) == 0
    (result,) = json.loads(file.read_text())["results"]
    assert [ratio["valid"] for ratio in result["states"]["cool"]["ratios"]] == [False]
    assert " !" in capsys.readouterr().out


def test_a_budget_is_kept_and_said(capsys, tmp_path):
    file = tmp_path / "r.json"
    words = ("--case", f"{CASE},{CASE}", "--state", "cool", "--budget", "1.5", "--json", str(file))
    run("grouped", *QUICK, *words)
    assert "to stay within the budget" in capsys.readouterr().err
    record = json.loads(file.read_text())
    assert record["protocol"]["budget_seconds"] == 1.5
    rounds = [r["states"]["cool"]["rounds"] for r in record["results"] if not r["skipped"]]
    assert rounds
    assert all(6 <= number < 15 for number in rounds)


def test_a_spent_budget_skips_cells_and_fails(capsys, tmp_path, monkeypatch):
    """On a clock that goes on by a second whenever it is read."""
    ticks = iter(range(1000))
    monkeypatch.setattr(SimulatedBackend, "now", lambda self: float(next(ticks)))
    status = run("grouped", *QUICK, "--case", CASE, "--budget", "0.5")
    assert status == 1
    assert "the budget is spent" in capsys.readouterr().out


def test_the_ladder_predicts_and_measures_skew(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    even = "rows=512:groups=4:k=64:n=64"
    file, plots = tmp_path / "l.json", tmp_path / "plots"
    words = ("--case", f"{even},{even}:skew=1.2", "--json", str(file), "--plot", str(plots))
    assert run("ladder", *QUICK, *words, "--state", "hot", "--kernels", "k0,k1,k2") == 0
    record = json.loads(file.read_text())
    assert record["rungs"][:5] == ["k0", "k1/128", "k1/64", "k1/32", "k1/64 fdb"]
    assert [r for r in record["rungs"] if r.startswith("k2 s3")]
    assert [r for r in record["rungs"] if r.startswith("k2 s2")]
    assert not [r for r in record["rungs"] if r.startswith("k3")]
    skewed = f"{even}:skew=1.2"
    # 276, 120, 73, 43 rows: 5, 2, 2, 1 tiles of 64 rows.
    assert record["eta"][even]["k1/64"] == 1.0
    assert record["eta"][skewed]["k1/64"] == pytest.approx(512 / (10 * 64))
    losses = {row["rung"]: row for row in record["states"]["hot"]["skew"]}
    assert losses["k1/64"]["predicted_loss"] == pytest.approx(0.2)
    # The simulated device does not care for tiles: nothing is lost, and the model is off.
    assert abs(losses["k1/64"]["measured_loss"]["median"]) < 0.02
    assert losses["k1/64"]["within_four_points"] is False
    row = record["states"]["hot"]["rows"][f"{even}: k1/64"]
    assert row["details"]["registers"] > 0
    assert row["details"]["resident_blocks"] == 3
    assert {p.name for p in plots.iterdir()} == {"ladder_throughput_hot.png", "ladder_skew_hot.png"}
    assert "throughput lost to skew" in capsys.readouterr().out


def test_schedules_are_contenders_with_and_without_room(tmp_path):
    file = tmp_path / "s.json"
    words = ("--groups", "4", "--k", "64", "--n", "64", "--many", "16", "--json", str(file))
    extra = ("--config", "k1:block_m=32,block_k=64,min_blocks_per_sm=3")
    assert run("scheduling", *QUICK, *words, *extra, "--state", "hot", "--kernel", "k1") == 0
    record = json.loads(file.read_text())
    assert [r["case"] for r in record["results"]] == ["E4-few", "E4-many"]
    for result in record["results"]:
        names = {entrant["name"] for entrant in result["states"]["hot"]["entrants"]}
        assert {"default", "capacity default"} <= names
        assert any(name.startswith("extra 0") for name in names)
        schedules = {c["schedule"] for c in result["configs"].values()}
        assert schedules >= {"", "persistent", "bounded", "compact"}
        assert not result["rejected"]


def test_grouped_draws_pictures(tmp_path, twice):
    pytest.importorskip("matplotlib")
    words = ("--case", CASE, "--vs", "twice", "--state", "hot", "--plot", str(tmp_path))
    assert run("grouped", *QUICK, *words) == 0
    assert (tmp_path / "grouped_fprop_hot.png").stat().st_size > 5000


def test_host_profile_and_counters_run(tmp_path, capsys):
    assert run("host", "--backend", "simulated", "--calls", "40", "--batch", "20") == 0
    small = "rows=256:groups=4:k=64:n=64"
    words = ("--kernel", "k1", "--case", small, "--backend", "simulated")
    assert run("profile", *words) == 0
    assert f"{small} fprop: 3 calls of gemmjit_k1_128x128x32" in capsys.readouterr().out
    assert run("profile", "--kernel", "k1", "--print-ncu") == 0
    printed = capsys.readouterr().out
    assert "--clock-control none" in printed
    assert "--profile-from-start off" in printed
    assert f" {shlex.quote(sys.executable)} -m gemmjit bench profile" in printed
    assert run("counters", str(tmp_path / "nothing.csv")) == 1


def test_a_first_call_is_longer_than_the_second():
    found = first_call("simulated", "gemmjit", 0, "rows=64:groups=4:k=64:n=64")
    assert found["first_ms"] > 0
    assert found["second_ms"] > 0
    with pytest.raises(SystemExit, match="needs torch tensors"):
        first_call("simulated", "torch", 0, "rows=64:groups=4:k=64:n=64")


def test_a_contender_that_breaks_while_it_is_timed_is_not_reported(monkeypatch, tmp_path, capsys):
    import gemmjit

    class Tired(Peer):
        name = "tired"
        title = "right at first"
        replays = 0

        def available(self, backend):
            return None

        def contenders(self, workload, backend):
            def prepare(operands):
                def call():
                    self.replays += 1
                    out = gemmjit.grouped_mm(operands.mat_a, operands.mat_b(), offs=operands.ends)
                    # The first few are captures and the check before timing.
                    return out if self.replays <= 60 else out * 0

                return Prepared(call)

            return [Contender("tired", self.name, prepare)]

    monkeypatch.setitem(registry.PEERS, "tired", Tired())
    monkeypatch.setattr(
        SimulatedBackend,
        "measure",
        _measure_that_runs_calls(SimulatedBackend.measure),
    )
    file = tmp_path / "r.json"
    words = ("--case", CASE, "--vs", "tired", "--state", "cool", "--json", str(file))
    assert run("grouped", *QUICK, *words) == 0
    (result,) = json.loads(file.read_text())["results"]
    assert "tired" not in result["states"]["cool"]["best"]
    assert result["rejected"][0]["reason"].startswith("after timing: wrong")


def _measure_that_runs_calls(measure):
    def wrapped(self, graphs, **keywords):
        for graph in graphs:
            for call in graph.handle:
                call()
        return measure(self, graphs, **keywords)

    return wrapped


def test_lists(capsys):
    assert run("grouped", "--list") == 0
    out = capsys.readouterr().out
    assert "seed1-16k-s1.2" in out
    assert "deepgemm" in out


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--case", "nothing"), "case: expected one of"),
        (("--vs", "cutlass"), "vs: expected some of"),
    ],
)
def test_wrong_words_are_named(words, text, capsys):
    assert run("grouped", *QUICK, *words) == 2
    assert text in capsys.readouterr().err


def test_commit_and_dirt_of_a_checkout(tmp_path):
    def git(*words):
        subprocess.run(
            ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e@x", *words],
            check=True,
            capture_output=True,
        )

    assert commit_of(tmp_path)["commit"] is None
    assert commit_of(tmp_path, "abc-dirty") == {
        "commit": "abc",
        "dirty": True,
        "commit_from": "argument",
    }
    git("init", "-q")
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "-q", "-m", "first")
    clean = commit_of(tmp_path, "abc")
    assert len(clean["commit"]) == 40
    assert (clean["dirty"], clean["commit_from"]) == (False, "git")
    (tmp_path / "file").write_text("two")
    assert commit_of(tmp_path)["dirty"] is True


def test_files_are_written_whole_or_not_at_all(tmp_path):
    file = tmp_path / "a.json"
    write_json(file, {"value": 1})
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(file, {"value": float("nan")})
    assert json.loads(file.read_text()) == {"value": 1}


def test_tables_align():
    assert text_table(("name", "us"), [["a", "1.0"], ["long", "10.0"]]) == [
        "name    us",
        "a      1.0",
        "long  10.0",
    ]
