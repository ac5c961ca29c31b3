"""From the log of a run to the kernels that it used.

Every line about a kernel ends with the command that compiles it: at level INFO the lines about
compilations, at level DEBUG those about kernels from the cache too, and the message of a
`MissingKernelError`. So whatever holds such commands can be read here.
"""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

from gemmjit.arch import Arch
from gemmjit.errors import ManifestError, UnsupportedArchError
from gemmjit.manifest.entries import KernelEntry, Manifest

__all__ = ["read_log"]

_START = "gemmjit prewarm --arch "
# Values hold names, numbers and JSON; a single quote can be in none of them.
_COMMAND = re.compile(
    r"gemmjit prewarm --arch (?P<arch>\w+) --kernel (?P<kernel>\w+)"
    r"(?: --config (?P<config>'\{[^']*\}') --variant (?P<variant>'\{[^']*\}'))?"
)


def read_log(text: str, name: str = "log") -> tuple[Manifest, list[int]]:
    """Return the kernels that a log names, each once.

    Parameters
    ----------
    text : str
    name : str
        File, for messages.

    Returns
    -------
    manifest : Manifest
    unreadable : list of int
        Numbers of the lines, from 1, that hold the beginning of a command and not the whole: they
        were cut short, or several processes wrote into one line.

    Raises
    ------
    ManifestError
        If no line names a kernel.
    """
    found: dict[tuple[str, str, str, str], KernelEntry] = {}
    unreadable = []
    for number, line in enumerate(text.splitlines(), 1):
        begun = line.count(_START)
        read = 0
        for match in _COMMAND.finditer(line):
            entry = _entry(match)
            if entry is not None:
                told = [match[group] or "" for group in ("arch", "kernel", "config", "variant")]
                found.setdefault((told[0], told[1], told[2], told[3]), entry)
                read += 1
        if read < begun:
            unreadable.append(number)
    if not found and not unreadable:
        raise ManifestError(
            f"{name}: expected lines that end with 'gemmjit prewarm --arch ...'; got none. "
            "Run the workload with GEMMJIT_LOG_LEVEL=debug, and keep its standard error"
        )
    return Manifest(kernels=tuple(found.values()), name=name), unreadable


def _entry(match: re.Match[str]) -> KernelEntry | None:
    """Return the kernel of a command, or None if the command is not as it was written."""
    try:
        config, variant = (_fields(match[group]) for group in ("config", "variant"))
        target = Arch.parse(match["arch"])
    except (ValueError, UnsupportedArchError):
        return None
    if match["config"] is None and match["kernel"] != "tile_list":
        return None
    return KernelEntry(kernel=match["kernel"], config=config, variant=variant, targets=(target,))


def _fields(quoted: str | None) -> dict[str, Any]:
    if quoted is None:
        return {}
    (text,) = shlex.split(quoted)
    value: dict[str, Any] = json.loads(text)
    return value
