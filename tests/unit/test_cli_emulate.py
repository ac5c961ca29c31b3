"""``gemmjit emulate``."""

from __future__ import annotations

import json

import pytest
from command_line import run_json

from gemmjit import cli, templates

SMALL = ("--sizes", "5,0,33", "--problem", "n=40,k=72,tail=3")
K1 = ("k1", "--config", "block_m=32", "block_n=64", "num_stages=3")
K2 = ("k2", "--config", "block_m=32", "block_n=64", "num_stages=2")


@pytest.mark.parametrize("policy", ["eager", "lazy", "random"])
@pytest.mark.parametrize("kernel", ["k0", "k1", "k2", "k3"])
def test_a_kernel_runs_and_is_right(capsys, kernel, policy):
    facts = run_json(capsys, "emulate", kernel, *SMALL, "--policy", policy)
    assert facts["kernel"] == kernel
    assert facts["problem"]["group_sizes"] == [5, 0, 33]
    assert facts["problem"]["rows"] == 41
    assert facts["result"] | {"max_abs_error": 0.0} == facts["result"]
    assert facts["result"]["elements"] == 41 * 40
    assert facts["result"]["wrong"] == 0
    (launch,) = facts["launches"]
    assert launch["warp_instructions"] == sum(launch["instructions"].values())
    assert launch["warp_instructions_per_second"] > 0
    assert bool(launch["barriers"]) is (kernel in ("k2", "k3"))


def test_it_prints_counts_barriers_and_the_verdict(capsys):
    assert cli.main(["emulate", *K2, *SMALL, "--policy", "random", "--seed", "4"]) == 0
    told = capsys.readouterr().out
    assert "policy random, seed 4, sums fp32" in told
    assert "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32" in told
    assert "warp instructions in" in told
    assert "Barriers as their blocks left them:" in told
    assert "Right: all 1640 elements equal float64" in told


@pytest.mark.parametrize(
    "options",
    [
        ("--form", "ragged_k"),
        ("--dtype", "float16", "--out-dtype", "float32"),
        ("--numerics", "tensor_core"),
        ("--problem", "n=40,k=72,b_k_major=true,schedule=list"),
        ("--problem", "n=40,k=72,epilogue=accumulate", "--out-dtype", "float32"),
        ("--config", "schedule=compact"),
        ("--arch", "sm_80"),
    ],
    ids=" ".join,
)
def test_forms_types_orders_and_schedules(capsys, options):
    facts = run_json(capsys, "emulate", *K1, *SMALL, *options)
    assert facts["result"]["wrong"] == 0
    assert len(facts["launches"]) == (2 if "schedule=compact" in options else 1)


def test_rows_are_dealt_to_groups(capsys):
    facts = run_json(capsys, "emulate", *K1, "--problem", "rows=60,groups=3,n=8,k=8,skew=0")
    assert facts["problem"]["group_sizes"] == [20, 20, 20]


def test_a_result_without_elements(capsys):
    facts = run_json(capsys, "emulate", *K1, "--sizes", "0", "--problem", "n=8,k=8")
    assert facts["launches"] == []


EMPTY = {
    "ragged_m": ("n=0,k=64", "n=0,k=0", "n=0,k=64,b_k_major=true,epilogue=bias+row_scale"),
    "ragged_k": ("n=0,k=64", "n=64,k=0", "n=0,k=0"),
}


@pytest.mark.parametrize(
    ("kernel", "form", "problem"),
    [
        (kernel, form, problem)
        for form, problems in EMPTY.items()
        for kernel in ("k0", "k1", "k3", *(["k2"] if form == "ragged_m" else []))
        for problem in problems
    ],
)
def test_nothing_to_launch_is_said_of_every_kernel(capsys, kernel, form, problem):
    words = ("emulate", kernel, "--form", form, "--sizes", "3", "--problem", problem)
    assert cli.main(list(words)) == 0
    assert "Nothing to launch: the result has no elements." in capsys.readouterr().out


def test_a_tile_is_checked_though_nothing_is_launched(capsys):
    words = ["emulate", "k3", "--sizes", "3", "--problem", "n=0,k=64", "--config", "block_m=48"]
    assert cli.main(words) == 2
    assert "block_m: k3 pingpong takes 64 or 128; got 48" in capsys.readouterr().err


def test_the_type_of_a_problem_is_not_passed_over(capsys):
    words = ("emulate", *K1, "--problem", "rows=8,groups=1,n=8,k=8,dtype=float16")
    assert run_json(capsys, *words)["problem"]["dtype"] == "float16"


