"""One file of a cache: complete, checked, safe to open, and there as a whole or not at all."""

from __future__ import annotations

import json
import os
import random
import zipfile
from pathlib import Path

import pytest
from cache_makers import make
from command_line import run_json

import gemmjit
from gemmjit import build, cli
from gemmjit.cache import Store
from gemmjit.cache import archive as archive_module
from gemmjit.cache.archive import Archive, write_archive
from gemmjit.errors import CacheError

ENTRIES = [
    make(),
    make("int b;\n", target="sm_80"),
    make(nvrtc="13.0.48"),
    make("// 日本\n", kernel="k1", config="64x64", created=1.5),
]


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "kernels.zip"
    assert write_archive(path, ENTRIES)[0] == 4
    return path


def contents(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def rewrite(path: Path, files: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)


def test_what_goes_in_comes_out(file):
    key = lambda entry: (entry.target, entry.nvrtc_version, entry.source)  # noqa: E731
    assert sorted(Archive(file).entries(), key=key) == sorted(ENTRIES, key=key)


def test_equal_entries_make_equal_bytes(file, tmp_path):
    count, digest = write_archive(tmp_path / "again.zip", reversed(ENTRIES))
    assert (tmp_path / "again.zip").read_bytes() == file.read_bytes()
    assert count == 4
    Archive(file).check_digest(digest)
    Archive(file).check_digest(digest.upper())
    with pytest.raises(CacheError, match=r"sha256: expected 00; got [0-9a-f]{64}.* Copy"):
        Archive(file).check_digest("00")


def test_a_flipped_bit_never_changes_a_kernel(file):
    whole = file.read_bytes()
    chance = random.Random(0)
    good = list(Archive(file).entries())
    refused = 0
    for _ in range(200):
        data = bytearray(whole)
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        file.write_bytes(data)
        try:
            told = list(Archive(file).entries())
        except CacheError:
            refused += 1
        else:  # a bit that says nothing: a time stamp, a mode
            assert told == good
    assert refused > 150


@pytest.mark.parametrize("keep", [0, 1, 100, 0.5, 0.999])
def test_a_file_cut_short_is_refused(file, keep):
    data = file.read_bytes()
    file.write_bytes(data[: int(keep * len(data)) if isinstance(keep, float) else keep])
    with pytest.raises(CacheError, match="expected what gemmjit cache export wrote"):
        list(Archive(file).entries())


@pytest.mark.parametrize(
    "name",
    ["../../../etc/evil", "/etc/evil", "sm_90a/../../evil/kernel.cubin", "C:\\evil", "evil\0.txt",
     "sm_90a/x/13.5.37/evil"],
)  # fmt: skip
def test_a_name_that_leads_elsewhere_is_refused_and_nothing_is_written(file, name, tmp_path):
    files = contents(file)
    rewrite(file, {**files, name: b"evil"})
    with pytest.raises(CacheError, match="the entries of its index only"):
        list(Archive(file).entries())
    # Also if the index vouches for it.
    index = json.loads(files["gemmjit-cache.json"])
    index["entries"][name.rsplit("/", 1)[0]] = "00"
    rewrite(file, {**files, name: b"evil", "gemmjit-cache.json": json.dumps(index).encode()})
    with pytest.raises(CacheError, match="names what is no entry"):
        list(Archive(file).entries())
    before = sorted(tmp_path.rglob("*"))
    assert cli.main(["cache", "import", str(file), "--cache-dir", str(tmp_path / "d" / "e")]) == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_entries_that_are_not_what_their_place_says_are_refused(file):
    files = contents(file)
    one, other = sorted({name.rpartition("/")[0] for name in files if "/" in name})[:2]
    swapped = dict(files)
    for part in ("kernel.cubin", "kernel.ptx", "kernel.cu", "meta.json"):
        swapped[f"{one}/{part}"] = files[f"{other}/{part}"]
        swapped[f"{other}/{part}"] = files[f"{one}/{part}"]
    rewrite(file, swapped)
    with pytest.raises(CacheError, match=r"checksum of .*meta\.json is wrong"):
        list(Archive(file).entries())
    import hashlib

    index = {"schema": 1, "entries": {
        place: hashlib.sha256(swapped[f"{place}/meta.json"]).hexdigest() for place in (one, other)
    }}  # fmt: skip
    mine = {n: d for n, d in swapped.items() if n.startswith((one, other))}
    rewrite(file, {**mine, "gemmjit-cache.json": json.dumps(index).encode()})
    with pytest.raises(CacheError, match="holds another kernel"):
        list(Archive(file).entries())


def test_other_files_are_refused(tmp_path, file):
    (tmp_path / "text").write_text("hello")
    with pytest.raises(CacheError, match=r"text: .*Copy or export"):
        list(Archive(tmp_path / "text").entries())
    with pytest.raises(CacheError, match=r"expected one that can be read; got .*No such file"):
        list(Archive(tmp_path / "none").entries())
    with pytest.raises(CacheError, match=r"Is a directory"):
        list(Archive(tmp_path).entries())
    rewrite(tmp_path / "zip", {"readme": b"hello"})
    with pytest.raises(CacheError, match=r"gemmjit-cache\.json is missing"):
        list(Archive(tmp_path / "zip").entries())
    for index in (b"", b"[]", b'{"schema": 1}', b'{"schema": 1, "entries": [1]}'):
        rewrite(tmp_path / "zip", {"gemmjit-cache.json": index})
        with pytest.raises(CacheError, match="is no index"):
            list(Archive(tmp_path / "zip").entries())
    rewrite(tmp_path / "zip", {"gemmjit-cache.json": b'{"schema": 2, "entries": {}}'})
    with pytest.raises(CacheError, match=r"expected the layout v1 .* has v2\. Export"):
        list(Archive(tmp_path / "zip").entries())


def test_a_member_that_unpacks_without_end_is_refused(file, monkeypatch):
    monkeypatch.setattr(archive_module, "_LARGEST", 1000)
    with pytest.raises(CacheError, match="larger than 1000 bytes"):
        list(Archive(file).entries())


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path, monkeypatch):
    with pytest.raises(CacheError, match=r"got .*none/x\.zip: No such file.* Choose"):
        write_archive(tmp_path / "none" / "x.zip", ENTRIES)
    (tmp_path / "x.zip").write_text("what was there")

    def full(fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CacheError, match="No space left"):
        write_archive(tmp_path / "x.zip", ENTRIES)
    assert [p.name for p in tmp_path.iterdir()] == ["x.zip"]
    assert (tmp_path / "x.zip").read_text() == "what was there"


