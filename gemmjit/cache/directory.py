"""A cache directory as such: who may use it, what is created in it and how, what is removed."""

from __future__ import annotations

import os
import shutil
import stat
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from gemmjit.cache.key import SCHEMA, Key
from gemmjit.cache.trust import distrust
from gemmjit.errors import CacheError
from gemmjit.logs import warn_once

__all__ = ["EMPTY", "MISSING", "Directory"]

EMPTY = "it is empty"
MISSING = "it does not exist"
_FILE = "it is a file"


class Directory:
    """A directory that holds a cache, or will.

    Parameters
    ----------
    root : pathlib.Path
        Created by the first write, with mode 0700. Below a directory that exists, what is
        created is as readable as that directory.
    writable : bool
        False for a layer that is only read.
    """

    def __init__(self, root: Path, *, writable: bool = True) -> None:
        self.root = root
        self.writable = writable
        self._base = root / f"v{SCHEMA}"
        self._refused: str | None = None
        self._checked = False

    def __repr__(self) -> str:
        return f"Store({str(self.root)!r}, writable={self.writable})"

    def check(self) -> None:
        """Raise if the directory exists and must not be used.

        Raises
        ------
        CacheError
            If it is a file, belongs to somebody else, or others can write to it.
        """
        found = self.refusal()
        if found is None:
            return
        path, reason = found
        if reason == _FILE:
            raise CacheError(f"cache: expected a directory; got the file {path}. {self._other()}")
        if isinstance(reason, OSError):
            raise CacheError(
                f"cache: expected a directory that can be used; got {path}: {reason.strerror}. "
                f"{self._other()}"
            ) from reason
        raise CacheError(
            f"cache: expected a directory that only its owner can write to, since cubins "
            f"are code; got {path}: {reason}. Mend it with chmod go-w, or "
            f"{self._other()[0].lower()}{self._other()[1:]}"
        )

    def refusal(self) -> tuple[Path, str | OSError] | None:
        """Return why the directory must not be used, and which part of it, or None if it may."""
        for path in (self.root, self._base):
            try:
                status = path.stat()
            except (FileNotFoundError, PermissionError):
                return None
            except OSError as error:
                return path, error
            if not stat.S_ISDIR(status.st_mode):
                return path, _FILE
            reason = distrust(status, any_owner=not self.writable)
            if reason is not None:
                return path, reason
        return None

    def trouble(self) -> str | None:
        """Return in a few words why nothing comes from the directory, or None if it can be read."""
        found = self.refusal()
        if found is not None:
            path, reason = found
            text = reason.strerror if isinstance(reason, OSError) else reason
            inside = "" if path == self.root else f"its folder {path.name}: "
            return f"refused, {inside}{text}"
        for path in (self.root, self._base):
            try:
                os.listdir(path)
            except FileNotFoundError:
                return MISSING if path == self.root else EMPTY
            except OSError as error:
                return f"it cannot be read: {error.strerror}"
        return None

    def _other(self) -> str:
        if self.writable:
            return "Choose another with GEMMJIT_CACHE_DIR"
        return "Take it out of GEMMJIT_CACHE_PATH"

    def usable(self) -> bool:
        """Return whether the directory may be used; the first refusal is logged as a warning."""
        if not self._checked:
            self._refused = None
            try:
                self.check()
            except CacheError as error:
                self._refused = str(error)
            self._checked = os.path.exists(self._base)  # until then, somebody else may create it
        if self._refused is not None:
            warn_once("cache", ("refused", str(self.root)), "%s", self._refused)
            return False
        return True

    def _gave_up(self, error: OSError) -> bool:
        warn_once(
            "cache",
            ("write", str(self.root)),
            "%s cannot be written (%s); kernels that it lacks stay in memory only. "
            "Choose another directory with GEMMJIT_CACHE_DIR",
            self.root,
            error.strerror or error,
        )
        return False

    def _own(self, relative: str) -> Path:
        """Return a folder below the versioned one, creating what is missing."""
        if not self.root.is_dir():
            self.root.parent.mkdir(parents=True, exist_ok=True)
            self.root.mkdir(mode=0o700, exist_ok=True)
        mode = self._mode(0o700, 0o055)
        path = self._base
        _make(path, mode)
        for part in relative.split("/"):
            path = path / part
            _make(path, mode)
        return path

    def _mode(self, ours: int, theirs: int) -> int:
        """Return permissions: ours, and of theirs as many as the root gives."""
        return ours | stat.S_IMODE(self.root.stat().st_mode) & theirs

    def _remove(self, path: Path, keeps: Callable[[Path], bool] = lambda aside: False) -> bool:
        """Move an entry out of sight at once, then delete it, or put it back if `keeps` says so."""
        try:
            aside = self._own(".tmp") / f"{os.getpid()}-{uuid.uuid4().hex}"
            os.rename(path, aside)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        if keeps(aside):
            with suppress(OSError):  # there is another one again
                os.rename(aside, path)
                return False
        if aside.is_dir():
            shutil.rmtree(aside, ignore_errors=True)
        else:
            aside.unlink(missing_ok=True)
        with suppress(OSError):  # not empty: another compiler's work, or a new entry
            path.parent.rmdir()
        return True

    def _folder(self, key: Key) -> Path:
        return self._base / key.target / key.folder


def _make(folder: Path, mode: int) -> None:
    """Create a folder unless it is there."""
    for last in (False, False, False, True):
        try:
            folder.mkdir(mode=mode, exist_ok=True)
            return
        except FileExistsError:  # and gone at the second look: an eviction took it, empty
            if last:
                raise
