"""Arguments that name a kernel, its tile and its variant, as several commands take them."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gemmjit.arch import Arch
from gemmjit.config import Config
from gemmjit.dtypes import DType
from gemmjit.errors import InvalidDtypeError
from gemmjit.kernels import KERNELS, Kernel

__all__ = [
    "arch_list",
    "architecture",
    "architectures",
    "directory",
    "file_path",
    "json_object",
    "merged",
    "operand_dtype",
    "pairs",
    "result_dtype",
    "setting",
    "tile",
]


def operand_dtype(text: str, argument: str = "dtype") -> DType:
    """Read an element type that operands can have.

    Raises
    ------
    InvalidDtypeError
        If no kernel takes it; of the types of gemmjit, some are of offsets alone.
    """
    return _dtype(text, argument, [one for k in KERNELS.values() for one in k.in_dtypes])


def result_dtype(text: str, argument: str = "out_dtype") -> DType:
    """Read an element type that a result can have, as `operand_dtype` does."""
    return _dtype(text, argument, [one for k in KERNELS.values() for one in k.out_dtypes])


def _dtype(text: str, argument: str, known: list[DType]) -> DType:
    found = {spelling: one for one in known for spelling in (one.name, one.short)}
    if text not in found:
        names = ", ".join(dict.fromkeys(one.name for one in known))
        raise InvalidDtypeError(f"{argument}: expected one of {names}; got {text}. Pick one")
    return found[text]


def setting(text: str) -> dict[str, Any]:
    """Read ``name=value``, or several as one JSON object.

    Raises
    ------
    argparse.ArgumentTypeError
        If it is neither.
    """
    if text.lstrip().startswith("{"):
        return json_object(text)
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"expected name=value or a JSON object; got {text!r}")
    try:
        return {name: json.loads(value)}
    except ValueError:
        return {name: {"True": True, "False": False}.get(value, value)}


def merged(settings: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return all settings of an option as one mapping; of two of one name the later counts."""
    return {name: value for given in settings for name, value in given.items()}


def file_path(text: str) -> Path:
    """Read the name of a file.

    Raises
    ------
    argparse.ArgumentTypeError
        If no file can have it.
    """
    if not text or "\0" in text:
        raise argparse.ArgumentTypeError(f"expected the name of a file; got {text!r}")
    return Path(text)


def directory(text: str) -> str:
    """Read the name of a directory; an empty one would be the current directory.

    Raises
    ------
    argparse.ArgumentTypeError
        If it is empty or blank.
    """
    if not text.strip():
        raise argparse.ArgumentTypeError(
            f"expected a directory; got {text!r}. Leave it out for the default"
        )
    return text


def pairs(text: str) -> dict[str, Any]:
    """Read ``name=value,name=value``."""
    merged: dict[str, Any] = {}
    for part in text.split(","):
        merged |= setting(part.strip())
    return merged


def json_object(text: str) -> dict[str, Any]:
    """Read a JSON object.

    Raises
    ------
    argparse.ArgumentTypeError
        If it is none.
    """
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected a JSON object; {error}: {text!r}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"expected a JSON object; got {text!r}")
    return value


def architecture(text: str) -> str:
    """Check that an architecture is named, for argparse; which, others look at.

    Raises
    ------
    argparse.ArgumentTypeError
        If the text is blank, which is not the default, or has digits of other scripts.
    """
    if not text.strip() or not text.isascii():
        raise argparse.ArgumentTypeError(
            f"expected a name such as sm_80, sm_90a or sm_100f; got {text!r}. Leave it out for "
            "the default"
        )
    return text


def architectures(text: str) -> str:
    """Check that a list with commas names an architecture, as `architecture` does."""
    architecture(text.replace(",", " "))
    return text


def arch_list(text: str) -> list[Arch]:
    """Read architectures, separated by commas."""
    return [Arch.parse(part) for part in text.split(",") if part.strip()]


def tile(kernel: Kernel, settings: Iterable[dict[str, Any]]) -> Config:
    """Return a kernel's default tile with the given fields changed."""
    return kernel.config_type.from_dict(kernel.default_config.to_dict() | merged(settings))
