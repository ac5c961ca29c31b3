"""When the disk has what was published: not within a call, but before prewarming says so."""

from __future__ import annotations

import errno
import os
import shutil

import pytest
from cache_makers import VERSION, make, warnings
from tiny_kernel import Tiny

from gemmjit.build import build
from gemmjit.cache import Store
from gemmjit.cli import main
from gemmjit.prewarm import prewarm

pytestmark = pytest.mark.usefixtures("each_warning_again")


@pytest.fixture
def synced(monkeypatch) -> list[str]:
    """Return the names of what is waited for, as it happens."""
    real, names = os.fsync, []

    def fsync(descriptor: int) -> None:
        names.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return names


FILES = {"kernel.cubin", "kernel.ptx", "kernel.cu", "meta.json"}


def test_a_call_does_not_wait_for_the_disk(place, synced):
    build(Tiny())
    assert synced == []


def test_settle_waits_once_for_each_file_and_for_the_names(store, synced):
    store.publish(make())
    store.publish(make("int b;"))
    assert synced == []
    assert store.settle()
    assert all(synced.count(name) == 2 for name in FILES)
    # The folders that hold their names, the kernel's and the target's.
    assert synced.count(VERSION) == 2
    assert synced.count(make().key.target) == 2
    synced.clear()
    assert store.settle()
    assert synced == []


def test_what_was_evicted_is_not_waited_for(store, synced):
    store.publish(make())
    shutil.rmtree(next(store.entries()).path)
    store.publish(make("int b;"))
    assert store.settle()
    assert synced.count("kernel.cubin") == 1


def test_a_disk_that_refuses_costs_one_warning(store, monkeypatch, caplog):
    store.publish(make())

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    assert not store.settle()
    assert len(warnings(caplog)) == 1
    assert "No space left" in warnings(caplog)[0]


def test_prewarming_waits(place, synced):
    (outcome,) = prewarm([Tiny()])
    assert outcome.status == "compiled"
    assert set(synced) >= FILES


def test_prewarming_fails_where_the_disk_refuses(place, monkeypatch):
    def broken(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", broken)
    (outcome,) = prewarm([Tiny()])
    assert outcome.status == "failed"
    assert "GEMMJIT_CACHE_DIR" in outcome.error


def test_an_import_waits(store, tmp_path, synced, capsys):
    store.publish(make())
    file, other = str(tmp_path / "kernels.zip"), Store(tmp_path / "other")
    assert main(["cache", "export", file, "--cache-dir", str(store.root)]) == 0
    synced.clear()
    assert main(["cache", "import", file, "--cache-dir", str(other.root)]) == 0
    assert set(synced) >= FILES
    assert len(list(other.entries())) == 1


def test_prewarming_waits_for_what_a_call_has_left(place, synced):
    build(Tiny())
    assert synced == []
    (outcome,) = prewarm([Tiny()])
    assert outcome.status == "present"
    assert set(synced) >= FILES


def test_an_import_waits_for_what_was_there(store, tmp_path, synced, capsys):
    store.publish(make())
    file, other = str(tmp_path / "kernels.zip"), Store(tmp_path / "other")
    assert main(["cache", "export", file, "--cache-dir", str(store.root)]) == 0
    other.publish(make())
    synced.clear()
    assert main(["cache", "import", file, "--cache-dir", str(other.root)]) == 0
    assert "1 were there already" in capsys.readouterr().out
    assert set(synced) >= FILES
