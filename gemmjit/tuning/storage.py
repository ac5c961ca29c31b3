"""The file of tuned records: written whole or not at all, by one process at a time."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from gemmjit.cache import user_directory
from gemmjit.cache.locks import held
from gemmjit.errors import CacheError, GemmjitError
from gemmjit.selection import records
from gemmjit.selection.records import FILE, SCHEMA, Record
from gemmjit.tuning.tasks import Task

__all__ = ["Storage", "read_file", "write_file"]

_LOCK = "tuned.lock"
_LOCK_SECONDS = 10.0


class Storage:
    """The records in a cache directory.

    Parameters
    ----------
    directory : Path, optional
        By default the user's cache directory.

    Raises
    ------
    CacheError
        If there is no place for one.
    """

    def __init__(self, directory: Path | None = None) -> None:
        found = directory or user_directory()
        if found is None:
            raise CacheError(
                "tune: expected a directory for the records; there is no home to hold one. "
                "Choose one with GEMMJIT_CACHE_DIR"
            )
        self.directory = found
        self.path = found / FILE

    def entries(self) -> list[Mapping[str, Any]]:
        """Return every entry, those of other installations among them."""
        return records.read(self.path)

    def listed(self) -> list[Mapping[str, Any]]:
        """Return every entry, for a person to see.

        Raises
        ------
        CacheError
            If the file is no file of records, or does not count: everybody can write to it, say.
        """
        try:
            return records.load(self.path)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise CacheError(
                f"tune: expected a file of records; got {self.path}: {reason}. Move it away"
            ) from error

    def find(self, task: Task, gpu: str, driver: str) -> Mapping[str, Any] | None:
        """Return what was recorded for a task on this GPU, driver and these kernels."""
        wanted = task.bucket.to_dict()
        return next(
            (
                entry
                for entry in self.entries()
                if entry.get("bucket") == wanted
                and entry.get("gpu") == gpu
                and entry.get("driver") == driver
                and entry.get("digest") == records.kernels_digest()
            ),
            None,
        )

    def add(self, new: Iterable[Mapping[str, Any]], *, keep_newer: bool = False) -> int:
        """Write entries in the place of those of the same GPU and bucket; return how many.

        Parameters
        ----------
        new : iterable of mapping
        keep_newer : bool
            Leave an entry that is there alone if its date is later.

        Raises
        ------
        CacheError
            If the file cannot be written, or holds something else than records.
        """
        try:
            if not self.directory.is_dir():
                self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            with held(self.directory / _LOCK, _LOCK_SECONDS):
                return self._merge(new, keep_newer)
        except OSError as error:
            raise CacheError(
                f"tune: expected to write {self.path}; got {error.strerror or error}. "
                "Choose another directory with GEMMJIT_CACHE_DIR"
            ) from error

    def clear(self) -> int:
        """Remove every record; return how many there were."""
        number = len(self.entries())
        with suppress(FileNotFoundError):
            self.path.unlink()
        records.forget()
        return number

    def _merge(self, new: Iterable[Mapping[str, Any]], keep_newer: bool) -> int:
        kept = {_key(entry): entry for entry in self.listed()}
        written = 0
        for entry in new:
            old = kept.get(_key(entry))
            if keep_newer and old is not None and str(old.get("date")) >= str(entry.get("date")):
                continue
            kept[_key(entry)] = entry
            written += 1
        self._write(list(kept.values()))
        records.forget()
        return written

    def _write(self, entries: list[Mapping[str, Any]]) -> None:
        aside = self.directory / f".{FILE}-{os.getpid()}-{uuid.uuid4().hex}"
        write_file(aside, entries)
        try:
            os.replace(aside, self.path)
        except OSError:
            aside.unlink(missing_ok=True)
            raise


def write_file(path: Path, entries: Iterable[Mapping[str, Any]]) -> None:
    """Write records into a new file, an entry a line, and wait until the disk has them."""
    lines = ",\n".join(json.dumps(entry, sort_keys=True, allow_nan=False) for entry in entries)
    text = f'{{"schema": {SCHEMA}, "records": [\n{lines}\n]}}\n'
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())


def read_file(path: Path) -> list[Mapping[str, Any]]:
    """Return the entries of a file that a person names.

    Raises
    ------
    CacheError
        If it cannot be read, or is no file of records; or an entry of these kernels is no record.
    """
    try:
        entries = records.parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CacheError(
            f"tune: expected a file of records; got {path}: {error.strerror}. Check the path"
        ) from error
    except ValueError as error:
        raise CacheError(
            f"tune: expected a file that gemmjit tune wrote; got {path}: {error}. "
            "Move it away, or name another"
        ) from error
    for entry in entries:
        if entry.get("digest") == records.kernels_digest():
            try:
                Record.from_dict(entry)
            except (GemmjitError, KeyError, TypeError, AttributeError) as error:
                raise CacheError(
                    f"tune: expected records in {path}; got one that is broken: {error!r}. "
                    "Remove it"
                ) from error
    return entries


def _key(entry: Mapping[str, Any]) -> tuple[str, str]:
    return str(entry.get("gpu")), json.dumps(entry.get("bucket"), sort_keys=True)
