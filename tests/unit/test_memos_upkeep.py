"""Memos in layers, in archives, under upkeep, and between processes."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cache_makers import leftovers, make, warnings
from command_line import run_json
from memo_files import memo_files, start_anew, user_store
from tiny_kernel import Tiny, fresh_process

from gemmjit import cli, templating
from gemmjit.arch import Arch
from gemmjit.build import build
from gemmjit.cache import Store
from gemmjit.cache.archive import Archive, write_archive
from gemmjit.cache.memos import Memo
from gemmjit.errors import CacheError
from gemmjit.ops.dispatch import build_all, spec_for
from gemmjit.prewarm import prewarm
from gemmjit.problem import Problem

pytestmark = pytest.mark.usefixtures("place")


# Layers


def test_a_layer_that_is_only_read_serves_its_memos(place, rendered, monkeypatch):
    for outcome in prewarm([Tiny()]):
        assert outcome.status == "compiled"
    (place / "cache").rename(place / "layer")
    layer = place / "layer"
    before = {p: p.stat().st_mtime_ns for p in layer.rglob("*")}
    monkeypatch.setenv("GEMMJIT_CACHE_PATH", str(layer))
    monkeypatch.setenv("GEMMJIT_DISABLE_JIT", "1")
    start_anew(rendered)
    assert build(Tiny()).from_cache
    assert rendered == []
    assert not (place / "cache").exists()
    assert {p: p.stat().st_mtime_ns for p in layer.rglob("*")} == before


def test_prewarming_what_is_there_writes_the_memos_that_are_missing(place, rendered):
    prewarm([Tiny(2), Tiny(3)])
    assert len(memo_files(place / "cache")) == 2
    shutil.rmtree(place / "cache" / "v1" / "memos")
    assert [o.status for o in prewarm([Tiny(2), Tiny(3)])] == ["present", "present"]
    assert len(memo_files(place / "cache")) == 2
    start_anew(rendered)
    assert [o.status for o in prewarm([Tiny(2), Tiny(3)])] == ["present", "present"]
    assert rendered == []


def test_where_nothing_can_be_written_nothing_is_told(place, rendered, monkeypatch, caplog):
    build(Tiny())
    shutil.rmtree(place / "cache" / "v1" / "memos")
    (place / "cache" / "v1" / "memos").write_text("a file")
    for _ in range(2):
        start_anew(rendered)
        assert build(Tiny()).from_cache
        assert rendered == [Tiny().template]
    assert warnings(caplog) == []
    assert leftovers(user_store()) == []


# Looking after them


def test_memos_go_with_their_kernels(store):
    entries = [make(f"int a{i};\n") for i in range(3)]
    for number, entry in enumerate(entries):
        store.publish(entry)
        assert store.remember(f"{number:064x}", entry.key)
        path = store.root / "v1" / entry.target / entry.key.folder / entry.nvrtc_version
        os.utime(path, (1000 + number, 1000 + number))
    assert store.size() == sum(s.num_bytes for s in store.entries()) + sum(
        s.num_bytes for s in store.memos()
    )
    removed = store.prune(store.size() - 1)
    assert [s.folder for s in removed] == [entries[0].key.folder]
    assert {m.identity for m in store.sound_memos()} == {e.key.identity for e in entries[1:]}


def test_pruning_removes_damaged_and_forgotten_memos_only(store):
    kept, old = make("int kept;\n"), make("int old;\n")
    store.publish(kept)
    store.remember("1" * 64, kept.key)
    store.remember("2" * 64, old.key)  # its kernel may lie in another directory
    store.remember("3" * 64, old.key)
    memos = store.root / "v1" / "memos"
    os.utime(memos / f"{'3' * 64}.json", (1000, 1000))
    (memos / f"{'4' * 64}.json").write_text("damaged")
    assert store.prune(2**30) == []
    assert {path.name[0] for path in memos.iterdir()} == {"1", "2"}


def test_the_use_of_a_memo_is_seen(place):
    build(Tiny())
    (path,) = memo_files(place / "cache")
    os.utime(path, (1000, 1000))
    start_anew([])
    build(Tiny())
    assert path.stat().st_mtime > 1_000_000


def test_what_a_killed_process_left_is_removed(store):
    store.publish(make())
    aside = store.root / "v1" / ".tmp" / "1-dead"
    aside.write_text("half a memo")
    store.prune(2**30)
    assert aside.exists()
    os.utime(aside, (1000, 1000))
    store.prune(2**30)
    assert not aside.exists()


# The command, and archives


def test_the_command_knows_memos(place, capsys):
    prewarm([Tiny(2), Tiny(3)])
    (row,) = run_json(capsys, "cache", "info")["directories"]
    assert (row["num_entries"], row["num_memos"]) == (2, 2)
    assert [r["num_memos"] for r in run_json(capsys, "cache", "ls")["entries"]] == [1, 1]
    assert cli.main(["cache", "info"]) == 0
    assert "2 memos" in capsys.readouterr().out
    assert run_json(capsys, "cache", "verify")["damaged"] == []
    path = memo_files(place / "cache")[0]
    path.write_bytes(path.read_bytes().replace(b"sm_90a", b"sm_90f"))
    assert cli.main(["cache", "verify"]) == 1
    assert f"{path}: the checksum of the memo is wrong" in capsys.readouterr().out
    assert cli.main(["cache", "verify", "--remove"]) == 0
    assert not path.exists()
    assert cli.main(["cache", "clear", "--yes"]) == 0
    assert memo_files(place / "cache") == []


def test_memos_travel_with_their_kernels(place, rendered, monkeypatch, capsys):
    prewarm([Tiny(2), Tiny(3)])
    user_store().remember("6" * 64, make("int elsewhere;\n").key)  # leads to no kernel here
    assert cli.main(["cache", "export", str(place / "one.zip")]) == 0
    monkeypatch.setenv("GEMMJIT_CACHE_DIR", str(place / "new"))
    assert cli.main(["cache", "import", str(place / "one.zip")]) == 0
    assert len(memo_files(place / "new")) == 2
    monkeypatch.setenv("GEMMJIT_DISABLE_JIT", "1")
    start_anew(rendered)
    assert build(Tiny(2)).from_cache
    assert build(Tiny(3)).from_cache
    assert rendered == []
    assert cli.main(["cache", "export", str(place / "two.zip")]) == 0
    assert (place / "one.zip").read_bytes() == (place / "two.zip").read_bytes()


def test_an_archive_whose_memo_leads_elsewhere_is_refused(place, monkeypatch):
    entry, other = make("int a;\n"), make("int b;\n")
    good = Memo("7" * 64, *_parts(entry))
    write_archive(place / "good.zip", [entry], [good, Memo("8" * 64, *_parts(other))])
    assert Archive(place / "good.zip").memos() == [good]
    monkeypatch.setattr(Memo, "key", property(lambda memo: entry.key))  # a writer that cheats
    write_archive(place / "bad.zip", [entry], [Memo("8" * 64, "sm_80", *_parts(other)[1:])])
    monkeypatch.undo()
    with pytest.raises(CacheError, match="leads to no kernel of it"):
        Archive(place / "bad.zip").memos()


def _parts(entry):
    return entry.key.target, entry.key.entry, entry.key.identity


# Processes


def _remember_often(root: Path, number: int) -> bool:
    store, key = Store(root), make("int a;\n").key
    return all(store.remember("5" * 64, key) and store.recall("5" * 64) == key for _ in range(50))


def test_processes_that_write_one_memo_at_once_always_read_a_whole_one(store):
    with multiprocessing.get_context("fork").Pool(4) as pool:
        done = pool.starmap(_remember_often, [(store.root, n) for n in range(4)])
    assert done == [True] * 4
    assert leftovers(store) == []
    assert store.recall("5" * 64) == make("int a;\n").key


def test_processes_share_memos(place):
    (from_cache, _, identity, _), _ = fresh_process()
    assert not from_cache
    (memo,) = user_store().sound_memos()  # the same that this process would look for
    kernel = build(Tiny())
    assert memo.identity == identity == kernel.identity
    assert len(memo_files(place / "cache")) == 1


WARM = """
import json, sys
opened = []
sys.addaudithook(lambda name, args: opened.append(str(args[0])) if name == 'open' else None)
import gemmjit
gemmjit.grouped_mm
from gemmjit.arch import Arch
from gemmjit.build import find_first
from gemmjit.ops.dispatch import spec_for
problem = gemmjit.Problem.contiguous(num_groups=2, rows=64, n=64, k=64)
spec = spec_for(problem, Arch(90), 'k0')
imported = set(sys.modules)
del opened[:]
kernel = find_first(spec.alternatives)
count = len(opened)
print(json.dumps([kernel is not None, sorted(set(sys.modules) - imported),
                  sorted({n.split('.')[0] for n in sys.modules}), opened]))
