"""Templates: where they lie, and how they become one self-contained CUDA source.

Jinja is imported by the first use of `render` or `variables_of`: where a kernel is known by its
`fingerprint`, nothing is rendered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gemmjit.templating.fingerprints import fingerprint
from gemmjit.templating.paths import (
    overlays,
    overridden,
    override,
    read_template,
    templates_root,
)

if TYPE_CHECKING:
    from gemmjit.templating.rendering import render, variables_of

__all__ = [
    "fingerprint",
    "overlays",
    "overridden",
    "override",
    "read_template",
    "render",
    "templates_root",
    "variables_of",
]


def __getattr__(name: str) -> Any:
    if name not in ("render", "variables_of"):
        raise AttributeError(f"module 'gemmjit.templating' has no attribute {name!r}")
    from gemmjit.templating import rendering

    value = globals()[name] = getattr(rendering, name)
    return value
