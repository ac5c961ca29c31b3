"""Manifests: read with exact errors, expanded as at run time, written and read back."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gemmjit import Problem
from gemmjit.arch import Arch, devices_of
from gemmjit.errors import ManifestError, UnsupportedArchError
from gemmjit.kernels import KERNELS, KernelSpec, Variant
from gemmjit.kernels.tile_list import TileListSpec
from gemmjit.manifest import KernelEntry, Manifest, ProblemEntry, load, parse, read_log, to_toml
from gemmjit.ops.dispatch import spec_for

LAYER = """
targets = ["sm_80", "sm_90a"]

[[problems]]
n = 2688
k = 1024

[[problems]]
form = "ragged_k"
n = 2688
k = 1024
out_dtype = "float32"
epilogue = "accumulate"

[[kernels]]
kernel = "simt_grouped_mm"
variant = { in_dtype = "float32", out_dtype = "float32" }
targets = ["sm_75"]
"""


def names(wanted):
    return [(one.spec.name, str(one.spec.target)) for one in wanted]


def test_a_layer():
    manifest = parse(LAYER, "layer.toml")
    wanted = manifest.wanted()
    assert {target for _, target in names(wanted)} == {"sm_75", "sm_80", "sm_90a"}
    assert names(wanted)[-1] == ("k0", "sm_75")
    keys = [one.key for one in wanted]
    assert len(set(keys)) == len(keys)
    assert [one.key for one in manifest.wanted()] == keys
    assert {target for _, target in names(manifest.wanted([Arch(120, "f")]))} == {"sm_120f"}
    assert all(one.is_shipped for one in wanted)
    # Every height of tile of k1, since any number of rows may come.
    heights = {one.spec.config.block_m for one in wanted if one.spec.name == "k1"}
    assert heights == {32, 64, 128}


def test_what_is_asked_for_twice_is_wanted_once():
    once = parse(LAYER).wanted()
    twice = parse(LAYER + LAYER.replace('targets = ["sm_80", "sm_90a"]', "", 1)).wanted()
    assert [one.key for one in twice] == [one.key for one in once]
    # sm_90 and sm_90a are one target of every kernel.
    assert len(parse('targets = ["sm_90", "sm_90a"]\n[[kernels]]\nkernel = "k0"').wanted()) == 1


def test_rows_bound_the_tiles():
    text = 'targets = ["sm_80"]\n[[problems]]\nn = 64\nk = 64\nnum_groups = 8\nrows = {}'
    for rows, heights in (("256", {32}), ("[1, 257]", {32, 64}), ("[513, 9999]", {128})):
        wanted = parse(text.format(rows)).wanted()
        assert {one.spec.config.block_m for one in wanted} == heights


def test_offsets_on_the_host_are_another_variant():
    text = 'targets = ["sm_80"]\n[[problems]]\nn = 64\nk = 64\nrows = 8\noffsets = {}'
    for offsets, schedules in (('"host"', ["list"]), ('["device", "host"]', ["scan", "list"])):
        wanted = parse(text.format(offsets)).wanted()
        assert [one.spec.variant.schedule for one in wanted] == schedules


@pytest.mark.parametrize("more", ["", 'kernel = "k1"', 'out_dtype = "float32"', "rows = [1, 9]"])
@pytest.mark.parametrize("alignment", [2, 4, 8, 16])
def test_results_of_the_caller_and_of_the_call_are_both_covered(alignment, more):
    """A fresh result lies on the grid of 16 bytes whatever the operands' addresses."""
    text = f"""
    targets = ["sm_90a"]
    [[problems]]
    n = 64
    k = 64
    num_groups = 2
    alignment = {alignment}
    {more}
    """
    covered = {one.spec for one in parse(text).wanted()}
    out_dtype = "float32" if "float32" in more else None
    usual = Problem.contiguous(num_groups=2, rows=9, n=64, k=64, out_dtype=out_dtype)
    for result in (alignment, 16):
        asked = replace(usual, a_alignment=alignment, b_alignment=alignment, d_alignment=result)
        needed = spec_for(asked, Arch(90), "k1" if "kernel" in more else None).alternatives
        assert set(needed) & covered, result


