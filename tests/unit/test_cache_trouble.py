"""File systems that give trouble: full, read-only, in use elsewhere."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest
from cache_makers import VERSION, leftovers, make, warnings

from gemmjit.cache import Key, Store

pytestmark = pytest.mark.usefixtures("each_warning_again")


@pytest.mark.parametrize(
    "number",
    [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EXDEV, errno.EIO, errno.ESTALE],
)
@pytest.mark.parametrize("call", ["mkdir", "open", "rename"])
def test_br099_br100_br116_trouble_costs_one_warning(store, monkeypatch, caplog, call, number):
    before = make("int before;")
    store.publish(before)
    entry = make()
    real = getattr(os, call)

    def failing(*arguments, **more):
        if call == "open" and not ("kernel.ptx" in str(arguments[0]) and arguments[1] & os.O_CREAT):
            return real(*arguments, **more)  # but for writing the second file of the entry
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, call, failing)
    for _ in range(3):
        assert not store.publish(entry)
    assert store.load(before.key, VERSION) == before  # what is there still serves
    monkeypatch.undo()
    assert len(warnings(caplog)) == 1
    assert "cannot be written" in warnings(caplog)[0]
    assert "GEMMJIT_CACHE_DIR" in warnings(caplog)[0]
    assert leftovers(store) == []
    assert len(list(store.entries())) == 1


def test_br093_a_file_that_is_in_use_elsewhere_is_a_miss_not_an_error(store, monkeypatch, caplog):
    entry = make()
    store.publish(entry)
    import builtins

    real, calls = builtins.open, []

    def busy(name, *rest, **more):
        calls.append(name)
        if len(calls) == 1:
            raise PermissionError(errno.EACCES, "in use")
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "open", busy)
    assert store.load(entry.key, VERSION) is None
    assert store.load(entry.key, VERSION) == entry  # nothing was removed
    assert len(warnings(caplog)) == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_br100_a_directory_without_write_permission_is_read(store, caplog):
    entry = make()
    store.publish(entry)
    folders = [store.root, *(p for p in store.root.rglob("*") if p.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    try:
        assert store.load(entry.key, VERSION) == entry
        assert not store.publish(make("int new;"))
        assert len(warnings(caplog)) == 1
    finally:
        for folder in folders:
            folder.chmod(0o755)


AS_SOMEBODY = """
import logging, os, sys
from dataclasses import replace
from pathlib import Path
from gemmjit.cache import Key, Store
logging.basicConfig(level=logging.WARNING, stream=sys.stdout, format='%(message)s')
store = Store(Path(sys.argv[1]), writable=sys.argv[3] == 'w')
os.setgid(65534); os.setuid(65534)
entry = store.load(Key(*sys.argv[2].split(',')), '13.5.37')
print('loaded', entry is not None)
if entry is not None and store.writable:
    print('published', store.publish(replace(entry, nvrtc_version='13.0.1')))
"""


def as_somebody(store: Store, key: Key, how: str) -> list[str]:
    names = f"{key.target},{key.entry},{key.identity}"
    program = [sys.executable, "-c", AS_SOMEBODY, str(store.root), names, how]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to act as somebody else")
def test_br100_a_directory_of_root_is_read_by_others_where_its_mode_allows_it(tmp_path):
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == 0 and str(folder) != "/" and "pytest" in str(folder):
            folder.chmod(0o755)
    (tmp_path / "image").mkdir(mode=0o755)
    store = Store(tmp_path / "image")
    entry = make()
    store.publish(entry)
    assert as_somebody(store, entry.key, "r") == ["loaded True"]
    loaded, warned, published = as_somebody(store, entry.key, "w")
    assert (loaded, published) == ("loaded True", "published False")
    assert "cannot be written" in warned
