"""``gemmjit bench epilogues`` on the simulated device: what is timed, checked and compared."""

import json

import pytest

import gemmjit
from gemmjit import cli
from gemmjit.bench.cases import Case, Workload
from gemmjit.bench.entrant import enter, verify_all
from gemmjit.bench.epilogues import EPILOGUES, STORE_F32, epilogue_contender, epilogue_names
from gemmjit.bench.inputs import Inputs
from gemmjit.bench.simulated import SimulatedBackend
from gemmjit.errors import InvalidConfigError

QUICK = ("--backend", "simulated", "--warmup", "0.05", "--state", "hot", "--kernel", "k1")
CASE = Case("small", (20, 0, 9), 32, 64)


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GEMMJIT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("GEMMJIT_EXECUTOR", "reference")  # the emulator is tested elsewhere


def results_of(tmp_path, *words):
    file = tmp_path / "e.json"
    case = ("--case", "sizes=20/0/9:k=32:n=64", "--json", str(file))
    status = cli.main(["bench", "epilogues", *QUICK, *case, *words])
    return status, json.loads(file.read_text())["results"]


def test_epilogues_are_timed_beside_the_plain_store_and_checked(tmp_path, capsys):
    status, results = results_of(tmp_path)
    assert status == 0
    assert [r["layout"] for r in results] == ["nn", "nt"]
    for result in results:
        entrants = {e["name"]: e for e in result["states"]["hot"]["entrants"]}
        assert set(entrants) == set(EPILOGUES)
        assert all(e["check"]["ok"] and e["check"]["relative_error"] > 0 for e in entrants.values())
        over = {r["name"]: r["baseline"] for r in result["states"]["hot"]["ratios"]}
        assert over.pop("accumulate") == STORE_F32
        assert set(over) == set(EPILOGUES) - {"store", "accumulate"}
        assert set(over.values()) == {"store"}
        assert not result["rejected"]
        # A float32 result is off by less than the rounding of a 16-bit one.
        for name in (STORE_F32, "accumulate"):
            assert entrants[name]["check"]["relative_error"] < 1e-5
            assert "float32 result" in entrants[name]["note"]
        assert entrants["accumulate"]["details"]["entry"] != entrants["store"]["details"]["entry"]
    lines = capsys.readouterr().out.splitlines()
    (told, _) = [line for line in lines if "accumulate" in line]
    assert "over store_f32" in told
    assert not any("over store_f32" in line for line in lines if "accumulate" not in line)


def test_wgrad_is_timed_with_the_steps_that_it_has(tmp_path):
    status, results = results_of(
        tmp_path, "--form", "fprop,wgrad", "--epilogues", "bias,accumulate"
    )
    assert status == 0
    timed = {
        (r["form"], r["layout"]): [e["name"] for e in r["states"]["hot"]["entrants"]]
        for r in results
    }
    fprop = ["store", "bias", STORE_F32, "accumulate"]
    assert timed == {
        ("fprop", "nn"): fprop,
        ("fprop", "nt"): fprop,
        ("wgrad", "nn"): ["store", STORE_F32, "accumulate"],
    }


def test_names_come_with_what_they_are_compared_with():
    assert epilogue_names(["bias"], "fprop") == ("store", "bias")
    assert epilogue_names(["bias+accumulate", "bias"], "dgrad") == (
        *("store", "bias", STORE_F32, "bias+accumulate"),
    )
    assert epilogue_names([STORE_F32, "store"], "wgrad") == ("store", STORE_F32)
    with pytest.raises(InvalidConfigError, match="epilogue"):
        epilogue_names(["accumulated"], "fprop")


@pytest.mark.parametrize("form", ["fprop", "wgrad"])
def test_a_sum_that_is_only_stored_is_wrong(form, monkeypatch):
    backend = SimulatedBackend()
    work = Workload(CASE, form)
    name = "bias+accumulate" if form == "fprop" else "accumulate"

    def rejected():
        contender = epilogue_contender(name, work, backend, config="k1")
        entered, early = enter(backend, Inputs(backend, work, seed=1), [contender], 1e-4)
        return [*early, *verify_all(backend, entered, seed=2)[1]]

    assert rejected() == []
    real = gemmjit.grouped_mm
    monkeypatch.setattr(gemmjit, "grouped_mm", lambda *a, accumulate, **rest: real(*a, **rest))
    (found,) = rejected()
    assert found.name == name
    assert "wrong" in found.reason


def test_a_ratio_needs_its_own_baseline(tmp_path, monkeypatch):
    """Where the plain store of float32 fails, accumulate is timed and compared with nothing."""
    real = gemmjit.grouped_mm

    def refused(*arrays, accumulate, out, **rest):
        if out is not None and not accumulate:
            raise InvalidConfigError("no float32 here")
        return real(*arrays, accumulate=accumulate, out=out, **rest)

    monkeypatch.setattr(gemmjit, "grouped_mm", refused)
    status, results = results_of(tmp_path, "--layout", "nn", "--epilogues", "accumulate")
    assert status == 1
    (state,) = results[0]["states"].values()
    assert [e["name"] for e in state["entrants"]] == ["store", "accumulate"]
    assert state["ratios"] == []
    assert results[0]["rejected"][0]["name"] == STORE_F32
