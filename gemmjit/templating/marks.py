"""``#line`` marks, so that the compiler's messages name a template and its line.

Jinja's lexer knows the line of every stretch of plain text. `LineMarks` puts a marker at its start
and after its first line end, and behind every statement; `place` turns the markers that start a
line into ``#line`` directives, but only where the compiler would otherwise count wrong, and never
where a directive would change the program: inside a comment, a raw string or a line that a
backslash continues. The lines of a value of several lines count up from the line that it stands in.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from jinja2.ext import Extension
from jinja2.lexer import Token, TokenStream

__all__ = ["LineMarks", "marked", "place"]

_MARKER = re.compile("\0([0-9]+):([^\0]*)\0")
_LEXEME = re.compile(
    r"""//.*|/\*|R"(?P<delimiter>[^()\\\s]*)\(|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])'"""
)


class LineMarks(Extension):
    """Jinja extension that marks, in the rendered text, where each stretch of text comes from."""

    def filter_stream(self, stream: TokenStream) -> Iterator[Token]:
        """Yield the tokens of a template, markers added to its plain text."""
        name = stream.name or "template"
        statement_before = True  # a line may begin here, with or without text of its own
        for token in stream:
            if token.type == "data":
                yield Token(token.lineno, "data", marked(token.value, name, token.lineno))
            else:
                if statement_before:
                    yield Token(token.lineno, "data", _marker(name, token.lineno))
                yield token
            statement_before = token.type == "block_end"


def marked(text: str, name: str, line: int = 1) -> str:
    """Return a stretch of a template's plain text, which begins in a line, with its markers."""
    head, newline, rest = text.partition("\n")
    after = _marker(name, line + 1) if newline else ""
    return _marker(name, line) + head + newline + after + rest


def _marker(name: str, line: int) -> str:
    return f"\0{line}:{name}\0"


def place(text: str) -> str:
    """Turn the markers of a rendered text into the ``#line`` directives that are needed."""
    out: list[str] = []
    true: tuple[str, int] | None = None  # where the next line comes from
    told: tuple[str, int] | None = None  # where the compiler believes it comes from
    closing: str | None = None  # what ends the comment or raw string that we are in
    continued = False
    for raw in text.splitlines(keepends=True):
        for marker in _leading(raw):
            true = (marker[2], int(marker[1]))
        line = _MARKER.sub("", raw)
        if true is not None and true != told and closing is None and not continued:
            out.append(f'#line {true[1]} "{true[0]}"\n')
            told = true
        out.append(line)
        closing = _closing(line, closing)
        continued = line.rstrip("\n").endswith("\\")
        true = None if true is None else (true[0], true[1] + 1)
        told = None if told is None else (told[0], told[1] + 1)
    return "".join(out)


def _leading(line: str) -> Iterator[re.Match[str]]:
    position = 0
    while match := _MARKER.match(line, position):
        yield match
        position = match.end()


def _closing(line: str, closing: str | None) -> str | None:
    """Return what would end the comment or raw string that is open at the end of a line."""
    position = 0
    while True:
        if closing is not None:
            end = line.find(closing, position)
            if end < 0:
                return closing
            position, closing = end + len(closing), None
        match = _LEXEME.search(line, position)
        if match is None:
            return None
        position = match.end()
        if match[0] == "/*":
            closing = "*/"
        elif match["delimiter"] is not None:
            closing = ")" + match["delimiter"] + '"'
