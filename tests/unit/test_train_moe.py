"""The training example, tiny: what it prints and writes, and that both backends learn the same."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "train_moe.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("train_moe", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_both_backends_have_one_loss_curve(example, tmp_path, capsys, monkeypatch):
    """They differ by no more than weights that are off by a product's rounding make a difference.

    And by what the loss itself is rounded to: a mean of 32 tokens, twice, in FP32.
    """
    pytest.importorskip("matplotlib")
    monkeypatch.setenv("GEMMJIT_EXECUTOR", "emulator")
    written, drawn = tmp_path / "run.json", tmp_path / "run.png"
    report = example.main(
        f"--tiny --noise --steps 6 --lr 0.05 --json {written} --plot {drawn}".split()
    )
    assert json.loads(written.read_text())["runs"] == report["runs"]
    assert drawn.stat().st_size > 1000
    runs, far = report["runs"], report["furthest_from_torch"]
    assert list(runs) == ["torch", "gemmjit", "torch, perturbed"]
    for one in runs.values():
        assert one["loss"][-1] < one["loss"][0] - 0.1
        assert one["loss"][0] == pytest.approx(runs["torch"]["loss"][0], abs=1e-5)
    assert 0 < far["torch, perturbed"] < 1e-3
    rounding = 2 * (32 + 2) * 2.0**-24 * max(runs["torch"]["loss"])
    assert far["gemmjit"] <= far["torch, perturbed"] + rounding
    printed = capsys.readouterr().out
    assert "gemmjit:" in printed
    assert "tokens/s" in printed


def test_several_draws_of_the_noise_differ(example, monkeypatch):
    monkeypatch.setenv("GEMMJIT_EXECUTOR", "reference")
    report = example.main(["--tiny", "--noise", "2", "--backend", "torch"])
    assert list(report["runs"]) == ["torch", "torch, perturbed", "torch, perturbed 2"]
    losses = [tuple(one["loss"]) for one in report["runs"].values()]
    assert len(set(losses)) == 3


def test_gemmjit_runs_every_product_of_its_run(example, monkeypatch):
    monkeypatch.setenv("GEMMJIT_EXECUTOR", "reference")
    from gemmjit import reference

    calls = []
    real = reference.run
    monkeypatch.setattr(reference, "run", lambda *a: calls.append(a[0].form) or real(*a))
    options = ["--tiny", "--steps", "2", "--layers", "3"]
    example.main([*options, "--backend", "torch"])
    assert calls == []
    example.main([*options, "--backend", "gemmjit"])
    # Two products a layer forward; dgrad and wgrad of each backwards.
    assert calls.count("ragged_m") == 2 * 3 * (2 + 2)
    assert calls.count("ragged_k") == 2 * 3 * 2


def test_the_text_is_that_of_the_seed(example):
    assert example.write(50, 1) == example.write(50, 1)
    assert example.write(50, 1) != example.write(50, 2)
    sums = [line for line in example.write(200, 0).splitlines() if " plus " in line]
    assert sums
    for line in sums:
        a, _, b, _, c = line.rstrip(".").split()
        assert int(a) + int(b) == int(c)


def test_it_says_at_once_what_it_will_do(example, monkeypatch, capsys):
    monkeypatch.setattr(example, "run", lambda options: {})
    monkeypatch.setattr(example, "show", lambda report: None)
    example.main(["--device", "cpu"])
    assert capsys.readouterr().out == (
        "300 steps on cpu, float32\nThese sizes are for a GPU; --tiny is for CPUs.\n"
    )
    example.main(["--tiny", "--top-k", "1"])
    assert "GPU" not in capsys.readouterr().out
