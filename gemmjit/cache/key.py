"""What identifies a compiled kernel: its text, its options and its target, and nothing else.

No path, time, host, user, GPU, driver or version of gemmjit takes part, and neither does the
compiler's version: an entry holds one sub-entry for each.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from gemmjit.errors import CacheError

__all__ = ["CUDA_MAJOR", "SCHEMA", "Key", "identity_of", "major_of"]

#: Version of the layout on disk; the first folder of every path.
SCHEMA = 1

#: Compilers of another CUDA major release are never asked to stand in.
CUDA_MAJOR = 13

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TARGET = re.compile(r"sm_[0-9]+[af]?")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_LONGEST_NAME = 160


def identity_of(source: str, options: Sequence[str], target: str) -> str:
    """Return the identity of a kernel, as 64 hexadecimal digits.

    SHA-256 of layout version, source, options and target, each part after its length, so that no
    two lists of parts give the same bytes.
    """
    digest = hashlib.sha256()
    for part in (f"gemmjit-{SCHEMA}", target, source, *options):
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def major_of(version: str) -> int | None:
    """Return the CUDA major release of a compiler version, or None if the text is not one."""
    head = version.split(".", 1)[0]
    return int(head) if head.isdecimal() else None


@dataclass(frozen=True, slots=True)
class Key:
    """Where an entry lies.

    Attributes
    ----------
    target : str
        As in ``sm_90a``.
    entry : str
        Name of the kernel in the cubin.
    identity : str
        As `identity_of` gives it.
    """

    target: str
    entry: str
    identity: str

    def __post_init__(self) -> None:
        for name, value, pattern in (
            ("target", self.target, _TARGET),
            ("entry", self.entry, _NAME),
            ("identity", self.identity, _DIGEST),
        ):
            if pattern.fullmatch(value) is None:
                raise CacheError(f"{name}: expected text like {pattern.pattern}; got {value!r}")

    @property
    def folder(self) -> str:
        """Name of the entry's folder, below that of the target."""
        return f"{self.entry[:_LONGEST_NAME]}-{self.identity[:32]}"
