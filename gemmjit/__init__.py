"""A JIT kernel toolkit for grouped GEMM.

``gemmjit.grouped_mm`` is the operator; `render`, `compile`, `templates.override` and
`CompiledKernel` are the toolkit under it. Importing this module loads neither a driver nor a
compiler, writes nothing and creates no CUDA context.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

# Not when it is first used: importing the module of the same name would hide the function.
from gemmjit.occupancy import occupancy

if TYPE_CHECKING:
    from gemmjit import offsets, schedule, templates, workloads
    from gemmjit.build import CompiledKernel
    from gemmjit.config import (
        Config,
        SimtConfig,
        Sm80MmaConfig,
        Sm90TmaMmaConfig,
        Sm90WgmmaConfig,
    )
    from gemmjit.epilogue import Epilogue, RowScale, SwiGLU
    from gemmjit.offsets import check_offsets
    from gemmjit.ops.grouped_mm import grouped_mm
    from gemmjit.ops.toolkit import compile, prepare, render
    from gemmjit.problem import Problem
    from gemmjit.selection import explain

__version__ = "0.1.0"

#: Public name -> module that defines it; resolved when first used, so that importing stays quick.
_PUBLIC = {
    "CompiledKernel": "gemmjit.build",
    "Config": "gemmjit.config",
    "Epilogue": "gemmjit.epilogue",
    "Problem": "gemmjit.problem",
    "RowScale": "gemmjit.epilogue",
    "SimtConfig": "gemmjit.config",
    "Sm80MmaConfig": "gemmjit.config",
    "Sm90TmaMmaConfig": "gemmjit.config",
    "Sm90WgmmaConfig": "gemmjit.config",
    "SwiGLU": "gemmjit.epilogue",
    "check_offsets": "gemmjit.offsets",
    "compile": "gemmjit.ops.toolkit",
    "explain": "gemmjit.selection",
    "grouped_mm": "gemmjit.ops.grouped_mm",
    "prepare": "gemmjit.ops.toolkit",
    "render": "gemmjit.ops.toolkit",
}
_MODULES = ("errors", "offsets", "schedule", "templates", "workloads")

__all__ = [
    "CompiledKernel",
    "Config",
    "Epilogue",
    "Problem",
    "RowScale",
    "SimtConfig",
    "Sm80MmaConfig",
    "Sm90TmaMmaConfig",
    "Sm90WgmmaConfig",
    "SwiGLU",
    "__version__",
    "check_offsets",
    "compile",
    "errors",
    "explain",
    "grouped_mm",
    "occupancy",
    "offsets",
    "prepare",
    "render",
    "schedule",
    "templates",
    "workloads",
]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        value = getattr(import_module(_PUBLIC[name]), name)
    elif name in _MODULES:
        value = import_module(f"gemmjit.{name}")
    else:
        raise AttributeError(f"module 'gemmjit' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
