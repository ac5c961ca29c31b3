"""From TOML to a manifest; what is wrong is told with file, key, what was expected and got."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

from gemmjit.arch import Arch
from gemmjit.dtypes import BF16, F16, F32, DType, dtype_of
from gemmjit.epilogue import chain_of
from gemmjit.errors import (
    GemmjitError,
    InvalidConfigError,
    InvalidDtypeError,
    ManifestError,
    UnsupportedArchError,
)
from gemmjit.kernels import kernel as find_kernel
from gemmjit.manifest.entries import TILE_LIST, KernelEntry, Manifest, ProblemEntry
from gemmjit.selection import ANY_ROWS
from gemmjit.variant import MAX_SHAPE, Form

__all__ = ["VERSION", "load", "parse"]

#: Of the format; a file may say which it is written in.
VERSION = 1

_OFFSETS = ("device", "host")
_TOP = ("version", "targets", "problems", "kernels")
_PROBLEM = tuple(f for f in ProblemEntry.__dataclass_fields__)
_KERNEL = tuple(f for f in KernelEntry.__dataclass_fields__)

_Reader = Callable[[str, Any], Any]


def load(path: str | Path) -> Manifest:
    """Read a manifest.

    Raises
    ------
    ManifestError
        If the file cannot be read, or is no manifest.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ManifestError(
            f"{path}: expected a TOML file; got {error.strerror}. Check the path"
        ) from error
    except UnicodeDecodeError as error:
        raise ManifestError(
            f"{path}: expected UTF-8; got byte {error.object[error.start]:#04x} at "
            f"{error.start}. Save it as UTF-8"
        ) from error
    return parse(text, str(path))


def parse(text: str, name: str = "manifest") -> Manifest:
    """Read a manifest from its text.

    Parameters
    ----------
    text : str
        TOML.
    name : str
        File, for messages.

    Raises
    ------
    ManifestError
        If it is no manifest; with file, key, what was expected and what was found.
    """
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ManifestError(f"{name}: expected TOML; got an error: {error}. Correct it") from error
    _check_names(name, "", values, _TOP)
    version = values.get("version", VERSION)
    if version != VERSION or isinstance(version, bool):
        raise ManifestError(
            f"{name}, version: expected {VERSION}; got {version!r}. "
            "Install the gemmjit that the file was written for"
        )
    if not values.get("problems") and not values.get("kernels"):
        raise ManifestError(
            f"{name}, problems: expected a table [[problems]] or [[kernels]]; got neither. "
            "Add one, as in [[problems]] with n = 1024 and k = 1024"
        )
    problems = _tables(name, values, "problems", _problem)
    kernels = _tables(name, values, "kernels", _kernel)
    targets = _targets(f"{name}, targets", values.get("targets", []))
    return Manifest(targets=targets, problems=problems, kernels=kernels, name=name)


def _tables(name: str, values: Mapping[str, Any], section: str, read: Callable[..., Any]) -> Any:
    found = values.get(section, [])
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise ManifestError(
            f"{name}, {section}: expected tables, each under [[{section}]]; got {found!r}. "
            "Write two brackets"
        )
    return tuple(read(name, f"{section}[{number}]", one) for number, one in enumerate(found))


def _problem(name: str, where: str, given: Mapping[str, Any]) -> ProblemEntry:
    _check_names(name, where + ".", given, _PROBLEM)
    for key in ("n", "k"):
        if key not in given:
            raise ManifestError(
                f"{name}, {where}.{key}: expected a size; got none. Add {key} = ..., as in the "
                "shape of the weights (G, K, N)"
            )
    readers: dict[str, _Reader] = {
        "n": _size,
        "k": _size,
        "num_groups": _size,
        "rows": _rows,
        "form": _one_of(get_args(Form)),
        "epilogue": _epilogue,
        "offsets": _offsets,
        "dtype": _dtype,
        "out_dtype": _dtype,
        "a_k_major": _bool,
        "b_k_major": _bool,
        "alignment": _one_of((2, 4, 8, 16)),
        "kernel": _kernel_name,
        "config": _table,
        "targets": _targets,
    }
    read = {key: readers[key](f"{name}, {where}.{key}", value) for key, value in given.items()}
    if "config" in read and "kernel" not in read:
        raise ManifestError(
            f"{name}, {where}.kernel: expected the kernel that config belongs to; got none. "
            'Add kernel = "k1", say'
        )
    return ProblemEntry(**read)


