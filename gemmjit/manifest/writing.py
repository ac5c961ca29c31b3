"""A list of exact kernels as TOML, which `gemmjit.manifest.parse` reads back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from gemmjit.manifest.entries import KernelEntry
from gemmjit.manifest.reading import VERSION

__all__ = ["to_toml"]


def to_toml(entries: Iterable[KernelEntry], comment: str = "") -> str:
    """Return a manifest of exact kernels; entries that differ in their targets only are joined.

    Parameters
    ----------
    entries : iterable of KernelEntry
    comment : str
        First line.
    """
    joined: dict[str, list[str]] = {}
    for entry in entries:
        lines = [f"kernel = {_value(entry.kernel)}"]
        lines += [
            f"{name} = {_value(fields)}"
            for name, fields in (("config", entry.config), ("variant", entry.variant))
            if fields
        ]
        targets = joined.setdefault("\n".join(lines), [])
        targets += [arch.name for arch in entry.targets if arch.name not in targets]
    parts = [f"# {comment}\n" if comment else "", f"version = {VERSION}\n"]
    for body, targets in joined.items():
        parts.append(f"\n[[kernels]]\n{body}\ntargets = {_value(targets)}\n")
    return "".join(parts)


def _value(value: Any) -> str:
    """Return a string, number, boolean, list or mapping as TOML.

    Strings here are names; those of JSON are those of TOML as long as they are printable ASCII.
    """
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_value(one)}" for key, one in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value)
