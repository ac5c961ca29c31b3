"""Compiled kernels on disk: content-addressed, checked on every load, shared by processes."""

from __future__ import annotations

from gemmjit.cache.entry import DamagedEntryError, Entry
from gemmjit.cache.key import Key, identity_of
from gemmjit.cache.layers import Layers, current_layers
from gemmjit.cache.memos import Memo, StoredMemo, memo_digest
from gemmjit.cache.places import max_bytes, parse_size, shared_directories, user_directory
from gemmjit.cache.stats import CacheStats, stats
from gemmjit.cache.store import Store, Stored

__all__ = [
    "CacheStats",
    "DamagedEntryError",
    "Entry",
    "Key",
    "Layers",
    "Memo",
    "Store",
    "Stored",
    "StoredMemo",
    "current_layers",
    "identity_of",
    "max_bytes",
    "memo_digest",
    "parse_size",
    "shared_directories",
    "stats",
    "user_directory",
]
