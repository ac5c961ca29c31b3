"""Writers, readers and evictions that meet in one directory."""

from __future__ import annotations

import dataclasses
import errno
import os
import shutil
import threading
from pathlib import Path

import pytest
from cache_makers import VERSION, leftovers, make, place, warnings

from gemmjit.cache import Store

pytestmark = pytest.mark.usefixtures("each_warning_again")


def test_br091_the_first_of_two_writers_stays_and_the_second_is_content(store):
    entry = make()
    assert store.publish(entry)
    inode = os.stat(place(store, entry)).st_ino
    assert store.publish(dataclasses.replace(entry, seconds=9.0))
    assert os.stat(place(store, entry)).st_ino == inode
    assert store.load(entry.key, VERSION).seconds == 0.25
    assert leftovers(store) == []


def test_writers_in_threads(store):
    entry, done = make(), []
    threads = [threading.Thread(target=lambda: done.append(store.publish(entry))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done == [True] * 8
    assert store.load(entry.key, VERSION) == entry
    assert leftovers(store) == []


@pytest.mark.parametrize("number", [errno.EEXIST, errno.ENOTEMPTY])
def test_br114_a_winner_that_cannot_be_seen_is_no_trouble(store, monkeypatch, caplog, number):
    def rename(source, target):
        raise OSError(number, "late visibility")

    monkeypatch.setattr(os, "rename", rename)
    entry = make()
    assert store.publish(entry)
    assert store.load(entry.key, VERSION) is None
    assert warnings(caplog) == []
    assert leftovers(store) == []


def test_an_eviction_between_folder_and_rename_is_made_good(store, monkeypatch):
    real, calls = os.rename, []

    def rename(source, target):
        calls.append(target)
        if len(calls) == 1:
            Path(target).parent.rmdir()
        real(source, target)

    monkeypatch.setattr(os, "rename", rename)
    entry = make()
    assert store.publish(entry)
    assert len(calls) == 2
    assert store.load(entry.key, VERSION) == entry


def test_an_eviction_while_reading_is_a_miss_without_a_warning(store, monkeypatch, caplog):
    entry = make()
    store.publish(entry)
    path = place(store, entry)
    import builtins

    real = builtins.open

    def vanishing(name, *rest, **more):
        if str(name).endswith("kernel.ptx"):
            shutil.rmtree(path, ignore_errors=True)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "open", vanishing)
    assert store.load(entry.key, VERSION) is None
    assert warnings(caplog) == []


def test_what_replaced_a_damaged_entry_meanwhile_is_not_removed(store, monkeypatch):
    entry, other = make(), Store(store.root)
    store.publish(entry)
    place(store, entry).joinpath("meta.json").write_bytes(b"")
    real = store._read

    def slow(path):
        files = real(path)
        monkeypatch.setattr(store, "_read", real)
        assert other.load(entry.key, VERSION) is None
        assert other.publish(entry)
        return files

    monkeypatch.setattr(store, "_read", slow)
    store.load(entry.key, VERSION)
    assert other.load(entry.key, VERSION) == entry
    assert leftovers(store) == []


def test_an_entry_that_is_published_again_while_it_is_read_is_not_damaged(
    store, monkeypatch, caplog
):
    entry, other = make(), Store(store.root)
    store.publish(entry)
    real = os.open

    def evicted(name, *rest, **more):
        if not str(name).endswith("meta.json"):
            return real(name, *rest, **more)
        monkeypatch.setattr(os, "open", real)
        other.prune(0, grace_seconds=-10.0)
        try:
            return real(name, *rest, **more)
        finally:
            assert other.publish(entry)

    monkeypatch.setattr(os, "open", evicted)
    assert store.load(entry.key, VERSION) is None
    assert store.load(entry.key, VERSION) == entry
    assert warnings(caplog) == []


def test_a_folder_that_an_eviction_takes_while_it_is_created_is_created_again(store, monkeypatch):
    entry, real = make(), os.mkdir

    def taken(path, *rest, **more):
        if Path(path).name != entry.key.folder:
            return real(path, *rest, **more)
        monkeypatch.setattr(os, "mkdir", real)
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))

    monkeypatch.setattr(os, "mkdir", taken)
    assert store.publish(entry)
    assert store.load(entry.key, VERSION) == entry
