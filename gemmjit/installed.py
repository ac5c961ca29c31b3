"""Versions of installed packages by the names of their folders, without reading any metadata.

``importlib.metadata`` takes 10 ms to import and milliseconds to ask, which a first call would feel.
"""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from pathlib import Path

__all__ = ["installed"]

_ENDING = ".dist-info"


def installed(package: str, part: str = "") -> tuple[str, Path] | None:
    """Return the version of a package and the folder that it is installed in, or None.

    Packages that lie in an archive, or were installed as eggs, are not seen.

    Parameters
    ----------
    package : str
        Its name in lower case, as in ``nvidia-cuda-nvrtc``.
    part : str
        A file or folder of it; folders without that are not listed, which is quicker.
    """
    for place in sys.path:
        if not os.path.exists(os.path.join(place, part)):
            continue
        for name, version in _described(place or os.curdir):
            if name == package:
                return version, Path(place)
    return None


def _described(place: str) -> tuple[tuple[str, str], ...]:
    """Return name and version of each package in a folder."""
    try:
        return _listed(os.path.abspath(place), os.stat(place).st_mtime_ns)
    except OSError:  # it does not exist, or is an archive
        return ()


@lru_cache(maxsize=64)
def _listed(place: str, changed: int) -> tuple[tuple[str, str], ...]:
    found = []
    for folder in sorted(os.listdir(place)):
        if folder.endswith(_ENDING):
            name, _, version = folder[: -len(_ENDING)].rpartition("-")
            found.append((name.lower().replace("_", "-").replace(".", "-"), version))
    return tuple(found)
