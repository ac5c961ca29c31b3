"""Values that an option does not take: exit status 2, and a message that names the option."""

import pytest
from command_line import run_json

from gemmjit import cli

EXPLAIN = ("explain", "--n", "8", "--k", "8")
FULL_WIDTH = "\uff11\uff12"  # digits to int(), not to a reader


def refused(capsys, *argv):
    """Run a command that must end as wrong usage; return what it says."""
    try:
        status = cli.main(list(argv))
    except SystemExit as end:  # argparse's own way
        status = end.code
    assert status == 2, argv
    return capsys.readouterr().err


@pytest.mark.parametrize("number", ["1_0", FULL_WIDTH, "\u0663", "+-1", "", "1.0", "9" * 5000])
@pytest.mark.parametrize(
    ("argv", "option"),
    [
        ((*EXPLAIN, "--sizes"), "--sizes"),
        ((*EXPLAIN, "--groups", "1", "--rows"), "--rows"),
        (("emulate", "k3", "--sizes"), "--sizes"),
        (("emulate", "k3", "--seed"), "--seed"),
        (("prewarm", "--kernel", "k1", "--arch", "sm_90a", "--jobs"), "--jobs"),
        (("prewarm", "--kernel", "k1", "--arch", "sm_90a", "--shard"), "--shard"),
        (("doctor", "--startup", "--runs"), "--runs"),
        (("tune", "--rounds"), "--rounds"),
    ],
)
def test_whole_numbers_have_ascii_digits_alone(capsys, argv, option, number):
    said = refused(capsys, *argv, f"{number}/9" if option == "--shard" else number)
    assert f"argument {option}:" in said


@pytest.mark.parametrize("number", ["1_0", FULL_WIDTH, "nan", "inf", "-1", ""])
def test_other_numbers_have_ascii_digits_alone(capsys, number):
    said = refused(capsys, "tune", f"--warmup={number}")
    assert "argument --warmup: expected a finite number from 0 on; got" in said


def test_sizes_have_ascii_digits_alone(capsys):
    said = refused(capsys, "cache", "prune", "--max-size", FULL_WIDTH)
    assert "argument --max-size: expected a size such as" in said


def test_spaces_between_numbers_are_none_of_them(capsys):
    assert cli.main([*EXPLAIN, "--sizes", "5, 0, 70"]) == 0
    assert "3 groups, 75 rows" in capsys.readouterr().out


@pytest.mark.parametrize("arch", ["", " ", "sm_\uff19\uff10"])
@pytest.mark.parametrize(
    "argv",
    [
        (*EXPLAIN, "--sizes", "5"),
        ("demo",),
        ("emulate", "k3"),
        ("inspect", "k3"),
        ("inspect", "--problem", "rows=8,groups=2,n=8,k=8"),
        ("prewarm", "--kernel", "k1"),
        ("prewarm", "--shapes", "none.toml"),
    ],
)
def test_a_blank_architecture_is_not_the_default(capsys, argv, arch):
    said = refused(capsys, *argv, "--arch", arch)
    assert "argument --arch: expected a name such as sm_80, sm_90a or sm_100f; got" in said


PROBLEM = {"rows": "100", "groups": "4", "n": "64", "k": "64"}


@pytest.mark.parametrize(
    ("others", "status"),
    [
        ({}, 0),
        ({"dtype": "float32"}, 0),
        ({"dtype": "int32"}, 2),
        ({"dtype": "float8"}, 2),
        ({"out-dtype": "int32"}, 2),
        ({"out-dtype": "float8"}, 2),
        ({"form": "ragged_k", "epilogue": "bias"}, 1),
        ({"form": "ragged_k", "epilogue": "accumulate", "out-dtype": "float32"}, 0),
        ({"epilogue": "none_such"}, 2),
        ({"epilogue": "accumulate"}, 2),
        ({"form": "ragged_n"}, 2),
        ({"groups": str(2**20 + 1)}, 2),
        ({"rows": str(2**31 - 1), "n": str(2**31 - 1)}, 0),
        ({"rows": str(2**31)}, 2),
    ],
)
def test_inspect_and_explain_agree(capsys, others, status):
    given = PROBLEM | others
    pairs = ",".join(f"{name.replace('-', '_')}={value}" for name, value in given.items())
    for argv in (
        ["explain", *(f"--{name}={value}" for name, value in given.items())],
        ["inspect", "--problem", pairs],
    ):
        try:
            found = cli.main(argv)
        except SystemExit as end:
            found = end.code
        told = "".join(capsys.readouterr())
        assert found == status, (argv, told)
        assert ("No kernel can serve this problem" in told) is (status == 1)


def test_what_nothing_serves_has_no_choice(capsys):
    words = ("inspect", "--problem", "rows=9,groups=3,n=8,k=8,form=ragged_k,epilogue=bias")
    found = run_json(capsys, *words, status=1)
    assert found["chosen"] is None
    assert not [one for one in found["candidates"] if one["verdict"] in ("chosen", "possible")]


def test_a_type_is_refused_with_those_that_there_are(capsys):
    for argv, option in (
        ((*EXPLAIN, "--sizes", "5", "--dtype", "int32"), "dtype"),
        (("emulate", "k3", "--out-dtype", "int32"), "out_dtype"),
        (("inspect", "--problem", "rows=9,groups=3,n=8,k=8,dtype=int32"), "problem: dtype"),
    ):
        said = refused(capsys, *argv)
        assert f"{option}: expected one of bfloat16, float16, float32; got int32" in said