def changed(tmp_path, name, old, new):
    """Return a directory of templates in which one is changed."""
    text = templates.read_template(name)
    assert text.count(old) == 1
    place = tmp_path / name
    place.parent.mkdir(parents=True)
    place.write_text(text.replace(old, new))
    return str(tmp_path)


def test_a_wrong_result_is_a_failure(capsys, tmp_path):
    name, old = "core/epilogue.cuh.j2", "return from_float<out_t>(x);"
    directory = changed(tmp_path, name, old, "return from_float<out_t>(0.5f * x);")
    assert cli.main(["emulate", *K1, *SMALL, "--template-path", directory]) == 1
    told = capsys.readouterr().out
    assert "WRONG: " in told
    assert "the first at (0, 0)" in told
    facts = run_json(capsys, "emulate", *K1, *SMALL, "--template-path", directory, status=1)
    assert facts["result"]["first_got"] == facts["result"]["first_expected"] / 2
    assert run_json(capsys, "emulate", *K1, *SMALL)["result"]["wrong"] == 0


def test_a_deadlock_is_reported_and_drawn(capsys, tmp_path):
    name = "kernels/sm90_tma_mma_grouped_mm.cu.j2"
    old = "if (lane == 0) mbarrier_arrive(empty_barrier(base + STAGE_BARRIERS, stages));"
    directory = changed(tmp_path, name, old, ";")
    timeline = tmp_path / "timeline.json"
    argv = ["emulate", *K2, "--template-path", directory, "--trace", str(timeline)]
    assert cli.main(argv) == 1
    told = capsys.readouterr().err
    assert "gemmjit emulate: nothing can run; waiting:" in told
    assert "8 of 8 arrivals pending; warps [8] wait for the phase of parity 0" in told
    assert "sm90_tma_mma_grouped_mm.cu.j2:" in told
    events = json.loads(timeline.read_text())["traceEvents"]
    assert any(e.get("cat") == "wait" and e["args"].get("complete") is False for e in events)


def test_reads_without_a_fence_are_an_error_or_a_warning(capsys, tmp_path):
    name = "kernels/sm90_tma_mma_grouped_mm.cu.j2"
    directory = changed(tmp_path, name, "      fence_async_smem();\n", "")
    argv = ["emulate", *K2, "--template-path", directory]
    assert cli.main(argv) == 1
    assert "have read through the generic proxy" in capsys.readouterr().err
    facts = run_json(capsys, *argv, "--unfenced-reads", "warn")
    assert facts["result"]["wrong"] == 0
    (launch,) = facts["launches"]
    assert any("have read through the generic proxy" in line for line in launch["warnings"])


def test_the_timeline_is_written(capsys, tmp_path):
    timeline = tmp_path / "timeline.json"
    run_json(capsys, "emulate", *K2, *SMALL, "--policy", "random", "--trace", str(timeline))
    events = json.loads(timeline.read_text())["traceEvents"]
    assert {"run", "wait", "copy", "mma", "phase"} <= {e.get("cat") for e in events}


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["k9"], "k9"),
        (["k1", "--problem", "colour=3"], "unknown name colour"),
        (["k1", "--problem", "rows=two"], "rows: expected a whole number"),
        (["k1", "--problem", "skew=steep"], "skew: expected a number of at least 0"),
        (["k1", "--problem", "skew=NaN"], "skew: expected a number of at least 0"),
        (["k1", "--problem", "skew=-1"], "skew: expected a number of at least 0"),
        (["k1", "--problem", "k=2000000"], "contraction of at most"),
        (["k1", "--dtype", "float32"], "got float32"),
        (["k1", "--problem", "dtype=int32"], "got int32"),
        (["k1", "--form", "ragged_k", "--problem", "epilogue=bias"], "expected store or acc"),
    ],
    ids=" ".join,
)
def test_mistakes_are_told_and_exit_with_2(capsys, argv, told):
    assert cli.main(["emulate", *argv]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["k0", "--problem", "rows=8", "--trace", "/nowhere/t.json"], "/nowhere/t.json: No such"),
        (["k1", "--template-path", "/nowhere"], "expected a directory of templates"),
    ],
    ids=" ".join,
)
def test_places_that_are_not_there_exit_with_1(capsys, argv, told):
    assert cli.main(["emulate", *argv]) == 1
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv",
    [
        ["emulate"],
        ["emulate", "k1", "--policy", "slow"],
        ["emulate", "k1", "--sizes", "many"],
        ["emulate", "k1", "--sizes", "3,-1"],
        ["emulate", "k1", "--seed", "-1"],
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_with_2(capsys, argv):
    with pytest.raises(SystemExit) as end:
        cli.main(argv)
    assert end.value.code == 2
    assert "usage: gemmjit emulate" in capsys.readouterr().err
