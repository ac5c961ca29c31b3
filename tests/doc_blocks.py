"""The code blocks of the documentation. None is without a language, and none is run by nobody."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

CHECKOUT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    path
    for path in (
        *CHECKOUT.glob("*.md"),
        *(CHECKOUT / "docs").rglob("*.md"),
        CHECKOUT / "templates" / "README.md",
    )
)
#: Written from docstrings: signatures, and examples that are run where they stand.
GENERATED = ("api.md", "environment.md", "errors.md", "integrations.md")

_FENCE = re.compile(r"^(?P<indent>[ \t>]*)(?P<fence>`{3,}|~{3,})(?P<info>.*)$")
_MARK = re.compile(r"^\s*<!-- (?P<mark>.*?) -->$")


class Block(NamedTuple):
    """One code block.

    Attributes
    ----------
    page : str
        Path of its page, from the checkout.
    line : int
        Line of its first fence, from 1.
    language : str
    mark : str
        Text of the comment in the line before it: ``runs on: gpu``, ``recipe``, ``quoted``,
        ``file: PATH``, or empty.
    code : str
        Without the block's indentation.
    """

    page: str
    line: int
    language: str
    mark: str
    code: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def name_of(page: Path) -> str:
    """Return the path of a page from the checkout."""
    return page.relative_to(CHECKOUT).as_posix()


def blocks_of(text: str, page: str = "") -> Iterator[Block]:
    """Yield the blocks of a page, indented ones and those in quotations too."""
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        found = _FENCE.match(lines[at])
        if found is None:
            at += 1
            continue
        indent, fence = found["indent"], found["fence"]
        marked = _MARK.match(lines[at - 1]) if at else None
        body = []
        end = at + 1
        while end < len(lines) and lines[end].strip(" \t>") != fence:
            line = lines[end]
            body.append(line[len(indent) :] if line.startswith(indent) else line.lstrip())
            end += 1
        assert end < len(lines), f"{page}:{at + 1}: the block does not end"
        code = "".join(f"{line}\n" for line in body)
        mark = marked["mark"] if marked else ""
        yield Block(page, at + 1, found["info"].strip(), mark, code)
        at = end + 1


def blocks(*languages: str) -> list[Block]:
    """Return the blocks of all pages that people wrote, of some languages or of all."""
    return [
        block
        for page in PAGES
        if page.name not in GENERATED
        for block in blocks_of(page.read_text(encoding="utf-8"), name_of(page))
        if not languages or block.language in languages
    ]
