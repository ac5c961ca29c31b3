"""Logging, as a library should: silent, unless the application or ``GEMMJIT_LOG_LEVEL`` asks."""

from __future__ import annotations

import logging
import os
import threading
from functools import cache

from gemmjit import env
from gemmjit.errors import InvalidEnvironmentError

__all__ = ["logger", "warn_once"]

_warned: set[tuple[str, ...]] = set()
_lock = threading.Lock()


@cache
def logger(name: str) -> logging.Logger:
    """Return the logger ``gemmjit.<name>``; the first call sets up the handlers."""
    _set_up()
    return logging.getLogger(f"gemmjit.{name}")


@cache
def _set_up() -> None:
    root = logging.getLogger("gemmjit")
    root.addHandler(logging.NullHandler())
    wrong = None
    try:
        level = env.choice("GEMMJIT_LOG_LEVEL")
    except InvalidEnvironmentError as error:
        level, wrong = "warning", error
    if level is None:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root.addHandler(handler)
    root.setLevel(level.upper())
    if wrong is not None:
        root.warning("%s; logging warnings", wrong)


def warn_once(name: str, key: tuple[str, ...], message: str, *arguments: object) -> bool:
    """Log a warning unless one with this key was logged before; return whether it was logged."""
    with _lock:
        if key in _warned:
            return False
        _warned.add(key)
    logger(name).warning(message, *arguments)
    return True


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()  # a thread that is not in this process may hold the old one


os.register_at_fork(after_in_child=_after_fork)
