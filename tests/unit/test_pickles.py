"""Pickles: what comes back, and what is refused because another version made it."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass, field, fields, replace

import numpy as np
import pytest

import gemmjit
from gemmjit import Problem, Sm90WgmmaConfig, compiled
from gemmjit.config import Config
from gemmjit.errors import StalePickleError
from gemmjit.kernels import KERNELS
from gemmjit.variant import Variant

VALUES = [
    *(config for kernel in KERNELS.values() for config in kernel.shipped_configs()),
    Sm90WgmmaConfig(order="claimed", block_n=128),
    Variant(form="ragged_k", a_k_major=False, epilogue="accumulate"),
    Problem.contiguous(num_groups=3, rows=20, n=24, k=32, epilogue="bias+row_scale"),
]


@pytest.mark.parametrize("value", VALUES, ids=str)
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_values_come_back(value, protocol):
    again = pickle.loads(pickle.dumps(value, protocol))
    assert again == value
    assert type(again) is type(value)
    assert hash(again) == hash(value)
    assert copy.deepcopy(value) == copy.copy(value) == value


def restored(value, state):
    found = object.__new__(type(value))
    found.__setstate__(state)
    return found


def test_a_field_that_is_missing_takes_its_default():
    """As in a pickle that is older than the field."""
    config = Sm90WgmmaConfig(block_n=128, raster_m=2)
    state = config.__getstate__()
    del state["order"]
    again = restored(config, state)
    assert again == config
    assert again.order == "listed"
    state = VALUES[-1].__getstate__()
    del state["operand_strides"]
    assert restored(VALUES[-1], state) == replace(VALUES[-1], operand_strides=())


@pytest.mark.parametrize("value", [VALUES[-3], VALUES[-1]], ids=["config", "problem"])
def test_fields_that_do_not_fit_are_refused(value):
    state = value.__getstate__()
    with pytest.raises(StalePickleError, match=r"with colour unknown\. Make the .* anew"):
        restored(value, {**state, "colour": "blue"})
    with pytest.raises(StalePickleError, match=r"one without, of an older gemmjit\. Make the"):
        restored(value, list(state.values()))  # as dataclasses writes it
    if isinstance(value, Problem):
        del state["rows"]
        with pytest.raises(StalePickleError, match="with rows missing"):
            restored(value, state)


@pytest.mark.parametrize("state", [{1: 2}, {None: 1, "b": 2, ("c",): 3}], ids=str)
def test_names_of_fields_that_are_no_texts_are_refused(state):
    value = VALUES[-1]
    with pytest.raises(StalePickleError, match=r"with .* unknown\. Make the Problem anew"):
        restored(value, state)
    with pytest.raises(StalePickleError, match=r"with .* unknown\. Make the Problem anew"):
        restored(value, value.__getstate__() | state)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnConfig(Config):
    """A tile of somebody's own kernel."""

    block_m: int = 1
    block_n: int = 2
    block_k: int = 3
    warps: int = 4
    notes: dict[str, int] = field(default_factory=dict, hash=False)


def test_the_configs_of_others_have_names_too():
    state = OwnConfig(warps=8).__getstate__()
    assert state == {f.name: getattr(OwnConfig(warps=8), f.name) for f in fields(OwnConfig)}
    del state["warps"], state["notes"]
    again = restored(OwnConfig(), state)
    assert again == OwnConfig()
    assert again.notes is not restored(OwnConfig(), state).notes  # made anew, as in a new config


@pytest.fixture
def kernel(monkeypatch):
    monkeypatch.setenv("GEMMJIT_EXECUTOR", "emulator")
    return gemmjit.compile("k1", out_dtype="float32")


def test_a_kernel_comes_back_and_runs(kernel):
    again = pickle.loads(pickle.dumps(kernel))
    assert again == kernel
    assert vars(again).keys() == vars(kernel).keys()
    dtype = again.spec.variant.in_dtype.numpy
    a, b = np.ones((8, 32), dtype), np.ones((2, 32, 24), dtype)
    assert (again.launch(a, b, offs=[3, 8]) == 32).all()


@pytest.fixture
def fresh():
    yield
    compiled._version.cache_clear()


@pytest.mark.parametrize("what", ["version", "template"])
def test_a_kernel_of_another_version_is_refused(kernel, monkeypatch, tmp_path, fresh, what):
    """Another version's number, or an argument more in a template."""
    own = compiled._version()
    data = pickle.dumps(kernel)
    with monkeypatch.context() as other:
        if what == "version":
            other.setattr(gemmjit, "__version__", "99.0")
        else:
            root = compiled.templates_root()
            for path in (p for p in root.rglob("*") if p.suffix in (".j2", ".cuh")):
                place = tmp_path / path.relative_to(root)
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(path.read_bytes())
            other.setattr(compiled, "templates_root", lambda: tmp_path)
            compiled._version.cache_clear()
            assert compiled._version() == own  # the same templates, elsewhere
            arguments = tmp_path / "core" / "arguments.cuh.j2"
            text = arguments.read_text()
            changed = text.replace("int num_tiles;", "int answer; int num_tiles;")
            assert changed != text
            arguments.write_text(changed)
        compiled._version.cache_clear()
        with pytest.raises(StalePickleError) as caught:
            pickle.loads(data)
        for part in (own, compiled._version(), "Compile it again, with gemmjit.compile"):
            assert part in str(caught.value)
        assert compiled._version() != own


def test_a_kernel_of_a_version_that_did_not_say(kernel):
    state = dict(vars(kernel))
    with pytest.raises(StalePickleError, match="a version that did not say which"):
        object.__new__(type(kernel)).__setstate__(state)


@pytest.mark.parametrize("state", [None, [1, 2], (None, {"name": "k1"}), "k1", {1: 2}], ids=str)
def test_a_state_of_a_kernel_that_is_no_mapping_of_names(kernel, state):
    with pytest.raises(StalePickleError, match=r"did not say which.* Compile it again"):
        object.__new__(type(kernel)).__setstate__(state)


def test_a_kernel_that_lacks_a_field(kernel):
    state = kernel.__getstate__()
    del state["cubin"], state["spec"]
    with pytest.raises(StalePickleError, match=r" without cubin, spec\. Compile it again"):
        object.__new__(type(kernel)).__setstate__(state)
