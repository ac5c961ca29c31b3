"""Where the cache lies: what the user said, else the user's cache directory, else a private one."""

from __future__ import annotations

import os
import re
from pathlib import Path

import platformdirs

from gemmjit import env
from gemmjit.cache.trust import distrust
from gemmjit.logs import warn_once

__all__ = [
    "DEFAULT_MAX_BYTES",
    "max_bytes",
    "named_directory",
    "parse_size",
    "shared_directories",
    "user_directory",
]

DEFAULT_MAX_BYTES = 2**30

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def user_directory() -> Path | None:
    """Return the directory that kernels are read from and written to, or None for memory only.

    ``GEMMJIT_CACHE_DIR`` wins. Without it, a home that is missing, ``/`` or not writable is
    replaced by a private folder among the temporary files, with one warning.
    """
    named = env.get("GEMMJIT_CACHE_DIR")
    if named is not None:
        chosen = _expanded("GEMMJIT_CACHE_DIR", named)
        if chosen is not None:
            return chosen
    usual = _usual()
    if usual is not None and _can_create(usual):
        return usual
    private = _private()
    warn_once(
        "cache",
        ("home",),
        "there is no home directory to keep kernels in; they go to %s. "
        "Choose a directory with GEMMJIT_CACHE_DIR",
        private or "memory only",
    )
    return private


def shared_directories() -> tuple[Path, ...]:
    """Return the directories of ``GEMMJIT_CACHE_PATH``, which are only read, in their order."""
    named = env.get("GEMMJIT_CACHE_PATH") or ""
    parts = (part.strip() for part in named.split(os.pathsep))
    found = (_expanded("GEMMJIT_CACHE_PATH", part) for part in parts if part)
    return tuple(path for path in found if path is not None)


def max_bytes() -> int:
    """Return the limit of the user's directory in bytes, from ``GEMMJIT_CACHE_MAX_SIZE``."""
    text = env.get("GEMMJIT_CACHE_MAX_SIZE")
    if text is None:
        return DEFAULT_MAX_BYTES
    size = parse_size(text)
    if size is None:
        warn_once(
            "cache",
            ("size", text),
            "GEMMJIT_CACHE_MAX_SIZE: expected a size such as 512M or 2G; got %r; using 1 GiB",
            text,
        )
        return DEFAULT_MAX_BYTES
    return size


def parse_size(text: str) -> int | None:
    """Return the bytes that a text such as ``512M`` or ``2 GiB`` means, or None if it is none."""
    match = _SIZE.fullmatch(text.strip())
    return None if match is None else int(float(match[1]) * _UNITS[match[2].lower()])


def named_directory(text: str, variable: str = "GEMMJIT_CACHE_DIR") -> Path | None:
    """Return the directory that a text in a variable names, or None."""
    return _expanded(variable, text)


def _expanded(variable: str, text: str) -> Path | None:
    try:
        return Path(text).expanduser().absolute()
    except (RuntimeError, OSError) as error:  # ~nobody, or a working directory that is gone
        warn_once("cache", (variable, text), "%s: %r cannot be used: %s", variable, text, error)
        return None


def _usual() -> Path | None:
    """Return the user's cache directory, or None where there is no home to hold one."""
    if not os.environ.get("XDG_CACHE_HOME", "").strip():
        home = os.path.expanduser("~")
        if not os.path.isabs(home) or home == "/":
            return None
    path = platformdirs.user_cache_path("gemmjit")
    return path if path.is_absolute() else None


def _can_create(path: Path) -> bool:
    """Return whether a directory exists or can be made; that it is read-only is no obstacle."""
    for place in (path, *path.parents):
        if os.path.exists(place):
            return place == path or (os.path.isdir(place) and os.access(place, os.W_OK | os.X_OK))
    return False


def _private() -> Path | None:
    import tempfile

    path = Path(tempfile.gettempdir()) / f"gemmjit-{os.geteuid()}"
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        return path if distrust(path.lstat()) is None and not path.is_symlink() else None
    except OSError:
        return None
