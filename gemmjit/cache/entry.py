"""One compiled kernel as files, and back: every byte is checked before it is believed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from gemmjit.cache.key import SCHEMA, Key, identity_of
from gemmjit.elf import arch_number, is_cubin
from gemmjit.errors import CacheError

__all__ = [
    "CUBIN",
    "FILES",
    "META",
    "DamagedEntryError",
    "Entry",
    "checked",
    "decode",
    "encode",
    "read_meta",
    "signed",
]

CUBIN, PTX, SOURCE, META = "kernel.cubin", "kernel.ptx", "kernel.cu", "meta.json"

#: Every file of an entry, the one that describes the others last.
FILES = (CUBIN, PTX, SOURCE, META)


class DamagedEntryError(ValueError):
    """An entry is not what its metadata, or the request, says; the message gives the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A compiled kernel as the cache keeps it.

    Attributes
    ----------
    target, entry : str
    source : str
    options : tuple of str
    nvrtc_version : str
    cubin : bytes
    ptx : str
    resources : mapping of str to int
        Registers and so on of this kernel, as the compiler told them.
    log : str
    seconds : float
        What compiling took.
    kernel, config, variant : str
        Name in the ladder, tile and variant, for people.
    gemmjit_version : str
    created : float
        Seconds since the epoch.
    """

    target: str
    entry: str
    source: str
    options: tuple[str, ...]
    nvrtc_version: str
    cubin: bytes
    ptx: str
    resources: Mapping[str, int]
    log: str
    seconds: float
    kernel: str = ""
    config: str = ""
    variant: str = ""
    gemmjit_version: str = ""
    created: float = 0.0

    @property
    def key(self) -> Key:
        """Where it belongs."""
        identity = identity_of(self.source, self.options, self.target)
        return Key(self.target, self.entry, identity)


def encode(entry: Entry) -> dict[str, bytes]:
    """Return the files of an entry by name."""
    files = {CUBIN: entry.cubin, PTX: entry.ptx.encode(), SOURCE: entry.source.encode()}
    meta = asdict(replace(entry, cubin=b"", ptx="", source=""))
    for name in ("cubin", "ptx", "source"):
        del meta[name]
    meta |= {
        "schema": SCHEMA,
        "identity": entry.key.identity,
        "files": {
            name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for name, data in files.items()
        },
    }
    files[META] = signed(meta)
    return files


def signed(facts: Mapping[str, Any]) -> bytes:
    """Return facts as a file that holds their checksum too."""
    told = {**facts, "sha256": _digest(facts)}
    return (json.dumps(told, indent=1, ensure_ascii=False) + "\n").encode()


def checked(data: bytes, name: str) -> dict[str, Any]:
    """Return the facts of a file that `signed` made.

    Raises
    ------
    DamagedEntryError
        If a bit of it is not as it was written; `name` is what the message calls it.
    """
    try:
        facts = json.loads(data)
        told = facts.pop("sha256")
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise DamagedEntryError(f"{name} is not metadata") from error
    if told != _digest(facts):
        raise DamagedEntryError(f"the checksum of {name} is wrong")
    return dict(facts)


def read_meta(data: bytes) -> dict[str, Any]:
    """Return the metadata that a file holds.

    Raises
    ------
    DamagedEntryError
        If a bit of it is not as it was written.
    """
    return checked(data, META)


def decode(files: Mapping[str, bytes], key: Key | None = None) -> Entry:
    """Return the entry that files hold.

    Parameters
    ----------
    files : mapping
        As `encode` gives them.
    key : Key, optional
        What was asked for.

    Raises
    ------
    DamagedEntryError
        If a file is missing, cut short or changed, or the entry is another one.
    """
    meta = read_meta(files.get(META, b""))
    if meta.pop("schema", None) != SCHEMA:
        raise DamagedEntryError("it has another layout")
    identity, described = meta.pop("identity", None), meta.pop("files", {})
    for name in (CUBIN, PTX, SOURCE):
        data, facts = files.get(name), described.get(name)
        if data is None or facts is None:
            raise DamagedEntryError(f"{name} is missing")
        if len(data) != facts["bytes"]:
            raise DamagedEntryError(f"{name} has {len(data)} bytes instead of {facts['bytes']}")
        if hashlib.sha256(data).hexdigest() != facts["sha256"]:
            raise DamagedEntryError(f"the checksum of {name} is wrong")
    try:
        entry = Entry(
            **{
                **meta,
                "options": tuple(meta["options"]),
                "resources": {name: int(value) for name, value in meta["resources"].items()},
                "cubin": files[CUBIN],
                "ptx": files[PTX].decode(),
                "source": files[SOURCE].decode(),
            }
        )
        real = entry.key
    except (TypeError, KeyError, ValueError, AttributeError, CacheError) as error:
        raise DamagedEntryError(f"its metadata is incomplete: {error}") from error
    if real.identity != identity or (key is not None and real != key):
        raise DamagedEntryError("it holds another kernel")
    number = int(entry.target.removeprefix("sm_").rstrip("af"))
    if not is_cubin(entry.cubin) or arch_number(entry.cubin) != number:
        raise DamagedEntryError(f"{CUBIN} is not a cubin for {entry.target}")
    return entry


def _digest(meta: Mapping[str, Any]) -> str:
    text = json.dumps(meta, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()
