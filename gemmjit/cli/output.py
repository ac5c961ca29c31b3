"""What the commands print: plain tables and JSON."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, Literal

__all__ = ["add_json", "bytes_text", "counted", "print_json", "print_table"]

_UNITS = ("B", "KiB", "MiB", "GiB")


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add ``--json`` to a command."""
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object to standard output"
    )


def print_json(value: Any) -> None:
    """Print one JSON object."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print rows under their heads; columns of numbers are right-aligned.

    On a terminal, and with rich installed, the heads are bold and long cells are folded.
    """
    if sys.stdout.isatty() and find_spec("rich") is not None:
        _print_with_rich(head, rows)
        return
    texts = [list(head), *([_text(cell) for cell in row] for row in rows)]
    widths = [max(len(line[i]) for line in texts) for i in range(len(head))]
    right = [bool(rows) and all(_is_number(row[i]) for row in rows) for i in range(len(head))]
    for line in texts:
        cells = [
            text.rjust(width) if on_right else text.ljust(width)
            for text, width, on_right in zip(line, widths, right, strict=True)
        ]
        print("  ".join(cells).rstrip())


#: Columns of a terminal that a sentence is given at least.
_LEAST_WIDTH = 24


def _print_with_rich(head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    needed = 0
    for i, name in enumerate(head):
        numbers = bool(rows) and all(_is_number(row[i]) for row in rows)
        # Names and numbers stay whole, so that they can be read and copied; sentences are folded.
        words = [name, *(_text(row[i]) for row in rows)]
        whole = not any(" " in word for word in words)
        needed += 2 + (max(map(len, words)) if whole else _LEAST_WIDTH)
        justify: Literal["left", "right"] = "right" if numbers else "left"
        table.add_column(name, justify=justify, overflow="fold", no_wrap=whole)
    for row in rows:
        table.add_row(*(_text(cell) for cell in row))
    console = Console(file=sys.stdout, highlight=False, markup=False)
    console.width = max(console.width, needed)
    console.print(table, crop=False)


def bytes_text(number: int) -> str:
    """Return a number of bytes for people, as in ``9.0 KiB``."""
    value = float(number)
    for unit in _UNITS[:-1]:
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} {_UNITS[-1]}"


def counted(number: int, noun: str) -> str:
    """Return a number and what it counts, as in ``1 kernel`` and ``2 kernels``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _is_number(cell: object) -> bool:
    return cell is None or (isinstance(cell, int | float) and not isinstance(cell, bool))


def _text(cell: object) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return f"{cell:.1f}" if isinstance(cell, float) else str(cell)
