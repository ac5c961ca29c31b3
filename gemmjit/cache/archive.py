"""Many entries as one file, and back: to copy a cache, or to keep it with a release.

The file is a ZIP archive that holds the files of each entry under the entry's place, and an index
with the SHA-256 of each entry's metadata, which in turn holds those of its other files, and with
the memos that lead to the entries. No name in it becomes a path: an entry is read, checked like one
on disk, and published under the place that follows from its contents. Equal entries and memos make
equal bytes: nothing in it tells when, where or by whom it was written, apart from the metadata that
the entries have anyway.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import uuid
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from gemmjit.cache.entry import FILES, META, DamagedEntryError, Entry, decode, encode
from gemmjit.cache.files import sync
from gemmjit.cache.key import SCHEMA
from gemmjit.cache.memos import Memo
from gemmjit.errors import CacheError

__all__ = ["Archive", "write_archive"]

_INDEX = "gemmjit-cache.json"
_LARGEST = 256 * 2**20  # bytes of one file of an entry; no kernel comes near
_LARGEST_INDEX = 64 * 2**20
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the first moment that ZIP knows
_PLACE = re.compile(r"sm_[0-9]+[af]?/[A-Za-z0-9_]+-[0-9a-f]{32}/[0-9]+(?:\.[0-9]+)*")


def write_archive(
    path: Path, entries: Iterable[Entry], memos: Iterable[Memo] = ()
) -> tuple[int, str]:
    """Write entries into one file, which is there as a whole or not at all.

    Parameters
    ----------
    path : pathlib.Path
        Replaced if it exists.
    entries : iterable of Entry
        Each another one.
    memos : iterable of Memo
        Those that lead to none of the entries are left out.

    Returns
    -------
    count : int
    digest : str
        SHA-256 of the file, as 64 hexadecimal digits.

    Raises
    ------
    CacheError
        If the file cannot be written.
    """
    by_place = sorted((_place(entry), entry) for entry in entries)
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with open(aside, "xb") as file:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
                _fill(archive, by_place, sorted(set(memos)))
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
        sync(path.parent)
        return len(by_place), _digest(path)
    except OSError as error:
        raise CacheError(
            f"file: expected one that can be written; got {path}: {error.strerror}. "
            "Choose another place"
        ) from error
    finally:
        aside.unlink(missing_ok=True)


def _fill(archive: zipfile.ZipFile, by_place: list[tuple[str, Entry]], memos: list[Memo]) -> None:
    index = {}
    keys = {entry.key for _, entry in by_place}
    for place, entry in by_place:
        files = encode(entry)
        index[place] = hashlib.sha256(files[META]).hexdigest()
        for name in FILES:
            _add(archive, f"{place}/{name}", files[name])
    kept = [json.loads(memo.encode()) for memo in memos if memo.key in keys]
    told = {"schema": SCHEMA, "entries": index, "memos": kept}
    _add(archive, _INDEX, (json.dumps(told, indent=1) + "\n").encode())


def _add(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    info = zipfile.ZipInfo(name, _EPOCH)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = 0o644 << 16
    info.create_system = 3
    archive.writestr(info, data)


def _place(entry: Entry) -> str:
    key = entry.key
    return f"{key.target}/{key.folder}/{entry.nvrtc_version}"


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True, slots=True)
class Archive:
    """A file that `write_archive` made.

    Attributes
    ----------
    path : pathlib.Path
    """

    path: Path

    def check_digest(self, expected: str) -> None:
        """Raise unless the file has a SHA-256.

        Raises
        ------
        CacheError
            If it has another, or cannot be read.
        """
        try:
            got = _digest(self.path)
        except OSError as error:
            raise self._unreadable(error) from error
        if got != expected.strip().lower():
            raise CacheError(
                f"sha256: expected {expected}; got {got} for {self.path}. Copy the file again, "
                "and do not use it before it matches"
            )

    def entries(self) -> Iterator[Entry]:
        """Yield the entries, each after all its checksums.

        Raises
        ------
        CacheError
            If the file is none, or is not as it was written; nothing that comes later is yielded.
        """
        try:
            with open(self.path, "rb") as file, zipfile.ZipFile(file) as archive:
                index = self._index(archive)
                self._check_names(archive, index)
                for place, digest in index.items():
                    files = {
                        name: self._member(archive, f"{place}/{name}", _LARGEST) for name in FILES
                    }
                    if hashlib.sha256(files[META]).hexdigest() != digest:
                        raise self._damaged(f"the checksum of {place}/{META} is wrong")
                    try:
                        entry = decode(files)
                    except DamagedEntryError as error:
                        raise self._damaged(f"{place}: {error}") from error
                    if _place(entry) != place:
                        raise self._damaged(f"{place} holds another kernel")
                    yield entry
        except OSError as error:
            raise self._unreadable(error) from error
        except (
            zipfile.BadZipFile,
            zlib.error,
            EOFError,
            NotImplementedError,
            RuntimeError,
        ) as error:
            raise self._damaged(str(error) or type(error).__name__) from error

    def memos(self) -> list[Memo]:
        """Return the memos, each after its checksum.

        Raises
        ------
        CacheError
            If the file is none, or one of them is damaged or leads to none of the entries.
        """
        try:
            with open(self.path, "rb") as file, zipfile.ZipFile(file) as archive:
                index, memos = self._told(archive)
        except OSError as error:
            raise self._unreadable(error) from error
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise self._damaged(str(error) or type(error).__name__) from error
        places = {place.rpartition("/")[0] for place in index}
        for memo in memos:
            if f"{memo.target}/{memo.key.folder}" not in places:
                raise self._damaged(f"the memo {memo.digest} leads to no kernel of it")
        return memos

    def _index(self, archive: zipfile.ZipFile) -> dict[str, str]:
        return self._told(archive)[0]

    def _told(self, archive: zipfile.ZipFile) -> tuple[dict[str, str], list[Memo]]:
        data = self._member(archive, _INDEX, _LARGEST_INDEX)
        try:
            told: dict[str, Any] = json.loads(data)
            schema, entries = told["schema"], told["entries"]
            good = all(_PLACE.fullmatch(p) and isinstance(d, str) for p, d in entries.items())
            texts = [json.dumps(memo).encode() for memo in told.get("memos", ())]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._damaged(f"{_INDEX} is no index") from error
        if schema != SCHEMA:
            raise CacheError(
                f"file: expected the layout v{SCHEMA} of a cache; {self.path} has v{schema}. "
                "Export it with the gemmjit that is to read it"
            )
        if not good:
            raise self._damaged(f"{_INDEX} names what is no entry")
        try:
            return dict(entries), [Memo.decode(text) for text in texts]
        except DamagedEntryError as error:
            raise self._damaged(f"a memo in {_INDEX}: {error}") from error

    def _check_names(self, archive: zipfile.ZipFile, index: dict[str, str]) -> None:
        expected = {_INDEX, *(f"{place}/{name}" for place in index for name in FILES)}
        names = archive.namelist()
        if len(names) != len(set(names)) or set(names) != expected:
            odd = sorted(set(names) ^ expected) or sorted({n for n in names if names.count(n) > 1})
            raise self._damaged(f"it should hold the entries of its index only, see {odd[0]!r}")

    def _member(self, archive: zipfile.ZipFile, name: str, limit: int) -> bytes:
        try:
            with archive.open(name) as member:
                data = _read(member, limit)
        except KeyError:
            raise self._damaged(f"{name} is missing") from None
        if data is None:
            raise self._damaged(f"{name} is larger than {limit} bytes")
        return data

    def _damaged(self, reason: str) -> CacheError:
        return CacheError(
            f"file: expected what gemmjit cache export wrote; got {self.path}: {reason}. "
            "Copy or export it again"
        )

    def _unreadable(self, error: OSError) -> CacheError:
        return CacheError(
            f"file: expected one that can be read; got {self.path}: {error.strerror}. "
            "Check the path"
        )


def _read(member: IO[bytes], limit: int) -> bytes | None:
    """Return what a member unpacks to, or None if that is more than a limit."""
    data = member.read(limit + 1)
    return data if len(data) <= limit else None
