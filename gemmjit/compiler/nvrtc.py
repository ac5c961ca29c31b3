"""NVRTC, loaded on first use.

A source is compiled once, to the cubin that a GPU runs and the PTX that it came from. Line tables
would triple the cubin, so that PTX has no positions. PTX that has them, with the same instructions,
is another compilation, which stops before ptxas; only what shows positions asks for it.

On 2 busy cores that one takes 88 ms for k1 and 169 ms for k3, the first one 145 and 443 ms alone
and 239 and 632 ms beside it (minima of 12; medians 91, 175, 148, 468, 244 and 646 ms; NVRTC 13.5).
NVRTC 13.0: 114 and 166 ms; 150 and 437 ms; 312 and 613 ms (134, 253; 217, 673; 380, 954).
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from gemmjit.arch import Arch
from gemmjit.compiler.options import LINE_INFO
from gemmjit.compiler.positions import PTX_POSITION, translate
from gemmjit.compiler.resources import check_advisories
from gemmjit.errors import CompileError, NvrtcNotFoundError, UnsupportedArchError
from gemmjit.installed import installed

__all__ = ["PACKAGE", "Compilation", "Compiler", "get_compiler", "installed_version"]

#: The package that brings NVRTC and its builtins.
PACKAGE = "nvidia-cuda-nvrtc"

_MEND = f'Install it with: pip install "{PACKAGE}>=13.0,<14"'
_BANNER = re.compile(r"Cuda compilation tools, release [\d.]+, V(\d+(?:\.\d+)+)")
_FIRST_ERRORS = 12  # lines of the log that a message repeats


@dataclass(frozen=True, slots=True)
class Compilation:
    """What came of one source.

    Attributes
    ----------
    cubin : bytes
        For the target.
    ptx : str
        What the cubin came from; with line information if the options ask for it.
    log : str
        Of front end and ptxas.
    seconds : float
        Wall time.
    nvrtc_version : str
        Of the compiler, as in ``13.5.37``.
    """

    cubin: bytes
    ptx: str
    log: str
    seconds: float
    nvrtc_version: str


def installed_version() -> str | None:
    """Return the version of the NVRTC package, or None; nothing is loaded.

    It is the version that a `Compiler` will have, unless another NVRTC is in the process already.
    """
    package = installed(PACKAGE, "nvidia/cu13/lib/libnvrtc.so.13")
    return None if package is None else package[0]


@cache
def _load() -> tuple[Any, str]:
    """Return the bindings of NVRTC and the path of the library behind them."""
    try:
        from cuda.bindings import nvrtc
        from cuda.pathfinder import load_nvidia_dynamic_lib

        library = load_nvidia_dynamic_lib("nvrtc")
        nvrtc.nvrtcVersion()
    except ImportError as error:
        raise NvrtcNotFoundError(
            f"nvrtc: expected its Python bindings, cuda.bindings; got an error: {error}. "
            'Install them with: pip install "cuda-python>=13.0,<14"'
        ) from error
    except (RuntimeError, OSError) as error:
        raise NvrtcNotFoundError(
            f"nvrtc: expected a library of CUDA 13, libnvrtc.so.13; got none that can be loaded. "
            f"{_MEND}"
        ) from error
    return nvrtc, str(library.abs_path)


class Compiler:
    """The NVRTC of this process.

    Attributes
    ----------
    supported : tuple of int
        Architecture numbers that it compiles for.

    Raises
    ------
    NvrtcNotFoundError
        If NVRTC cannot be loaded; the message names the package to install.
    """

    def __init__(self) -> None:
        self._nvrtc, self._path = _load()
        self.supported: tuple[int, ...] = tuple(self._call("nvrtcGetSupportedArchs"))
        self._version: str | None = None

    @property
    def library(self) -> str:
        """Path of the NVRTC library that is used."""
        return self._path

    @property
    def version(self) -> str:
        """Version of NVRTC with its patch level, as in ``13.5.37``.

        The library itself tells major and minor only. Its package knows the rest; for a library
        from elsewhere, the head of the PTX that it makes does.
        """
        if self._version is None:
            self._version = self._from_package() or self._from_banner()
        return self._version

    def _from_package(self) -> str | None:
        package = installed(PACKAGE)
        if package is None:
            return None
        version, place = package
        mine = Path(self._path).resolve().is_relative_to((place / "nvidia").resolve())
        release = ".".join(map(str, self._call("nvrtcVersion")))
        return version if mine and version.startswith(release + ".") else None

    def _from_banner(self) -> str:
        number = self.supported[0]
        ptx = self._run("", "version", [f"--gpu-architecture=compute_{number}"]).ptx
        match = _BANNER.search(ptx)
        return match[1] if match else ".".join(map(str, self._call("nvrtcVersion")))

    def compile(
        self, source: str, *, target: Arch, name: str, options: Sequence[str] = ()
    ) -> Compilation:
        """Compile one source for one target.

        Parameters
        ----------
        source : str
            CUDA source that includes nothing.
        target : Arch
        name : str
            What messages call the source, where no ``#line`` directive says otherwise.
        options : sequence of str
            As `standard_options` gives them for this target.

        Raises
        ------
        UnsupportedArchError
            If this NVRTC does not know the target.
        CompileError
            If the source is wrong, or ptxas made something else of it; the log is attached.
        NvrtcNotFoundError
            If the builtins that belong to NVRTC are missing.
        """
        if target.number not in self.supported:
            known = ", ".join(f"sm_{number}" for number in self.supported)
            raise UnsupportedArchError(
                f"arch: expected one that NVRTC {self.version} compiles for ({known}); "
                f"got {target.name}. A newer NVRTC may know it: pip install -U {PACKAGE}"
            )
        started = time.perf_counter()
        binary = [f"--gpu-architecture={target.name}", *_others(options)]
        try:
            done = self._run(source, name, binary)
        except CompileError as error:
            if PTX_POSITION.search(error.log) is None:
                raise
            # ptxas speaks of lines of PTX: let it say so of PTX that knows the template's lines.
            ptx = self.ptx_with_lines(source, target=target, name=name, options=options)
            again = list(dict.fromkeys([*binary, LINE_INFO]))
            done = self._run(source, name, again, lambda log: translate(log, ptx))
        seconds = time.perf_counter() - started
        check_advisories(done.log, source)
        return Compilation(done.cubin, done.ptx, done.log, seconds, self.version)

    def ptx_with_lines(
        self, source: str, *, target: Arch, name: str, options: Sequence[str] = ()
    ) -> str:
        """Return the PTX of a source with line information; positions name templates.

        Parameters are those of `compile`, and so are the instructions.

        Raises
        ------
        CompileError
            If the source is wrong, or this NVRTC does not know the target.
        """
        virtual = f"--gpu-architecture=compute_{target.name.removeprefix('sm_')}"
        wanted = dict.fromkeys([virtual, LINE_INFO, *_others(options)])
        return self._run(source, name, list(wanted)).ptx

    def _run(
        self,
        source: str,
        name: str,
        options: Sequence[str],
        clear: Callable[[str], str] = str,
    ) -> _Output:
        nvrtc, ok = self._nvrtc, self._nvrtc.nvrtcResult.NVRTC_SUCCESS
        program = self._call("nvrtcCreateProgram", source.encode(), name.encode(), 0, [], [])
        try:
            encoded = [option.encode() for option in options]
            (result,) = nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)
            log = self._fetch(program, "ProgramLog").decode(errors="replace")
            log = log.rstrip("\0 \n") + "\n"
            if result != ok:
                self._refuse(result, clear(log), source, name, options)
            ptx = self._fetch(program, "PTX").rstrip(b"\0").decode(errors="replace")
            return _Output(self._fetch(program, "CUBIN"), _relative(ptx), log)
        finally:
            nvrtc.nvrtcDestroyProgram(program)

    def _refuse(
        self, result: Any, log: str, source: str, name: str, options: Sequence[str]
    ) -> None:
        codes = self._nvrtc.nvrtcResult
        if result == codes.NVRTC_ERROR_BUILTIN_OPERATION_FAILURE or "libnvrtc-builtins" in log:
            raise NvrtcNotFoundError(
                f"nvrtc: expected the builtins of {'.'.join(map(str, self._call('nvrtcVersion')))};"
                f" got none that can be loaded: {log.strip()} They come in the same package as "
                f"NVRTC, in the same version. {_MEND} --force-reinstall"
            )
        lines = [line for line in log.splitlines() if line.strip()]
        text = "\n  ".join(lines[:_FIRST_ERRORS]) or f"NVRTC gave no log ({result.name})"
        if len(lines) > _FIRST_ERRORS:
            text += f"\n  ({len(lines) - _FIRST_ERRORS} more lines in the attribute log)"
        if result == codes.NVRTC_ERROR_INVALID_OPTION:
            text += f"\n  options: {' '.join(options)}"
        raise CompileError(f"{name} does not compile:\n  {text}", log=log, source=source)

    def _fetch(self, program: object, what: str) -> bytes:
        size = self._call(f"nvrtcGet{what}Size", program)
        data = bytes(size)
        if size:
            self._call(f"nvrtcGet{what}", program, data)
        return data

    def _call(self, function: str, *arguments: object) -> Any:
        result, *values = getattr(self._nvrtc, function)(*arguments)
        if result != self._nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CompileError(f"{function} failed: {result.name}")
        return values[0] if len(values) == 1 else values


@dataclass(frozen=True, slots=True)
class _Output:
    cubin: bytes
    ptx: str
    log: str


def _others(options: Sequence[str]) -> list[str]:
    """Return the options without those that name an architecture."""
    return [option for option in options if not option.startswith("--gpu-architecture=")]


def _relative(ptx: str) -> str:
    """Return the PTX with the working directory taken off the names of its files.

    NVRTC puts it in front of what ``#line`` says; the text must not depend on it.
    """
    try:
        here = os.getcwd().rstrip("/") + "/"
    except FileNotFoundError:  # it was removed under us
        return ptx
    escaped = "".join(map(_as_in_ptx, os.fsencode(here)))
    return re.sub(rf'(\.file\s+\d+\s+"){re.escape(escaped)}', r"\1", ptx)


def _as_in_ptx(byte: int) -> str:
    """Return one byte of a file's name as NVRTC writes it into a string of PTX."""
    if byte < 32 or byte > 126:
        return f"\\{byte:03o}"
    return f"\\{chr(byte)}" if chr(byte) in '"\\' else chr(byte)


_lock = threading.Lock()
_compiler: Compiler | None = None


def get_compiler() -> Compiler:
    """Return the compiler of this process, loading NVRTC on the first call.

    Raises
    ------
    NvrtcNotFoundError
        If NVRTC cannot be loaded.
    """
    global _compiler
    with _lock:
        if _compiler is None:
            _compiler = Compiler()
        return _compiler


def _forget_lock() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_lock)
