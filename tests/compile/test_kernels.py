"""Every kernel of the ladder, compiled: no spills, no advisories, the instructions it is made of.

A sample runs by default: every kernel, tile and target, and every variant of each default tile.
``pytest -m slow tests/compile`` runs the whole matrix. Needs NVRTC, no GPU.
"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from known_spills import known_spills

import gemmjit
from gemmjit import templating
from gemmjit.arch import Arch
from gemmjit.build import build
from gemmjit.compiler import get_compiler, standard_options
from gemmjit.compiler.sass import DisassemblerNotFoundError
from gemmjit.config import Config
from gemmjit.constraints import violations
from gemmjit.errors import CompileError
from gemmjit.kernels import KERNELS, KernelSpec
from gemmjit.variant import Variant

TARGETS = [
    Arch.parse(t)
    for t in ("sm_75", "sm_80", "sm_86", "sm_90a", "sm_100f", "sm_103a", "sm_120f")
]  # fmt: skip
HOPPER = Arch.parse("sm_90a")

VARIANTS = [
    Variant.from_dict(values)
    for values in (
        {},
        {"schedule": "list"},
        {"schedule": "compact", "out_dtype": "float32"},
        {"form": "ragged_k", "a_k_major": False},
        {"form": "ragged_k", "a_vector": False, "b_vector": False, "d_paired": False,
         "in_dtype": "float16", "out_dtype": "float32", "epilogue": "accumulate"},
        {"b_k_major": True},
        {"a_vector": False, "b_vector": False, "d_paired": False},
        {"a_k_major": False, "a_vector": False, "b_k_major": True, "out_dtype": "float32",
         "epilogue": "accumulate"},
        {"in_dtype": "float16", "out_dtype": "float16"},
        {"in_dtype": "float32", "out_dtype": "float32"},
        {"shape_n": 2688, "shape_k": 1024},
    )
]  # fmt: skip

#: What must, and must not, be in the PTX of a kernel.
INSTRUCTIONS = {
    "k0": (["fma.rn.f32", "bar.sync"], ["mma.sync", "wgmma", "cp.async"]),
    "k1": (["mma.sync.aligned.m16n8k16", "ldmatrix.sync", "bar.sync"], ["wgmma", "cp.async.bulk"]),
    "k2": (
        ["mma.sync.aligned.m16n8k16", "ldmatrix.sync", "cp.async.bulk.tensor", "mbarrier."],
        ["wgmma"],
    ),
    "k3": (["wgmma.mma_async", "cp.async.bulk.tensor", "mbarrier."], ["mma.sync.aligned.m16n8k16"]),
}


def fits(spec: KernelSpec) -> bool:
    return not violations(spec.kernel, spec.config, spec.variant, spec.target)


def scheduled(config: Config, variant: Variant) -> Config:
    """Return a shipped tile with the schedule that a variant implies."""
    return replace(config, schedule="compact" if variant.schedule == "compact" else "")


def matrix() -> list[KernelSpec]:
    """Return every combination that the rules allow."""
    return [
        spec
        for kernel in KERNELS.values()
        for config in kernel.shipped_configs()
        for target in TARGETS
        for variant in VARIANTS
        if fits(spec := KernelSpec(kernel, scheduled(config, variant), variant, target))
    ]


def sample() -> list[KernelSpec]:
    """Return one variant for each kernel, tile and target, and all of each default tile."""
    chosen: dict[KernelSpec, None] = {}
    turns: dict[tuple[object, ...], list[KernelSpec]] = {}
    for spec in matrix():
        tile = replace(spec.config, schedule="")
        turns.setdefault((spec.kernel, tile, spec.target), []).append(spec)
        if tile == spec.kernel.default_config and spec.target == HOPPER:
            chosen[spec] = None
    for turn, specs in enumerate(turns.values()):
        chosen[specs[turn % len(specs)]] = None
    return list(chosen)


def label(spec: KernelSpec) -> str:
    return f"{spec.entry.removeprefix('gemmjit_')}-{spec.target}"


def parameter(spec: KernelSpec):
    """Return a spec as a test parameter."""
    return pytest.param(spec, id=label(spec))


SAMPLE = sample()
REST = [spec for spec in matrix() if spec not in set(SAMPLE)]


def check(spec: KernelSpec) -> None:
    kernel = build(spec)
    resources = kernel.resources
    assert kernel.spills <= known_spills(spec)
    if spec.name in ("k0", "k1"):  # ptxas gives k2 a frame of 8 bytes on sm_120f, without spills
        assert resources.stack_bytes == 0
    assert resources.max_threads == spec.threads
    assert resources.smem_bytes == spec.kernel.static_smem_bytes(spec.config, spec.variant)
    assert "warning" not in kernel.log.lower()
    assert not re.search(r"\(C7\d+\)", kernel.log)
    # The launch bounds hold, and the tile can be launched at all.
    resident = gemmjit.occupancy(kernel.registers, kernel.threads, 0, spec.target)
    assert resident >= spec.config.min_blocks_per_sm
    assert kernel.occupancy >= 1

    wanted, unwanted = INSTRUCTIONS[spec.name]
    body = kernel.ptx[kernel.ptx.index(f".entry {spec.entry}") :]
    for name in wanted:
        assert name in body, f"{name} is missing"
    for name in (*unwanted, "vprintf", "ld.local", "st.local", "trap"):
        assert name not in body, f"{name} is there"
    count_products(spec, body)
    if spec.name == "k3":
        assert f".maxntid {spec.threads}" in body
        assert fits_the_pool(body, kernel.registers, kernel.threads)
    else:
        assert "setmaxnreg" not in body
    if spec.name == "k1":
        copies = spec.variant.a_vector or spec.variant.b_vector
        assert ("cp.async.cg.shared.global" in body) is copies
    types = {"bfloat16": "bf16.bf16", "float16": "f16.f16"}
    if spec.name in ("k1", "k2"):
        assert f".f32.{types[spec.variant.in_dtype.name]}.f32" in body


def asked(ptx: str, threads: int) -> dict[int, int]:
    """Return the registers that a thread of each warpgroup asks for, with the threads that do."""
    given = re.findall(r"setmaxnreg\.(dec|inc)\.sync\.aligned\.u32\s+(\d+);", ptx)
    assert [action for action, _ in given] == ["dec", "inc"], "one producer, and the consumers"
    return {int(given[0][1]): 128, int(given[1][1]): threads - 128}


def fits_the_pool(ptx: str, registers: int, threads: int) -> bool:
    """Whether what all warpgroups ask for is what the block starts with, or less."""
    owned = -(-registers // 8) * 8 * threads
    return sum(each * count for each, count in asked(ptx, threads).items()) <= owned


@pytest.mark.parametrize(("producer", "consumer", "fit"), [(40, 232, True), (32, 240, False)])
def test_registers_that_a_block_does_not_have_are_noticed(producer, consumer, fit):
    """With 32 and 240 of 3 x 168, the second consumer waited for ever on an H200."""
    ptx = "".join(
        f"setmaxnreg.{action}.sync.aligned.u32 {count};\n"
        for action, count in (("dec", producer), ("inc", consumer))
    )
    assert fits_the_pool(ptx, 168, 384) is fit


def count_products(spec: KernelSpec, body: str) -> None:
    """Check that a slice of the contraction is multiplied by as many instructions as it takes."""
    tile = spec.config
    if spec.name == "k0":
        assert len(re.findall(r"\bfma\.rn\.f32\b", body)) >= 16 * tile.block_k
    elif spec.name in ("k1", "k2"):
        slice_products = tile.block_m // 2 // 16 * (tile.block_n // 4 // 8) * (tile.block_k // 16)
        found = len(re.findall(r"\bmma\.sync\b", body))
        assert found > 0
        assert found % slice_products == 0


@pytest.mark.parametrize("spec", list(map(parameter, SAMPLE)))
def test_kernel(spec):
    check(spec)


@pytest.mark.slow
@pytest.mark.parametrize("spec", list(map(parameter, REST)))
def test_kernel_at_length(spec):
    check(spec)


def test_the_sample_holds_what_it_says():
    assert set(INSTRUCTIONS) == set(KERNELS), "say which instructions the kernel is made of"
    for kernel in KERNELS.values():
        mine = [s for s in SAMPLE if s.kernel is kernel]
        assert {replace(s.config, schedule="") for s in mine} == set(kernel.shipped_configs())
        assert {s.target for s in mine} == {s.target for s in matrix() if s.kernel is kernel}
        assert {s.variant for s in mine} == {s.variant for s in matrix() if s.kernel is kernel}
    assert {s.target for s in SAMPLE if s.name == "k0"} == set(TARGETS)
    assert {s.target for s in SAMPLE if s.name == "k1"} == set(TARGETS[1:])
    assert {s.variant for s in SAMPLE} == set(VARIANTS)


@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_90a", "sm_100f", "sm_120f"])
@pytest.mark.parametrize(("name", "mnemonic"), [("k0", "FFMA"), ("k1", "HMMA")])
def test_machine_code(name, mnemonic, target):
    kernel = KERNELS[name]
    if Arch.parse(target) < kernel.min_arch:
        pytest.skip(f"{name} needs {kernel.min_arch}")
    built = gemmjit.compile(name, None, target)
    try:
        sass = built.sass()
    except DisassemblerNotFoundError as error:
        pytest.skip(str(error))
    found = len(re.findall(rf"\b{mnemonic}\b", sass))
    tile = kernel.default_config
    least = {
        "k0": 16 * tile.block_k,
        "k1": tile.block_m // 32 * (tile.block_n // 32) * (tile.block_k // 16),
    }
    assert found >= least[name]
    assert not re.search(r"\b(LDL|STL)\b", sass), "local memory is used"


def test_br126_no_kernel_compiles_to_nothing_where_it_cannot_run():
    # The rules refuse it first; past the rules, the compiler must.
    spec = KernelSpec(KERNELS["k1"], KERNELS["k1"].default_config, Variant(), Arch(75))
    assert violations(spec.kernel, spec.config, spec.variant, spec.target)
    with pytest.raises(CompileError):
        build(spec)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"smem_bytes": 1}, "the host launches with these bytes"),
        ({"num_stages": 1}, "num_stages must be at least 2"),
        ({"block_k": 24}, "block_k must be a multiple of 16"),
    ],
)
def test_templates_repeat_the_rules_that_they_rely_on(changes, message):
    spec = KernelSpec(KERNELS["k1"], KERNELS["k1"].default_config, Variant(), HOPPER)
    source = templating.render(spec.template, {**spec.variables, **changes})
    with pytest.raises(CompileError) as caught:
        get_compiler().compile(
            source, target=HOPPER, name=spec.template, options=standard_options(HOPPER)
        )
    assert message in caught.value.log + str(caught.value)
