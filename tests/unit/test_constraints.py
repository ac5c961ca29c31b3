"""Rules of configs, and which variant a problem needs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gemmjit import Problem, SimtConfig, Sm80MmaConfig, Sm90TmaMmaConfig, Sm90WgmmaConfig
from gemmjit.arch import Arch, targets_for
from gemmjit.constraints import require, variant_for, violations
from gemmjit.errors import InvalidConfigError
from gemmjit.kernels import KERNELS
from gemmjit.occupancy import occupancy, register_budget
from gemmjit.problem import Strides
from gemmjit.variant import Variant

K0, K1, K2 = KERNELS["k0"], KERNELS["k1"], KERNELS["k2"]
SM90 = Arch(90, "a")


def plain(form="ragged_m", **changes):
    """A problem whose operands can all be loaded in vectors, then changed."""
    problem = Problem.contiguous(form, num_groups=4, rows=128, n=64, k=32)
    strides = {k: v for k, v in changes.items() if k in Strides._fields}
    others = {k: v for k, v in changes.items() if k not in strides}
    return replace(problem, strides=problem.strides._replace(**strides), **others)


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=lambda k: k.name)
def test_shipped_configs_obey_every_rule_from_the_first_architecture_on(kernel):
    variant = Variant(in_dtype=kernel.in_dtypes[0], out_dtype=kernel.out_dtypes[0])
    first = targets_for(kernel.min_arch, kernel.accelerated)[0]
    older = [Arch(n) for n in (75, 80, 86, 90) if n < kernel.min_arch.number]
    for config in kernel.shipped_configs():
        assert violations(kernel, config, variant, first) == []
        for arch in older:
            assert any(r.startswith("arch: ") for r in violations(kernel, config, variant, arch))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (SimtConfig(block_m=48), ("block_m", "32, 64 or 128", "48")),
        (SimtConfig(block_n=256), ("block_n", "256")),
        (SimtConfig(block_k=12), ("block_k", "8, 16 or 32", "12")),
        (SimtConfig(pad=3), ("pad", "3")),
        (SimtConfig(block_m=32, block_n=32, block_k=8, min_blocks_per_sm=99), ("min_blocks", "99")),
        (SimtConfig(block_m=128, block_n=128, block_k=8), ("slice of 128 x 8", "whole vectors")),
        (SimtConfig(min_blocks_per_sm=0), ("min_blocks_per_sm", "1 to 8", "0")),
        (SimtConfig(specialize="mn"), ("specialize", "'mn'")),
    ],
)
def test_rules_of_k0(config, words):
    check(K0, config, words)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (Sm80MmaConfig(block_m=48), ("block_m", "k1 takes 32, 64", "48")),
        (Sm80MmaConfig(block_n=96), ("block_n", "64, 128 or 256", "96")),
        (Sm80MmaConfig(block_k=24), ("block_k", "16, 32 or 64", "24")),
        (Sm80MmaConfig(num_stages=1), ("num_stages", "2 to 8", "1")),
        (Sm80MmaConfig(pad=4), ("pad", "0, 8 or 16", "4")),
        (Sm80MmaConfig(block_m=256, block_n=256), ("block", "128 x 256", "256x256")),
        (Sm80MmaConfig(block_k=64, num_stages=8), ("shared memory", "bytes", "fewer stages")),
        (Sm80MmaConfig(schedule="luck"), ("schedule", "compact", "'luck'")),
    ],
)
def test_rules_of_k1(config, words):
    check(K1, config, words)


def check(kernel, config, words):
    reasons = violations(kernel, config, Variant(), SM90)
    assert reasons
    assert violations(kernel, type(config)(), Variant(), SM90) == []
    with pytest.raises(InvalidConfigError) as caught:
        require(kernel, config, Variant(), SM90)
    for reason in reasons:
        assert reason in str(caught.value)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("kernel", "config", "blocks", "registers", "least", "mend"),
    [
        (K0, SimtConfig(min_blocks_per_sm=4), 4, 64, 80, "Use 3, or"),
        (K0, SimtConfig(block_m=32, block_k=32, min_blocks_per_sm=4), 4, 128, 255, "Use 2"),
        (K0, SimtConfig(block_m=128, block_n=128, block_k=32, min_blocks_per_sm=1), 1, 64, 80,
         "Use another tile"),
        (K1, Sm80MmaConfig(min_blocks_per_sm=3), 3, 80, 128, "Use 2"),
        (K1, Sm80MmaConfig(block_m=64, min_blocks_per_sm=4), 4, 64, 80, "Use 3"),
        (K1, Sm80MmaConfig(block_n=256), 2, 128, 255, "Use 1"),
        (K2, Sm90TmaMmaConfig(block_n=64, min_blocks_per_sm=3), 3, 72, 96, "Use 2"),
        (K2, Sm90TmaMmaConfig(block_k=128, num_stages=2), 2, 96, 168, "Use 1"),
    ],
)  # fmt: skip
def test_a_tile_that_would_spill_is_refused(kernel, config, blocks, registers, least, mend):
    (reason,) = violations(kernel, config, Variant(), SM90)
    assert reason.startswith(f"min_blocks_per_sm: {blocks} blocks of {kernel.threads(config)} thr")
    assert f"leave each {registers} registers on sm_90" in reason
    assert f"takes {least} for {Variant()} without spills; got {blocks}" in reason
    assert mend in reason


def test_single_elements_and_blackwell_take_more_registers():
    config = Sm80MmaConfig(block_m=64, min_blocks_per_sm=3)
    assert violations(K1, config, Variant(), SM90) == []
    assert violations(K1, config, Variant(), Arch(80)) == []
    for variant, arch in (
        (Variant(a_vector=False), SM90),
        (Variant(b_vector=False), Arch(80)),
        (Variant(), Arch(120)),
    ):
        (reason,) = violations(K1, config, variant, arch)
        assert "takes 128 for" in reason


def test_a_budget_of_registers_is_the_largest_that_keeps_the_blocks_resident():
    for arch in (Arch(75), Arch(80), SM90, Arch(120)):
        for threads in (32, 64, 128, 256, 288, 384, 512, 1024):
            for blocks in (1, 2, 3, 4, 8):
                budget = register_budget(threads, blocks, arch)
                if budget:
                    assert occupancy(budget, threads, 0, arch) >= blocks
                if budget < 255:
                    assert occupancy(budget + 1, threads, 0, arch) < blocks


def test_all_broken_rules_are_listed_together():
    config = Sm80MmaConfig(block_m=48, block_n=96, block_k=24, num_stages=1, pad=4)
    reasons = "; ".join(violations(K1, config, Variant(in_dtype=K0.in_dtypes[2]), Arch(75)))
    for name in ("arch", "in_dtype", "block_m", "block_n", "block_k", "num_stages", "pad"):
        assert f"{name}: " in reasons


@pytest.mark.parametrize(
    ("arch", "words"),
    [("sm_80", "needs sm_90 or newer"), ("sm_100", "up to sm_90"), ("sm_90", "such as sm_90a")],
)
def test_an_architecture_without_k3_is_one_reason(arch, words):
    (reason,) = violations(K3, K3.default_config, Variant(), Arch.parse(arch))
    assert words in reason
    assert "sm_80a" not in reason


def test_config_of_another_kernel():
    with pytest.raises(InvalidConfigError, match="k1 takes a Sm80MmaConfig; got a SimtConfig"):
        require(K1, SimtConfig(), Variant(), SM90)


def test_br065_shared_memory_depends_on_the_architecture():
    config = Sm80MmaConfig(block_n=256, block_k=64, num_stages=3, min_blocks_per_sm=1)
    assert violations(K1, config, Variant(), SM90) == []
    (reason,) = violations(K1, config, Variant(), Arch(120))
    assert "156672" in reason
    assert "101376" in reason


def test_plain_problem_needs_the_plain_variant():
    for kernel in (K0, K1):
        config = kernel.default_config
        assert variant_for(plain(), kernel, config) == Variant()
        wgrad = variant_for(plain("ragged_k"), kernel, config)
        assert wgrad == Variant(form="ragged_k", a_k_major=False)


#: What must not be loaded in vectors of 16 bytes, and why.
SCALAR_A = {
    "row stride off the grid": {"am": 36},
    "no contiguous dimension": {"ak": 2},
    "M-major: groups start anywhere": {"am": 1, "ak": 128},
    "pointer off the grid": {"a_alignment": 8},
    "reversed": {"ak": -1},
    "expanded along K": {"ak": 0},
}
SCALAR_B = {
    "row stride off the grid": {"bk": 68},
    "group stride off the grid": {"bg": 2052},
    "no contiguous dimension": {"bn": 2},
    "pointer off the grid": {"b_alignment": 2},
    "reversed": {"bn": -1},
    "expanded along N": {"bn": 0},
}
VECTOR_B = {"K-major": {"bn": 32, "bk": 1}, "expanded over groups": {"bg": 0}}


@pytest.mark.parametrize("why", SCALAR_A)
def test_a_that_is_loaded_element_by_element(why):
    variant = variant_for(plain(**SCALAR_A[why]), K1, Sm80MmaConfig())
    assert not variant.a_vector
    assert variant.b_vector


@pytest.mark.parametrize("why", SCALAR_B)
def test_b_that_is_loaded_element_by_element(why):
    variant = variant_for(plain(**SCALAR_B[why]), K1, Sm80MmaConfig())
    assert not variant.b_vector
    assert variant.a_vector


@pytest.mark.parametrize("why", VECTOR_B)
def test_b_that_is_loaded_in_vectors(why):
    assert variant_for(plain(**VECTOR_B[why]), K1, Sm80MmaConfig()).b_vector


def test_a_expanded_over_rows_is_loaded_in_vectors():
    assert variant_for(plain(am=0), K1, Sm80MmaConfig()).a_vector
    assert variant_for(plain(am=-32), K1, Sm80MmaConfig()).a_vector


def test_ragged_k_never_loads_vectors_along_the_contraction():
    # A group may start at any row, so at any alignment.
    wgrad = plain("ragged_k", am=128, ak=1, bk=1, bn=128)
    variant = variant_for(wgrad, K1, Sm80MmaConfig())
    assert (variant.a_k_major, variant.b_k_major) == (True, True)
    assert not variant.a_vector
    assert not variant.b_vector


def test_k0_needs_four_elements_where_k1_needs_eight():
    problem = plain(am=36, bk=68, bg=36 * 68, a_alignment=8, b_alignment=8)
    variant = variant_for(problem, K0, SimtConfig())
    assert variant.a_vector
    assert variant.b_vector


@pytest.mark.parametrize(
    ("changes", "paired"),
    [({}, True), ({"dn": 2}, False), ({"dm": 65}, False), ({"d_alignment": 2}, False),
     ({"d_alignment": 4}, True), ({"dn": -1}, False), ({"dm": -64}, True)],
)  # fmt: skip
def test_two_columns_of_the_result_at_once(changes, paired):
    assert variant_for(plain(**changes), K1, Sm80MmaConfig()).d_paired is paired


def test_two_columns_of_float32_need_eight_bytes():
    for alignment, paired in ((4, False), (8, True), (16, True)):
        problem = replace(plain(d_alignment=alignment), out_dtype=K0.in_dtypes[2])
        assert variant_for(problem, K1, Sm80MmaConfig()).d_paired is paired


def test_odd_group_stride_of_wgrad_results():
    assert not variant_for(plain("ragged_k", dg=2049), K1, Sm80MmaConfig()).d_paired


def test_schedules():
    listed = replace(plain(), schedule="list")
    assert variant_for(listed, K1, Sm80MmaConfig()).schedule == "list"
    assert variant_for(plain(), K1, Sm80MmaConfig()).schedule == "scan"
    compact = Sm80MmaConfig(schedule="compact")
    assert variant_for(plain(), K1, compact).schedule == "compact"
    assert variant_for(listed, K1, compact).schedule == "list"
    for config in (Sm80MmaConfig(), compact):
        wgrad = replace(plain("ragged_k"), schedule="list")
        assert variant_for(wgrad, K1, config).schedule == "scan"


def test_only_a_specialised_config_compiles_n_and_k_in():
    variant = variant_for(plain(), K1, Sm80MmaConfig(specialize="nk"))
    assert (variant.shape_n, variant.shape_k) == (64, 32)
    wgrad = variant_for(plain("ragged_k"), K1, Sm80MmaConfig(specialize="nk"))
    assert (wgrad.shape_n, wgrad.shape_k) == (64, 0)  # the contraction is the group's


def test_br118_rows_and_groups_are_never_compiled_in():
    variants = {
        variant_for(Problem.contiguous(num_groups=g, rows=rows, n=64, k=32), K1, Sm80MmaConfig())
        for rows in range(1, 200, 7)
        for g in (1, 3, 64)
    }
    assert len(variants) <= 2  # a single row has no row stride, which changes nothing but that


# Types, forms and ways to load


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (Sm80MmaConfig(block_m=64.0), ("block_m", "int", "64.0")),
        (Sm80MmaConfig(block_k="64"), ("block_k", "int", "'64'")),
        (Sm80MmaConfig(min_blocks_per_sm=True), ("min_blocks_per_sm", "int", "True")),
        (Sm80MmaConfig(double_buffer_fragments=1), ("double_buffer_fragments", "bool", "1")),
        (Sm80MmaConfig(specialize=None), ("specialize", "str", "None")),
    ],
)
def test_a_value_of_another_type_is_refused_before_anything_computes_with_it(config, words):
    (reason,) = violations(K1, config, Variant(), SM90)
    for word in (*words, "must be", "got"):
        assert word in reason


K3 = KERNELS["k3"]


def test_slices_and_pieces_of_no_length():
    (reason,) = violations(K3, Sm90WgmmaConfig(block_k=0, split_rows=0), Variant(), SM90)
    assert reason == "block_k: k3 takes 64; got 0"
    (reason,) = violations(K3, Sm90WgmmaConfig(split_rows=100), Variant(), SM90)
    assert reason.startswith("split_rows: k3 takes 0 or a multiple of 64 rows")


@pytest.mark.parametrize(
    ("kernel", "variant", "words"),
    [
        (K1, Variant(shape_n=2**31), ("shape_n", "from 0 to 2147482624", "2147483648")),
        (K1, Variant(shape_k=-1), ("shape_k", "from 0 to 2147482624", "-1")),
        (K1, Variant(in_dtype="bfloat16"), ("in_dtype", "an element type", "'bfloat16'")),
        (K1, Variant(a_vector=1), ("a_vector", "False, True", "got 1")),
        (K1, Variant(form="ragged_k", schedule="list"), ("schedule", "scan", "list")),
        (K1, Variant(form="ragged_k", shape_k=64), ("shape_k", "expected 0", "64")),
        (K1, Variant(epilogue="accumulate"), ("out_dtype", "takes float32", "got bfloat16")),
        (K1, Variant(d_by_tma=True), ("d_by_tma", "k1 has no such way", "True")),
        (K3, Variant(a_blocked=True), ("a_blocked", "M-major", "K-major")),
        (K3, Variant(b_blocked=True, b_k_major=True), ("b_blocked", "N-major", "K-major")),
    ],
)
def test_rules_of_variants(kernel, variant, words):
    (reason,) = violations(kernel, kernel.default_config, variant, SM90)
    for word in words:
        assert word in reason
