"""Templates: where they lie, and how they become one self-contained CUDA source."""

from __future__ import annotations

from gemmjit.templating.paths import (
    overlays,
    overridden,
    override,
    read_template,
    templates_root,
)
from gemmjit.templating.render import render, variables_of

__all__ = [
    "overlays",
    "overridden",
    "override",
    "read_template",
    "render",
    "templates_root",
    "variables_of",
]
