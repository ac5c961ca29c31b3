"""From CUDA source to cubin, PTX and resources, with NVRTC alone: no GPU, no driver, no toolkit."""

from __future__ import annotations

from gemmjit.compiler.nvrtc import Compilation, Compiler, get_compiler, installed_version
from gemmjit.compiler.options import standard_options
from gemmjit.compiler.resources import Resources, read_resources

__all__ = [
    "Compilation",
    "Compiler",
    "Resources",
    "get_compiler",
    "installed_version",
    "read_resources",
    "standard_options",
]
