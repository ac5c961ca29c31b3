"""build() and the directory: other processes, other compilers, damage, size."""

from __future__ import annotations

import logging
import os
import shutil
import time
from dataclasses import replace

import pytest
from tiny_kernel import Tiny, fresh_process, messages, relabel

from gemmjit.build import build, clear_memory
from gemmjit.cache import Store, store
from gemmjit.compiler import get_compiler

pytestmark = pytest.mark.usefixtures("place")


def test_br113_a_second_process_compiles_nothing_and_does_not_even_load_nvrtc(place):
    (cached, counts, identity, _), _ = fresh_process()
    assert not cached
    assert (counts["hits"], counts["misses"], counts["compiles"]) == (0, 1, 1)
    (cached, counts, again, loaded), _ = fresh_process()
    assert cached
    assert (counts["hits"], counts["misses"], counts["compiles"]) == (1, 0, 0)
    assert again == identity
    assert not loaded


def test_br110_br111_identity_depends_neither_on_place_nor_on_history(place):
    identities = set()
    for index, (seed, user) in enumerate((("0", "a"), ("1", "b"), ("random", "c"))):
        other = place / f"copy {index} é"
        shutil.copytree(place / "templates", other / "templates")
        variables = {
            "PYTHONHASHSEED": seed,
            "USER": user,
            "HOME": str(other),
            "CUDA_HOME": f"/usr/local/cuda-{index}",
            "GEMMJIT_TEMPLATE_PATH": str(other / "templates"),
            "GEMMJIT_CACHE_DIR": str(other / "cache"),
        }
        identities.add(fresh_process(**variables)[0][2])
    for factor in (5, 6):
        build(Tiny(factor))
    identities.add(build(Tiny()).identity)
    assert len(identities) == 1


def test_br104_another_nvrtc_compiles_again_and_both_stay(place, compiles):
    build(Tiny())
    relabel(Store(place / "cache"), "13.0.48")
    clear_memory()
    kernel = build(Tiny())
    assert not kernel.from_cache
    assert len(compiles) == 2
    versions = {stored.nvrtc_version for stored in Store(place / "cache").entries()}
    assert versions == {"13.0.48", get_compiler().version}


def test_another_version_of_gemmjit_shares_the_entry(place, compiles):
    build(Tiny())
    store = Store(place / "cache")
    (stored,) = store.entries()
    entry = store.read(stored)
    store.remove(stored)
    store.publish(replace(entry, gemmjit_version="99.0"))
    clear_memory()
    assert build(Tiny()).from_cache
    assert len(compiles) == 1


def test_br097_a_damaged_entry_is_compiled_again_with_one_warning(place, compiles, caplog):
    build(Tiny())
    for _ in range(2):
        clear_memory()
        (stored,) = Store(place / "cache").entries()
        cubin = stored.path / "kernel.cubin"
        if len(compiles) == 1:
            cubin.write_bytes(cubin.read_bytes()[:10])
        assert build(Tiny()).cubin[:4] == b"\x7fELF"
    assert len(compiles) == 2
    assert len(messages(caplog, logging.WARNING)) == 1


def test_a_directory_that_cannot_be_used_costs_one_warning_and_no_call(
    place, compiles, caplog, monkeypatch
):
    (place / "file").write_text("")
    monkeypatch.setenv("GEMMJIT_CACHE_DIR", str(place / "file"))
    assert build(Tiny(2)).registers > 0
    assert build(Tiny(3)).registers > 0
    assert len(messages(caplog, logging.WARNING)) == 1
    assert "expected a directory" in messages(caplog, logging.WARNING)[0]


def test_br114_the_loser_of_a_race_uses_its_own_bytes(place, monkeypatch):
    def rename(source, target):
        raise FileExistsError(17, "another was faster, and cannot be seen")

    monkeypatch.setattr(os, "rename", rename)
    kernel = build(Tiny())
    assert not kernel.from_cache
    assert kernel.cubin[:4] == b"\x7fELF"


def test_size_limit_is_kept_when_kernels_are_published(place, monkeypatch):
    build(Tiny(2))
    store = Store(place / "cache")
    (old,) = store.entries()
    os.utime(old.path, (1, 1))
    monkeypatch.setenv("GEMMJIT_CACHE_MAX_SIZE", str(old.num_bytes + 100))
    build(Tiny(3))
    (left,) = store.entries()
    assert left.folder.startswith("tiny_times_3")


def test_a_slow_directory_costs_its_time_once_and_nothing_else(place, monkeypatch, caplog):
    seconds = []

    def slowly(real):
        def call(*given, **more):
            seconds.append(0.1)
            time.sleep(seconds[-1])
            return real(*given, **more)

        return call

    for name in ("read_files", "write_files"):
        monkeypatch.setattr(store, name, slowly(getattr(store, name)))
    started = time.perf_counter()
    build(Tiny())
    assert time.perf_counter() - started >= sum(seconds) > 0.1  # it looked, and it wrote
    clear_memory()
    seconds.clear()
    assert build(Tiny()).from_cache
    assert sum(seconds) == pytest.approx(0.1)
    started = time.perf_counter()
    build(Tiny())
    assert time.perf_counter() - started < 0.1  # from memory
    assert len(seconds) == 1
    assert messages(caplog, logging.WARNING) == []
