"""What tests of memos ask of a cache directory."""

from __future__ import annotations

from pathlib import Path

from gemmjit.build import clear_memory
from gemmjit.cache import Store, current_layers


def user_store() -> Store:
    store = current_layers().user
    assert store is not None
    return store


def memo_files(root: Path) -> list[Path]:
    return sorted((root / "v1" / "memos").glob("*"))


def start_anew(rendered: list[str]) -> None:
    clear_memory()
    rendered.clear()
