"""What rendering depends on besides a template's name and its variables, as one digest.

That is every file that any template could include, in every directory that templates come from,
the code that renders, and Jinja. A text that was rendered under a fingerprint is the text that is
rendered under an equal one.
"""

from __future__ import annotations

import hashlib
import os
from functools import cache
from pathlib import Path

from gemmjit.errors import TemplateError
from gemmjit.installed import installed
from gemmjit.templating.paths import overlays, templates_root

__all__ = ["fingerprint"]

#: A directory of templates with more files or bytes than this is not read as a whole.
_MOST_FILES = 256
_MOST_BYTES = 4 * 2**20

_RENDERERS = ("rendering.py", "marks.py", "paths.py")


class _TooMuchError(Exception):
    """A directory is no mere directory of templates."""


def fingerprint() -> str | None:
    """Return the digest of all that rendering depends on now, or None where that is not known.

    It is not known where templates lie in an archive, where an override is a directory of many
    or of large files, or where Jinja's version cannot be told from its folder.

    Returns
    -------
    str or None
        64 hexadecimal digits.
    """
    renderer = _renderer()
    if renderer is None:
        return None
    digest = hashlib.sha256(renderer.encode())
    try:
        for root in (*overlays(), templates_root()):
            if not isinstance(root, Path):
                return None
            digest.update(_digest_of(root))
    except (OSError, TemplateError, _TooMuchError):
        return None
    return digest.hexdigest()


@cache
def _renderer() -> str | None:
    """Return what tells this process's way of rendering from others."""
    jinja, markup = installed("jinja2", "jinja2"), installed("markupsafe", "markupsafe")
    here = Path(__file__).parent
    try:
        code = [hashlib.sha256((here / name).read_bytes()).hexdigest() for name in _RENDERERS]
    except OSError:
        return None
    if jinja is None or markup is None:
        return None
    return " ".join((jinja[0], markup[0], *code))


def _digest_of(root: Path) -> bytes:
    """Return a digest of the names and contents of the files below a directory."""
    parts = []
    num_files = num_bytes = 0
    pending = [""]
    while pending:
        folder = pending.pop()
        with os.scandir(os.path.join(root, folder)) as scan:
            items = sorted(scan, key=lambda item: item.name)
        for item in items:
            inside = f"{folder}/{item.name}"
            num_files += 1  # folders too, so that a link to one above it comes to an end
            if item.is_dir():
                pending.append(inside.lstrip("/"))
            elif item.is_file():
                with open(item.path, "rb", buffering=0) as file:
                    data = file.readall()
                num_bytes += len(data)
                parts += [os.fsencode(inside), data]
            if num_files > _MOST_FILES or num_bytes > _MOST_BYTES:
                raise _TooMuchError
    lengths = ",".join(str(len(part)) for part in parts)
    return hashlib.sha256(b"".join((lengths.encode(), b";", *parts))).digest()
