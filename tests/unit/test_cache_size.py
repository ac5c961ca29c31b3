"""What is evicted, swept and left alone."""

from __future__ import annotations

import os
import tempfile
import time

import pytest
from cache_makers import VERSION, fake_cubin, leftovers, make, place

from gemmjit.cache import Entry, Store

pytestmark = pytest.mark.usefixtures("each_warning_again")


def aged(store: Store, count: int, step: float = 1000.0) -> list[Entry]:
    entries = [make(f"int a{i};", cubin=fake_cubin(size=10_000)) for i in range(count)]
    now = time.time()
    for i, entry in enumerate(entries):
        store.publish(entry)
        os.utime(place(store, entry), (now, now - (count - i) * step))
    return entries


def test_prune_removes_what_was_not_used_for_longest(store):
    entries = aged(store, 5)
    one = store.size() // 5
    assert store.load(entries[0].key, VERSION)  # a use, hence the newest now
    removed = store.prune(3 * one + 100)
    assert [s.folder for s in removed] == [entries[1].key.folder, entries[2].key.folder]
    assert store.size() <= 3 * one + 100
    assert store.load(entries[0].key, VERSION)
    assert leftovers(store) == []
    assert not (store.root / "v1" / "sm_90a" / entries[1].key.folder).exists()


def test_prune_never_removes_what_was_just_used(store):
    entries = aged(store, 3, step=1.0)
    assert store.prune(0) == []
    assert len(list(store.entries())) == 3
    assert len(store.prune(0, grace_seconds=0)) == 3
    assert all(store.load(entry.key, VERSION) is None for entry in entries)


def test_the_directory_is_counted_only_when_it_may_be_too_large(store, monkeypatch):
    entries = aged(store, 4)
    one = store.size() // 4
    counted = []
    real = Store.prune
    monkeypatch.setattr(Store, "prune", lambda self, n: counted.append(n) or real(self, n))
    fresh = Store(store.root)
    fresh.keep_within(5 * one + 100)  # the first time
    fresh.keep_within(5 * one + 100)
    assert len(counted) == 1
    fresh.publish(make("int b0;", cubin=fake_cubin(size=10_000)))
    fresh.keep_within(5 * one + 100)  # five fit
    assert len(counted) == 1
    fresh.publish(make("int b1;", cubin=fake_cubin(size=10_000)))
    fresh.keep_within(5 * one + 100)  # six do not
    assert len(counted) == 2
    assert fresh.load(entries[0].key, VERSION) is None
    assert fresh.load(entries[1].key, VERSION) == entries[1]


def test_prune_sweeps_what_killed_processes_left_but_not_what_is_being_written(store):
    store.publish(make())
    for name, age in (("1-old", 7200), ("2-new", 10)):
        folder = store.root / "v1" / ".tmp" / name
        folder.mkdir()
        (folder / "kernel.cubin").write_bytes(b"half")
        os.utime(folder, (time.time(), time.time() - age))
    store.prune(2**30)
    assert leftovers(store) == ["2-new"]
    assert len(list(store.entries())) == 1


def test_br116_nothing_is_written_outside_the_directory(store, tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setenv("TMPDIR", str(elsewhere))
    monkeypatch.setattr(tempfile, "tempdir", None)
    store.publish(make())
    assert os.listdir(elsewhere) == []
    assert sorted(os.listdir(tmp_path)) == ["cache", "elsewhere"]
