"""Who may write to a directory that is believed."""

from __future__ import annotations

import os
import stat

import pytest
from cache_makers import VERSION, make, place, warnings

from gemmjit.cache import Store
from gemmjit.cache.entry import FILES
from gemmjit.errors import CacheError

pytestmark = pytest.mark.usefixtures("each_warning_again")


def test_what_is_created_is_private(store):
    previous = os.umask(0)
    try:
        store.publish(make())
        with store.lock(make().key):
            pass
    finally:
        os.umask(previous)
    for path in (store.root, *store.root.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


@pytest.mark.parametrize("mode", [0o777, 0o757, 0o775])
@pytest.mark.parametrize("where", ["root", "v1"])
def test_a_directory_that_others_can_write_is_refused(store, caplog, where, mode):
    entry = make()
    store.publish(entry)
    path = store.root if where == "root" else store.root / "v1"
    if mode == 0o775:
        if os.geteuid() != 0:
            pytest.skip("needs root to give a directory to a group")
        os.chown(path, -1, 12345)
    path.chmod(mode)
    fresh = Store(store.root)
    assert fresh.load(entry.key, VERSION) is None
    assert not fresh.publish(entry)
    assert len(warnings(caplog)) == 1
    assert "cubins are code" in warnings(caplog)[0]
    assert "chmod go-w" in warnings(caplog)[0]
    with pytest.raises(CacheError, match="can write to it"):
        fresh.check()
    assert Store(store.root, writable=False).load(entry.key, VERSION) is None


def test_a_sticky_directory_like_tmp_is_fine_as_a_root(tmp_path):
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp").chmod(0o1777)
    store = Store(tmp_path / "tmp")
    entry = make()
    assert store.publish(entry)
    assert store.load(entry.key, VERSION) == entry
    (store.root / "v1").stat()


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_others_can_write_is_refused(store, caplog, name):
    entry = make()
    store.publish(entry)
    (place(store, entry) / name).chmod(0o666)
    assert store.load(entry.key, VERSION) is None
    assert "everybody can write" in warnings(caplog)[0]


def test_somebody_elses_directory_is_refused_unless_it_is_a_layer_to_read(store, monkeypatch):
    entry = make()
    store.publish(entry)
    if os.geteuid() == 0:
        for path in (store.root, *store.root.rglob("*")):
            os.chown(path, 12345, 12345)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(CacheError, match="it belongs to user"):
        Store(store.root).check()
    assert Store(store.root).load(entry.key, VERSION) is None
    assert Store(store.root, writable=False).load(entry.key, VERSION) == entry


def test_br103_a_file_in_the_place_of_the_directory_is_named(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    store = Store(tmp_path / "file")
    with pytest.raises(CacheError, match="expected a directory; got the file"):
        store.check()
    assert store.load(make().key, VERSION) is None
    assert not store.publish(make())
    assert len(warnings(caplog)) == 1


def test_a_layer_to_read_is_never_written(store, tmp_path):
    entry = make()
    reader = Store(tmp_path / "none", writable=False)
    assert not reader.publish(entry)
    with reader.lock(entry.key) as locked:
        assert not locked
    assert not (tmp_path / "none").exists()
    store.publish(entry)
    path = place(store, entry)
    (path / "kernel.cubin").write_bytes(b"")
    os.utime(path, (1, 1))
    assert Store(store.root, writable=False).load(entry.key, VERSION) is None
    assert (path / "kernel.cubin").exists()
    assert path.stat().st_mtime == 1
