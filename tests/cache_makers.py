"""Cache entries that need no compiler, and questions to a store."""

from __future__ import annotations

import logging
import os
import random
from pathlib import Path

from gemmjit.cache import Entry, Store

VERSION = "13.5.37"


def fake_cubin(number: int = 90, size: int = 4000, seed: int = 0) -> bytes:
    """An ELF header for a GPU, and noise."""
    header = bytearray(64)
    header[:5] = b"\x7fELF\x02"
    header[18:20] = (190).to_bytes(2, "little")
    header[48:52] = (number << 8).to_bytes(4, "little")
    return bytes(header) + random.Random(seed).randbytes(size)


def make(
    source: str = "int a;  // a kernel\n", *, target: str = "sm_90a", nvrtc: str = VERSION, **more
) -> Entry:
    fields = {
        "target": target,
        "entry": "gemmjit_k1",
        "source": source,
        "options": (f"--gpu-architecture={target}", "--std=c++17"),
        "nvrtc_version": nvrtc,
        "cubin": fake_cubin(int(target[3:].rstrip("af"))),
        "ptx": ".version 9.5\n",
        "resources": {"registers": 79, "smem_bytes": 0},
        "log": "ptxas info : 日本\n",
        "seconds": 0.25,
    }
    return Entry(**{**fields, **more})


def place(store: Store, entry: Entry) -> Path:
    (stored,) = (s for s in store.entries() if s.folder == entry.key.folder)
    return stored.path


def warnings(caplog) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def leftovers(store: Store) -> list[str]:
    """Everything in the directory that is neither an entry nor a lock."""
    aside = store.root / "v1" / ".tmp"
    return os.listdir(aside) if aside.exists() else []
