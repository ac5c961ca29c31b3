"""What ``gemmjit doctor`` finds on a machine. Nothing here raises: what fails is a finding."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module, metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gemmjit
from gemmjit import env
from gemmjit.cli import settings
from gemmjit.cli.finding import Finding
from gemmjit.errors import GemmjitError

__all__ = ["OPTIONAL", "REQUIRED", "report", "satisfies"]

#: Package, its range of versions, the module that it brings.
REQUIRED = (
    ("cuda-python", ">=13.0,<14", "cuda.bindings.nvrtc"),
    ("nvidia-cuda-nvrtc", ">=13.0,<14", ""),
    ("cupy-cuda13x", ">=14.0", ""),
    ("jinja2", ">=3.1", "jinja2"),
    ("numpy", ">=2.0", "numpy"),
    ("platformdirs", ">=4.3", "platformdirs"),
    ("ml-dtypes", ">=0.5", "ml_dtypes"),
)

#: Worth knowing about, needed by nothing but what an extra names.
OPTIONAL = (
    "cuda-bindings",
    "cuda-core",
    "cuda-pathfinder",
    "torch",
    "rich",
    "matplotlib",
    "nvidia-cuda-cuobjdump",
    "nvidia-cuda-nvdisasm",
)

#: Without these a kernel can be compiled all the same.
_GPU_ONLY = frozenset({"cupy-cuda13x"})

_REINSTALL = "pip install --force-reinstall gemmjit"
_OTHER_CACHE = "export GEMMJIT_CACHE_DIR=DIRECTORY, one that you can write to"
_OTHER_LAYER = "Correct GEMMJIT_CACHE_PATH, or make the directory readable"
_DRIVER_RELEASE = Path("/proc/driver/nvidia/version")


def report() -> tuple[dict[str, Any], list[Finding]]:
    """Return the facts by topic, ready for JSON, and what is wrong."""
    findings: list[Finding] = []
    facts: dict[str, Any] = {
        "gemmjit": {
            "version": gemmjit.__version__,
            "location": str(Path(gemmjit.__file__).parent),
        },
        "python": {"version": platform.python_version(), "executable": sys.executable},
        "platform": platform.platform(),
        "packages": list(_packages(findings)),
    }
    topics: dict[str, tuple[Callable[[list[Finding]], Any], Any]] = {
        "nvrtc": (_nvrtc, None),
        "driver": (_driver, None),
        "gpus": (_gpus, []),
        "cache": (_cache, {"user": None, "shared": [], "max_bytes": None}),
        "templates": (_templates, {"root": None, "count": 0, "overrides": []}),
    }
    for name, (find, nothing) in topics.items():
        try:
            facts[name] = find(findings)
        except GemmjitError as error:
            facts[name] = nothing
            mend = "Check nvidia-smi" if name == "gpus" else _REINSTALL
            needed_to: Any = "run on a GPU" if name == "gpus" else "compile"
            findings.append(Finding(f"{name}: {error}", mend, needed_to))
        except ImportError as error:  # a package that is reported as missing already
            facts[name] = nothing
            if not findings:
                findings.append(Finding(f"{name}: {error}", _REINSTALL))
    facts["environment"] = settings.variables(findings)
    return facts, findings


def _packages(findings: list[Finding]) -> Iterator[dict[str, Any]]:
    for name, wanted, module in REQUIRED:
        installed = _version(name)
        needed_to: Any = "run on a GPU" if name in _GPU_ONLY else "compile"
        if installed is None:
            if not (module and _importable(module)):  # it may come from elsewhere than pip
                _missing(findings, f"{name} is not installed", name, wanted, needed_to)
        elif not satisfies(installed, wanted):
            what = f"{name} {installed} is installed, {wanted} is needed"
            _missing(findings, what, name, wanted, needed_to)
        elif module and not _importable(module):
            mend = f'pip install --force-reinstall "{name}{wanted}"'
            what = f"{name} {installed} is installed, but {module} cannot be imported"
            findings.append(Finding(what, mend, needed_to))
        yield {"name": name, "installed": installed, "required": wanted}
    for name in OPTIONAL:
        yield {"name": name, "installed": _version(name), "required": None}


def _missing(findings: list[Finding], what: str, name: str, wanted: str, needed_to: Any) -> None:
    findings.append(Finding(what, f'pip install "{name}{wanted}"', needed_to))


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _importable(module: str) -> bool:
    try:
        import_module(module)
    except ImportError:
        return False
    return True


def satisfies(version: str, wanted: str) -> bool:
    """Return whether a version lies in a range such as ``>=13.0,<14``."""
    for clause in wanted.split(","):
        least = clause.startswith(">=")
        bound = _numbers(clause.lstrip("<>="))
        if (_numbers(version) >= bound) is not least:
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.split("+")[0])[:3])


def _nvrtc(findings: list[Finding]) -> dict[str, Any] | None:
    from gemmjit.arch import DEFAULT_ARCH, Arch, devices_of
    from gemmjit.compiler import get_compiler, standard_options

    try:
        compiler = get_compiler()
        target = Arch.parse(DEFAULT_ARCH)
        # Loads the builtins too, which come in a library of their own.
        compiler.compile(
            'extern "C" __global__ void probe(int* p) { *p = 1; }',
            target=target,
            name="probe",
            options=standard_options(target),
        )
    except GemmjitError as error:
        findings.append(Finding(f"NVRTC: {error}", 'pip install "nvidia-cuda-nvrtc>=13.0,<14"'))
        return None
    return {
        "version": compiler.version,
        "library": compiler.library,
        "targets": [str(one) for one in map(Arch, compiler.supported) if one in devices_of(one)],
    }


def _driver(findings: list[Finding]) -> dict[str, Any] | None:
    from gemmjit.cuda import driver

    try:
        driver.driver()
    except GemmjitError as error:
        release = _driver_release()
        if release is not None:  # a driver is there, and is no good
            mend = "Update the NVIDIA driver to 580 or newer, and check nvidia-smi"
            findings.append(Finding(f"driver {release}: {error}", mend, "run on a GPU"))
        return None
    return {"cuda": driver.driver_version(), "release": _driver_release()}


def _driver_release() -> str | None:
    try:
        match = re.search(r"\b(\d{3}\.\d+(?:\.\d+)?)\b", _DRIVER_RELEASE.read_text())
    except OSError:
        return None
    return match[1] if match else None


def _gpus(findings: list[Finding]) -> list[dict[str, Any]]:
    from gemmjit.cuda.device import device, num_devices
    from gemmjit.cuda.driver import is_available

    if not is_available():
        return []
    if not _importable("cupy"):
        mend = 'pip install --force-reinstall "cupy-cuda13x>=14.0"'
        findings.append(Finding("CuPy cannot be imported", mend, "run on a GPU"))
    found = [device(ordinal) for ordinal in range(num_devices())]
    return [{"name": d.name, "arch": str(d.arch), "num_sms": d.num_sms} for d in found]


def _cache(findings: list[Finding]) -> dict[str, Any]:
    from gemmjit.cache import current_layers, max_bytes

    _check_names(findings)
    layers = current_layers()
    user = None if layers.user is None else _layer(layers.user, findings)
    if user is None or (user["usable"] and not user["writable"]):
        what = (
            f"kernels cannot be kept in {user['path']}" if user else "there is no cache directory"
        )
        findings.append(Finding(what, _OTHER_CACHE, "keep kernels on disk"))
    shared = [_layer(store, findings) for store in layers.shared]
    return {"user": user, "shared": shared, "max_bytes": max_bytes()}


def _check_names(findings: list[Finding]) -> None:
    """Find values of variables that name no directory, or no size."""
    from gemmjit.cache.places import named_directory, parse_size

    size = env.get("GEMMJIT_CACHE_MAX_SIZE")
    if size is not None and parse_size(size) is None:
        what = f"GEMMJIT_CACHE_MAX_SIZE: expected a size such as 512M or 2G; got {size!r}"
        mend = "Correct GEMMJIT_CACHE_MAX_SIZE, or unset it; 1 GiB holds meanwhile"
        findings.append(Finding(what, mend, "run as asked", of_variable=True))
    named = [("GEMMJIT_CACHE_DIR", env.get("GEMMJIT_CACHE_DIR") or "")]
    layers = (env.get("GEMMJIT_CACHE_PATH") or "").split(os.pathsep)
    for name, text in (*named, *(("GEMMJIT_CACHE_PATH", layer) for layer in layers)):
        if text.strip() and named_directory(text.strip(), name) is None:
            what = f"{name}: expected a directory; got {text.strip()!r}, which names none"
            mend = f"Correct {name}"
            findings.append(Finding(what, mend, "keep kernels on disk", of_variable=True))


def _layer(store: Any, findings: list[Finding]) -> dict[str, Any]:
    from gemmjit.cache.directory import EMPTY, MISSING

    refused = None
    try:
        store.check()
    except GemmjitError as error:
        refused = str(error)
    trouble = store.trouble()
    if store.writable and trouble in (EMPTY, MISSING):  # the first kernel creates it
        trouble = None
    if refused is not None or trouble is not None:
        too_open = "can write to it" in (refused or "")
        other = _OTHER_CACHE if store.writable else _OTHER_LAYER
        what = refused or f"{store.root}: nothing comes from this directory: {trouble}"
        mend = f"chmod go-w {store.root}" if too_open else other
        findings.append(Finding(what, mend, "keep kernels on disk"))
    usable = refused is None
    stored = list(store.entries()) if usable else []
    return {
        "path": str(store.root),
        "usable": usable,
        "writable": usable and store.writable and _writable(store.root),
        "num_entries": len(stored),
        "num_bytes": sum(one.num_bytes for one in stored),
    }


def _writable(path: Path) -> bool:
    """Return whether files can be made there, or the directory itself can.

    This tries it, in the nearest directory that there is, and leaves nothing: what is allowed says
    too little of file systems such as /proc.
    """
    with suppress(OSError):
        place = next(one for one in (path, *path.parents) if one.exists())
        with TemporaryDirectory(prefix=".gemmjit-doctor-", dir=place):
            return True
    return False


def _templates(findings: list[Finding]) -> dict[str, Any]:
    from gemmjit import templating

    root = templating.templates_root()
    above = templating.overlays()
    for path in above:
        if not path.is_dir():
            what = f"GEMMJIT_TEMPLATE_PATH names {path}, which is no directory"
            findings.append(Finding(what, f"mkdir -p {path}, or unset GEMMJIT_TEMPLATE_PATH"))
    return {
        "root": str(root),
        "count": sum(1 for _ in _files(root)),
        "overrides": [str(path) for path in above],
    }


def _files(place: Any) -> Iterator[Any]:
    for item in place.iterdir():
        if item.is_dir():
            yield from _files(item)
        elif item.name.endswith((".cuh", ".j2")):
            yield item
