"""One directory of compiled kernels.

::

    <root>/v1/<target>/<entry>-<identity>/<nvrtc version>/
                        {kernel.cubin, kernel.ptx, kernel.cu, meta.json}
    <root>/v1/memos/    one file a memo; see `gemmjit.cache.memos`
    <root>/v1/.tmp/     entries being written, and those being removed
    <root>/v1/.locks/   one file a kernel; see `gemmjit.cache.locks`

An entry is written aside and renamed into place, so that no process sees part of one; whoever
loses a race keeps the bytes that it has. An entry is believed only after its checksums. The disk
has it when the system writes it there, or when `settle` returns: what a machine that lost its
power kept of it is damaged, and compiled again. To wait for the disk took some 10 ms a kernel,
within a call (a virtual machine with an H200, 2026-11-30).
Trouble with the directory never reaches a caller of `load` and `publish`: it costs one warning.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from gemmjit.cache import locks
from gemmjit.cache.entry import DamagedEntryError, Entry, decode, encode
from gemmjit.cache.files import folders, read_files, sync_files, write_files
from gemmjit.cache.key import CUDA_MAJOR, Key, major_of
from gemmjit.cache.memos import Memos
from gemmjit.cache.stats import count
from gemmjit.logs import warn_once

__all__ = ["GRACE_SECONDS", "Store", "Stored"]

#: Nothing that was used this recently is evicted: a running process may be loading it.
GRACE_SECONDS = 600.0

_STALE_SECONDS = 3600.0  # what a killed process left in .tmp is removed after this
_MEMO_SECONDS = 30 * 86400.0  # templates change, and memos of old ones are never asked for again


@dataclass(frozen=True, slots=True)
class Stored:
    """One sub-entry on disk.

    Attributes
    ----------
    path : pathlib.Path
    target, folder, nvrtc_version : str
        The last three parts of the path.
    num_bytes : int
    last_used : float
        Seconds since the epoch.
    """

    path: Path
    target: str
    folder: str
    nvrtc_version: str
    num_bytes: int
    last_used: float


class Store(Memos):
    """The compiled kernels of one directory; its parameters are those of `Directory`."""

    def __init__(self, root: Path, *, writable: bool = True) -> None:
        super().__init__(root, writable=writable)
        self._size: int | None = None  # an estimate: what was counted last, and what we added
        self._unsettled: set[Path] = set()

    # Reading

    def load(
        self, key: Key, nvrtc_version: str | None, *, any_version: bool = False
    ) -> Entry | None:
        """Return an entry, or None.

        Parameters
        ----------
        key : Key
        nvrtc_version : str or None
            The compiler whose work is preferred.
        any_version : bool
            Whether that of another compiler of the same CUDA major release will do.
        """
        if not self.usable():
            return None
        folder = self._folder(key)
        versions = [nvrtc_version] if nvrtc_version is not None else []
        if any_version:
            versions += [v for v in self._versions(folder) if v != nvrtc_version]
        for version in versions:
            entry = self._load_one(folder / version, key)
            if entry is not None:
                count("hits")
                return entry
        return None

    def why_not(self, key: Key) -> str:
        """Return in a few words why the directory does not serve a kernel that it was asked for."""
        trouble = self.trouble()
        if trouble is not None:
            return trouble
        try:
            found = sorted(os.listdir(self._folder(key)))
        except OSError:
            found = []
        if self._versions(self._folder(key)):
            return "what it has of it cannot be used"
        if found:
            return f"it has it from NVRTC {', '.join(found)}, which CUDA {CUDA_MAJOR} cannot use"
        others = sum(1 for _ in folders(self._base / key.target))
        return f"it has {others or 'no'} other kernels for {key.target}"

    def _versions(self, folder: Path) -> list[str]:
        """Return the compilers of an entry that may stand in, newest first."""
        try:
            names = os.listdir(folder)
        except OSError:
            return []
        numbers = {name: tuple(int(p) for p in name.split(".") if p.isdecimal()) for name in names}
        mine = [name for name in names if major_of(name) == CUDA_MAJOR]
        return sorted(mine, key=numbers.__getitem__, reverse=True)

    def _load_one(self, path: Path, key: Key) -> Entry | None:
        try:
            entry = decode(self._read(path), key)
        except FileNotFoundError:
            return None
        except DamagedEntryError as error:
            self._discard(path, key, str(error))
            return None
        except OSError as error:
            warn_once("cache", ("read", str(self.root)), "%s cannot be read: %s", path, error)
            return None
        if self.writable:
            self._unsettled.add(path)  # whoever published it may not have waited
            with suppress(OSError):  # a time that is too old costs an eviction at worst
                os.utime(path)
        return entry

    def _read(self, path: Path) -> dict[str, bytes]:
        return read_files(path, any_owner=not self.writable)

    def _is_sound(self, path: Path, key: Key) -> bool:
        try:
            decode(self._read(path), key)
        except (OSError, DamagedEntryError):
            return False
        return True

    def _discard(self, path: Path, key: Key, reason: str) -> None:
        count("damaged")
        # Another process may have replaced what was read here.
        removed = self.writable and self._remove(path, lambda aside: self._is_sound(aside, key))
        warn_once(
            "cache",
            ("damaged", str(path)),
            "%s is damaged (%s); %s",
            path,
            reason,
            "removed, the kernel will be compiled again" if removed else "ignored",
        )

    # Writing

    def publish(self, entry: Entry) -> bool:
        """Put an entry in place; return whether it is there now, by us or by another process."""
        if not self.writable or not self.usable():
            return False
        final = self._folder(entry.key) / entry.nvrtc_version
        aside = None
        try:
            aside = self._own(f".tmp/{os.getpid()}-{uuid.uuid4().hex}")
            write_files(aside, encode(entry), self._mode(0o600, 0o044))
            added = sum(file.stat().st_size for file in aside.iterdir())
            self._rename(aside, final)
        except OSError as error:
            return self._gave_up(error)
        finally:
            if aside is not None:
                shutil.rmtree(aside, ignore_errors=True)
        self._unsettled.add(final)
        if self._size is not None:
            self._size += added
        return True

    def settle(self) -> bool:
        """Wait until the disk has what was published or loaded here; return whether it has."""
        while self._unsettled:
            try:
                sync_files(self._unsettled.pop())
            except FileNotFoundError:  # it was evicted meanwhile
                continue
            except OSError as error:
                return self._gave_up(error)
        return True

    def _rename(self, aside: Path, final: Path) -> None:
        """Move an entry into place; if another process was faster, its entry stays."""
        folder = str(final.parent.relative_to(self._base))
        for last in (False, True):
            self._own(folder)
            try:
                os.rename(aside, final)
                return
            except FileNotFoundError:  # an eviction took the folder while it was empty
                if last:
                    raise
            except OSError as error:
                if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
                    return
                raise

    def lock(
        self, key: Key, timeout_seconds: float = locks.TIMEOUT_SECONDS
    ) -> AbstractContextManager[bool]:
        """Return a context that holds the lock of a kernel; its value says whether it does."""
        if not self.writable or not self.usable():
            return nullcontext(False)
        try:
            folder = self._own(".locks")
        except OSError as error:
            return nullcontext(self._gave_up(error))
        return locks.held(folder / f"{key.target}-{key.folder[-32:]}", timeout_seconds)

    # Looking after it

    def entries(self) -> Iterator[Stored]:
        """Yield the sub-entries, in no order; those that vanish meanwhile are left out."""
        for target in folders(self._base):
            for folder in folders(target):
                for path in folders(folder):
                    with suppress(OSError):
                        num_bytes = sum(file.stat().st_size for file in path.iterdir())
                        used = path.stat().st_mtime
                        place = (target.name, folder.name, path.name)
                        yield Stored(path, *place, num_bytes, used)

    def read(self, stored: Stored) -> Entry:
        """Return a sub-entry.

        Raises
        ------
        DamagedEntryError
            If it is not sound, or lies in the place of another.
        OSError
            If it cannot be read, or is gone.
        """
        entry = decode(self._read(stored.path))
        place = (entry.target, entry.key.folder, entry.nvrtc_version)
        if place != (stored.target, stored.folder, stored.nvrtc_version):
            raise DamagedEntryError("it lies in the place of another kernel")
        return entry

    def verify(self) -> list[tuple[Stored, str]]:
        """Return the sub-entries that are not sound, each with the reason."""
        damaged = []
        for stored in self.entries():
            try:
                self.read(stored)
            except FileNotFoundError:
                continue
            except (OSError, DamagedEntryError) as error:
                damaged.append((stored, str(error)))
        return damaged

    def size(self) -> int:
        """Return the bytes of all entries and memos."""
        entries = sum(stored.num_bytes for stored in self.entries())
        return entries + sum(stored.num_bytes for stored in self.memos())

    def remove(self, stored: Stored) -> bool:
        """Remove a sub-entry; return whether it is gone."""
        return self._remove(stored.path)

    def keep_within(self, max_bytes: int) -> None:
        """Prune if the directory may have outgrown its limit.

        It is counted once a process and then whenever what this process has added since, on top of
        what it counted, passes the limit: counting a large directory on a network is slow.
        """
        if self._size is None or self._size > max_bytes:
            self.prune(max_bytes)

    def prune(self, max_bytes: int, grace_seconds: float = GRACE_SECONDS) -> list[Stored]:
        """Remove what was not used for longest, until the rest fits; return what was removed.

        What was used within the last `grace_seconds` stays, even if the rest then does not fit.
        """
        self._sweep()
        everything = sorted(self.entries(), key=lambda stored: stored.last_used)
        memos = sum(stored.num_bytes for stored in self.memos())
        excess = sum(stored.num_bytes for stored in everything) + memos - max_bytes
        limit = time.time() - grace_seconds
        removed = []
        for stored in everything:
            if excess <= 0 or stored.last_used > limit:
                break
            if self._remove(stored.path):
                removed.append(stored)
                excess -= stored.num_bytes
        self._size = excess + max_bytes
        self._forget_orphans({(stored.target, stored.folder) for stored in removed})
        return removed

    def _forget_orphans(self, removed: set[tuple[str, str]]) -> None:
        """Remove the memos of kernels that were removed, damaged ones, and those long unused."""
        limit = time.time() - _MEMO_SECONDS
        for stored in self.memos():
            key = None if stored.memo is None else stored.memo.key
            orphan = (
                key is not None
                and (key.target, key.folder) in removed
                and not self._folder(key).is_dir()  # it may hold another compiler's work
            )
            if key is None or orphan or stored.last_used < limit:
                self.forget(stored)

    def _sweep(self) -> None:
        """Remove what killed processes left behind."""
        limit = time.time() - _STALE_SECONDS
        with suppress(OSError):
            for path in (self._base / ".tmp").iterdir():
                with suppress(OSError):
                    if path.lstat().st_mtime >= limit:
                        continue
                    if path.is_dir() and not path.is_symlink():
                        shutil.rmtree(path, ignore_errors=True)
                    else:
                        path.unlink()
