"""Notes of which kernel a template gave, so that it need not be rendered to be found.

A memo leads from a digest of all that rendering depends on to the key of a kernel, as one small
file of its own, ``<root>/v1/memos/<digest>.json``. It only saves work. It is believed after its
checksum, and what it leads to is checked as if it had been found by its text; whatever is wrong
with a memo, the template is rendered. Nothing about memos is ever told as a warning.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gemmjit.cache.directory import Directory
from gemmjit.cache.entry import DamagedEntryError, checked, signed
from gemmjit.cache.key import SCHEMA, Key
from gemmjit.cache.trust import distrust
from gemmjit.errors import CacheError

__all__ = ["Memo", "Memos", "StoredMemo", "memo_digest"]

_FOLDER = "memos"
_LARGEST = 4096  # bytes; a memo has a few hundred
_DIGEST = re.compile(r"[0-9a-f]{64}")


def memo_digest(
    fingerprint: str,
    template: str,
    variables: Mapping[str, object],
    entry: str,
    options: Sequence[str],
    target: str,
) -> str | None:
    """Return what a memo is found by, as 64 hexadecimal digits.

    Parameters
    ----------
    fingerprint : str
        As `gemmjit.templating.fingerprint` gives it.
    template : str
    variables : mapping
        Of the template.
    entry : str
        Name of the kernel in the cubin.
    options : sequence of str
        All options of the compiler.
    target : str

    Returns
    -------
    str or None
        None if a variable is neither a plain value nor made of such.
    """
    parts = (SCHEMA, fingerprint, template, dict(variables), entry, tuple(options), target)
    try:
        text = ascii(_plain(parts))
    except TypeError:
        return None
    return hashlib.sha256(text.encode()).hexdigest()


def _plain(value: object) -> object:
    """Return nested tuples of plain values that differ wherever a template could tell a difference.

    Raises
    ------
    TypeError
        If a value is of another kind.
    """
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    name = f"{kind.__module__}.{kind.__qualname__}"
    if isinstance(value, tuple):  # a named one is read by its names
        return (name, getattr(kind, "_fields", ()), *map(_plain, value))
    if isinstance(value, list):
        return (name, *map(_plain, value))
    if isinstance(value, dict):
        return (name, *((_plain(k), _plain(v)) for k, v in value.items()))
    raise TypeError(f"{name} is no plain value")


@dataclass(frozen=True, slots=True, order=True)
class Memo:
    """What one memo says.

    Attributes
    ----------
    digest : str
        What it is found by.
    target, entry, identity : str
        The key of the kernel.
    """

    digest: str
    target: str
    entry: str
    identity: str

    @property
    def key(self) -> Key:
        """The kernel that it leads to."""
        return Key(self.target, self.entry, self.identity)

    def encode(self) -> bytes:
        """Return the memo as a file."""
        return signed(
            {
                "schema": SCHEMA,
                "digest": self.digest,
                "target": self.target,
                "entry": self.entry,
                "identity": self.identity,
            }
        )

    @classmethod
    def decode(cls, data: bytes, digest: str | None = None) -> Memo:
        """Return the memo that a file holds.

        Raises
        ------
        DamagedEntryError
            If a bit of it is not as it was written, or it is another memo than was asked for.
        """
        told = checked(data, "the memo")
        try:
            if told.pop("schema") != SCHEMA:
                raise DamagedEntryError("it has another layout")
            memo = cls(**told)
            key = memo.key
            if _DIGEST.fullmatch(memo.digest) is None or not key.folder:
                raise DamagedEntryError("it names no digest")
        except (KeyError, TypeError, CacheError) as error:
            raise DamagedEntryError(f"it is incomplete: {error}") from error
        if digest is not None and memo.digest != digest:
            raise DamagedEntryError("it lies in the place of another memo")
        return memo


@dataclass(frozen=True, slots=True)
class StoredMemo:
    """One memo on disk.

    Attributes
    ----------
    path : pathlib.Path
    num_bytes : int
    last_used : float
        Seconds since the epoch.
    memo : Memo or None
        None if it is not sound.
    reason : str
        Why it is not.
    """

    path: Path
    num_bytes: int
    last_used: float
    memo: Memo | None
    reason: str = ""


class Memos(Directory):
    """The memos of a cache directory; its parameters are those of `Directory`."""

    def recall(self, digest: str) -> Key | None:
        """Return the kernel that a digest leads to, or None."""
        if not self.usable():
            return None
        path = self._memo(digest)
        try:
            memo = self._read_memo(path, digest)
        except (OSError, DamagedEntryError):
            return None
        if self.writable:
            with suppress(OSError):
                os.utime(path)
        return memo.key

    def remember(self, digest: str, key: Key) -> bool:
        """Keep a memo; return whether it is there now.

        It is written aside and renamed, but not synced: one that is lost costs a rendering.
        """
        if not self.writable or not self.usable():
            return False
        aside = None
        try:
            aside = self._own(".tmp") / f"{os.getpid()}-{uuid.uuid4().hex}"
            self._own(_FOLDER)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            descriptor = os.open(aside, flags, self._mode(0o600, 0o044))
            with open(descriptor, "wb") as file:
                file.write(Memo(digest, key.target, key.entry, key.identity).encode())
            os.replace(aside, self._memo(digest))
        except OSError:
            if aside is not None:
                with suppress(OSError):
                    aside.unlink(missing_ok=True)
            return False
        return True

    def memos(self) -> Iterator[StoredMemo]:
        """Yield the memos, in no order; those that vanish meanwhile are left out."""
        try:
            names = os.listdir(self._base / _FOLDER)
        except OSError:
            return
        for name in names:
            path = self._base / _FOLDER / name
            try:
                status = path.lstat()
                size, used = status.st_size, status.st_mtime
                try:
                    memo = self._read_memo(path, name.removesuffix(".json"))
                except DamagedEntryError as error:
                    yield StoredMemo(path, size, used, None, str(error))
                else:
                    yield StoredMemo(path, size, used, memo)
            except FileNotFoundError:
                continue
            except OSError as error:
                yield StoredMemo(path, 0, 0.0, None, error.strerror or str(error))

    def sound_memos(self) -> Iterator[Memo]:
        """Yield what the memos that are sound say, in no order."""
        for stored in self.memos():
            if stored.memo is not None:
                yield stored.memo

    def forget(self, stored: StoredMemo) -> bool:
        """Remove a memo; return whether it is gone."""
        return self._remove(stored.path)

    def _memo(self, digest: str) -> Path:
        return self._base / _FOLDER / f"{digest}.json"

    def _read_memo(self, path: Path, digest: str) -> Memo:
        self._believe(path.parent.stat(), _FOLDER)
        # Without waiting, should a pipe lie in the place of a file.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST:
                raise DamagedEntryError("it is no file of a memo's size")
            self._believe(status, path.name)
            return Memo.decode(file.read(), digest)

    def _believe(self, status: os.stat_result, name: str) -> None:
        reason = distrust(status, any_owner=not self.writable)
        if reason is not None:
            raise DamagedEntryError(f"{name} is refused: {reason}")
