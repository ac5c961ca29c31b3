"""The options that every kernel is compiled with."""

from __future__ import annotations

from collections.abc import Sequence

from gemmjit import env
from gemmjit.arch import Arch

__all__ = ["LINE_INFO", "standard_options"]

LINE_INFO = "-lineinfo"

_STANDARD = (
    "--std=c++17",
    "-Xptxas=-v",  # registers and spills, in the log
    "-no-cache",  # our own cache is the only one
    "-diag-suppress=177",  # a header's function that a kernel does not call
)


def standard_options(target: Arch, extra: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the NVRTC options for a target, the standard ones first.

    ``GEMMJIT_LINEINFO=1`` adds line tables, for profilers and debuggers; they triple a cubin.
    """
    lines = (LINE_INFO,) if env.flag("GEMMJIT_LINEINFO") and LINE_INFO not in extra else ()
    return (f"--gpu-architecture={target.name}", *_STANDARD, *lines, *extra)
