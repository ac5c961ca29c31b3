"""``gemmjit inspect``."""

from __future__ import annotations

import pytest
from command_line import run_json

import gemmjit
from gemmjit import cli
from gemmjit.arch import Arch
from gemmjit.errors import InvalidProblemError
from gemmjit.kernels import KERNELS
from gemmjit.selection import choose


def test_inspect_shows_resources(capsys):
    facts = run_json(capsys, "inspect", "k1", "--config", "block_m=32", "min_blocks_per_sm=4")
    kernel = gemmjit.compile("k1", gemmjit.Sm80MmaConfig(block_m=32, min_blocks_per_sm=4), "sm_90a")
    assert facts["registers"] == kernel.registers
    assert facts["entry"] == kernel.entry
    assert facts["spill_store_bytes"] == facts["spill_load_bytes"] == 0
    assert facts["dynamic_smem_bytes"] == 2 * (32 * 40 + 32 * 136) * 2
    assert facts["resident_blocks"] == kernel.occupancy == 4
    assert facts["config"]["block_m"] == 32
    assert facts["run_on_this_architecture"] is True


def test_inspect_marks_an_architecture_that_nobody_ran(capsys):
    facts = run_json(capsys, "inspect", "k0", "--arch", "sm_120")
    assert facts["run_on_this_architecture"] is False


def test_inspect_takes_json_and_pairs_alike(capsys):
    one = run_json(
        capsys, "inspect", "k1", "--config", '{"block_m":64,"double_buffer_fragments":true}'
    )
    two = run_json(
        capsys, "inspect", "k1", "--config", "block_m=64", "double_buffer_fragments=true"
    )
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


def test_inspect_takes_a_tile_that_can_and_names_those_that_cannot(capsys):
    argv = ("inspect", "k2", "--variant", "epilogue=bias+swiglu_split")
    facts = run_json(capsys, *argv)
    first = next(iter(facts["refused_tiles"]))
    assert all("with a bias" in why for why in facts["refused_tiles"].values())
    shipped = [str(tile) for tile in KERNELS["k2"].shipped_configs()]
    assert sorted([*facts["refused_tiles"], *facts["shipped_tiles"]]) == sorted(shipped)
    assert facts["config"] == KERNELS["k2"].shipped_configs()[
        shipped.index(facts["shipped_tiles"][0])
    ].to_dict()  # fmt: skip
    assert cli.main(list(argv)) == 0
    assert f"{first}: min_blocks_per_sm: k2 with a bias" in capsys.readouterr().out
    named = ("--config", "block_m=128,block_n=128,min_blocks_per_sm=2")
    assert cli.main([*argv, *named]) == 2  # a tile that is named is taken


def test_inspect_of_wgrad_and_of_an_architecture_without_the_kernel(capsys):
    facts = run_json(capsys, "inspect", "k3", "--variant", "form=ragged_k", "--arch", "sm_90")
    assert facts["target"] == "sm_90a"
    assert facts["variant"]["a_k_major"] is False
    assert cli.main(["inspect", "k3", "--arch", "sm_80"]) == 2
    told = capsys.readouterr().err
    assert "needs sm_90 or newer; got sm_80" in told
    assert "sm_80a" not in told


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
