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

__all__ = ["LineMarks", "place"]

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
            here = f"\0{token.lineno}:{name}\0"
            if token.type == "data":
                after = f"\0{token.lineno + 1}:{name}\0"
                head, newline, rest = token.value.partition("\n")
                text = here + head + newline + (after if newline else "") + rest
                yield Token(token.lineno, "data", text)
            else:
                if statement_before:
                    yield Token(token.lineno, "data", here)
                yield token
            statement_before = token.type == "block_end"


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
