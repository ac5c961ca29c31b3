"""Every environment variable that gemmjit reads.

A variable is read when it is needed, never at import; an empty or blank value means the default.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from gemmjit.errors import InvalidEnvironmentError

__all__ = ["VARIABLES", "Variable", "choice", "flag", "get"]

_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable.

    Attributes
    ----------
    name, default, help : str
        Its name, its default in words, and what it does.
    values : tuple of str
        The values that it takes, in lower case; empty where it takes any text.
    """

    name: str
    default: str
    help: str
    values: tuple[str, ...] = ()

    @property
    def is_switch(self) -> bool:
        """Whether it is on or off."""
        return self.values == _TRUE + _FALSE


VARIABLES = (
    Variable("GEMMJIT_CACHE_DIR", "the user's cache directory", "Where compiled kernels are kept."),
    Variable(
        "GEMMJIT_CACHE_PATH",
        "none",
        "Further cache directories, only read, separated like PATH (a pre-warmed image, say).",
    ),
    Variable("GEMMJIT_CACHE_MAX_SIZE", "1 GiB", "Limit of the cache directory, as in 512M or 2G."),
    Variable(
        "GEMMJIT_DISABLE_JIT",
        "0",
        "1: never compile; a missing kernel is an error.",
        _TRUE + _FALSE,
    ),
    Variable(
        "GEMMJIT_TEMPLATE_PATH",
        "none",
        "Directories of templates that take precedence over the packaged ones.",
    ),
    Variable("GEMMJIT_ARCH", "sm_90a", "Architecture for NumPy calls and for the command line."),
    Variable(
        "GEMMJIT_EXECUTOR",
        "auto",
        "For NumPy arrays: emulator, reference, or auto (by the size of the problem).",
        ("auto", "emulator", "reference"),
    ),
    Variable(
        "GEMMJIT_CHECK",
        "0",
        "1: read device offsets back and validate them (slow).",
        _TRUE + _FALSE,
    ),
    Variable(
        "GEMMJIT_IGNORE_TUNED",
        "0",
        "1: choose tiles without what gemmjit tune has recorded.",
        _TRUE + _FALSE,
    ),
    Variable(
        "GEMMJIT_LOG_LEVEL",
        "none",
        "Log to standard error: debug, info, warning or error.",
        ("debug", "info", "warning", "error"),
    ),
    Variable(
        "GEMMJIT_LINEINFO",
        "0",
        "1: line tables in cubins, for profilers and debuggers.",
        _TRUE + _FALSE,
    ),
)

_BY_NAME = {v.name: v for v in VARIABLES}


def get(name: str) -> str | None:
    """Return the value of a known variable, or None when it is unset, empty or blank."""
    if name not in _BY_NAME:
        raise KeyError(f"{name} is not an environment variable of gemmjit")
    value = os.environ.get(name, "").strip()
    return value or None


def choice(name: str) -> str | None:
    """Return the value of a variable that takes one of a few, in lower case, or None.

    Raises
    ------
    InvalidEnvironmentError
        If it has another value.
    """
    value = get(name)
    allowed = _BY_NAME[name].values
    if value is None or value.lower() in allowed:
        return value and value.lower()
    if _BY_NAME[name].is_switch:
        expected = f"{', '.join(_TRUE)} to switch it on, or {', '.join(_FALSE)}"
    else:
        expected = f"one of {', '.join(allowed)}"
    raise InvalidEnvironmentError(
        f"{name}: expected {expected}; got {value!r}. Correct it, or unset it"
    )


def flag(name: str) -> bool:
    """Return whether a switch is on: 1, true, yes or on, whatever the case.

    Raises
    ------
    InvalidEnvironmentError
        If it is none of these, and none of 0, false, no and off.
    """
    return choice(name) in _TRUE
