"""Values that an option of ``gemmjit bench`` does not take, on the simulated device."""

import pytest

from gemmjit import cli
from gemmjit.bench import setup
from gemmjit.bench.cases import MAX_GROUPS, case_of
from gemmjit.errors import InvalidProblemError
from gemmjit.variant import MAX_SHAPE

CASE = ("--case", "rows=8:groups=2:k=64:n=64")
ON = ("--backend", "simulated")
GROUPED = ("grouped", *ON, "--rounds", "1", *CASE)
LADDER = ("ladder", *ON, "--rounds", "1", *CASE)
SCHEDULING = ("scheduling", *ON, "--rounds", "1", "--k", "64", "--n", "64")
EPILOGUES = ("epilogues", *ON, "--rounds", "1", *CASE)
PROFILE = ("profile", *ON, *CASE)
HOST = ("host", *ON, *CASE, "--no-first")
TIMING = (GROUPED, LADDER, SCHEDULING, EPILOGUES)
NCU = (*PROFILE, "--print-ncu")

WRONG = [
    *((command, "--seed", "-1") for command in TIMING),
    *((command, "--budget", text) for command in (*TIMING, PROFILE) for text in ("nan", "0")),
    *((command, "--warmup", text) for command in TIMING for text in ("nan", "inf", "-1", "1_0")),
    *((command, "--state", text) for command in TIMING for text in (",", "", "warm", "cool,x")),
    *((command, "--rounds", text) for command in TIMING for text in ("0", "x", "1_0")),
    *((command, "--dtype", text) for command in TIMING for text in ("int32", "float8", "")),
    *((command, "--plot", "") for command in TIMING),
    *((command, "--layout", text) for command in (GROUPED, EPILOGUES) for text in ("xx", ",", "")),
    *(
        (command, "--form", text)
        for command in (GROUPED, EPILOGUES, PROFILE, NCU, HOST)
        for text in (",", "", "fprop,x")
    ),
    *(
        (command, "--case", text)
        for command in (GROUPED, LADDER, EPILOGUES, PROFILE, NCU, HOST)
        for text in (",", "", "rows=8:groups=2:k=99999999999:n=3")
    ),
    *((command, "--device", text) for command in (GROUPED, PROFILE, HOST) for text in ("-1", "")),
    *((command, "--json", "") for command in (GROUPED, PROFILE, HOST)),
    *((LADDER, "--kernels", text) for text in ("k9", ",", "")),
    *((SCHEDULING, "--groups", text) for text in (",", "0", "8,x", "1_0", f"{MAX_GROUPS + 1}")),
    *((SCHEDULING, name, f"{2**40}") for name in ("--k", "--n", "--few", "--many", "--capacity")),
    *((SCHEDULING, "--many", f"{2**30}") for _ in "x"),
    *((command, "--kernel", text) for command in (SCHEDULING, EPILOGUES) for text in ("k9", "")),
    *((command, "--kernel", text) for command in (PROFILE, NCU) for text in ("k9", "")),
    *(
        (command, "--config", text)
        for command in (PROFILE, NCU, SCHEDULING)
        for text in ("k9", "", "k1:", "k1:block_m", "k1:block_m=6_4", "k1:other=3")
    ),
    *((EPILOGUES, "--epilogues", text) for text in (",", "", "none_such")),
    *((HOST, name, "0") for name in ("--calls", "--batch")),
]


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GEMMJIT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("GEMMJIT_EXECUTOR", "reference")


def outcome(capsys, *argv):
    """Return the exit status of ``gemmjit bench``, argparse's own included, and what it says."""
    try:
        status = cli.main(["bench", *argv])
    except SystemExit as end:
        status = end.code
    return status, capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "option", "text"), WRONG, ids=lambda one: one[0] if isinstance(one, tuple) else one
)
def test_a_wrong_value_is_named_and_nothing_is_measured(capsys, argv, option, text):
    status, said = outcome(capsys, *argv, f"{option}={text}")
    assert status == 2
    assert option.removeprefix("--").removesuffix("s") in said
    assert any(word in said for word in ("expected", "invalid choice", "must be", "unknown field"))
    assert repr(text) in said or "got" in said or "unknown field" in said


@pytest.mark.parametrize("command", [NCU, PROFILE, SCHEDULING])
def test_a_tile_that_breaks_a_rule_is_refused_first(capsys, command):
    status, said = outcome(capsys, *command, "--config", "k1:block_m=48")
    assert status == 2
    assert "block_m" in said


def test_a_tile_of_another_architecture_is_no_wrong_value(capsys):
    """163 KiB of shared memory are the most of sm_80, 227 those of sm_90."""
    text = "k1:block_m=128,block_n=128,block_k=64,num_stages=6,min_blocks_per_sm=1"
    assert outcome(capsys, *NCU, "--config", text) == (0, "")


def test_of_kernel_and_config_there_is_one(capsys):
    status, said = outcome(capsys, *PROFILE, "--kernel", "k0", "--config", "k1")
    assert status == 2
    assert "argument --config: not allowed with argument --kernel" in said


@pytest.mark.parametrize(
    "text",
    [
        f"rows=8:groups=2:k={MAX_SHAPE + 1}:n=3",
        f"rows={MAX_SHAPE + 1}:groups=2:k=3:n=3",
        f"rows={MAX_SHAPE}:groups=2:k=3:n=3:spare=1",
        f"sizes={MAX_SHAPE}/1:k=3:n=3",
        f"rows=8:groups={MAX_GROUPS + 1}:k=3:n=3",
        "rows=8:groups=2:k=3_0:n=3",
        "rows=8:groups=2:k=\uff13:n=3",
        "rows=8:groups=2:k=3:n=3:skew=1_0",
        "rows=8:groups=2:k=3:n=3:skew=nan",
        f"rows=8:groups=2:k={'9' * 5000}:n=3",
    ],
)
def test_sizes_that_no_case_has(text):
    with pytest.raises(InvalidProblemError, match="case: expected"):
        case_of(text)


def test_the_largest_case():
    case = case_of(f"rows={MAX_SHAPE - 5}:groups=4:k={MAX_SHAPE}:n=1:spare=5")
    assert (case.rows, case.k, case.spare_rows) == (MAX_SHAPE - 5, MAX_SHAPE, 5)


def test_sizes_beyond_this_machine_are_no_wrong_values(capsys, monkeypatch):
    """As NumPy and CuPy say it; a machine may well grant what it has not."""

    def refuse(*_, **__):
        raise MemoryError("Unable to allocate 1.46 TiB")

    monkeypatch.setattr("gemmjit.bench.profile_run.Inputs", refuse)
    status, said = outcome(capsys, *PROFILE)
    assert status == 1
    assert said == (
        "gemmjit bench: not enough memory: Unable to allocate 1.46 TiB. Use smaller sizes\n"
    )


@pytest.mark.parametrize("command", [("grouped", *CASE), ("profile", *CASE), ("host", *CASE)])
def test_a_framework_that_is_missing_is_no_wrong_value(capsys, monkeypatch, command):
    monkeypatch.setattr(setup, "driver", lambda: None)
    monkeypatch.setattr(setup.torch_backend, "missing", lambda: "no torch")
    monkeypatch.setattr(setup.cupy_backend, "missing", lambda: "no CuPy")
    status, said = outcome(capsys, *command)
    assert status == 1
    assert "backend: expected torch or CuPy on a GPU; no torch; no CuPy" in said
    status, said = outcome(capsys, *command, "--backend", "torch")
    assert status == 1
    assert "backend: expected torch on a GPU; no torch" in said
