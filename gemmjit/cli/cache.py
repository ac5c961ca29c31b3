"""``gemmjit cache``: what is on disk, whether it is sound, and how to have less of it."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gemmjit.cache import (
    DamagedEntryError,
    Entry,
    Store,
    Stored,
    StoredMemo,
    max_bytes,
    parse_size,
)
from gemmjit.cache.archive import Archive, write_archive
from gemmjit.cache.store import GRACE_SECONDS
from gemmjit.cli import choices, sentence
from gemmjit.cli.cache_directories import (
    existing_directory,
    readable_stores,
    stores_of,
    user_directory,
)
from gemmjit.cli.choices import directory
from gemmjit.cli.output import add_json, bytes_text, counted, print_json, print_table
from gemmjit.errors import CacheError

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, (function, text) in _ACTIONS.items():
        action = actions.add_parser(name, help=text, description=sentence(text))
        action.set_defaults(function=function)
        add_json(action)
        action.add_argument(
            "--cache-dir",
            type=directory,
            metavar="DIR",
            help="cache directory, instead of all that the environment names",
        )
        if name == "prune":
            action.add_argument(
                "--max-size",
                type=_size,
                metavar="SIZE",
                help="size to come down to, as in 512M (default: GEMMJIT_CACHE_MAX_SIZE)",
            )
        if name == "verify":
            action.add_argument("--remove", action="store_true", help="remove what is damaged")
        if name in ("export", "import"):
            text = "file to write" if name == "export" else "file that export wrote"
            action.add_argument("file", metavar="FILE", help=text)
        if name == "export":
            action.add_argument(
                "--target", default="", help="kernels of these targets only, as in sm_90a,sm_100f"
            )
        if name == "import":
            action.add_argument(
                "--sha256", metavar="HEX", help="refuse a file whose SHA-256 is another"
            )
        if name == "clear":
            action.add_argument("--yes", action="store_true", help="do not ask first")


def run(arguments: argparse.Namespace) -> int:
    """Run one action."""
    status: int = arguments.function(arguments)
    return status


def _size(text: str) -> int:
    size = parse_size(text) if text.isascii() else None  # as for whole numbers
    if size is None:
        raise argparse.ArgumentTypeError(f"expected a size such as 512M or 2G; got {text!r}")
    return size


def _info(arguments: argparse.Namespace) -> int:
    rows: list[dict[str, Any]] = []
    stores = stores_of(arguments)
    readable, _ = readable_stores(arguments, stores)
    for store in stores:
        stored = list(store.entries()) if store in readable else []
        rows.append(
            {
                "path": str(store.root),
                "writable": store.writable,
                "usable": store in readable,
                "num_entries": len(stored),
                "num_bytes": sum(one.num_bytes for one in stored),
                "num_memos": sum(1 for _ in store.memos()) if store in readable else 0,
                "targets": sorted({one.target for one in stored}),
                "nvrtc": sorted({one.nvrtc_version for one in stored}),
            }
        )
    if arguments.json:
        print_json({"directories": rows, "max_bytes": max_bytes()})
        return 0
    for row in rows:
        limit = f" of {bytes_text(max_bytes())}" if row["writable"] else ", only read"
        held = counted(row["num_entries"], "kernel")
        print(f"{row['path']}: {held}, {bytes_text(row['num_bytes'])}{limit}")
        if row["num_entries"]:
            targets, versions = " ".join(row["targets"]), " ".join(row["nvrtc"])
            print(f"  targets {targets}; NVRTC {versions}; {row['num_memos']} memos")
    return 0


def _ls(arguments: argparse.Namespace) -> int:
    readable, passed_over = readable_stores(arguments, stores_of(arguments))
    rows = []
    for store in readable:
        memos = Counter((one.target, one.key.folder) for one in store.sound_memos())
        for one in _sorted(store):
            rows.append({**_row(one), "num_memos": memos[one.target, one.folder]})
    if arguments.json:
        print_json({"entries": rows})
        return int(passed_over)
    now = time.time()
    print_table(
        ("target", "kernel", "NVRTC", "bytes", "memos", "used"),
        [
            [
                *(row[name] for name in ("target", "kernel", "nvrtc", "num_bytes", "num_memos")),
                _age(now - row["last_used"]),
            ]
            for row in rows
        ],
    )
    return int(passed_over)


def _verify(arguments: argparse.Namespace) -> int:
    rows = []
    readable, passed_over = readable_stores(arguments, stores_of(arguments))
    left = int(passed_over)  # what cannot be read is not known to be sound
    looked_at = []
    for store in readable:
        kernels, memos = len(list(store.entries())), len(list(store.memos()))
        held = f"{counted(kernels, 'kernel')} and {counted(memos, 'memo')}"
        looked_at.append(f"{held} in {store.root}")
        for stored, reason in store.verify():
            removed = arguments.remove and store.writable and store.remove(stored)
            left += not removed
            rows.append({**_row(stored), "reason": reason, "removed": removed})
        for memo in store.memos():
            if memo.memo is None:
                removed = arguments.remove and store.writable and store.forget(memo)
                left += not removed
                rows.append({**_row(memo), "reason": memo.reason, "removed": removed})
    if arguments.json:
        print_json({"damaged": rows})
    elif not rows:
        print(f"As they were written: {'; '.join(looked_at) or 'nothing was read'}.")
    else:
        for row in rows:
            print(f"{row['path']}: {row['reason']}{'; removed' if row['removed'] else ''}")
    return 1 if left else 0


def _prune(arguments: argparse.Namespace) -> int:
    user = existing_directory(arguments)
    limit = max_bytes() if arguments.max_size is None else arguments.max_size
    removed = user.prune(limit)
    if arguments.json:
        print_json({"removed": [_row(one) for one in removed], "num_bytes": user.size()})
    else:
        freed, left = bytes_text(sum(one.num_bytes for one in removed)), bytes_text(user.size())
        print(f"{counted(len(removed), 'kernel')} removed ({freed}); {left} are left.")
        if user.size() > limit:
            print(f"What was used in the last {GRACE_SECONDS // 60:.0f} minutes stays.")
    return 0


def _clear(arguments: argparse.Namespace) -> int:
    user = existing_directory(arguments)
    found = list(user.entries())
    if not arguments.yes and not _confirmed(user, found):
        print("Nothing was removed; --yes removes without asking.", file=sys.stderr)
        return 1
    removed = [one for one in found if user.remove(one)]
    kept = [memo for memo in user.memos() if not user.forget(memo)]
    if arguments.json:
        print_json({"removed": [_row(one) for one in removed], "num_bytes": user.size()})
    else:
        print(f"{counted(len(removed), 'kernel')} removed from {user.root}.")
    return 0 if len(removed) == len(found) and not kept else 1


def _confirmed(store: Store, found: list[Stored]) -> bool:
    if not sys.stdin.isatty():
        return False
    question = f"Remove all {counted(len(found), 'kernel')} from {store.root}? [y/N] "
    return input(question).strip().lower() in ("y", "yes")


def _export(arguments: argparse.Namespace) -> int:
    targets = {arch.name for arch in choices.arch_list(arguments.target)}
    found: dict[tuple[str, str, str], Entry] = {}
    damaged = []
    readable, passed_over = readable_stores(arguments, stores_of(arguments))
    for store in readable:
        for stored in _sorted(store):
            place = (stored.target, stored.folder, stored.nvrtc_version)
            if place in found or (targets and stored.target not in targets):
                continue
            try:
                found[place] = store.read(stored)
            except DamagedEntryError as error:
                damaged.append(stored)
                print(f"gemmjit cache: {stored.path} is left out: {error}", file=sys.stderr)
    if not found:
        raise CacheError(
            "cache: expected kernels to export; got none. Compile some with gemmjit prewarm"
        )
    memos = [memo for store in readable for memo in store.sound_memos()]
    count, digest = write_archive(Path(arguments.file), found.values(), memos)
    num_bytes = Path(arguments.file).stat().st_size
    if arguments.json:
        told = {"file": arguments.file, "entries": count, "num_bytes": num_bytes, "sha256": digest}
        print_json({**told, "damaged": [_row(one) for one in damaged]})
    else:
        held = f"{counted(count, 'kernel')} in {arguments.file} ({bytes_text(num_bytes)})"
        print(f"{held}, SHA-256 {digest}")
    return 1 if damaged or passed_over else 0


def _import(arguments: argparse.Namespace) -> int:
    archive = Archive(Path(arguments.file))
    if arguments.sha256 is not None:
        archive.check_digest(arguments.sha256)
    user = user_directory(arguments)
    for _ in archive.entries():  # all of it is sound, or none of it is taken
        pass
    memos = archive.memos()
    new = known = 0
    for entry in archive.entries():
        if user.load(entry.key, entry.nvrtc_version) is not None:  # what is damaged is replaced
            known += 1
        elif user.publish(entry):
            new += 1
        else:
            raise CacheError(
                f"cache: expected a directory that can be written; got {user.root}, which keeps "
                f"{new} of the kernels. Make room, or choose another with --cache-dir"
            )
    if not user.settle():
        raise CacheError(
            f"cache: expected a disk that keeps what is written; got {user.root}, whose disk "
            "refuses to. Choose another with --cache-dir"
        )
    for memo in memos:
        user.remember(memo.digest, memo.key)
    if arguments.json:
        print_json({"directory": str(user.root), "new": new, "present": known})
    else:
        print(f"{counted(new, 'kernel')} brought into {user.root}, {known} were there already.")
    return 0


def _sorted(store: Store) -> list[Stored]:
    return sorted(store.entries(), key=lambda one: (one.target, one.folder, one.nvrtc_version))


def _row(stored: Stored | StoredMemo) -> dict[str, Any]:
    place = ("", "", "")  # a memo has none
    if isinstance(stored, Stored):
        place = (stored.target, stored.folder, stored.nvrtc_version)
    return {
        "path": str(stored.path),
        **dict(zip(("target", "kernel", "nvrtc"), place, strict=True)),
        "num_bytes": stored.num_bytes,
        "last_used": stored.last_used,
    }


def _age(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return "now"


_ACTIONS: dict[str, tuple[Callable[[argparse.Namespace], int], str]] = {
    "info": (_info, "show the directories and what is in them"),
    "ls": (_ls, "list every kernel"),
    "verify": (_verify, "check every byte; exit 1 if something is damaged"),
    "prune": (_prune, "remove what was not used for longest, down to the limit"),
    "export": (_export, "write every kernel of all directories into one file"),
    "import": (_import, "bring the kernels of an exported file into the user's directory"),
    "clear": (_clear, "remove every kernel from the user's directory; asks first"),
}
