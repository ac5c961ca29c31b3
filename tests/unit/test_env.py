"""Environment variables."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import gemmjit
from gemmjit import build, env
from gemmjit.errors import InvalidEnvironmentError, UnsupportedArchError

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
     ("no", False), ("False", False), ("OFF", False), (" 1 ", True)],
)  # fmt: skip
@pytest.mark.parametrize("name", [v.name for v in env.VARIABLES if v.is_switch])
def test_flags(monkeypatch, name, value, flag):
    monkeypatch.setenv(name, value)
    assert env.flag(name) is flag


@pytest.mark.parametrize("value", ["2", "y", "enable", "-1", "0.0"])
def test_a_switch_that_is_neither_on_nor_off_is_an_error_and_not_off(monkeypatch, value):
    monkeypatch.setenv("GEMMJIT_DISABLE_JIT", value)
    build.clear_memory()  # what is in memory is not asked for
    with pytest.raises(InvalidEnvironmentError) as caught:
        gemmjit.compile("k0")
    for part in ("GEMMJIT_DISABLE_JIT", "1, true, yes, on", repr(value), "unset it"):
        assert part in str(caught.value)


def test_the_switches_are_those_that_the_code_reads_as_such():
    text = "".join(p.read_text(encoding="utf-8") for p in PACKAGE.rglob("*.py"))
    read = set(re.findall(r'env\.flag\("(\w+)"\)', text))
    assert read == {v.name for v in env.VARIABLES if v.is_switch}
    chosen = set(re.findall(r'env\.choice\("(\w+)"\)', text))
    assert chosen == {v.name for v in env.VARIABLES if v.values and not v.is_switch}


def test_choices_do_not_mind_case(monkeypatch):
    monkeypatch.setenv("GEMMJIT_EXECUTOR", " Emulator ")
    assert env.choice("GEMMJIT_EXECUTOR") == "emulator"


def test_unknown_variables_are_a_mistake_of_ours():
    with pytest.raises(KeyError, match="GEMMJIT_NONSENSE"):
        env.get("GEMMJIT_NONSENSE")


def test_default_architecture(monkeypatch):
    from gemmjit.ops.dispatch import default_arch

    assert default_arch().name == "sm_90a"
    monkeypatch.setenv("GEMMJIT_ARCH", "86")
    assert default_arch().name == "sm_86"
    monkeypatch.setenv("GEMMJIT_ARCH", "hopper")
    with pytest.raises(UnsupportedArchError, match=r"GEMMJIT_ARCH: expected a name .*'hopper'"):
        default_arch()
