"""Every environment variable that gemmjit reads.

A variable is read when it is needed, never at import; an empty or blank value means the default.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

__all__ = ["VARIABLES", "Variable", "flag", "get"]


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable: its name, its default in words, and what it does."""

    name: str
    default: str
    help: str


VARIABLES = (
    Variable("GEMMJIT_CACHE_DIR", "the user's cache directory", "Where compiled kernels are kept."),
    Variable(
        "GEMMJIT_CACHE_PATH",
        "none",
        "Further cache directories, only read, separated like PATH (a pre-warmed image, say).",
    ),
    Variable("GEMMJIT_CACHE_MAX_SIZE", "1 GiB", "Limit of the cache directory, as in 512M or 2G."),
    Variable("GEMMJIT_DISABLE_JIT", "0", "1: never compile; a missing kernel is an error."),
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
    ),
    Variable("GEMMJIT_CHECK", "0", "1: read device offsets back and validate them (slow)."),
    Variable("GEMMJIT_LOG_LEVEL", "none", "Log to standard error: debug, info, warning or error."),
    Variable("GEMMJIT_LINEINFO", "0", "1: line tables in cubins, for profilers and debuggers."),
)

_NAMES = frozenset(v.name for v in VARIABLES)
_TRUE = frozenset({"1", "true", "yes", "on"})


def get(name: str) -> str | None:
    """Return the value of a known variable, or None when it is unset, empty or blank."""
    if name not in _NAMES:
        raise KeyError(f"{name} is not an environment variable of gemmjit")
    value = os.environ.get(name, "").strip()
    return value or None


def flag(name: str) -> bool:
    """Return whether a known variable is set to 1, true, yes or on."""
    value = get(name)
    return value is not None and value.lower() in _TRUE
