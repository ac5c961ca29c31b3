"""Variants as values."""

from __future__ import annotations

import json
from dataclasses import fields

import pytest

from gemmjit.dtypes import BF16, F32
from gemmjit.errors import InvalidConfigError, InvalidDtypeError
from gemmjit.variant import Variant

OTHER = {
    "form": "ragged_k",
    "in_dtype": "float16",
    "out_dtype": "float32",
    "a_k_major": False,
    "b_k_major": True,
    "a_vector": False,
    "b_vector": False,
    "d_paired": False,
    "a_blocked": True,
    "b_blocked": True,
    "d_by_tma": True,
    "schedule": "list",
    "epilogue": "accumulate",
    "shape_n": 128,
    "shape_k": 64,
}


def test_every_field_is_tried_here():
    assert set(OTHER) == {f.name for f in fields(Variant)}


@pytest.mark.parametrize("name", OTHER)
def test_json_round_trip(name):
    variant = Variant.from_dict({name: OTHER[name]})
    assert variant != Variant()
    assert Variant.from_dict(json.loads(json.dumps(variant.to_dict()))) == variant


def test_wgrad_reads_a_transposed_activation_unless_told():
    assert Variant.from_dict({"form": "ragged_k"}).a_k_major is False
    assert Variant.from_dict({"form": "ragged_k", "a_k_major": True}).a_k_major is True
    assert Variant.from_dict({"form": "ragged_m"}).a_k_major is True


@pytest.mark.parametrize("name", OTHER)
def test_every_field_shows_in_the_text(name):
    # The text is part of the kernel's name: two kernels must not share one.
    assert str(Variant.from_dict({name: OTHER[name]})) != str(Variant())
    assert str(Variant.from_dict({name: OTHER[name]})).replace("_", "").isalnum()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"colour": 1}, ("colour", "a_vector")),
        ({"form": "ragged_n"}, ("form", "ragged_m, ragged_k", "'ragged_n'")),
        ({"schedule": "random"}, ("schedule", "scan", "'random'")),
        ({"epilogue": "relu"}, ("epilogue", "store", "row_scale_f32", "'relu'")),
        ({"epilogue": "row_scale+bias"}, ("epilogue", "order", "'row_scale+bias'")),
        ({"epilogue": "bias+bias"}, ("epilogue", "once", "'bias+bias'")),
        ({"a_vector": "yes"}, ("a_vector", "False, True", "'yes'")),
        ({"shape_n": -1}, ("shape_n", "from 0 to", "-1")),
        ({"shape_k": 1.0}, ("shape_k", "whole number", "1.0")),
    ],
)
def test_refused(values, words):
    with pytest.raises(InvalidConfigError) as caught:
        Variant.from_dict(values)
    for word in ("variant", *words):
        assert word in str(caught.value)


def test_unknown_element_type():
    with pytest.raises(InvalidDtypeError):
        Variant.from_dict({"in_dtype": "float12"})


def test_types_may_be_names_or_types():
    assert Variant.from_dict({"in_dtype": "bf16", "out_dtype": F32}) == Variant(
        in_dtype=BF16, out_dtype=F32
    )
