"""Write the reference pages that come from the code, and the figures that come from measurements.

``python docs/generate.py`` rewrites both: whole pages in ``docs/reference``, and in all other pages
what stands between ``<!-- NAME: begin -->`` and ``<!-- NAME: end -->``. The tests compare the pages
with what this would write.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import gemmjit
from gemmjit import emulator, env, errors
from gemmjit.arch import Arch
from gemmjit.compiled import CompiledKernel
from gemmjit.dtypes import DType
from gemmjit.ops.toolkit import LaunchableKernel
from gemmjit.selection.explanation import Explanation, Refusal
from gemmjit.selection.model import Prediction
from gemmjit.variant import Variant

HERE = Path(__file__).parent
NOTE = "<!-- Written by docs/generate.py from the code; edit the docstrings instead. -->\n"
BENCHMARKS = HERE / "benchmarks"

#: What public functions return or take and `gemmjit` does not export.
_OTHERS = (
    (LaunchableKernel, "What `gemmjit.compile` returns; a `gemmjit.CompiledKernel`."),
    (Explanation, "What `gemmjit.explain` returns."),
    (Prediction, "One of `Explanation.predictions`."),
    (Refusal, "One of `Explanation.refused`."),
    (Variant, "Its fields are the keywords of `gemmjit.compile` and `gemmjit.render`."),
    (DType, 'Element types; every function takes their names too, as in `"bfloat16"`.'),
    (Arch, 'Architectures; every function takes their names too, as in `"sm_90a"`.'),
)

_BLOCK = re.compile(
    r"(?P<begin><!-- (?P<name>[\w-]+): begin\b[^>]*-->\n).*?(?P<end>^<!-- (?P=name): end -->)",
    re.DOTALL | re.MULTILINE,
)


def pages() -> dict[Path, str]:
    """Return the text of each page by its path."""
    folder = HERE / "reference"
    return {
        folder / "api.md": _api(),
        folder / "integrations.md": _integrations(),
        folder / "environment.md": _environment(),
        folder / "errors.md": _errors(),
    }


def pages_with_figures() -> dict[Path, str]:
    """Return the text of each page that has marked blocks, filled from the result files."""
    figures = _figures()
    results = figures.read(BENCHMARKS)
    found = {}
    for path in (HERE.parent / "README.md", *sorted(HERE.rglob("*.md"))):
        text = path.read_text(encoding="utf-8")
        if _BLOCK.search(text):
            found[path] = fill(text, figures.BLOCKS, results)
    return found


def fill(text: str, blocks: Mapping[str, Callable[[Any], str]], results: Any) -> str:
    """Return a page with its marked blocks written anew; an unknown name is a KeyError."""

    def block(match: re.Match[str]) -> str:
        return f"{match['begin']}{blocks[match['name']](results)}\n{match['end']}"

    return _BLOCK.sub(block, text)


def draw() -> list[Path]:
    """Draw the pictures of all results into the folder of the results."""
    plots = import_module("gemmjit.bench.plots")
    sweeps = import_module("gemmjit.bench.plots_sweep")
    results = _figures().read(BENCHMARKS)
    drawers = (
        ("ladder", plots.plot_ladder),
        ("grouped", plots.plot_grouped),
        ("grouped", sweeps.plot_roofline),
        ("scheduling", plots.plot_scheduling),
        ("sweep", sweeps.plot_sweep),
        ("training", import_module("figures.training").draw),
    )
    return [
        path
        for name, drawer in drawers
        if name in results
        for path in drawer(results[name], BENCHMARKS)
    ]


def _figures() -> ModuleType:
    """Return the package beside this file, wherever this file is loaded from."""
    if str(HERE) not in sys.path:
        sys.path.insert(0, str(HERE))
    return import_module("figures")


def _environment() -> str:
    rows = "".join(f"| `{v.name}` | {v.default} | {v.help} |\n" for v in env.VARIABLES)
    return (
        f"{NOTE}\n# Environment variables\n\n"
        "A variable is read when it is needed, never at import. Empty means the default. Switches "
        "are on\nfor 1, true, yes and on, and off for 0, false, no and off; anything else is an "
        "error. `gemmjit doctor`\nlooks at all of them.\n\n"
        f"| variable | default | what it does |\n|---|---|---|\n{rows}"
    )


def _errors() -> str:
    doc = inspect.getdoc(errors) or ""
    tree = "\n".join(line[4:] for line in doc.splitlines() if line.startswith("    "))
    parts = [f"{NOTE}\n# Errors\n\n"]
    parts.append(
        "Every exception that gemmjit raises on purpose derives from "
        "`gemmjit.errors.GemmjitError`. A message\nnames the argument, what was expected, what was "
        "given, and what to do about it."
        f"\n\n```text\n{tree}\n```\n"
    )
    for name in errors.__all__:
        parts.append(f"\n## `{name}`\n\n{_block(getattr(errors, name))}")
    return "".join(parts)


def _api() -> str:
    parts = [f"{NOTE}\n# API\n\nEverything public, as `import gemmjit` gives it.\n"]
    modules = []
    for name in sorted(n for n in gemmjit.__all__ if not n.startswith("_")):
        value = getattr(gemmjit, name)
        if isinstance(value, ModuleType):
            modules.append((name, value))
        else:
            parts.append(_entry(f"gemmjit.{name}", value))
    parts.append(
        "\n## What these return and take\n\nNot names of `gemmjit` itself; import them from where "
        "their names say, to annotate a function for example.\n"
    )
    for value, text in _OTHERS:
        name = f"{value.__module__}.{value.__qualname__}"
        parts.append(_entry(name, value, f"{text}\n\n", level=3))
    parts.append(f"\n## `gemmjit.emulator`\n\n{_summary(emulator)}\n")
    for member in ("emulating", "Trace", "Report"):
        parts.append(_entry(f"gemmjit.emulator.{member}", getattr(emulator, member), level=3))
    for name, module in modules:
        if name == "errors":
            continue
        parts.append(f"\n## `gemmjit.{name}`\n\n{_summary(module)}\n")
        for member in module.__all__:
            parts.append(_entry(f"gemmjit.{name}.{member}", getattr(module, member), level=3))
    return "".join(parts)


#: Where frameworks meet `gemmjit`; their modules import them, so that only the text is read.
_INTEGRATIONS = (
    ("torch.grouped_linear", "torch_linear.py"),
    ("torch.grouped_mm", "torch_replacement.py"),
    ("jax.ragged_dot", "jax.py"),
    ("jax.ragged_dot_transposed", "jax.py"),
)


def _integrations() -> str:
    parts = [
        f"{NOTE}\n# Integrations\n\nFunctions of `gemmjit.integrations`, each with its framework: "
        "[torch](../how-to/torch.md), [JAX](../how-to/jax.md).\n"
    ]
    folder = Path(gemmjit.__file__).parent / "integrations"
    for name, file in _INTEGRATIONS:
        tree = ast.parse((folder / file).read_text(encoding="utf-8"))
        wanted = name.split(".")[1]
        (found,) = (n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == wanted)
        for one in (*found.args.args, *found.args.kwonlyargs):
            one.annotation = None
        parts.append(
            f"\n## `gemmjit.integrations.{name}`\n\n```python\n{wanted}"
            f"({ast.unparse(found.args)})\n```\n\n```text\n{ast.get_docstring(found)}\n```\n"
        )
    return "".join(parts)


def _entry(name: str, value: Any, text: str = "", level: int = 2) -> str:
    head = f"\n{'#' * level} `{name}`\n\n{text}"
    if inspect.isclass(value):
        members = ""
        for member, one in _members(value):
            title = f"{name.split('.')[-1]}.{member}"
            members += f"\n{'#' * (level + 1)} `{title}`\n\n{_call(member, one)}{_block(one)}"
        return head + _block(value) + members
    return head + _call(name, value) + _block(value)


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties that are documented in the class or its bases."""
    stop = {CompiledKernel} if kind is LaunchableKernel else set()
    for member, one in sorted(inspect.getmembers_static(kind)):
        if member.startswith("_") or any(member in vars(base) for base in stop):
            continue
        function = one.__func__ if isinstance(one, classmethod | staticmethod) else one
        function = function.fget if isinstance(function, property) else function
        if inspect.isfunction(function) and function.__doc__:
            yield member, one


