"""Entries that are damaged, swapped or not what they seem are refused."""

from __future__ import annotations

import json
import shutil

import pytest
from cache_makers import VERSION, fake_cubin, leftovers, make, place, warnings

from gemmjit.cache import DamagedEntryError, stats
from gemmjit.cache.entry import FILES, decode, encode

pytestmark = pytest.mark.usefixtures("each_warning_again")


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
