"""Environment variables."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import gemmjit
from gemmjit import env

PACKAGE = Path(gemmjit.__file__).parent


def test_names_and_texts():
    names = [v.name for v in env.VARIABLES]
    assert len(set(names)) == len(names)
    for variable in env.VARIABLES:
        assert re.fullmatch(r"GEMMJIT_[A-Z_]+", variable.name)
        assert variable.default
        assert variable.help.endswith((".", ")"))


def test_every_variable_is_used_and_none_is_read_elsewhere():
    texts = {p: p.read_text(encoding="utf-8") for p in PACKAGE.rglob("*.py")}
    used = set()
    for path, text in texts.items():
        found = set(re.findall(r"GEMMJIT_[A-Z_]*[A-Z]", text))
        if path.name != "env.py":
            used |= found
        assert found <= {v.name for v in env.VARIABLES}, path
    assert used == {v.name for v in env.VARIABLES}


@pytest.mark.parametrize("value", ["", " ", "\t"])
def test_br103_blank_means_default(monkeypatch, value):
    monkeypatch.setenv("GEMMJIT_ARCH", value)
    assert env.get("GEMMJIT_ARCH") is None
    monkeypatch.delenv("GEMMJIT_ARCH")
    assert env.get("GEMMJIT_ARCH") is None


def test_values_are_stripped_and_read_anew(monkeypatch):
    monkeypatch.setenv("GEMMJIT_ARCH", " sm_80 ")
    assert env.get("GEMMJIT_ARCH") == "sm_80"
    monkeypatch.setenv("GEMMJIT_ARCH", "sm_90a")
    assert env.get("GEMMJIT_ARCH") == "sm_90a"


@pytest.mark.parametrize(
    ("value", "flag"),
    [("1", True), ("true", True), ("Yes", True), ("ON", True), ("0", False), ("", False),
     ("no", False), ("2", False)],
)  # fmt: skip
def test_flags(monkeypatch, value, flag):
    monkeypatch.setenv("GEMMJIT_CHECK", value)
    assert env.flag("GEMMJIT_CHECK") is flag


def test_unknown_variables_are_a_mistake_of_ours():
    with pytest.raises(KeyError, match="GEMMJIT_NONSENSE"):
        env.get("GEMMJIT_NONSENSE")


def test_default_architecture(monkeypatch):
    from gemmjit.ops.dispatch import default_arch

    assert default_arch().name == "sm_90a"
    monkeypatch.setenv("GEMMJIT_ARCH", "86")
    assert default_arch().name == "sm_86"
