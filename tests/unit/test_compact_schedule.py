"""A tile that asks for a compacted list, and the variant that takes one: both, or neither."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from command_line import run_json

import gemmjit
from gemmjit import Sm80MmaConfig, cli
from gemmjit.errors import InvalidConfigError, ManifestError
from gemmjit.kernels import KERNELS
from gemmjit.manifest import parse

COMPACT = Sm80MmaConfig(schedule="compact")


@pytest.fixture(autouse=True)
def _emulated(monkeypatch):
    monkeypatch.setenv("GEMMJIT_EXECUTOR", "emulator")
    monkeypatch.setenv("GEMMJIT_ARCH", "sm_90a")


def check_launches(kernel):
    dtype = kernel.spec.variant.in_dtype.numpy
    a, b = np.ones((8, 64), dtype), np.ones((2, 64, 64), dtype)
    for offs in (np.array([3, 8], np.int32), [3, 8]):
        assert (kernel.launch(a, b, offs=offs) == 64).all()


@pytest.mark.parametrize("name", KERNELS)
def test_either_implies_the_other(name):
    tile = replace(KERNELS[name].default_config, schedule="compact")
    by_variant = gemmjit.compile(name, schedule="compact", out_dtype="float32")
    by_tile = gemmjit.compile(name, tile, out_dtype="float32")
    assert by_variant.spec == by_tile.spec
    assert by_tile.spec == gemmjit.compile(name, tile, schedule="compact", out_dtype="float32").spec
    assert (by_tile.config.schedule, by_tile.variant.schedule) == ("compact", "compact")
    assert gemmjit.render(name, schedule="compact") == gemmjit.render(name, tile)
    check_launches(by_variant)


@pytest.mark.parametrize("tile", [Sm80MmaConfig(), Sm80MmaConfig(schedule="bounded")], ids=str)
def test_a_variant_with_another_tile_is_refused(tile):
    told = (
        r"variant compact takes a tile with schedule='compact'; "
        rf"got '{tile.schedule}'\. Give the tile that, or the variant schedule='scan'"
    )
    for ask in (gemmjit.compile, gemmjit.render):
        with pytest.raises(InvalidConfigError, match=told):
            ask("k1", tile, schedule="compact")


def test_a_tile_with_another_variant_is_refused():
    with pytest.raises(
        InvalidConfigError,
        match=r"schedule='compact' takes the variant compact, or list .*; got scan\. Leave",
    ):
        gemmjit.compile("k1", COMPACT, schedule="scan")


def test_a_list_from_the_host_and_wgrad_go_with_any_tile():
    listed = gemmjit.compile("k1", COMPACT, schedule="list")
    dtype = listed.spec.variant.in_dtype.numpy
    a, b = np.ones((8, 64), dtype), np.ones((2, 64, 64), dtype)
    assert (listed.launch(a, b, offs=[3, 8]) == 64).all()
    wgrad = gemmjit.compile("k1", COMPACT, form="ragged_k")
    assert wgrad.variant.schedule == "scan"
    assert wgrad.launch(a.T, a, offs=np.array([3, 8], np.int32)).shape == (2, 64, 64)


def test_in_a_manifest():
    text = 'targets = ["sm_90a"]\n[[kernels]]\nkernel = "k1"\nconfig = {{ {} }}\nvariant = {{ {} }}'
    compact, scan = 'schedule = "compact"', 'schedule = "scan"'
    (one,) = parse(text.format(compact, "")).wanted()
    assert one.spec == gemmjit.compile("k1", COMPACT).spec
    for config, variant in (("", compact), (compact, scan)):
        with pytest.raises(ManifestError, match="schedule='compact'"):
            parse(text.format(config, variant)).wanted()


def test_on_the_command_line(capsys):
    facts = run_json(capsys, "inspect", "k1", "--variant", "schedule=compact")
    assert facts["config"]["schedule"] == facts["variant"]["schedule"] == "compact"
    facts = run_json(capsys, "inspect", "k1", "--config", "schedule=compact")
    assert facts["config"]["schedule"] == facts["variant"]["schedule"] == "compact"
    argv = ["inspect", "k1", "--config", "block_m=64", "--variant", "schedule=compact"]
    assert cli.main(argv) == 2
    assert "Give the tile that" in capsys.readouterr().err
