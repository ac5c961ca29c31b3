"""The directories that ``gemmjit cache`` works on: those of the environment, or the one named."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gemmjit import env
from gemmjit.cache import Layers, Store, current_layers
from gemmjit.cache.directory import EMPTY, MISSING
from gemmjit.cache.places import named_directory
from gemmjit.errors import CacheError

__all__ = ["existing_directory", "layers_of", "readable_stores", "stores_of", "user_directory"]


def layers_of(arguments: argparse.Namespace) -> Layers:
    """Return the directories of this process, or the one that the command names."""
    if arguments.cache_dir is None:
        return current_layers()
    return Layers(Store(_named("--cache-dir", arguments.cache_dir)))


def _named(name: str, text: str) -> Path:
    path = named_directory(text, name)
    if path is None:
        # Calls fall back to another directory; whoever looks after one must not get that.
        raise CacheError(
            f"{name}: expected a directory; got {text!r}, which names none. Correct it"
        )
    return path


def stores_of(arguments: argparse.Namespace) -> list[Store]:
    """Return the directories one by one, the user's first."""
    layers = layers_of(arguments)
    return [*([layers.user] if layers.user is not None else []), *layers.shared]


def readable_stores(arguments: argparse.Namespace, stores: list[Store]) -> tuple[list[Store], bool]:
    """Return the directories that can be read, and whether another was passed over.

    That is told. One's own directory need not exist yet, unless the command names it.
    """
    found = []
    passed_over = False
    for store in stores:
        trouble = store.trouble()
        own = store.writable and arguments.cache_dir is None
        if trouble is None or trouble == EMPTY or (own and trouble == MISSING):
            found.append(store)
        else:
            passed_over = True
            print(f"gemmjit cache: {store.root} is passed over: {trouble}", file=sys.stderr)
    return found, passed_over


def user_directory(arguments: argparse.Namespace) -> Store:
    """Return the directory that is written to."""
    named = env.get("GEMMJIT_CACHE_DIR")
    if arguments.cache_dir is None and named is not None:
        _named("GEMMJIT_CACHE_DIR", named)
    user = layers_of(arguments).user
    if user is None:
        raise CacheError(
            "cache: expected a directory to look after; there is none. "
            "Choose one with GEMMJIT_CACHE_DIR"
        )
    user.check()
    return user


def existing_directory(arguments: argparse.Namespace) -> Store:
    """Return the directory that is written to, which exists if the command names it."""
    user = user_directory(arguments)
    if arguments.cache_dir is not None and not user.root.is_dir():
        raise CacheError(
            f"--cache-dir: expected a directory; got {arguments.cache_dir!r}, which does not "
            "exist. Check the path"
        )
    return user
