"""The registry: templates, their variables, and what the host says of a compiled kernel."""

from __future__ import annotations

import json
import pickle
import re
import shlex

import pytest

from gemmjit import Sm80MmaConfig, templates
from gemmjit.arch import Arch
from gemmjit.errors import InvalidConfigError
from gemmjit.kernels import KERNELS, Kernel, KernelSpec, kernel
from gemmjit.variant import Variant

SM90 = Arch(90, "a")
BOTH = pytest.mark.parametrize("found", KERNELS.values(), ids=lambda k: k.name)


def specs(found: Kernel):
    for config in found.shipped_configs():
        yield KernelSpec(found, config, Variant(), SM90)


@BOTH
def test_found_by_both_names(found):
    stem = found.template.rsplit("/", 1)[1].split(".", 1)[0]
    assert kernel(found.name) is found
    assert kernel(stem) is found


def test_unknown_names_list_the_known():
    with pytest.raises(InvalidConfigError) as caught:
        kernel("k99")
    for name in KERNELS:
        assert name in str(caught.value)


@BOTH
def test_variables_are_exactly_those_of_the_template(found):
    for spec in specs(found):
        assert set(spec.variables) == templates.variables_of(found.template)


@BOTH
def test_every_field_of_config_and_variant_reaches_the_text(found):
    text = {name: str(value) for name, value in next(specs(found)).variables.items()}
    for name in ("block_m", "block_n", "block_k", "min_blocks_per_sm"):
        assert text[name] == str(getattr(found.default_config, name))


@BOTH
def test_entry_is_a_c_identifier_that_names_the_kernel(found):
    entries = [spec.entry for spec in specs(found)]
    for entry in entries:
        assert re.fullmatch(r"gemmjit_[a-z0-9_]+", entry)
        assert entry.startswith(f"gemmjit_{found.name}_")


@BOTH
def test_threads_are_whole_warps(found):
    for spec in specs(found):
        assert spec.threads % 32 == 0
        assert 32 <= spec.threads <= 1024


@pytest.mark.parametrize(
    ("config", "a_k_major", "b_k_major", "smem"),
    [
        # stages * (BM * (BK + 8) + BK * (BN + 8)) * 2 bytes, by hand
        (Sm80MmaConfig(block_m=128), True, False, 2 * (128 * 40 + 32 * 136) * 2),
        (Sm80MmaConfig(block_m=32), True, False, 2 * (32 * 40 + 32 * 136) * 2),
        (Sm80MmaConfig(block_m=64), False, True, 2 * (32 * 72 + 128 * 40) * 2),
        (Sm80MmaConfig(num_stages=4, pad=0), True, True, 4 * (128 * 32 + 128 * 32) * 2),
    ],
)
def test_shared_memory_of_k1(config, a_k_major, b_k_major, smem):
    variant = Variant(a_k_major=a_k_major, b_k_major=b_k_major)
    assert KERNELS["k1"].smem_bytes(config, variant) == smem


def test_shared_memory_of_k0_is_static():
    k0 = KERNELS["k0"]
    assert k0.smem_bytes(k0.default_config, Variant()) == 0
    assert k0.static_smem_bytes(k0.default_config, Variant()) == 2 * 16 * 68 * 4


@BOTH
def test_specs_are_values(found):
    one, two = next(specs(found)), next(specs(found))
    assert one == two
    assert hash(one) == hash(two)
    again = pickle.loads(pickle.dumps(one))
    assert (again.entry, again.config, again.variant) == (one.entry, one.config, one.variant)


@BOTH
def test_prewarm_command_says_all_that_decides_the_kernel(found):
    for spec in specs(found):
        words = shlex.split(spec.prewarm_command)
        options = dict(zip(words[2::2], words[3::2], strict=True))
        assert words[:2] == ["gemmjit", "prewarm"]
        assert options["--arch"] == "sm_90a"
        assert options["--kernel"] == found.name
        config = found.config_type.from_dict(json.loads(options["--config"]))
        variant = Variant.from_dict(json.loads(options["--variant"]))
        assert KernelSpec(found, config, variant, SM90) == spec


def test_the_ladder_of_the_first_two():
    k0, k1 = KERNELS["k0"], KERNELS["k1"]
    assert list(KERNELS)[:2] == ["k0", "k1"]
    tile = k0.default_config
    assert (tile.block_m, tile.block_n, tile.block_k) == (64, 64, 16)
    assert k0.threads(tile) == 256
    two_stages = [c for c in k1.shipped_configs() if c.num_stages == 2 and c.block_k == 32]
    assert {c.block_m for c in two_stages} >= {32, 64, 128}
    for config in k1.shipped_configs():
        assert (config.block_n, config.pad) == (128, 8)
        assert k1.threads(config) == 256
    assert any(c.double_buffer_fragments for c in k1.shipped_configs())
    assert k0.min_arch == Arch(75)
    assert k1.min_arch == Arch(80)
