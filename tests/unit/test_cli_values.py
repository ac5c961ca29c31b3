"""Values that an option does not take: exit status 2, and a message that names the option."""

import pytest

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
