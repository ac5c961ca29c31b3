"""Positions in PTX, which ptxas speaks of, as positions in templates."""

from __future__ import annotations

import re

__all__ = ["PTX_POSITION", "translate"]

#: How ptxas begins a message about the PTX that NVRTC hands to it.
PTX_POSITION = re.compile(r"ptxas application ptx input, line (\d+); ")

_FILE = re.compile(r'\s*\.file\s+(\d+)\s+"((?:[^"\\]|\\.)*)"')
_LOC = re.compile(r"\s*\.loc\s+(\d+)\s+(\d+)")


def translate(log: str, ptx: str) -> str:
    """Return a log of ptxas in which positions name the lines that the PTX came from.

    Parameters
    ----------
    log : str
        Of a compilation with line information.
    ptx : str
        The PTX of that compilation.
    """
    names: dict[str, str] = {}
    places: list[tuple[str, str] | None] = [None]  # of each line of PTX, from line 1 on
    here: tuple[str, str] | None = None
    for line in ptx.splitlines():
        if match := _FILE.match(line):
            names[match[1]] = match[2]
        elif match := _LOC.match(line):
            here = match[1], match[2]
        elif line.startswith("}"):
            here = None  # the end of a function
        places.append(here)

    def named(match: re.Match[str]) -> str:
        number = int(match[1])
        place = places[number] if number < len(places) else None
        if place is None or place[0] not in names:
            return match[0]
        return f"{names[place[0]]}({place[1]}): ptxas "

    return PTX_POSITION.sub(named, log)
