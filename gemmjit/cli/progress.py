"""A bar on standard error that says how far a long command is: with rich, or plain."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TextIO

__all__ = ["progress"]

_WIDTH = 30
_SILENT_SECONDS = 10.0  # between lines where there is no terminal


@contextmanager
def progress(total: int, what: str) -> Iterator[Callable[[str], None]]:
    """Show how many of a number of things are done.

    The value is a function that counts one more; its argument says what was done last. On a
    terminal one line is redrawn; elsewhere a line is written now and then.

    Parameters
    ----------
    total : int
    what : str
        The things, as in ``kernels``.
    """
    stream = sys.stderr
    if total == 0:
        yield lambda text: None
    elif stream.isatty() and find_spec("rich") is not None:
        with _rich(total, what) as step:
            yield step
    else:
        with _plain(total, what, stream) as step:
            yield step


@contextmanager
def _rich(total: int, what: str) -> Iterator[Callable[[str], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeElapsedColumn as Elapsed

    text = TextColumn("{task.description}", markup=False)
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn(what), Elapsed(), text)
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda text: bar.update(task, advance=1, description=text)


@contextmanager
def _plain(total: int, what: str, stream: TextIO) -> Iterator[Callable[[str], None]]:
    redrawn = stream.isatty()
    done, told = 0, time.monotonic()

    def step(text: str) -> None:
        nonlocal done, told
        done += 1
        now = time.monotonic()
        if redrawn:
            bar = "#" * (_WIDTH * done // total)
            stream.write(f"\r\x1b[K[{bar:<{_WIDTH}}] {done}/{total} {what} {text}"[:140])
        elif now - told >= _SILENT_SECONDS or done == total:
            stream.write(f"{done}/{total} {what}\n")
            told = now
        stream.flush()

    try:
        yield step
    finally:
        if redrawn:
            stream.write("\r\x1b[K")
            stream.flush()
