"""``gemmjit explain`` as a command."""

from __future__ import annotations

import json
import re

import pytest
from command_line import run_json

import gemmjit
from gemmjit import Problem, cli
from gemmjit.kernels import KERNELS
from gemmjit.selection.explanation import HEAD

SHAPE = ("--rows", "2048", "--groups", "64", "--n", "2688", "--k", "1024", "--arch", "sm_90a")


def test_explain_prints_what_the_function_says(capsys):
    problem = Problem.contiguous(num_groups=64, rows=2048, n=2688, k=1024)
    found = gemmjit.explain(problem, "sm_90a")
    assert run_json(capsys, "explain", *SHAPE) == json.loads(json.dumps(found.to_dict()))
    assert cli.main(["explain", *SHAPE]) == 0
    shown = capsys.readouterr().out
    for text in (found.best.tile, found.best.reason, found.assumption, found.source, "--sizes"):
        assert text in shown


def test_explain_defines_its_columns_and_says_why_in_strides(capsys):
    assert cli.main(["explain", *SHAPE[:-4], "--k", "1100", "--arch", "sm_90a"]) == 0
    shown = capsys.readouterr().out
    assert "us: their geometric mean" in shown
    assert "k3: no tile can: mat_a: " in shown
    assert "got strides of (2200, 2) bytes and a pointer on a multiple of 16" in shown
    assert "a_vector" not in shown


def test_explain_takes_true_sizes_and_other_forms(capsys):
    shape = ("explain", "--sizes", "5,0,700", "--n", "64", "--k", "128", "--form", "ragged_k")
    found = run_json(capsys, *shape, "--arch", "sm_80", "--dtype", "float16")
    assert found["problem"] == "ragged_k, 3 groups, 705 rows, n=64, k=128, float16"
    assert found["assumption"] == "rows of each group as given"
    assert found["gpu"].startswith("A100")
    refused = {one["kernel"] for one in found["refused"]}
    assert refused == {"k2", "k3"}


def test_explain_takes_an_epilogue_and_offsets_on_the_host(capsys):
    words = ("--epilogue", "bias+swiglu_split", "--schedule", "list")
    problem = Problem.contiguous(
        num_groups=64, rows=2048, n=2688, k=1024, epilogue=words[1], schedule="list"
    )
    found = gemmjit.explain(problem, "sm_90a")
    assert run_json(capsys, "explain", *SHAPE, *words) == json.loads(json.dumps(found.to_dict()))
    assert any("with a bias" in reason for one in found.refused for reason in one.reasons)


def test_explain_says_what_a_tiny_call_costs(capsys):
    small = ("explain", "--rows", "40", "--groups", "4", "--n", "64", "--k", "64")
    best = run_json(capsys, *small, "--arch", "sm_90a")["predictions"][0]
    assert best["launch_us"] > best["us"] / 2
    assert best["reason"].startswith(f"mostly the fixed {best['launch_us']:.0f} us of a call")
    assert "the only wave 3% full" in best["reason"]
    assert "bound by" not in best["reason"]


@pytest.mark.parametrize(
    "argv",
    [
        ("--n", "8", "--k", "8"),
        ("--rows", "8", "--n", "8", "--k", "8"),
        ("--sizes", "1", "--rows", "1", "--n", "8", "--k", "8"),
        ("--rows", "0", "--groups", "1", "--n", "8", "--k", "8"),
    ],
)
def test_explain_says_what_is_missing(argv, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["explain", *argv])
    assert end.value.code == 2


@pytest.mark.parametrize("sizes", ["1,x", "1,-1", ""])
def test_explain_refuses_sizes_that_are_none(sizes, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["explain", "--sizes", sizes, "--n", "8", "--k", "8"])
    assert end.value.code == 2
    assert "argument --sizes: expected whole numbers" in capsys.readouterr().err


@pytest.mark.parametrize(
    "changes",
    [
        {"rows": "99999999999999999999"},
        {"groups": "99999999999"},
        {"groups": str(2**31 - 1)},
        {"rows": "100000000000", "groups": "1"},
        {"n": "99999999999999999999"},
        {"k": str(2**31)},
        {"sizes": "99999999999999999999,1"},
        {"sizes": f"{2**31 - 1},1"},
    ],
    ids=str,
)
def test_explain_has_one_limit_of_sizes(changes, capsys):
    sizes = {"rows": "8", "groups": "2", "n": "8", "k": "8"} | changes
    if "sizes" in sizes:
        del sizes["rows"], sizes["groups"]
    try:
        status = cli.main(["explain", *(f"--{name}={text}" for name, text in sizes.items())])
    except SystemExit as end:
        status = end.code
    assert status == 2
    told = capsys.readouterr().err
    assert "expected" in told
    assert "2147483647" in told or "1048576" in told


REFUSED = ("explain", "--sizes", "60,40", "--n", "8", "--k", "8", "--form", "ragged_k",
           "--epilogue", "swiglu_split")  # fmt: skip


def test_explain_fails_where_nothing_can_serve(capsys):
    found = run_json(capsys, *REFUSED, status=1)
    assert found["chosen"] is None
    assert not found["predictions"]
    assert len(found["refused"]) == sum(len(k.shipped_configs()) for k in KERNELS.values())
    assert cli.main(list(REFUSED)) == 1
    told = capsys.readouterr().out
    assert "No kernel can serve this problem:" in told
    assert "default choice" not in told


def test_explain_says_each_refusal_once(capsys):
    """Whatever the number of tiles that are refused for the same reasons."""
    assert cli.main(["explain", *SHAPE, "--arch", "sm_80"]) == 0
    told = capsys.readouterr().out
    for name in ("k2", "k3"):
        (line,) = [line for line in told.splitlines() if line.startswith(f"{name}: ")]
        assert line.startswith(f"{name}: no tile can: arch: ")
    assert cli.main(["explain", *SHAPE, "--epilogue", "bias+swiglu_split"]) == 0
    told = capsys.readouterr().out
    found = run_json(capsys, "explain", *SHAPE, "--epilogue", "bias+swiglu_split")["refused"]
    assert found
    for one in found:  # of some tiles of a kernel, each is named in the line of its reasons
        (line,) = [line for line in told.splitlines() if line.endswith("; ".join(one["reasons"]))]
        names, cannot, _ = line.removeprefix(f"{one['kernel']}: ").partition(" cannot: ")
        assert cannot
        assert one["tile"] in names.split(", ")


def test_explain_says_what_its_columns_are(capsys):
    assert cli.main(["explain", *SHAPE]) == 0
    (legend,) = [x for x in capsys.readouterr().out.splitlines() if x.startswith("hot, cool: ")]
    for name in (*filter(None, HEAD[3:6]), *HEAD[7:14], "->"):
        assert re.search(rf"(?<![\w-]){re.escape(name)}\b|{re.escape(name)}:", legend), name


def test_explain_of_a_result_without_elements(capsys):
    argv = ["explain", "--sizes", "0,0", "--n", "8", "--k", "8"]
    assert cli.main(argv) == 0
    told = capsys.readouterr().out
    assert "nothing is launched" in told
    assert "TensorMap" not in told
    assert run_json(capsys, *argv)["predictions"] == []
