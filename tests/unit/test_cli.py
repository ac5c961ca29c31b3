"""The command line: what it prints, its exit statuses, and that JSON says the same."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import gemmjit
from gemmjit import build, cli
from gemmjit.arch import Arch
from gemmjit.cli import environment, problem_data
from gemmjit.cuda.driver import is_available
from gemmjit.errors import InvalidProblemError, MissingKernelError, NvrtcNotFoundError
from gemmjit.kernels import KERNELS
from gemmjit.selection import choose

COMMANDS = tuple(cli.COMMANDS)


@pytest.fixture
def empty_cache(monkeypatch, tmp_path):
    """A cache directory of its own, and nothing in memory."""
    monkeypatch.setenv("GEMMJIT_CACHE_DIR", str(tmp_path / "cache"))
    build.clear_memory()
    yield tmp_path / "cache"
    build.clear_memory()


def run_json(capsys, *argv: str, status: int = 0):
    assert cli.main([*argv, "--json"]) == status
    return json.loads(capsys.readouterr().out)


# The program as such


def test_help_names_every_command_and_loads_nothing_heavy():
    code = (
        "import sys\nfrom gemmjit.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit as end: assert end.code == 0\n"
        "heavy = {'numpy', 'jinja2', 'cuda', 'cupy', 'torch', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name in COMMANDS:
        assert name in done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main([name, "--help"])
    assert end.value.code == 0
    assert "usage: gemmjit " + name in capsys.readouterr().out


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["nothing"],
        ["demo", "--nothing"],
        ["inspect"],
        ["inspect", "k1", "--problem", "rows=1,groups=1,n=1,k=1"],
        ["inspect", "k1", "--config", "block_m"],
        ["inspect", "k1", "--source", "--sass"],
        ["prewarm", "--kernel", "k1"],
        ["prewarm", "--kernel", "k1", "--arch", "sm_90a", "--config", "[1]"],
        ["cache"],
        ["cache", "prune", "--max-size", "much"],
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_with_2(argv, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(argv)
    assert end.value.code == 2
    assert "usage: gemmjit" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["inspect", "k9"], "k9"),
        (["inspect", "k1", "--arch", "sm_12"], "sm_12"),
        (["inspect", "k1", "--arch", "sm_75"], "needs sm_80 or newer"),
        (["inspect", "k1", "--config", "block_m=48"], "got 48"),
        (["inspect", "k1", "--config", "depth=2"], "unknown field depth"),
        (["inspect", "k1", "--variant", "in_dtype=float32"], "got float32"),
        (["inspect", "--problem", "rows=8"], "groups=None"),
        (["inspect", "--problem", "rows=8,groups=1,n=8,k=8,color=3"], "unknown name color"),
        (["prewarm", "--kernel", "k1", "--arch", "sm_75"], "needs sm_80 or newer"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_failed_work_exits_with_1_and_one_message(argv, told, capsys):
    assert cli.main(argv) == 1
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith(f"gemmjit {argv[0]}: ")
    assert told in err
    assert "Traceback" not in err
    error = run_json(capsys, *argv, status=1)["error"]
    assert told in error["message"]
    assert error["type"].endswith("Error")


def test_python_m_gemmjit_is_the_same_program():
    for module in ("gemmjit", "gemmjit.cli"):
        argv = [sys.executable, "-m", module, "--version"]
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
        assert done.stdout == f"gemmjit {gemmjit.__version__}\n"


def test_a_closed_pipe_is_no_error():
    line = f"{shlex.quote(sys.executable)} -m gemmjit inspect k0 --source | head -c 10"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", line], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == '#line 1 "k'
    assert not done.stderr


# demo


def test_demo_is_right_and_complete(capsys):
    facts = run_json(capsys, "demo")
    assert facts["passed"]
    assert facts["arch"] == "sm_90a"
    assert {row["kernel"] for row in facts["kernels"]} == set(KERNELS)
    for row in facts["kernels"]:
        assert row["spill_bytes"] == 0
        assert 16 <= row["registers"] <= 255
        assert row["resident_blocks"] >= 1
        assert row["smem_bytes"] > 0
        assert row["compile_ms"] > 0
    assert [(check["product"], check["kernel"]) for check in facts["checks"]] == [
        *(("fprop", name) for name in (*KERNELS, "default")),
        ("dgrad", "default"),
        ("wgrad", "default"),
    ]
    for check in facts["checks"]:
        assert check["passed"]
        assert 0 < check["error_over_bound"] <= 1
    assert (len(facts["times"]) > 0) == is_available()


def test_demo_prints_what_it_did(capsys):
    assert cli.main(["demo", "--arch", "sm_80"]) == 0
    out = capsys.readouterr().out
    assert "Compiled for sm_80 by NVRTC" in out
    assert "32 experts, 8048 rows, 7 experts empty" in out
    assert out.count("right") == 5  # k0, k1 and the default choice; dgrad; wgrad
    assert "WRONG" not in out


def test_demo_skips_kernels_that_the_architecture_lacks(capsys):
    facts = run_json(capsys, "demo", "--arch", "sm_75")
    assert {row["kernel"] for row in facts["kernels"]} == {"k0"}


def test_demo_fails_on_a_wrong_result(capsys, monkeypatch):
    monkeypatch.setenv("GEMMJIT_EXECUTOR", "reference")
    from gemmjit.cli import demo

    true = demo.grouped_mm

    def wrong(mat_a, mat_b, **rest):
        result = true(mat_a, mat_b, **rest)
        result[..., -1, -1] = result[..., -1, -1] * 2 + 1
        return result

    monkeypatch.setattr(demo, "grouped_mm", wrong)
    facts = run_json(capsys, "demo", status=1)
    assert not facts["passed"]
    assert not any(check["passed"] for check in facts["checks"])


def test_the_bound_of_the_demonstration_is_tight():
    fprop, _, wgrad = problem_data.cases(64, 32)
    rows = [(int(end - size), int(end)) for end, size in _groups() if size]
    result = _reference(fprop)
    error, ratio = fprop.compare(result)
    assert 0.9 < ratio <= 1
    assert error > 0
    for damage in (float("nan"), float("inf")):
        wrong = result.copy()
        wrong[rows[0][0], 0] = damage
        assert fprop.compare(wrong)[1] > 1
    wrong = result.copy()
    wrong[5, 5] = wrong[5, 5] * 1.016  # two steps of bfloat16
    assert fprop.compare(wrong)[1] > 1
    wrong = _reference(wgrad)
    assert wgrad.compare(wrong)[1] <= 1
    empty = problem_data.GROUP_SIZES.index(0)
    wrong[empty, 0, 0] = 1e-30
    assert wgrad.compare(wrong)[1] > 1


def _groups():
    return zip(problem_data.ends().tolist(), problem_data.GROUP_SIZES, strict=True)


def _reference(case):
    b = case.view(case.mat_b)
    return gemmjit.grouped_mm(case.mat_a, b, offs=problem_data.ends())


# doctor


def test_doctor_finds_nothing_missing(capsys, empty_cache):
    facts = run_json(capsys, "doctor")
    assert facts["ok"]
    assert facts["problems"] == []
    assert facts["nvrtc"]["version"].startswith("13.")
    assert Path(facts["nvrtc"]["library"]).is_file()
    assert "sm_90" in facts["nvrtc"]["targets"]
    assert facts["cache"]["user"]["path"] == str(empty_cache)
    assert facts["cache"]["user"]["writable"]
    assert facts["templates"]["count"] >= 10
    assert {v["name"] for v in facts["environment"]} == {v.name for v in gemmjit_variables()}
    assert not empty_cache.exists()  # looking creates nothing
    assert cli.main(["doctor"]) == 0
    assert "Nothing is missing." in capsys.readouterr().out


def gemmjit_variables():
    from gemmjit.env import VARIABLES

    return VARIABLES


def test_doctor_says_how_to_get_nvrtc(capsys, monkeypatch):
    def missing():
        raise NvrtcNotFoundError("The NVRTC library cannot be loaded.")

    monkeypatch.setattr("gemmjit.compiler.get_compiler", missing)
    facts = run_json(capsys, "doctor", status=1)
    assert not facts["ok"]
    (problem,) = facts["problems"]
    assert problem["mend"] == 'pip install "nvidia-cuda-nvrtc>=13.0,<14"'
    assert problem["needed_to"] == "compile"


def test_doctor_says_which_package_to_install(capsys, monkeypatch):
    true = environment._version
    versions = {"jinja2": "2.11.3", "cupy-cuda13x": None}
    monkeypatch.setattr(environment, "_version", lambda name: versions.get(name, true(name)))
    monkeypatch.setitem(versions, "torch", None)
    facts = run_json(capsys, "doctor", status=1)
    mends = {problem["mend"]: problem["needed_to"] for problem in facts["problems"]}
    assert mends == {
        'pip install "jinja2>=3.1"': "compile",
        'pip install "cupy-cuda13x>=14.0"': "run on a GPU",
    }


def test_doctor_lives_without_a_package_that_it_needs(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.bindings.nvrtc", None)  # makes its import fail
    monkeypatch.setattr(environment, "_version", _without(environment._version, "cuda-python"))
    facts = run_json(capsys, "doctor", status=1)
    assert 'pip install "cuda-python>=13.0,<14"' in [p["mend"] for p in facts["problems"]]


def _without(true, package):
    return lambda name: None if name == package else true(name)


def test_doctor_reports_a_cache_that_cannot_be_written(capsys, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GEMMJIT_CACHE_DIR", str(tmp_path / "file" / "cache"))
    facts = run_json(capsys, "doctor")  # kernels can be compiled all the same
    assert facts["ok"]
    (problem,) = facts["problems"]
    assert problem["needed_to"] == "keep kernels on disk"
    assert "GEMMJIT_CACHE_DIR" in problem["mend"]


def test_doctor_reports_a_cache_that_others_can_write(capsys, empty_cache):
    empty_cache.mkdir()
    empty_cache.chmod(0o777)
    facts = run_json(capsys, "doctor")
    assert f"chmod go-w {empty_cache}" in [problem["mend"] for problem in facts["problems"]]


def test_doctor_reports_overrides_of_templates(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("GEMMJIT_TEMPLATE_PATH", f"{tmp_path}{os.pathsep}{tmp_path / 'none'}")
    facts = run_json(capsys, "doctor", status=1)
    assert facts["templates"]["overrides"] == [str(tmp_path), str(tmp_path / "none")]
    (problem,) = facts["problems"]
    assert str(tmp_path / "none") in problem["what"]


@pytest.mark.parametrize(
    ("version", "wanted", "expected"),
    [
        ("13.0", ">=13.0,<14", True),
        ("13.5.37", ">=13.0,<14", True),
        ("12.9.1", ">=13.0,<14", False),
        ("14.0.0", ">=13.0,<14", False),
        ("2.13.0+cpu", ">=2.8", True),
        ("3.0.9", ">=3.1", False),
        ("10.0", ">=3.1", True),
    ],
)
def test_versions_are_compared_as_numbers(version, wanted, expected):
    assert environment.satisfies(version, wanted) is expected


# inspect


def test_inspect_shows_resources(capsys):
    facts = run_json(capsys, "inspect", "k1", "--config", "block_m=64", "min_blocks_per_sm=3")
    kernel = gemmjit.compile("k1", gemmjit.Sm80MmaConfig(block_m=64, min_blocks_per_sm=3), "sm_90a")
    assert facts["registers"] == kernel.registers
    assert facts["entry"] == kernel.entry
    assert facts["spill_store_bytes"] == facts["spill_load_bytes"] == 0
    assert facts["dynamic_smem_bytes"] == 2 * (64 * 40 + 32 * 136) * 2
    assert facts["resident_blocks"] == kernel.occupancy == 3
    assert facts["config"]["block_m"] == 64
    assert facts["run_on_this_architecture"] is True


def test_inspect_marks_an_architecture_that_nobody_ran(capsys):
    facts = run_json(capsys, "inspect", "k0", "--arch", "sm_120")
    assert facts["run_on_this_architecture"] is False


def test_inspect_takes_json_and_pairs_alike(capsys):
    one = run_json(capsys, "inspect", "k1", "--config", '{"double_buffer_fragments":true}')
    two = run_json(capsys, "inspect", "k1", "--config", "double_buffer_fragments=true")
    assert one["identity"] == two["identity"]
    assert one["config"]["double_buffer_fragments"] is True


def test_inspect_prints_source_and_ptx(capsys):
    assert cli.main(["inspect", "k1", "--source", "--variant", "out_dtype=float32"]) == 0
    source = capsys.readouterr().out
    assert source == gemmjit.render("k1", out_dtype="float32")
    assert "using out_t = float;" in source
    ptx = run_json(capsys, "inspect", "k1", "--ptx", "--arch", "sm_80")["ptx"]
    assert ".target sm_80" in ptx
    assert "mma.sync.aligned.m16n8k16" in ptx
    assert ".loc" in ptx


def test_inspect_prints_sass_or_how_to_get_it(capsys):
    from gemmjit.compiler.sass import DisassemblerNotFoundError, disassemble

    status = cli.main(["inspect", "k1", "--sass"])
    out, err = capsys.readouterr()
    try:
        disassemble(gemmjit.compile("k1").cubin)
    except DisassemblerNotFoundError:
        assert status == 1
        assert 'pip install "gemmjit[inspect]"' in err
    else:
        assert status == 0
        assert "HMMA.16816.F32.BF16" in out


@pytest.mark.parametrize("rows", [64, 2048, 4096, 16384])
@pytest.mark.parametrize("form", ["ragged_m", "ragged_k"])
def test_inspect_shows_the_choice_for_a_problem(rows, form, capsys):
    text = f"rows={rows},groups=64,n=2688,k=1024,form={form}"
    facts = run_json(capsys, "inspect", "--problem", text)
    problem = gemmjit.Problem.contiguous(form, rows=rows, num_groups=64, n=2688, k=1024)
    kernel, config = choose(problem, Arch.parse("sm_90a"))
    assert facts["chosen"]["kernel"] == kernel.name
    assert facts["chosen"]["config"] == str(config)
    assert [one["verdict"] for one in facts["candidates"]].count("chosen") == 1
    by_name = {(c["kernel"], c["config"]): c for c in facts["candidates"]}
    k0 = by_name["k0", "64x64x16"]
    if form == "ragged_k":
        assert k0["num_tiles"] == 64 * 16 * 42
        assert k0["utilization"] is None
    elif rows == 2048:
        assert k0["num_tiles"] == 2688
        assert k0["utilization"] == 0.5


def test_inspect_tells_why_a_tile_is_refused(capsys):
    argv = ["inspect", "--problem", "rows=64,groups=2,n=64,k=64,dtype=float32"]
    assert cli.main(argv) == 0
    out = capsys.readouterr().out
    assert "in_dtype: k1 takes bfloat16, float16; got float32" in out
    (chosen,) = [line for line in out.splitlines() if line.startswith("->")]
    assert chosen.split()[1] == "k0"


def test_a_problem_that_is_malformed_is_explained():
    from gemmjit.cli.candidates import problem_from

    good = {"rows": 8, "groups": 1, "n": 8, "k": 8}
    assert problem_from(good).num_groups == 1
    for bad in ({"n": "x"}, {"k": True}, {"form": "ragged_n"}, {"rows": -1}):
        with pytest.raises(InvalidProblemError):
            problem_from(good | bad)


# prewarm


def test_the_command_of_the_error_mends_it(empty_cache, monkeypatch, capsys):
    """BR: a mode that never compiles must say exactly what to run."""
    monkeypatch.setenv("GEMMJIT_DISABLE_JIT", "1")
    config = gemmjit.Sm80MmaConfig(block_m=32, min_blocks_per_sm=4)
    asked = {"config": config, "arch": "sm_80", "out_dtype": "float32", "b_k_major": True}
    with pytest.raises(MissingKernelError) as error:
        gemmjit.compile("k1", **asked)
    program, *argv = shlex.split(str(error.value).partition("Compile it beforehand: ")[2])
    assert program == "gemmjit"
    (row,) = run_json(capsys, *argv)["kernels"]
    assert row["target"] == "sm_80"
    assert row["from_cache"] is False
    assert os.environ["GEMMJIT_DISABLE_JIT"] == "1"
    build.clear_memory()
    kernel = gemmjit.compile("k1", **asked)
    assert kernel.from_cache
    assert kernel.identity == row["identity"]


@pytest.mark.parametrize("name", sorted(KERNELS))
def test_every_prewarm_command_is_understood(name, empty_cache, capsys):
    kernel = gemmjit.compile(name)
    argv = shlex.split(kernel.spec.prewarm_command)[1:]
    (row,) = run_json(capsys, *argv)["kernels"]
    assert row["identity"] == kernel.identity


def test_the_kernel_that_builds_tile_lists_can_be_prewarmed(empty_cache, monkeypatch, capsys):
    from gemmjit.kernels.tile_list import TileListSpec

    spec = TileListSpec(Arch.parse("sm_90a"))
    monkeypatch.setenv("GEMMJIT_DISABLE_JIT", "1")
    with pytest.raises(MissingKernelError) as error:
        build.build(spec)
    argv = shlex.split(str(error.value).partition("Compile it beforehand: ")[2])[1:]
    (row,) = run_json(capsys, *argv)["kernels"]
    build.clear_memory()
    assert build.build(spec).identity == row["identity"]


def test_prewarm_serves_several_architectures(empty_cache, capsys):
    argv = ["prewarm", "--kernel", "k0", "--arch", "sm_75,sm_90,sm_100f"]
    rows = run_json(capsys, *argv)["kernels"]
    assert [row["target"] for row in rows] == ["sm_75", "sm_90a", "sm_100f"]
    assert len(run_json(capsys, "cache", "ls")["entries"]) == 3
    build.clear_memory()
    assert all(row["from_cache"] for row in run_json(capsys, *argv)["kernels"])


def test_prewarm_fails_where_nothing_can_be_kept(monkeypatch, tmp_path, capsys):
    build.clear_memory()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GEMMJIT_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert cli.main(["prewarm", "--kernel", "k0", "--arch", "sm_80"]) == 1
    assert "could keep it" in capsys.readouterr().err


def test_prewarm_refuses_a_shipped_tile_that_spills(monkeypatch, capsys):
    from gemmjit.cli import prewarm

    tight = gemmjit.Sm80MmaConfig(block_m=128, min_blocks_per_sm=4)
    argv = ["prewarm", "--kernel", "k1", "--arch", "sm_90a", "--config", '{"min_blocks_per_sm":4}']
    (row,) = run_json(capsys, *argv)["kernels"]  # one's own tile: reported, not refused
    assert row["spill_bytes"] > 0
    kernel = prewarm.find_kernel("k1")
    monkeypatch.setattr(type(kernel), "shipped_configs", lambda self: (tight,))
    assert cli.main(argv) == 1
    assert "expected no spills" in capsys.readouterr().err


# cache


def test_cache_looks_after_its_directory(empty_cache, capsys):
    assert run_json(capsys, "cache", "info")["directories"][0]["num_entries"] == 0
    gemmjit.compile("k0")
    gemmjit.compile("k0", out_dtype="float32")
    (info,) = run_json(capsys, "cache", "info")["directories"]
    assert info["path"] == str(empty_cache)
    assert info["num_entries"] == 2
    assert info["targets"] == ["sm_90a"]
    entries = run_json(capsys, "cache", "ls")["entries"]
    assert info["num_bytes"] == sum(entry["num_bytes"] for entry in entries)
    assert all(Path(entry["path"]).is_dir() for entry in entries)
    assert cli.main(["cache", "info"]) == 0
    assert "2 kernels" in capsys.readouterr().out
    assert cli.main(["cache", "ls"]) == 0
    assert capsys.readouterr().out.count("gemmjit_k0_64x64x16") == 2

    assert run_json(capsys, "cache", "verify")["damaged"] == []
    damaged = Path(entries[0]["path"]) / "kernel.cubin"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    (bad,) = run_json(capsys, "cache", "verify", status=1)["damaged"]
    assert bad["path"] == entries[0]["path"]
    assert bad["removed"] is False
    assert run_json(capsys, "cache", "verify", "--remove")["damaged"][0]["removed"] is True
    assert len(run_json(capsys, "cache", "ls")["entries"]) == 1

    # What was used a moment ago is never pruned.
    assert run_json(capsys, "cache", "prune", "--max-size", "0")["removed"] == []
    old = entries[1]["path"]
    os.utime(old, (1e9, 1e9))
    assert [
        e["path"] for e in run_json(capsys, "cache", "prune", "--max-size", "0")["removed"]
    ] == [old]


def test_cache_clear_asks_first(empty_cache, capsys):
    gemmjit.compile("k0")
    assert cli.main(["cache", "clear"]) == 1
    assert "--yes" in capsys.readouterr().err
    assert len(run_json(capsys, "cache", "ls")["entries"]) == 1
    assert len(run_json(capsys, "cache", "clear", "--yes")["removed"]) == 1
    assert run_json(capsys, "cache", "ls")["entries"] == []


def test_cache_lists_layers_that_are_only_read(empty_cache, monkeypatch, tmp_path, capsys):
    gemmjit.compile("k0")
    monkeypatch.setenv("GEMMJIT_CACHE_PATH", str(empty_cache))
    monkeypatch.setenv("GEMMJIT_CACHE_DIR", str(tmp_path / "other"))
    user, shared = run_json(capsys, "cache", "info")["directories"]
    assert (user["num_entries"], shared["num_entries"]) == (0, 1)
    assert (user["writable"], shared["writable"]) == (True, False)
    assert run_json(capsys, "cache", "clear", "--yes")["removed"] == []
    assert len(run_json(capsys, "cache", "ls")["entries"]) == 1


@pytest.mark.gpu
@pytest.mark.skipif(not is_available(), reason="no usable CUDA driver and GPU")
def test_demo_times_every_tile_on_a_gpu(capsys):
    facts = run_json(capsys, "demo")
    assert facts["executor"] == "cuda"
    assert facts["passed"]
    assert all(t["milliseconds"] > 0 and t["useful_tflops"] > 0 for t in facts["times"])
