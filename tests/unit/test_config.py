"""Tile configurations as values."""

from __future__ import annotations

import inspect
import json
import re
from dataclasses import FrozenInstanceError, fields, replace

import pytest

from gemmjit import Config, SimtConfig, Sm80MmaConfig, Sm90TmaMmaConfig
from gemmjit.errors import InvalidConfigError
from gemmjit.kernels import KERNELS

SHIPPED = [c for k in KERNELS.values() for c in k.shipped_configs()]
TYPES = [k.config_type for k in KERNELS.values()]


@pytest.mark.parametrize("config", SHIPPED, ids=repr)
def test_json_round_trip(config):
    again = type(config).from_dict(json.loads(json.dumps(config.to_dict())))
    assert again == config
    assert hash(again) == hash(config)
    assert type(again) is type(config)


@pytest.mark.parametrize("config", SHIPPED, ids=repr)
def test_text_is_part_of_an_identifier(config):
    assert str(config).replace("_", "").isalnum()
    assert "\n" not in repr(config)


@pytest.mark.parametrize("kind", TYPES)
def test_frozen_and_keyword_only(kind):
    with pytest.raises(FrozenInstanceError):
        kind().block_m = 1
    with pytest.raises(TypeError):
        kind(128)
    assert issubclass(kind, Config)


@pytest.mark.parametrize("kind", TYPES)
def test_unknown_fields_are_named_with_those_there_are(kind):
    with pytest.raises(InvalidConfigError) as caught:
        kind.from_dict({"block_q": 1, "blok_m": 2})
    text = str(caught.value)
    assert "block_q, blok_m" in text
    assert all(f.name in text for f in fields(kind))


@pytest.mark.parametrize(
    ("kind", "values", "words"),
    [
        (SimtConfig, {"block_m": "64"}, ("block_m", "int", "'64'")),
        (SimtConfig, {"block_m": 64.0}, ("block_m", "int", "64.0")),
        (SimtConfig, {"block_m": True}, ("block_m", "int", "True")),
        (Sm80MmaConfig, {"double_buffer_fragments": 1}, ("double_buffer_fragments", "bool", "1")),
        (Sm80MmaConfig, {"specialize": 3}, ("specialize", "str", "3")),
    ],
)
def test_values_of_the_wrong_type(kind, values, words):
    with pytest.raises(InvalidConfigError) as caught:
        kind.from_dict(values)
    for word in words:
        assert word in str(caught.value)


def test_missing_fields_take_their_defaults():
    assert Sm80MmaConfig.from_dict({"block_m": 64}) == Sm80MmaConfig(block_m=64)
    with pytest.raises(InvalidConfigError, match="block_m"):
        Config.from_dict({})


def test_each_kernel_has_its_own_config_type():
    assert len({k.config_type for k in KERNELS.values()}) == len(KERNELS)
    for kernel in KERNELS.values():
        assert kernel.config_type.kernel == kernel.name


def neighbours(config):
    """Configs that differ from one in a single field."""
    order = "claimed" if getattr(config, "order", "") == "listed" else "listed"
    other = {"specialize": "nk", "schedule": "bounded", "order": order}
    for name, value in config.to_dict().items():
        changed = other.get(name) or (not value if isinstance(value, bool) else value + 3)
        yield name, replace(config, **{name: changed})


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_no_two_tiles_have_the_same_name(kernel):
    shipped = kernel.shipped_configs()
    assert len({str(config) for config in shipped}) == len(shipped)
    for config in shipped:
        near = dict(neighbours(config))
        names = {str(one) for one in near.values()} | {str(config)}
        assert len(names) == len(near) + 1
        # A schedule or N and K compiled in are the variant's, and told by its name.
        tiles = {
            one.tile_name for name, one in near.items() if name not in ("specialize", "schedule")
        }
        assert len(tiles) == len(near) - 2
        assert config.tile_name not in tiles
        assert all(re.fullmatch(r"\w+", name) for name in names)  # part of a C identifier


def test_names_are_short_for_defaults():
    assert str(Sm80MmaConfig()) == "128x128x32_s2"
    assert str(Sm80MmaConfig(block_m=32, min_blocks_per_sm=4, pad=0)) == "32x128x32_s2_p0_b4"
    assert str(Sm90TmaMmaConfig(min_blocks_per_sm=1)) == "128x128x64_s3_b1"
    assert str(Sm90TmaMmaConfig(swizzle=0, schedule="bounded")) == "128x128x64_s3_sw0_bounded"
    assert str(SimtConfig(specialize="nk")) == "64x64x16_nk"


def test_an_unknown_name_lists_the_fields_and_changes_nothing_of_a_dataclass():
    with pytest.raises(InvalidConfigError, match="unknown field blockm; Sm80MmaConfig has block_m"):
        Sm80MmaConfig(blockm=64)
    with pytest.raises(InvalidConfigError, match="unknown field depth"):
        replace(Sm80MmaConfig(), depth=3)
    with pytest.raises(TypeError, match="positional"):
        Sm80MmaConfig(64)
    names = [field.name for field in fields(Sm80MmaConfig)]
    assert list(inspect.signature(Sm80MmaConfig).parameters) == names
