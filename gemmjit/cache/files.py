"""The files of one entry: read with suspicion, and written."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from gemmjit.cache.entry import FILES, DamagedEntryError
from gemmjit.cache.trust import distrust

__all__ = ["folders", "read_files", "sync", "sync_files", "write_files"]

_LARGEST = 256 * 2**20  # bytes; no kernel comes near


def read_files(path: Path, *, any_owner: bool) -> dict[str, bytes]:
    """Return the files of a sub-entry.

    Parameters
    ----------
    path : pathlib.Path
        ``<target>/<entry>-<identity>/<version>`` below the versioned folder of a cache.
    any_owner : bool
        As for `gemmjit.cache.trust.distrust`.

    Raises
    ------
    FileNotFoundError
        If there is no such sub-entry.
    DamagedEntryError
        If it is not a directory, lacks a file, or others can write to it.
    OSError
        If the file system gives trouble.
    """
    for place in (path.parent.parent, path.parent, path):
        status = place.stat()
        if not stat.S_ISDIR(status.st_mode):
            raise DamagedEntryError(f"{place.name} is not a directory")
        _believe(status, place.name, any_owner)
    # By a descriptor: if another folder takes the name meanwhile, no files of both are mixed.
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return _read_all(path, folder, any_owner)
    finally:
        os.close(folder)


def _read_all(path: Path, folder: int, any_owner: bool) -> dict[str, bytes]:
    def opener(name: str, flags: int) -> int:
        # Without waiting, should a pipe lie in the place of a file.
        return os.open(name, flags | os.O_NONBLOCK, dir_fd=folder)

    files = {}
    for name in reversed(FILES):
        try:
            with open(name, "rb", opener=opener) as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    raise DamagedEntryError(f"{name} is not a file")
                _believe(status, name, any_owner)
                if status.st_size > _LARGEST:
                    raise DamagedEntryError(f"{name} has {status.st_size} bytes")
                files[name] = file.read()
        except (FileNotFoundError, IsADirectoryError):
            if not os.path.samestat(os.fstat(folder), path.stat()):  # it was evicted while we read
                raise FileNotFoundError(path) from None
            raise DamagedEntryError(f"{name} is missing") from None
    return files


def _believe(status: os.stat_result, name: str, any_owner: bool) -> None:
    reason = distrust(status, any_owner=any_owner)
    if reason is not None:
        raise DamagedEntryError(f"{name} is refused: {reason}")


def write_files(folder: Path, files: Mapping[str, bytes], mode: int) -> None:
    """Write files into an empty folder; the disk need not have them yet.

    Raises
    ------
    OSError
        If the file system refuses; what was written until then stays.
    """
    for name, data in files.items():
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = os.open(folder / name, flags, mode)
        with open(descriptor, "wb") as file:
            file.write(data)


def sync_files(folder: Path) -> None:
    """Wait until the disk has the files of an entry, and the names of the folders that lead there.

    Raises
    ------
    FileNotFoundError
        If it is not there any more.
    OSError
        If the disk refuses.
    """
    for name in FILES:
        descriptor = os.open(folder / name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    for above in (folder, folder.parent, folder.parent.parent):
        sync(above)


def sync(folder: Path) -> None:
    """Wait until the disk has the names in a folder; not every file system can."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def folders(path: Path) -> list[Path]:
    """Return the folders in a folder, hidden ones left out; none if it cannot be read."""
    found = []
    with suppress(OSError), os.scandir(path) as scan:
        for item in scan:
            with suppress(OSError):
                if not item.name.startswith(".") and item.is_dir():
                    found.append(path / item.name)
    return found