# The commands


@pytest.fixture
def empty_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("GEMMJIT_CACHE_DIR", str(tmp_path / "cache"))
    build.clear_memory()
    yield tmp_path / "cache"
    build.clear_memory()


def test_export_and_import(empty_cache, monkeypatch, tmp_path, capsys):
    kernels = [gemmjit.compile("k0", None, arch) for arch in ("sm_80", "sm_90a")]
    path = str(tmp_path / "all.zip")
    told = run_json(capsys, "cache", "export", path)
    assert told["entries"] == 2
    assert told["num_bytes"] == os.stat(path).st_size
    some = run_json(capsys, "cache", "export", str(tmp_path / "some.zip"), "--target", "sm_80")
    assert some["entries"] == 1

    monkeypatch.setenv("GEMMJIT_CACHE_DIR", str(tmp_path / "other"))
    assert cli.main(["cache", "import", path, "--sha256", "0" * 64]) == 1
    assert "sha256: expected 000" in capsys.readouterr().err
    told = run_json(capsys, "cache", "import", path, "--sha256", told["sha256"])
    assert told == {"directory": str(tmp_path / "other"), "new": 2, "present": 0}
    assert run_json(capsys, "cache", "import", path)["present"] == 2
    assert run_json(capsys, "cache", "verify")["damaged"] == []
    build.clear_memory()
    monkeypatch.setenv("GEMMJIT_DISABLE_JIT", "1")
    for kernel in kernels:
        again = gemmjit.compile("k0", None, kernel.target)
        assert again.from_cache
        assert (again.cubin, again.ptx, again.identity) == (
            kernel.cubin,
            kernel.ptx,
            kernel.identity,
        )


def test_export_takes_every_layer_once(empty_cache, monkeypatch, tmp_path, capsys):
    gemmjit.compile("k0", None, "sm_80")
    monkeypatch.setenv("GEMMJIT_CACHE_PATH", str(empty_cache))
    monkeypatch.setenv("GEMMJIT_CACHE_DIR", str(tmp_path / "user"))
    build.clear_memory()
    gemmjit.compile("k0", None, "sm_90a")
    path = str(tmp_path / "all.zip")
    assert run_json(capsys, "cache", "export", path)["entries"] == 2
    argv = ("cache", "export", path, "--cache-dir", str(tmp_path / "user"))
    assert run_json(capsys, *argv)["entries"] == 1


def test_export_leaves_out_what_is_damaged_and_says_so(empty_cache, tmp_path, capsys):
    path = str(tmp_path / "all.zip")
    assert cli.main(["cache", "export", path]) == 1
    assert "got none. Compile some with gemmjit prewarm" in capsys.readouterr().err
    gemmjit.compile("k0", None, "sm_80")
    gemmjit.compile("k0", None, "sm_90a")
    first = next(Store(empty_cache).entries())
    cubin = first.path / "kernel.cubin"
    cubin.write_bytes(cubin.read_bytes()[:-1])
    told = run_json(capsys, "cache", "export", path, status=1)
    assert (told["entries"], len(told["damaged"])) == (1, 1)
    assert len(list(Archive(Path(path)).entries())) == 1


def test_damage_is_found_before_anything_is_imported(empty_cache, file, capsys):
    files = contents(file)
    last = sorted(name for name in files if name.endswith(".cubin"))[-1]
    rewrite(file, {**files, last: files[last][:-1] + b"?"})
    assert cli.main(["cache", "import", str(file)]) == 1
    assert "checksum of kernel.cubin is wrong" in capsys.readouterr().err
    assert not list(Store(empty_cache).entries())


def test_an_import_mends_what_the_directory_has_damaged(empty_cache, file, capsys):
    assert cli.main(["cache", "import", str(file)]) == 0
    store = Store(empty_cache)
    before = [store.read(one) for one in store.entries()]
    for part in ("meta.json", "kernel.cubin"):  # as after a loss of power
        next(store.entries()).path.joinpath(part).write_bytes(b"")
        capsys.readouterr()
        told = run_json(capsys, "cache", "import", str(file))
        assert (told["new"], told["present"]) == (1, len(before) - 1)
        assert store.verify() == []


def test_import_where_nothing_can_be_kept(monkeypatch, file, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    argv = ["cache", "import", str(file), "--cache-dir", str(tmp_path / "file" / "cache")]
    assert cli.main(argv) == 1
    assert "can" in capsys.readouterr().err
