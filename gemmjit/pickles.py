"""Pickles of dataclasses with slots, field by field under their names.

What `dataclasses` writes of such a class is a list, which says nothing about the fields of the
version that wrote it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from typing import Any

from gemmjit.errors import StalePickleError

__all__ = ["NamedFields"]


class NamedFields:
    """Base of a frozen dataclass with slots whose pickles outlive a new field.

    A field that a pickle does not have takes its default; one that the class does not have, or a
    missing one without a default, is refused.
    """

    __slots__ = ()

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        # dataclass gives a class with slots methods of its own where the class itself has none.
        for name in ("__getstate__", "__setstate__"):
            if name not in cls.__dict__:
                setattr(cls, name, getattr(NamedFields, name))

    def __getstate__(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]

    def __setstate__(self, state: Any) -> None:
        kind = type(self).__name__
        mend = f"Make the {kind} anew, and pickle that"
        if not isinstance(state, Mapping):
            raise StalePickleError(
                f"pickle: expected a {kind} with the names of its fields; got one without, of an "
                f"older gemmjit. {mend}"
            )
        known = {f.name: f for f in fields(self)}  # type: ignore[arg-type]
        unknown = sorted(str(name) for name in state if name not in known)
        missing = [n for n, f in known.items() if n not in state and not _has_default(f)]
        for what, names in (("unknown", unknown), ("missing", missing)):
            if names:
                raise StalePickleError(
                    f"pickle: expected a {kind} of this gemmjit; got one of another version, with "
                    f"{', '.join(names)} {what}. {mend}"
                )
        for name, field in known.items():
            value = state[name] if name in state else _default(field)
            object.__setattr__(self, name, value)


def _has_default(field: Field[Any]) -> bool:
    return field.default is not MISSING or field.default_factory is not MISSING


def _default(field: Field[Any]) -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default
