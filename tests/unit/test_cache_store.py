"""One cache directory: identities, round trips, targets and compilers side by side."""

from __future__ import annotations

import os

import pytest
from cache_makers import VERSION, fake_cubin, leftovers, make, place, warnings

from gemmjit.cache import Key, Store, identity_of
from gemmjit.cache.entry import FILES
from gemmjit.errors import CacheError

pytestmark = pytest.mark.usefixtures("each_warning_again")


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