def test_a_tile_of_ones_own():
    text = """
    targets = ["sm_80", "sm_86"]
    [[problems]]
    n = 64
    k = 64
    kernel = "k1"
    config = { block_m = 64, pad = 16, schedule = "compact" }
    """
    wanted = parse(text).wanted()
    assert names(wanted) == [("k1", "sm_80"), ("tile_list", "sm_80"), ("k1", "sm_86"),
                             ("tile_list", "sm_86")]  # fmt: skip
    assert wanted[0].spec.config.pad == 16
    assert [one.is_shipped for one in wanted] == [False, True, False, True]


HEAD = 'targets = ["sm_80"]\n[[problems]]\nn = 64\nk = 64\n'


@pytest.mark.parametrize(
    ("text", "key", "expected", "got", "mend"),
    [
        ("n = ", "", "TOML", "an error", "Correct"),
        ("", "problems", "[[problems]] or [[kernels]]", "neither", "Add one"),
        ("[problems]\nn = 1", "problems", "[[problems]]", "{'n': 1}", "two brackets"),
        ('target = ["sm_80"]', "target", "targets, problems", "target", "Did you mean targets?"),
        ("version = 2", "version", "1", "2", "Install"),
        (HEAD + "K = 3", "problems[0].K", "n, k, form", "K", "Remove it"),
        (HEAD + "dtyp = 1", "problems[0].dtyp", "dtype", "dtyp", "Did you mean dtype?"),
        ("[[problems]]\nn = 1", "problems[0].k", "a size", "none", "Add k"),
        (HEAD.replace("64", "0"), "problems[0].n", "from 1", "0", "Correct"),
        (HEAD.replace("64", "6.5"), "problems[0].n", "whole number", "6.5", "Correct"),
        (HEAD.replace("64", "true"), "problems[0].n", "whole number", "True", "Correct"),
        (HEAD + "rows = [8, 4]", "problems[0].rows", "smaller number first", "[8, 4]", "Exchange"),
        (HEAD + 'rows = "many"', "problems[0].rows", '"any"', "'many'", "not known"),
        (HEAD + "rows = [1, -1]", "problems[0].rows[1]", "from 1", "-1", "Correct"),
        (HEAD + "rows = true", "problems[0].rows", "a number", "True", "not known"),
        (HEAD + 'form = "fprop"', "problems[0].form", "ragged_m, ragged_k", "'fprop'", "Choose"),
        (HEAD + 'dtype = "bf61"', "problems[0].dtype", "bfloat16, float16", "'bf61'", "Choose"),
        (HEAD + 'out_dtype = "int8"', "problems[0].out_dtype", "float32", "'int8'", "Choose"),
        (HEAD + "dtype = 16", "problems[0].dtype", "bfloat16", "16", "Choose"),
        (HEAD + 'b_k_major = "yes"', "problems[0].b_k_major", "true or false", "'yes'", "quotes"),
        (HEAD + 'offsets = ["gpu"]', "problems[0].offsets", "device, host", "['gpu']", "both"),
        (HEAD + "offsets = []", "problems[0].offsets", "device, host", "[]", "both"),
        (HEAD + 'epilogue = "add"', "problems[0].epilogue", "bias_f32", "'add'", "Write it"),
        (HEAD + "alignment = 3", "problems[0].alignment", "2, 4, 8, 16", "3", "Choose"),
        (HEAD + "config = {}", "problems[0].kernel", "config belongs to", "none", "Add kernel"),
        (HEAD + 'kernel = "k99"', "problems[0].kernel", "name of a kernel", "'k99'", "inspect"),
        (HEAD + 'kernel = "k1"\nconfig = 3', "problems[0].config", "a table", "3", "braces"),
        (HEAD + 'targets = "sm_80"', "problems[0].targets", "a list", "'sm_80'", "brackets"),
        (HEAD + 'targets = ["sm_12"]', "problems[0].targets", "sm_75", "'sm_12'", "Correct"),
        ('[[kernels]]\nkernels = "k1"', "kernels[0].kernels", "kernel, config", "kernels",
         "Did you mean kernel?"),
        ("[[kernels]]\nconfig = {}", "kernels[0].kernel", "name of a kernel", "none", "Add it"),
        ("[[kernels]]\nkernel = 1", "kernels[0].kernel", "name of a kernel", "1", "inspect"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_exactly(text, key, expected, got, mend):
    with pytest.raises(ManifestError) as caught:
        parse(text, "shapes.toml")
    told = str(caught.value)
    assert told.startswith(f"shapes.toml, {key}: expected " if key else "shapes.toml: expected ")
    for part in (expected, f"got {got}", mend):
        assert part in told, part


@pytest.mark.parametrize(
    ("text", "where", "reason"),
    [
        ('[[kernels]]\nkernel = "k1"\nconfig = { block_m = 48 }', "kernels[0] for sm_80",
         "block_m: k1 takes 32, 64"),
        ('[[kernels]]\nkernel = "k1"\nconfig = { depth = 2 }', "kernels[0] for sm_80", "depth"),
        ('[[kernels]]\nkernel = "k1"\nvariant = { in_dtype = "q8" }', "kernels[0] for sm_80", "q8"),
        ('[[kernels]]\nkernel = "k3"', "kernels[0] for sm_80", "needs sm_90 or newer; got sm_80"),
        ('[[kernels]]\nkernel = "tile_list"\nconfig = { block_m = 32 }', "kernels[0] for sm_80",
         "expected none for tile_list"),
        ('[[problems]]\nn = 63\nk = 64\nkernel = "k2"', "problems[0] for sm_80", "sm_90 or newer"),
    ],
)  # fmt: skip
def test_what_cannot_be_built_is_told_with_its_place(text, where, reason):
    with pytest.raises(ManifestError) as caught:
        parse(f'targets = ["sm_80"]\n{text}', "shapes.toml").wanted()
    assert str(caught.value).startswith(f"shapes.toml, {where}: ")
    assert reason in str(caught.value)


def test_no_target_is_an_error():
    manifest = parse('[[kernels]]\nkernel = "k0"', "shapes.toml")
    with pytest.raises(ManifestError, match=r"shapes\.toml, kernels\[0\]\.targets: expected .*got "
                                            r"none.*--arch"):  # fmt: skip
        manifest.wanted()
    assert len(manifest.wanted([Arch(80)])) == 1


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ManifestError, match=r"none\.toml: expected .* got No such file.* Check"):
        load(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes(b"# caf\xe9")
    with pytest.raises(ManifestError, match=r"expected UTF-8; got byte 0xe9 at 5"):
        load(tmp_path / "latin.toml")
    (tmp_path / "good.toml").write_text(LAYER, encoding="utf-8")
    assert load(tmp_path / "good.toml") == parse(LAYER, str(tmp_path / "good.toml"))


def test_written_and_read_back():
    wanted = parse(LAYER).wanted()
    text = to_toml((KernelEntry.of(one.spec) for one in wanted), "a layer")
    assert text.startswith("# a layer\nversion = 1\n")
    again = parse(text).wanted()
    assert {one.key for one in again} == {one.key for one in wanted}


# What is pre-warmed is what runs

FLEET = ("sm_75", "sm_80", "sm_90a", "sm_100f", "sm_120f")
DEVICES = [(Arch.parse(t), d) for t in FLEET for d in devices_of(Arch.parse(t))]
SIZES = st.one_of(st.integers(1, 300), st.sampled_from([512, 1024, 2688, 4096]))


@settings(max_examples=250)
@given(
    st.sampled_from(DEVICES),
    st.fixed_dictionaries(
        {
            "form": st.sampled_from(["ragged_m", "ragged_k"]),
            "n": SIZES,
            "k": SIZES,
            "dtype": st.sampled_from(["bfloat16", "float16", "float32"]),
            "out_dtype": st.sampled_from([None, "float32"]),
            "a_k_major": st.sampled_from([None, False, True]),
            "b_k_major": st.booleans(),
            "epilogue": st.sampled_from(["store", "accumulate"]),
        }
    ),
    st.integers(1, 300),
    st.one_of(st.integers(1, 3000), st.integers(1, 2**20)),
    st.booleans(),
    st.integers(0, 3000),
    st.sampled_from(["device", "host"]),
)
@example(DEVICES[1], {"form": "ragged_m", "n": 64, "k": 1, "dtype": "bfloat16", "out_dtype": None,
                      "a_k_major": None, "b_k_major": True, "epilogue": "store"},
         1, 1, False, 0, "device")  # fmt: skip
def test_every_call_finds_a_kernel_that_its_manifest_asked_for(
    place, call, groups, rows, groups_known, slack, offsets
):
    target, device = place
    if call["epilogue"] == "accumulate":
        call = {**call, "out_dtype": "float32"}
    entry = ProblemEntry(
        **{key: _dtype(value) if "dtype" in key else value for key, value in call.items()},
        num_groups=groups if groups_known else None,
        rows=(max(1, rows - slack), rows + slack),
        offsets=(offsets,),
    )
    asked = Problem.contiguous(
        num_groups=groups, rows=rows, schedule="list" if offsets == "host" else "scan", **call
    )
    needed = set(spec_for(asked, device).alternatives)
    assert needed & set(entry.specs(target))


def _dtype(name):
    from gemmjit.dtypes import dtype_of

    return None if name is None else dtype_of(name)


# Logs


def specs():
    k1 = KERNELS["k1"]
    yield KernelSpec(k1, k1.default_config, Variant(), Arch(80))
    yield KernelSpec(k1, k1.shipped_configs()[3], Variant(b_k_major=True), Arch(90, "a"))
    yield TileListSpec(Arch(100, "f"))


def line(spec) -> str:
    return (
        f"2026-11-29 12:00:00,000 INFO gemmjit.build: compiled {spec.name}; {spec.prewarm_command}"
    )


def test_a_log_names_the_kernels_of_a_run():
    text = "\n".join(["loading weights", *map(line, specs()), *map(line, specs()), "done"])
    manifest, unreadable = read_log(text, "run.log")
    assert unreadable == []
    assert [one.spec for one in manifest.wanted()] == list(specs())


def test_the_error_of_a_run_without_jit_is_a_log_too():
    spec = next(specs())
    text = f"MissingKernelError: ... Compile it beforehand: {spec.prewarm_command}\n"
    assert [one.spec for one in read_log(text)[0].wanted()] == [spec]


def test_torn_lines_are_told():
    first, second, third = specs()
    torn = line(first)[:-20]
    mixed = line(second) + line(third)
    manifest, unreadable = read_log("\n".join(["x", torn, mixed]))
    assert unreadable == [2]
    assert [one.spec for one in manifest.wanted()] == [second, third]
    for start in ("{}", "{x}", "[1]"):
        broken = f"gemmjit prewarm --arch sm_80 --kernel k1 --config '{start}' --variant '{{'"
        assert read_log(f"{broken}\n{line(first)}")[1] == [1]
    assert read_log(f"gemmjit prewarm --arch sm_12 --kernel tile_list\n{line(first)}")[1] == [1]
    assert read_log(f"gemmjit prewarm --arch sm_80 --kernel k1\n{line(first)}")[1] == [1]


def test_a_log_of_nothing():
    with pytest.raises(ManifestError, match=r"run\.log: expected .*got none.*GEMMJIT_LOG_LEVEL"):
        read_log("hello", "run.log")


def test_an_unknown_architecture_is_named():
    with pytest.raises(UnsupportedArchError, match="sm_12"):
        Manifest(kernels=(KernelEntry(kernel="k0"),)).wanted([Arch.parse("sm_12")])


# The documentation


def test_the_manifest_of_the_documentation_is_one():
    import re
    from pathlib import Path

    page = Path(__file__).parents[2] / "docs" / "how-to" / "prewarm.md"
    text = page.read_text(encoding="utf-8")
    (example,) = re.findall(r"^```toml\n(.*?)```", text, re.DOTALL | re.MULTILINE)
    wanted = parse(example).wanted()
    assert {str(one.spec.target) for one in wanted} == {"sm_80", "sm_90a", "sm_100f", "sm_120f"}
    assert {one.spec.variant.form for one in wanted} == {"ragged_m", "ragged_k"}
    table = text.split("| key of a problem |")[1].split("\n\n")[0]
    told = set(re.findall(r"`([a-z_]+)`", "".join(row.split("|")[1] for row in
                                                  table.splitlines()[2:])))  # fmt: skip
    assert told == set(ProblemEntry.__dataclass_fields__)