def _kernel(name: str, where: str, given: Mapping[str, Any]) -> KernelEntry:
    _check_names(name, where + ".", given, _KERNEL)
    if "kernel" not in given:
        raise ManifestError(
            f"{name}, {where}.kernel: expected the name of a kernel, as in k1; got none. Add it"
        )
    readers: dict[str, _Reader] = {
        "kernel": _kernel_name,
        "config": _table,
        "variant": _table,
        "targets": _targets,
    }
    read = {key: readers[key](f"{name}, {where}.{key}", value) for key, value in given.items()}
    return KernelEntry(**read)


def _check_names(name: str, where: str, given: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            mend = f"Did you mean {near[0]}?" if near else "Remove it"
            raise ManifestError(
                f"{name}, {where}{key}: expected one of {', '.join(known)}; got {key}. {mend}"
            )


def _wrong(where: str, expected: str, got: object, mend: str) -> ManifestError:
    return ManifestError(f"{where}: expected {expected}; got {got!r}. {mend}")


def _size(where: str, value: Any) -> int:
    if type(value) is not int or not 1 <= value <= MAX_SHAPE:
        raise _wrong(where, f"a whole number from 1 to {MAX_SHAPE}", value, "Correct it")
    return value


def _rows(where: str, value: Any) -> tuple[int, int]:
    if value == "any":
        return ANY_ROWS
    if isinstance(value, list) and len(value) == 2:
        low, high = (_size(f"{where}[{i}]", one) for i, one in enumerate(value))
        if low <= high:
            return low, high
        raise _wrong(where, "the smaller number first", value, "Exchange the two")
    if type(value) is int:
        return (_size(where, value),) * 2
    mend = 'Write rows = "any" if it is not known'
    raise _wrong(where, 'a number, [smallest, largest] or "any"', value, mend)


def _one_of(allowed: tuple[Any, ...]) -> _Reader:
    def read(where: str, value: Any) -> Any:
        if isinstance(value, bool) or value not in allowed:
            names = ", ".join(map(str, allowed))
            raise _wrong(where, f"one of {names}", value, "Choose one of them")
        return value

    return read


def _epilogue(where: str, value: Any) -> str:
    try:
        return chain_of(value).name
    except InvalidConfigError as error:
        told = str(error).removeprefix("epilogue must be ").removeprefix("epilogue must have ")
        raise ManifestError(
            f"{where}: expected {told}. Write it as a call with these steps is compiled, as in "
            '"bias+swiglu_split+row_scale_f32"'
        ) from None


def _offsets(where: str, value: Any) -> tuple[str, ...]:
    places = [value] if isinstance(value, str) else value
    if not isinstance(places, list) or not places or any(p not in _OFFSETS for p in places):
        mend = 'Write ["device", "host"] for both'
        raise _wrong(where, "device, host, or a list of them", value, mend)
    return tuple(dict.fromkeys(places))


def _dtype(where: str, value: Any) -> DType:
    operands = (BF16, F16, F32)
    names = ", ".join(d.name for d in operands)
    try:
        dtype = dtype_of(value)
    except InvalidDtypeError:
        dtype = None
    if not isinstance(value, str) or dtype not in operands:
        raise _wrong(where, f"one of {names}", value, "Choose one of them")
    return dtype


def _bool(where: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _wrong(where, "true or false", value, "Write it without quotes")
    return value


def _table(where: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(where, "a table, as in { block_m = 64 }", value, "Write it in braces")
    return value


def _kernel_name(where: str, value: Any) -> str:
    if value != TILE_LIST:
        try:
            return find_kernel(value).name
        except (GemmjitError, TypeError) as error:
            told = f" ({error})" if isinstance(error, GemmjitError) else ""
            mend = "gemmjit inspect lists them" + told
            raise _wrong(where, "the name of a kernel", value, mend) from None
    return TILE_LIST


def _targets(where: str, value: Any) -> tuple[Arch, ...]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise _wrong(where, 'a list of names, as in ["sm_90a"]', value, "Write it in brackets")
    try:
        return tuple(dict.fromkeys(map(Arch.parse, value)))
    except UnsupportedArchError as error:
        told = str(error).removeprefix("arch: ")
        raise ManifestError(f"{where}: {told}. Correct the name") from None
