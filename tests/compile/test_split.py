"""Tiles of k3 that split K: no spills in any variant that the rules let through."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from gemmjit.arch import Arch
from gemmjit.build import build
from gemmjit.constraints import violations
from gemmjit.kernels import KERNELS, KernelSpec
from gemmjit.variant import Variant

K3, TARGET = KERNELS["k3"], Arch.parse("sm_90a")
VARIANTS = [
    Variant.from_dict(
        {"form": "ragged_k", "in_dtype": in_dtype, "out_dtype": out_dtype, "epilogue": epilogue}
        | {"d_by_tma": by_tma, "d_paired": paired, "a_blocked": blocked, "b_blocked": blocked}
    )
    for in_dtype, (out_dtype, epilogue, by_tma, paired), blocked in product(
        ("bfloat16", "float16"),
        (
            ("bfloat16", "store", True, True),
            ("float16", "store", False, False),
            ("float32", "store", False, True),
            ("float32", "store", True, True),
            ("float32", "accumulate", True, True),
            ("float32", "accumulate", False, True),
            ("float32", "accumulate", False, False),
        ),
        (False, True),
    )
]
CASES = [
    pytest.param(spec, id=f"{config}-{variant}")
    for config in (replace(one, split_rows=4096) for one in K3.shipped_configs())
    for variant in VARIANTS
    for spec in [KernelSpec(K3, config, variant, TARGET)]
    if not violations(K3, config, variant, TARGET)
]


def test_every_tile_is_there_with_what_tma_stores():
    stored = [one for one in (p.values[0] for p in CASES) if one.variant.d_by_tma]
    tiles = {one.config for one in stored if one.variant.out_dtype.bits == 16}
    assert {replace(tile, split_rows=0) for tile in tiles} == set(K3.shipped_configs())


@pytest.mark.parametrize("spec", CASES)
def test_nothing_is_spilled(spec):
    kernel = build(spec)
    assert kernel.spills == 0
    assert "warning" not in kernel.log.lower()
    for instruction in ("atom.acq_rel.gpu", "ld.acquire.gpu", "bar.red.or.pred"):
        assert instruction in kernel.ptx


def test_one_kernel_serves_every_length_of_a_piece():
    """So a model's wgrad needs two kernels a tile at most."""
    spec = CASES[0].values[0]
    other = replace(spec, config=replace(spec.config, split_rows=1024))
    assert (spec.entry, dict(spec.variables)) == (other.entry, dict(other.variables))
    whole = replace(spec, config=replace(spec.config, split_rows=0))
    assert whole.entry != spec.entry
    text = build(whole).ptx
    assert "bar.red" not in text
    assert "ld.acquire.gpu" not in text
