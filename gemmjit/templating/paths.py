"""Where templates lie: overrides first, then the ones that come with gemmjit.

A template is named by its path below a root, with forward slashes: ``kernels/x.cu.j2``. Its text is
read through `Traversable.read_text`, so a zipped wheel works too.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextvars import ContextVar, Token
from functools import cache, lru_cache
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from gemmjit import env
from gemmjit.errors import TemplateError
from gemmjit.logs import logger

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

__all__ = ["overlays", "overridden", "override", "read_template", "templates_root"]

#: The head of our own ``pyproject.toml``: plain tables, then ours.
_OWN_PROJECT = re.compile(
    r'(?:\[build-system\]\n(?:[\w-]+ = [^\n"]*"[^\n"]*"\]?\n)*\n)?\[project\]\nname = "gemmjit"\n'
)

_SCOPED: ContextVar[tuple[Path, ...]] = ContextVar("gemmjit_templates", default=())


class _Standing(threading.local):
    """What plain calls of `override` left in force in this thread."""

    paths: tuple[Path, ...] = ()


_STANDING = _Standing()

#: Whether this process has overridden anything; most never do, and look here at every call.
ever_overridden = False


@cache
def templates_root() -> Traversable:
    """Return the directory of gemmjit's own templates.

    In a checkout of gemmjit it is ``templates/`` beside ``pyproject.toml``, so that edits are live;
    in an installed wheel, the package data. No other project's directory is ever taken.

    Raises
    ------
    TemplateError
        If the installation has lost its templates.
    """
    package = _package()
    if isinstance(package, Path):
        checkout = package.resolve().parent
        if (checkout / "templates").is_dir() and _is_own_project(checkout / "pyproject.toml"):
            return checkout / "templates"
    packaged = package.joinpath("_templates")
    if packaged.is_dir():
        return packaged
    raise TemplateError(
        f"templates: expected them in {packaged}; the directory is missing. "
        "The installation is incomplete: pip install --force-reinstall gemmjit"
    )


def _package() -> Traversable:
    """Return the folder of the package, wherever it was imported from."""
    here = Path(__file__).parents[1]
    if here.is_dir():
        return here
    from importlib.resources import files  # 4 ms, and only an archive needs it

    return files("gemmjit")


def _is_own_project(pyproject: Path) -> bool:
    try:
        text = pyproject.read_text(encoding="utf-8")
        if _OWN_PROJECT.match(text):
            return True
        import tomllib  # 2 ms with the parsing, and our own file is as we write it

        project = tomllib.loads(text).get("project", {})
    except (OSError, ValueError):
        return False
    return bool(project.get("name") == "gemmjit")


class override:
    """Let the templates of a directory take precedence over gemmjit's own.

    Files that the directory lacks come from the next directory, and at last from gemmjit. Nested
    overrides stack, the newest first.

    As a context manager, the override holds for the ``with`` block, in this thread or task only.
    As a plain call, it holds in this thread until `restore` is called on what it returned.

    Parameters
    ----------
    directory : str or os.PathLike
        A directory laid out like gemmjit's templates.

    Raises
    ------
    TemplateError
        If it is not a directory.

    Examples
    --------
    >>> with gemmjit.templates.override("my_templates"):
    ...     kernel = gemmjit.compile("k1")
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        path = _absolute(directory)
        if path is None or not path.is_dir():
            raise TemplateError(
                f"override: expected a directory of templates; got {str(path or directory)!r}. "
                "Check the path"
            )
        global ever_overridden
        ever_overridden = True
        self.directory = path
        self._token: Token[tuple[Path, ...]] | None = None
        _STANDING.paths = (path, *_STANDING.paths)

    def restore(self) -> None:
        """End the override; a second call does nothing."""
        if self._token is not None:
            _SCOPED.reset(self._token)
            self._token = None
        self._drop_standing()

    def _drop_standing(self) -> None:
        paths = list(_STANDING.paths)
        if self.directory in paths:
            paths.remove(self.directory)
            _STANDING.paths = tuple(paths)

    def __enter__(self) -> override:
        self._drop_standing()
        self._token = _SCOPED.set((self.directory, *_SCOPED.get()))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.restore()


def overridden() -> bool:
    """Return whether an `override` is in force; cheap enough for every call."""
    return ever_overridden and (bool(_SCOPED.get()) or bool(_STANDING.paths))


def overlays() -> tuple[Path, ...]:
    """Return the directories that take precedence over gemmjit's templates, first one first."""
    chosen = _SCOPED.get() + _STANDING.paths
    named = env.get("GEMMJIT_TEMPLATE_PATH")
    if named is None:
        return chosen
    return chosen + _listed(named)


def _absolute(directory: str | os.PathLike[str]) -> Path | None:
    try:
        return Path(directory).expanduser().absolute()
    except (RuntimeError, OSError, TypeError, ValueError):  # ~nobody, or no path at all
        return None


@lru_cache(maxsize=8)
def _listed(named: str) -> tuple[Path, ...]:
    """Return the directories that ``GEMMJIT_TEMPLATE_PATH`` lists; warn of those that are none."""
    parts = (part.strip() for part in named.split(os.pathsep))
    listed = tuple(_absolute(part) or Path(part) for part in parts if part)
    for path in listed:
        if not path.is_dir():
            logger("templating").warning(
                "GEMMJIT_TEMPLATE_PATH: expected directories of templates; got %s", path
            )
    return listed


def _candidates(name: str, above: tuple[Path, ...]) -> Iterator[Traversable]:
    parts = name.split("/")
    for root in (*above, templates_root()):
        place: Traversable = root
        for part in parts:
            place = place.joinpath(part)
        yield place


def read_template(name: str, above: tuple[Path, ...] | None = None) -> str | None:
    """Return the text of a template, or None when no directory has it.

    Parameters
    ----------
    name : str
        Path below a root, with forward slashes.
    above : tuple of Path, optional
        Directories that take precedence; by default those of `overlays`.

    Raises
    ------
    TemplateError
        If the name leaves the root, or the file cannot be read as UTF-8 or holds a NUL.
    """
    if name.startswith("/") or "\\" in name or any(p in ("", ".", "..") for p in name.split("/")):
        raise TemplateError(
            f"template: expected a path below the templates; got {name!r}. "
            "Name it as in kernels/simt_grouped_mm.cu.j2"
        )
    for place in _candidates(name, overlays() if above is None else above):
        try:
            if place.is_file():
                # Some editors begin a file with a byte order mark, which no compiler takes.
                text = place.read_text(encoding="utf-8-sig").replace("\r\n", "\n")
                if "\0" in text:  # the compiler would take it for the end
                    line = text.count("\n", 0, text.index("\0")) + 1
                    raise ValueError(f"expected text; got a NUL in line {line}. Remove it")
                return text
        except (OSError, ValueError) as error:
            raise TemplateError(f"template {name}: {place} cannot be read: {error}") from error
    return None
