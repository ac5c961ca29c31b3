"""The order in which directories are asked: the user's, then those that are only read."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from gemmjit.cache.entry import Entry
from gemmjit.cache.key import Key
from gemmjit.cache.places import max_bytes, shared_directories, user_directory
from gemmjit.cache.store import Store

__all__ = ["Layers", "current_layers"]


@dataclass(frozen=True, slots=True)
class Layers:
    """The directories of this process.

    Attributes
    ----------
    user : Store or None
        Read and written; None where there is no place for it.
    shared : tuple of Store
        Only read.
    """

    user: Store | None
    shared: tuple[Store, ...] = ()

    def find(
        self, key: Key, nvrtc_version: str | None, *, any_version: bool = False
    ) -> Entry | None:
        """Return the first entry that serves, or None.

        The work of one's own compiler is preferred, wherever it lies. That of another compiler of
        the same CUDA major release serves from a directory that is only read; from the user's
        only if `any_version` says so, since there one's own compiler can put its own beside it.
        """
        if nvrtc_version is not None:
            for store in self._all():
                entry = store.load(key, nvrtc_version)
                if entry is not None:
                    return entry
        for store in self._all():
            if any_version or not store.writable:
                entry = store.load(key, None, any_version=True)
                if entry is not None:
                    return entry
        return None

    def recall(self, digest: str) -> Key | None:
        """Return the kernel that a memo of any directory leads to, or None."""
        for store in self._all():
            key = store.recall(digest)
            if key is not None:
                return key
        return None

    def remember(self, digest: str, key: Key) -> bool:
        """Keep a memo in the user's directory; return whether it is there."""
        return self.user is not None and self.user.remember(digest, key)

    def publish(self, entry: Entry) -> bool:
        """Keep an entry in the user's directory, within its size; return whether it is there."""
        if self.user is None or not self.user.publish(entry):
            return False
        self.user.keep_within(max_bytes())
        return True

    def settle(self) -> bool:
        """Wait until the disk has what was published or loaded; return whether it has."""
        return self.user is None or self.user.settle()

    def lock(self, key: Key) -> AbstractContextManager[bool]:
        """Return a context that holds the lock of a kernel, if there is one to hold."""
        return nullcontext(False) if self.user is None else self.user.lock(key)

    def describe(self) -> str:
        """Return the directories on one line, for messages."""
        return ", ".join(str(store.root) for store in self._all()) or "none"

    def why_not(self, key: Key) -> str:
        """Return on one line which directories were asked for a kernel, and why none served."""
        told = [f"{store.root} ({store.why_not(key)})" for store in self._all()]
        if self.user is None:
            told.insert(0, "the user's directory (there is no place for one)")
        return "; ".join(told)

    def _all(self) -> tuple[Store, ...]:
        return ((self.user,) if self.user is not None else ()) + self.shared


_known: dict[tuple[Path | None, tuple[Path, ...]], Layers] = {}


def current_layers() -> Layers:
    """Return the layers that the environment asks for now."""
    places = (user_directory(), shared_directories())
    found = _known.get(places)
    if found is None:
        user = Store(places[0]) if places[0] is not None else None
        shared = tuple(Store(path, writable=False) for path in places[1] if path != places[0])
        found = _known[places] = Layers(user, shared)
    return found


os.register_at_fork(after_in_child=_known.clear)
