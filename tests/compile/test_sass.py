"""What ptxas makes of the kernels, where the disassembler is installed.

The emulator runs PTX, so a fault of ptxas is invisible to it; these are patterns that an H200 has
shown to be wrong or slow.
"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

import gemmjit
from gemmjit.build import CompiledKernel
from gemmjit.compiler.sass import disassemble
from gemmjit.kernels import KERNELS

STORES = {"d_by_tma": True}
VARIANTS = {
    "k2": ({}, {"b_k_major": True}),
    "k3": (
        {"b_blocked": True, **STORES},
        {"b_k_major": True, **STORES},
        {"schedule": "list", **STORES},
        {"form": "ragged_k", "a_k_major": False, "a_blocked": True, "b_blocked": True, **STORES},
    ),
}
CASES = [
    pytest.param(name, config, variant, id=f"{name}-{config}-{i}")
    for name, variants in VARIANTS.items()
    for config in KERNELS[name].shipped_configs()
    for i, variant in enumerate(variants)
]
CASES += [
    pytest.param(
        "k3", replace(config, split_rows=4096), VARIANTS["k3"][-1], id=f"k3-{config}-split"
    )
    for config in KERNELS["k3"].shipped_configs()
]

ALWAYS_TRUE = re.compile(r"PLOP3\.LUT (P\d), PT, PT, PT, PT, 0x80, 0x0")
NEVER_MOVED = re.compile(r"@!(P\d) R2UR U?R\d+")
SETS = re.compile(r"(?:^|\s)(?:U?[A-Z0-9_.]+) (P\d)\b")


def listing(kernel: CompiledKernel) -> list[str]:
    try:
        text = disassemble(kernel.cubin)
    except gemmjit.errors.GemmjitError as error:
        pytest.skip(str(error))
    lines = (line.split(";")[0].strip() for line in text.splitlines())
    return [re.sub(r"^/\*[0-9a-f]+\*/\s*", "", line) for line in lines]


def moves_that_never_happen(lines: list[str]) -> list[str]:
    """Return moves into uniform registers under a predicate that is false by construction."""
    true: set[str] = set()
    found = []
    for line in lines:
        if line.endswith(":"):
            true.clear()  # control may come from elsewhere
        constant = ALWAYS_TRUE.match(line)
        if constant:
            true.add(constant[1])
            continue
        move = NEVER_MOVED.match(line)
        if move and move[1] in true:
            found.append(line)
        written = SETS.search(line)
        if written:
            true.discard(written[1])
    return found


def test_the_lint_sees_the_pattern() -> None:
    broken = [
        "PLOP3.LUT P0, PT, PT, PT, PT, 0x80, 0x0",
        "UISETP.GE.AND UP0, UPT, UR5, UR4, UPT",
        "@!P0 R2UR UR9, R6",
        "UTMASTG.3D [UR8], [UR4]",
    ]
    assert moves_that_never_happen(broken) == ["@!P0 R2UR UR9, R6"]
    assert not moves_that_never_happen([broken[0], "ISETP.GE.AND P0, PT, R1, R2, PT", *broken[1:]])


@pytest.mark.parametrize(("name", "config", "variant"), CASES)
def test_coordinates_reach_the_tma_unit(name: str, config: object, variant: dict) -> None:
    kernel = gemmjit.compile(name, config, "sm_90a", **variant)
    lines = listing(kernel)
    assert any("UTMALDG" in line for line in lines)
    assert not moves_that_never_happen(lines)


@pytest.mark.parametrize(("name", "config", "variant"), CASES)
def test_no_full_memory_barrier_between_multiplications(
    name: str, config: object, variant: dict
) -> None:
    lines = listing(gemmjit.compile(name, config, "sm_90a", **variant))
    products = [i for i, line in enumerate(lines) if re.search(r"\bHG?MMA\.", line)]
    assert products
    inner = lines[products[0] : products[-1]]
    assert not [line for line in inner if re.search(r"MEMBAR\.(SC|ALL)\.(GPU|SYS|VC)", line)]
