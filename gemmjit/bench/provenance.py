"""Where numbers come from: device, driver, versions, commit, date. Every result carries it."""

from __future__ import annotations

import hashlib
import platform
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import gemmjit
from gemmjit.bench.backend import Backend
from gemmjit.bench.telemetry import Provider
from gemmjit.compiler import installed_version
from gemmjit.templating.paths import templates_root

__all__ = ["SCHEMA", "commit_of", "provenance", "source_digest"]

#: Version of the JSON files.
SCHEMA = 1

_PACKAGES = (
    *("numpy", "ml_dtypes", "cuda-python", "cuda-bindings", "cuda-core"),
    *("nvidia-cuda-nvrtc", "cupy-cuda13x", "torch", "triton", "matplotlib"),
)
_GIT_SECONDS = 20.0


def provenance(
    backend: Backend,
    provider: Provider | None,
    arguments: Sequence[str],
    commit: str | None = None,
) -> dict[str, Any]:
    """Return what a result file says about its origin.

    Parameters
    ----------
    backend : Backend
    provider : Provider or None
        Of the telemetry.
    arguments : sequence of str
        Command line of the run.
    commit : str, optional
        Commit of the sources, where they are not a git checkout.
    """
    return {
        "schema": SCHEMA,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": list(arguments),
        "device": {
            **backend.facts.to_dict(),
            "framework": backend.framework,
            "lead_in": backend.lead_in,
            "power_limit_w": provider.power_limit_w() if provider else None,
            "telemetry": provider.name if provider else None,
        },
        "source": {
            **commit_of(Path(gemmjit.__file__).resolve().parent.parent, commit),
            "gemmjit": gemmjit.__version__,
            "sha256": source_digest(),
        },
        "versions": _versions(),
    }


def commit_of(directory: Path, given: str | None = None) -> dict[str, Any]:
    """Return commit, whether files differ from it, and who says so.

    Parameters
    ----------
    directory : Path
        Root of the checkout.
    given : str, optional
        What to believe where git does not know the directory. A trailing ``-dirty`` says that
        files differ.
    """
    if (directory / ".git").exists():
        head = _git(directory, "rev-parse", "HEAD")
        changed = _git(directory, "status", "--porcelain", "--untracked-files=normal")
        if head is not None and changed is not None:
            return {"commit": head, "dirty": bool(changed), "commit_from": "git"}
    if given:
        return {
            "commit": given.removesuffix("-dirty"),
            "dirty": given.endswith("-dirty"),
            "commit_from": "argument",
        }
    return {"commit": None, "dirty": None, "commit_from": "unknown: not a git checkout"}


def source_digest() -> str:
    """Return the SHA-256 of all Python modules and templates: what ran, whatever git says."""
    digest = hashlib.sha256()
    package = Path(gemmjit.__file__).resolve().parent
    roots = [(package, "*.py")]
    templates = templates_root()
    if isinstance(templates, Path):
        roots += [(templates, "*.cuh"), (templates, "*.j2")]
    for root, pattern in roots:
        for path in sorted(root.rglob(pattern)):
            digest.update(path.relative_to(root).as_posix().encode() + b"\0")
            digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    with suppress(Exception):
        found["nvrtc"] = installed_version()
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        found["torch_cuda"] = torch.version.cuda
    return found


def _git(directory: Path, *arguments: str) -> str | None:
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            ["git", "-C", str(directory), *arguments],
            capture_output=True,
            text=True,
            timeout=_GIT_SECONDS,
            check=True,
        )
        return done.stdout.strip()
    return None
