"""Lists of kernels to compile: what a model needs, for which targets."""

from __future__ import annotations

from gemmjit.manifest.entries import KernelEntry, Manifest, ProblemEntry, Wanted
from gemmjit.manifest.log import read_log
from gemmjit.manifest.reading import load, parse
from gemmjit.manifest.writing import to_toml

__all__ = [
    "KernelEntry",
    "Manifest",
    "ProblemEntry",
    "Wanted",
    "load",
    "parse",
    "read_log",
    "to_toml",
]