"""


def test_a_warm_start_imports_no_jinja_and_opens_few_files(place, monkeypatch):
    monkeypatch.delenv("GEMMJIT_TEMPLATE_PATH")
    problem = Problem.contiguous(num_groups=2, rows=64, n=64, k=64)
    build_all(spec_for(problem, Arch(90), "k0"))
    done = subprocess.run([sys.executable, "-c", WARM], capture_output=True, text=True, check=True)
    found, late, imported, opened = json.loads(done.stdout)
    assert found
    assert late == []  # whatever a warm start needs is imported with gemmjit
    assert not {"jinja2", "markupsafe", "asyncio", "email", "zipfile"} & set(imported)
    templates = [p for p in opened if "templates" in Path(p).parts or "_templates" in Path(p).parts]
    others = {p for p in opened if p not in templates and not p.isdecimal()}  # no descriptors
    assert (
        len(templates)
        == len(set(templates))
        == sum(p.is_file() for p in templating.templates_root().rglob("*"))
    )
    # The code that renders, pyproject.toml in a checkout, memo, the entry's folder and files.
    assert len(others) <= 3 + 1 + 1 + 1 + 4, others


FIRST_CALL = """
import json, sys
sys.path.insert(0, sys.argv[1])
import numpy as np
import gemmjit
gemmjit.grouped_mm
from fake_gpu import framework
from gemmjit.cache import stats
with framework("cupy") as (fake, maker):
    a, b = maker.empty(128, 64), maker.empty(2, 64, 64)
    offs = maker.offsets([64, 128])
    imported = set(sys.modules)
    gemmjit.grouped_mm(a, b, offs=offs)
    print(json.dumps([len(fake.launches), stats().hits, stats().compiles,
                      sorted(set(sys.modules) - imported)]))
"""


def test_a_first_call_with_a_warm_cache_imports_nothing(place, monkeypatch):
    pytest.importorskip("cupy")
    monkeypatch.delenv("GEMMJIT_TEMPLATE_PATH")
    argv = [sys.executable, "-c", FIRST_CALL, str(Path(__file__).parents[1])]
    told = [
        json.loads(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)
        for _ in range(2)
    ]
    assert told[0][:3] == [1, 0, 1]
    assert "jinja2" in told[0][3]  # the cold one renders
    assert told[1] == [1, 1, 0, []]