def _call(name: str, value: Any) -> str:
    function = value.__func__ if isinstance(value, classmethod) else value
    if isinstance(function, property) or inspect.isclass(function):
        return ""
    signature = inspect.signature(function)
    shown = [
        p.replace(
            annotation=p.empty, default=p.default if p.default is p.empty else _Text(p.default)
        )
        for p in signature.parameters.values()
        if p.name not in ("self", "cls")
    ]
    bare = signature.replace(parameters=shown, return_annotation=inspect.Signature.empty)
    return f"```python\n{name.split('.')[-1]}{bare}\n```\n\n"


class _Text:
    """A default as a reader wants to see it: element types by their names."""

    def __init__(self, value: Any) -> None:
        self.text = str(value) if type(value).__name__ == "DType" else repr(value)

    def __repr__(self) -> str:
        return self.text


def _block(value: Any) -> str:
    function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
    doc = inspect.getdoc(function) or ""
    return f"```text\n{doc}\n```\n"


def _summary(module: ModuleType) -> str:
    return (inspect.getdoc(module) or "").split("\n\n")[0]


def main() -> None:
    """Write every page and draw every picture."""
    for path in draw():
        print(path.relative_to(HERE.parent))
    for path, text in {**pages(), **pages_with_figures()}.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(HERE.parent))


if __name__ == "__main__":
    main()
