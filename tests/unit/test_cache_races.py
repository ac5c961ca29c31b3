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
