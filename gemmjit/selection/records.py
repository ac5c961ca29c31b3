"""What ``gemmjit tune`` has recorded, as the default choice reads it.

``tuned.json`` lies beside the compiled kernels, in the user's directory and in those that are only
read. A record says which tile was measured fastest for a bucket of problems on one GPU. A record
of other kernels (their templates have changed), or with a tile that no longer exists, does not
count. What no record says, and where a record's tile cannot serve, the heuristic decides.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from gemmjit import env
from gemmjit import kernels as kernels_package
from gemmjit.cache import shared_directories, user_directory
from gemmjit.cache.trust import distrust
from gemmjit.config import Config
from gemmjit.errors import GemmjitError
from gemmjit.kernels import KERNELS
from gemmjit.logs import logger, warn_once
from gemmjit.selection.buckets import Bucket, Kind
from gemmjit.templating.paths import templates_root

__all__ = [
    "FILE",
    "SCHEMA",
    "Record",
    "Tuned",
    "check_times",
    "current",
    "forget",
    "kernels_digest",
    "load",
    "parse",
    "read",
]

#: Name of the file in a cache directory, and version of its format.
FILE = "tuned.json"
SCHEMA = 1

_LARGEST = 64 * 2**20  # bytes
_DEEPEST = 16  # of lists and objects; a record has five
_LONGEST_US = 1e12  # of any time, eleven days
_PLACES = ("GEMMJIT_CACHE_DIR", "GEMMJIT_CACHE_PATH")


@dataclass(frozen=True, slots=True)
class Record:
    """The outcome of measuring one bucket of problems.

    Attributes
    ----------
    gpu, arch, driver : str
        What it was measured on.
    digest : str
        Of the kernels that were measured, see `kernels_digest`.
    bucket : Bucket
    config : Config
        The fastest, by the geometric mean of the power states.
    facts : mapping
        The whole entry: times of all candidates, sizes, date, rounds.
    """

    gpu: str
    arch: str
    driver: str
    digest: str
    bucket: Bucket
    config: Config
    facts: Mapping[str, Any] = field(compare=False)

    @property
    def key(self) -> tuple[str, Bucket]:
        """What a newer record replaces."""
        return self.gpu, self.bucket

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> Record:
        """Build a record from an entry of the file.

        Raises
        ------
        GemmjitError, KeyError, TypeError, AttributeError
            If it lacks something, names a kernel or tile that there is not, or has a bucket or a
            time that cannot be.
        """
        check_times(facts)
        config = KERNELS[facts["kernel"]].config_type.from_dict(facts["config"])
        texts = {name: facts[name] for name in ("gpu", "arch", "driver", "digest")}
        if not all(isinstance(text, str) for text in texts.values()):
            raise TypeError("gpu, arch, driver and digest must be texts")
        return cls(**texts, bucket=Bucket.from_dict(facts["bucket"]), config=config, facts=facts)


def check_times(facts: Mapping[str, Any]) -> None:
    """Raise `TypeError` if an entry has times that are no numbers of microseconds."""
    timed = facts.get("candidates", [])
    if not isinstance(timed, list) or not all(isinstance(one, dict) for one in timed):
        raise TypeError("candidates must be a list of objects")
    for one in timed:
        states = one.get("us", {})
        if not isinstance(states, dict):
            raise TypeError(f"us must be an object; got {states!r}")
        alone = {name: one[name] for name in ("mean_us", "predicted_us") if name in one}
        for name, value in (alone | states).items():
            if type(value) not in (int, float) or not 0 < value < _LONGEST_US:
                raise TypeError(f"{name} must be a number of microseconds; got {value!r}")


@dataclass(frozen=True, slots=True)
class Tuned:
    """The records that count for this installation."""

    by_key: Mapping[tuple[str, Bucket], Record]

    def find(self, gpu: str, bucket: Bucket) -> Record | None:
        """Return the record of a bucket of problems on a GPU, if there is one."""
        return self.by_key.get((gpu, bucket))

    def buckets_of(self, kind: Kind) -> list[tuple[str, Bucket]]:
        """Return GPU and bucket of every record of a kind of problems."""
        return [key for key in self.by_key if key[1].kind == kind]


@cache
def kernels_digest() -> str:
    """Return the SHA-256 of what decides the code of kernels: templates, their modules, configs."""
    digest = hashlib.sha256()
    package = Path(kernels_package.__file__).parent
    texts = {f"kernels/{p.name}": p.read_bytes() for p in package.glob("*.py")}
    texts |= {name: (package.parent / name).read_bytes() for name in ("config.py", "epilogue.py")}
    pending = [("templates", templates_root())]
    while pending:
        name, place = pending.pop()
        for item in place.iterdir():
            if item.is_dir():
                pending.append((f"{name}/{item.name}", item))
            elif item.name.endswith((".cuh", ".j2")):
                texts[f"{name}/{item.name}"] = item.read_bytes()
    for name in sorted(texts):
        digest.update(name.encode() + b"\0" + hashlib.sha256(texts[name]).digest())
    return digest.hexdigest()


def current() -> Tuned | None:
    """Return the records of this process's directories, or None where there are none.

    They are read once, when they are first needed; `forget` lets them be read anew.
    ``GEMMJIT_IGNORE_TUNED`` switches them off.
    """
    if env.flag("GEMMJIT_IGNORE_TUNED"):
        return None
    places = tuple(os.environ.get(name, "") for name in _PLACES)
    return _load(places)


def forget() -> None:
    """Let records be read from disk when they are next needed."""
    _load.cache_clear()


@cache
def _load(places: tuple[str, ...]) -> Tuned | None:
    user = user_directory()
    layers = [(directory, True) for directory in reversed(shared_directories())]
    if user is not None:
        layers.append((user, False))  # one's own wins, then the first that is named
    found: dict[tuple[str, Bucket], Record] = {}
    for directory, any_owner in layers:
        for record in _that_count(read(directory / FILE, any_owner=any_owner), directory / FILE):
            found[record.key] = record
    return Tuned(found) if found else None


def read(path: Path, *, any_owner: bool = False) -> list[Mapping[str, Any]]:
    """Return the entries of a file, of any installation; none, with a warning, if it is no such.

    Parameters
    ----------
    path : Path
    any_owner : bool
        Whether it may belong to somebody else, as in a directory that is only read.
    """
    try:
        return load(path, any_owner=any_owner)
    except (OSError, ValueError) as error:
        warn_once(
            "selection", ("tuned", str(path)), "%s: tuned records are not used: %s", path, error
        )
        return []


def load(path: Path, *, any_owner: bool = False) -> list[Mapping[str, Any]]:
    """Return the entries of a file in a cache directory; none if it is missing.

    Raises
    ------
    OSError
        If it cannot be read.
    ValueError
        If it is no file of records, or is not trusted; with the reason.
    """
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST:
                raise ValueError("it is no file of records")
            reason = distrust(status, any_owner=any_owner)
            if reason is not None:
                raise ValueError(reason)
            text = file.read().decode()
    except FileNotFoundError:
        return []
    return parse(text)


def parse(text: str) -> list[Mapping[str, Any]]:
    """Return the entries of the text of a file.

    Raises
    ------
    ValueError
        If it is none of records in this format.
    """
    try:
        value = json.loads(text, parse_constant=_no_number, parse_float=_finite)
    except RecursionError:
        raise ValueError("lists or objects lie too deeply in each other") from None
    if _is_deep(value):
        raise ValueError(f"expected at most {_DEEPEST} lists and objects in each other")
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        raise ValueError(f"expected tuned records of schema {SCHEMA}")
    entries = value.get("records")
    if not isinstance(entries, list) or not all(isinstance(one, dict) for one in entries):
        raise ValueError("records: expected a list of objects")
    return entries


def _that_count(entries: Iterable[Mapping[str, Any]], path: Path) -> list[Record]:
    kept: list[Record] = []
    other_kernels = broken = 0
    for entry in entries:
        if entry.get("digest") != kernels_digest():
            other_kernels += 1
            continue
        try:
            kept.append(Record.from_dict(entry))
        except (GemmjitError, KeyError, TypeError, AttributeError):
            broken += 1
    if other_kernels or broken:
        logger("selection").info(
            "%s: %d records do not count: %d are of other kernels, %d of tiles that there are not",
            path,
            other_kernels + broken,
            other_kernels,
            broken,
        )
    return kept


def _no_number(name: str) -> float:
    raise ValueError(f"expected finite numbers; got {name}")


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _no_number(text)


def _is_deep(value: Any) -> bool:
    """Return whether more lists and objects lie in each other than in any record."""
    level = [value]
    for _ in range(_DEEPEST + 1):
        inner = [list(one.values()) if isinstance(one, dict) else one for one in level]
        level = [x for one in inner for x in one if isinstance(x, list | dict)] if level else []
        if not level:
            return False
    return True


def _without_waiting(path: str, flags: int) -> int:
    """Open so that a pipe in the place of a file is noticed, not waited for."""
    return os.open(path, flags | os.O_NONBLOCK)
