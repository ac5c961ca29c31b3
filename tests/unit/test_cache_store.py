"""One cache directory under damage, strangeness and other people's hands."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from cache_makers import VERSION, fake_cubin, leftovers, make, place, warnings

from gemmjit import logs
from gemmjit.cache import DamagedEntryError, Entry, Key, Store, identity_of, stats
from gemmjit.cache import locks as cache_locks
from gemmjit.cache.entry import FILES, decode, encode
from gemmjit.errors import CacheError


@pytest.fixture(autouse=True)
def _each_warning_again():
    logs._warned.clear()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache")


# Identity


def test_identity_depends_on_source_options_and_target_and_on_nothing_else():
    base = ("int a;", ("-O3",), "sm_90a")
    assert identity_of(*base) == identity_of(*base)
    others = [
        ("int b;", ("-O3",), "sm_90a"),
        ("int a;", ("-O2",), "sm_90a"),
        ("int a;", (), "sm_90a"),
        ("int a;", ("-O3",), "sm_90"),  # BR-108, BR-109: the suffix counts
        ("int a;-O3", (), "sm_90a"),
        ("int a;", ("-", "O3"), "sm_90a"),
    ]
    assert len({identity_of(*other) for other in [base, *others]}) == 1 + len(others)


def test_identity_is_stable_over_releases():
    """Changing this figure throws away every cache: raise SCHEMA when you mean it."""
    assert identity_of("int a;", ("-O3",), "sm_90a").startswith("1a661db2")


@pytest.mark.parametrize(
    "fields",
    [("sm_90a/..", "k", "0" * 64), ("sm_90a", "../k", "0" * 64), ("sm_90a", "k", "0" * 63 + "/")],
)
def test_a_key_cannot_leave_the_directory(fields):
    with pytest.raises(CacheError, match="expected"):
        Key(*fields)


def test_long_kernel_names_make_valid_folders(store):
    entry = make(entry="gemmjit_" + "x" * 400)
    assert store.publish(entry)
    assert store.load(entry.key, VERSION) == entry


# Round trip


def test_what_was_published_is_loaded(store):
    entry = make()
    assert store.load(entry.key, VERSION) is None
    assert store.publish(entry)
    assert store.load(entry.key, VERSION) == entry
    assert leftovers(store) == []
    assert sorted(os.listdir(place(store, entry))) == sorted(FILES)  # BR-099: few files


def test_br140_any_directory_name_will_do(tmp_path):
    store = Store(tmp_path / "tést 测试 dir" / "\udce9")
    entry = make()
    assert store.publish(entry)
    assert store.load(entry.key, VERSION) == entry


def test_br108_targets_do_not_mix(store):
    entries = [make(target=target) for target in ("sm_80", "sm_90", "sm_90a", "sm_100f")]
    for entry in entries:
        assert store.publish(entry)
    for entry in entries:
        assert store.load(entry.key, VERSION) == entry
    assert len({entry.key.identity for entry in entries}) == 4


def test_br108_an_image_for_another_architecture_is_refused(store, caplog):
    entry = make(cubin=fake_cubin(80))
    assert store.publish(entry)
    assert store.load(entry.key, VERSION) is None
    assert "not a cubin for sm_90a" in warnings(caplog)[0]


def test_br104_each_compiler_version_has_its_own_entry(store):
    new, old = make(), make(nvrtc="13.0.88", cubin=fake_cubin(seed=1))
    store.publish(old)
    assert store.load(new.key, VERSION) is None
    store.publish(new)
    assert store.load(new.key, VERSION) == new
    assert store.load(new.key, "13.0.88") == old


def test_another_compiler_of_the_same_major_release_may_stand_in(store):
    for version in ("13.0.88", "13.10.2", "13.9.9", "14.0.1", "12.9.86", "scratch"):
        store.publish(make(nvrtc=version))
    key = make().key
    assert store.load(key, VERSION, any_version=True).nvrtc_version == "13.10.2"
    assert store.load(key, "13.0.88", any_version=True).nvrtc_version == "13.0.88"
    only = Store(store.root.parent / "other")
    only.publish(make(nvrtc="12.9.86"))
    assert only.load(key, None, any_version=True) is None


# Damage


def flip(data: bytes, position: int, bit: int) -> bytes:
    changed = bytearray(data)
    changed[position] ^= 1 << bit
    return bytes(changed)


DAMAGE = {
    "empty": lambda data: b"",
    "ten bytes": lambda data: data[:10],
    "half": lambda data: data[: len(data) // 2],
    "a bit": lambda data: flip(data, len(data) // 2, 3),
    "text": lambda data: b"not what was here\n",
    "longer": lambda data: data + b"\0",
    "missing": None,
}


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("name", FILES)
def test_br097_damage_is_seen_removed_and_told_once(store, caplog, name, how):
    entry = make()
    store.publish(entry)
    path = place(store, entry) / name
    damage = DAMAGE[how]
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage(path.read_bytes()))
    before = stats().damaged
    assert store.load(entry.key, VERSION) is None
    assert store.load(entry.key, VERSION) is None
    assert stats().damaged == before + 1
    assert len(warnings(caplog)) == 1
    assert "damaged" in warnings(caplog)[0]
    assert list(store.entries()) == []
    assert store.publish(entry)  # it heals
    assert store.load(entry.key, VERSION) == entry


def test_no_single_bit_can_change_unseen():
    entry = make(cubin=fake_cubin(size=50), log="")
    files = encode(entry)
    for name in FILES:
        for position in range(len(files[name])):
            damaged = {**files, name: flip(files[name], position, position % 8)}
            with pytest.raises(DamagedEntryError):
                decode(damaged, entry.key)


def test_br095_entries_that_were_swapped_are_refused(store, caplog):
    one, two = make("int one;"), make("int two;")
    store.publish(one)
    store.publish(two)
    first, second = place(store, one), place(store, two)
    first.rename(first.with_name("aside"))
    second.rename(first)
    first.with_name("aside").rename(second)
    assert [reason for _, reason in store.verify()] == [
        "it lies in the place of another kernel"
    ] * 2
    assert store.load(one.key, VERSION) is None
    assert store.load(two.key, VERSION) is None
    assert all("another kernel" in text for text in warnings(caplog))


def test_sound_metadata_of_another_layout_or_shape_is_refused(store):
    files = encode(make())
    meta = json.loads(files["meta.json"])
    from gemmjit.cache.entry import _digest

    for change in ({"schema": 2}, {"resources": None}, {"surprise": 1}, {"target": "../x"}):
        told = {k: v for k, v in {**meta, **change}.items() if k != "sha256"}
        told["sha256"] = _digest(told)
        with pytest.raises(DamagedEntryError):
            decode({**files, "meta.json": json.dumps(told).encode()})


def test_a_file_in_the_place_of_an_entry_is_replaced(store, caplog):
    entry = make()
    store.publish(entry)
    path = place(store, entry)
    shutil.rmtree(path)
    path.write_text("foreign")
    assert store.load(entry.key, VERSION) is None
    assert len(warnings(caplog)) == 1
    assert store.publish(entry)
    assert store.load(entry.key, VERSION) == entry


def test_a_file_in_the_place_of_a_folder_costs_a_warning(store, caplog):
    entry = make()
    (store.root / "v1").mkdir(parents=True)
    (store.root / "v1" / "sm_90a").write_text("foreign")
    assert store.load(entry.key, VERSION) is None
    assert not store.publish(entry)
    assert not store.publish(entry)
    assert 1 <= len(warnings(caplog)) <= 2
    assert leftovers(store) == []


def test_verify_names_what_is_wrong(store):
    good, bad = make("int good;"), make("int bad;")
    store.publish(good)
    store.publish(bad)
    (place(store, bad) / "kernel.cubin").write_bytes(b"")
    ((stored, reason),) = store.verify()
    assert stored.folder == bad.key.folder
    assert reason == "kernel.cubin has 0 bytes instead of 4064"
    assert store.remove(stored)
    assert store.verify() == []
    assert [store.read(s) for s in store.entries()] == [good]


# Races


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


# A file system that gives trouble


@pytest.mark.parametrize(
    "number",
    [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EXDEV, errno.EIO, errno.ESTALE],
)
@pytest.mark.parametrize("call", ["mkdir", "open", "fsync", "rename"])
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


# Who may write


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


# Locks


def test_lock_excludes_and_is_released(store):
    key = make().key
    with store.lock(key) as mine:
        assert mine
        with store.lock(key, timeout_seconds=0.05) as second:
            assert not second
        with store.lock(make("int other;").key, timeout_seconds=0.05) as other:
            assert other
    with store.lock(key, timeout_seconds=0.05) as again:
        assert again


def test_br117_the_lock_of_a_killed_process_is_free(store):
    key = make().key
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom gemmjit.cache import Key, Store\n"
        "with Store(Path(sys.argv[1])).lock(Key(*sys.argv[2:])) as held:\n"
        "    print(held, flush=True)\n    time.sleep(60)\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program, str(store.root), key.target, key.entry, key.identity],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout.readline().strip() == "True"
        with store.lock(key, timeout_seconds=0.05) as locked:
            assert not locked
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        holder.stdout.close()
    started = time.monotonic()
    with store.lock(key, timeout_seconds=20) as locked:
        assert locked
    assert time.monotonic() - started < 5


def test_br117_a_lock_that_is_held_for_too_long_is_told(store, caplog):
    key = make().key
    with store.lock(key), store.lock(key, timeout_seconds=0.05) as second:
        assert not second
    assert "another process has held the lock" in warnings(caplog)[0]


@pytest.mark.parametrize("error", [OSError(errno.ENOLCK, "none"), NotImplementedError("none")])
def test_a_file_system_without_locks_costs_one_warning(store, monkeypatch, caplog, error):
    def acquire(*arguments, **more):
        raise error

    monkeypatch.setattr(cache_locks.FileLock, "acquire", acquire)
    for source in ("a", "b"):
        with store.lock(make(source).key) as locked:
            assert not locked
    assert len(warnings(caplog)) == 1


def test_an_error_under_the_lock_is_not_hidden(store):
    with pytest.raises(ZeroDivisionError), store.lock(make().key):
        raise ZeroDivisionError
    with store.lock(make().key, timeout_seconds=0.05) as locked:
        assert locked


# Size


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
