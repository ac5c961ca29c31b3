"""Where the cache lies, in every state that a home and an environment can be in."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from gemmjit import logs
from gemmjit.cache import current_layers, max_bytes, shared_directories, user_directory
from gemmjit.cache.places import DEFAULT_MAX_BYTES

VARIABLES = (
    "GEMMJIT_CACHE_DIR",
    "GEMMJIT_CACHE_PATH",
    "GEMMJIT_CACHE_MAX_SIZE",
    "XDG_CACHE_HOME",
)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    logs._warned.clear()
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "home").mkdir()
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return tmp_path / "home"


def warnings(caplog) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def test_default_is_the_users_cache_directory_and_asking_creates_nothing(home):
    assert user_directory() == home / ".cache" / "gemmjit"
    assert list(home.iterdir()) == []


def test_xdg_cache_home_is_honoured(home, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "xdg"))
    assert user_directory() == home / "xdg" / "gemmjit"


@pytest.mark.parametrize("blank", ["", " ", "\t"])
def test_br103_blank_means_default(home, monkeypatch, blank):
    monkeypatch.setenv("GEMMJIT_CACHE_DIR", blank)
    assert user_directory() == home / ".cache" / "gemmjit"


def test_br103_home_is_expanded_and_relative_paths_are_taken(home, monkeypatch, tmp_path):
    monkeypatch.setenv("GEMMJIT_CACHE_DIR", "~/x")
    assert user_directory() == home / "x"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GEMMJIT_CACHE_DIR", "some/where")
    assert user_directory() == tmp_path / "some" / "where"


def test_br103_a_home_that_does_not_exist_is_told(home, monkeypatch, caplog):
    monkeypatch.setenv("GEMMJIT_CACHE_DIR", "~no_such_user_here/x")
    assert user_directory() == home / ".cache" / "gemmjit"
    assert "GEMMJIT_CACHE_DIR: '~no_such_user_here/x' cannot be used" in warnings(caplog)[0]


@pytest.mark.parametrize("value", ["/", "/nonexistent/home", "/proc/1"])
def test_br101_an_unusable_home_gives_a_private_place_and_one_warning(
    monkeypatch, caplog, tmp_path, value
):
    if value == "/nonexistent/home":  # root could create it: make it impossible
        (tmp_path / "file").write_text("")
        value = str(tmp_path / "file" / "home")
    monkeypatch.setenv("HOME", value)
    expected = tmp_path / "temporary" / f"gemmjit-{os.geteuid()}"
    assert user_directory() == expected
    assert user_directory() == expected
    assert expected.stat().st_mode & 0o777 == 0o700
    assert len(warnings(caplog)) == 1
    assert "GEMMJIT_CACHE_DIR" in warnings(caplog)[0]


def test_br101_the_variable_wins_over_an_unusable_home(monkeypatch, caplog, tmp_path):
    monkeypatch.setenv("HOME", "/")
    monkeypatch.setenv("GEMMJIT_CACHE_DIR", str(tmp_path / "mine"))
    assert user_directory() == tmp_path / "mine"
    assert warnings(caplog) == []


def test_br101_somebody_elses_private_place_is_not_used(monkeypatch, caplog, tmp_path):
    monkeypatch.setenv("HOME", "/")
    (tmp_path / "temporary" / f"gemmjit-{os.geteuid()}").mkdir()
    (tmp_path / "temporary" / f"gemmjit-{os.geteuid()}").chmod(0o777)
    assert user_directory() is None
    assert "memory only" in warnings(caplog)[0]
    assert current_layers().user is None


def test_br101_a_link_in_the_private_place_is_not_followed(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", "/")
    (tmp_path / "target").mkdir(mode=0o700)
    (tmp_path / "temporary" / f"gemmjit-{os.geteuid()}").symlink_to(tmp_path / "target")
    assert user_directory() is None


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to act as a user without an entry")
def test_br101_a_user_without_an_entry_in_the_password_file(tmp_path):
    for folder in (tmp_path, *tmp_path.parents):
        if "pytest" in str(folder):
            folder.chmod(0o777 if folder == tmp_path else 0o755)
    program = (
        "import os, sys, logging\nlogging.basicConfig(stream=sys.stdout, format='%(message)s')\n"
        "from gemmjit.cache import user_directory\nos.setgid(12345); os.setuid(12345)\n"
        "print(user_directory())\n"
    )
    environment = {k: v for k, v in os.environ.items() if k not in ("HOME", *VARIABLES)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**environment, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    warning, place = done.stdout.splitlines()
    assert place == str(tmp_path / "gemmjit-12345")
    assert place in warning


def test_a_home_that_is_read_only_but_has_a_cache_is_still_read(home, monkeypatch):
    (home / ".cache" / "gemmjit").mkdir(parents=True)
    monkeypatch.setattr(os, "access", lambda *a, **k: False)
    assert user_directory() == home / ".cache" / "gemmjit"


def test_shared_directories_keep_their_order(monkeypatch, tmp_path, home):
    text = f" {tmp_path / 'b'} {os.pathsep}{os.pathsep}~/a{os.pathsep}"
    monkeypatch.setenv("GEMMJIT_CACHE_PATH", text)
    assert shared_directories() == (tmp_path / "b", home / "a")
    layers = current_layers()
    assert [store.root for store in layers.shared] == [tmp_path / "b", home / "a"]
    assert not any(store.writable for store in layers.shared)
    assert layers.user is not None
    assert layers.user.writable


def test_layers_follow_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("GEMMJIT_CACHE_DIR", str(tmp_path / "one"))
    one = current_layers()
    assert current_layers() is one
    monkeypatch.setenv("GEMMJIT_CACHE_DIR", str(tmp_path / "two"))
    assert current_layers().user.root == tmp_path / "two"


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("512M", 512 * 2**20),
        ("2G", 2**31),
        ("1 GiB", 2**30),
        ("1.5k", 1536),
        ("100", 100),
        ("3tb", 3 * 2**40),
        ("0", 0),
        (" ", DEFAULT_MAX_BYTES),
    ],
)
def test_sizes(monkeypatch, text, num_bytes):
    monkeypatch.setenv("GEMMJIT_CACHE_MAX_SIZE", text)
    assert max_bytes() == num_bytes


@pytest.mark.parametrize("text", ["lots", "-1", "1X", "1 2", "M"])
def test_a_size_that_is_none_is_told_once(monkeypatch, caplog, text):
    monkeypatch.setenv("GEMMJIT_CACHE_MAX_SIZE", text)
    assert max_bytes() == max_bytes() == DEFAULT_MAX_BYTES
    assert len(warnings(caplog)) == 1
    assert repr(text) in warnings(caplog)[0]


def test_the_working_directory_may_be_gone(tmp_path, monkeypatch, caplog):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.setenv("GEMMJIT_CACHE_DIR", "relative")
    assert user_directory() == Path(os.environ["HOME"]) / ".cache" / "gemmjit"
    assert len(warnings(caplog)) == 1
