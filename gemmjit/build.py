"""From a kernel's specification to a compiled kernel: memory, then cache, then NVRTC.

A kernel that was built before costs one dictionary lookup. Otherwise its template is rendered, and
the text, the options and the target say which kernel it is, whatever the names and times of files.
A directory may know what a template gave when nothing was different; then it is not rendered.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import NamedTuple, TypeVar

from gemmjit import env, templating
from gemmjit.assemble import compile_entry, kernel_of
from gemmjit.cache import Key, current_layers, identity_of, memo_digest
from gemmjit.cache.stats import count
from gemmjit.compiled import CompiledKernel, Spec
from gemmjit.compiler import get_compiler, installed_version, standard_options
from gemmjit.errors import MissingKernelError, NvrtcNotFoundError, UnsupportedArchError
from gemmjit.logs import warn_once

__all__ = [
    "CompiledKernel",
    "Spec",
    "build",
    "build_first",
    "clear_memory",
    "find_first",
    "key_of",
]


#: Kernels that a process keeps in memory; a tuner may build any number.
MEMORY_LIMIT = 2048

_by_spec: dict[Spec, CompiledKernel] = {}
_by_choice: dict[tuple[Spec, ...], CompiledKernel] = {}
_by_key: dict[Key, CompiledKernel] = {}
_pending: dict[Key, Future[CompiledKernel]] = {}
#: What was rendered and is not built yet, by the digest of its memo: a first call asks for it more
#: than once.
_rendered: dict[str, _Asked] = {}
_MOST_RENDERED = 8
_lock = threading.Lock()
_K = TypeVar("_K")


class _Asked(NamedTuple):
    """What a specification renders to, and what identifies that."""

    source: str
    options: tuple[str, ...]
    key: Key


def build(spec: Spec) -> CompiledKernel:
    """Return the compiled kernel of a specification.

    Parameters
    ----------
    spec : Spec
        Usually a `gemmjit.kernels.KernelSpec`.

    Returns
    -------
    CompiledKernel

    Raises
    ------
    TemplateError, CompileError, UnsupportedArchError
        If the kernel cannot be rendered or compiled.
    NvrtcNotFoundError
        If it must be compiled and NVRTC is not installed.
    MissingKernelError
        If it must be compiled and ``GEMMJIT_DISABLE_JIT`` is set.
    """
    # Under an override the text decides, since its files may be edited at any time.
    live = bool(templating.overlays())
    if not live:
        known = _by_spec.get(spec)
        if known is not None:
            return known
    kernel = _build(spec)
    if not live:
        _keep(_by_spec, spec, kernel)
    return kernel


def build_first(specs: Sequence[Spec]) -> CompiledKernel:
    """Return the first kernel that need not be compiled; if there is none, compile one.

    Parameters
    ----------
    specs : sequence of Spec
        One kernel for several targets that all serve a device, best first. Memory and directories
        are asked for each before any is compiled; then for the first that NVRTC knows.

    Raises
    ------
    Exception
        As for `build`, about the first of them.
    """
    choice = tuple(specs)
    live = bool(templating.overlays())
    known = None if live else _by_choice.get(choice)
    if known is None:
        known = find_first(choice) or _build_first(choice)
        if not live:
            _keep(_by_choice, choice, known)
    return known


def find_first(specs: Sequence[Spec], *, any_version: bool = False) -> CompiledKernel | None:
    """Return the first kernel that memory or a directory holds, or None; nothing is compiled.

    Parameters
    ----------
    specs : sequence of Spec
    any_version : bool
        Whether the work of another NVRTC in the user's directory will do; it does anyway where
        ``GEMMJIT_DISABLE_JIT`` is set.
    """
    live = bool(templating.overlays())
    any_version = any_version or env.flag("GEMMJIT_DISABLE_JIT")
    asked: dict[tuple[object, ...], str] = {}  # targets differ, texts do not
    fingerprint: str | None = ""
    for spec in specs:
        known = None if live else _by_spec.get(spec)
        if known is None:
            fingerprint = templating.fingerprint() if fingerprint == "" else fingerprint
            digest = _digest(spec, fingerprint)
            known = _recalled(spec, digest, any_version)
            if known is None:
                text = (spec.template, *spec.variables.items())
                wanted = _rendered_once(spec, digest, asked.get(text))
                asked[text] = wanted.source
                known = _find(spec, wanted.key, any_version)
                if known is not None:
                    _remember(spec, digest, wanted.key)
            if known is not None and not live:
                _keep(_by_spec, spec, known)
        if known is not None:
            return known
    return None


def key_of(spec: Spec) -> Key:
    """Return what identifies the kernel of a specification; specifications may share one."""
    return _asked(spec).key


def clear_memory() -> None:
    """Forget every kernel that this process holds; the disk keeps its own."""
    with _lock:
        _by_spec.clear()
        _by_choice.clear()
        _by_key.clear()
        _rendered.clear()


def _build_first(choice: tuple[Spec, ...]) -> CompiledKernel:
    refused = None
    for spec in choice:
        try:
            return build(spec)
        except UnsupportedArchError as error:  # an older NVRTC may know the next
            refused = refused or error
        except NvrtcNotFoundError:
            found = find_first(choice, any_version=True)
            if found is None:
                raise
            return found
    raise refused or ValueError("specs: expected one at least; got none")


def _find(spec: Spec, key: Key, any_version: bool) -> CompiledKernel | None:
    known = _by_key.get(key)
    if known is not None:
        return _dressed(known, spec)
    entry = current_layers().find(key, installed_version(), any_version=any_version)
    if entry is None:
        return None
    kernel = kernel_of(entry, spec, key, from_cache=True)
    _keep(_by_key, key, kernel)
    return kernel


def _digest(spec: Spec, fingerprint: str | None) -> str | None:
    """Return what the memo of a specification is found by, or None if it has none."""
    if fingerprint is None:
        return None
    options = standard_options(spec.target, spec.options)
    return memo_digest(
        fingerprint, spec.template, spec.variables, spec.entry, options, spec.target.name
    )


def _recalled(spec: Spec, digest: str | None, any_version: bool) -> CompiledKernel | None:
    """Return the kernel that a memo leads to, or None; nothing is rendered."""
    key = None if digest is None else current_layers().recall(digest)
    if key is None or (key.target, key.entry) != (spec.target.name, spec.entry):
        return None
    return _find(spec, key, any_version)


def _remember(spec: Spec, digest: str | None, key: Key) -> None:
    """Keep a memo of what a specification was rendered to, if the templates are what they were."""
    if digest is not None and digest == _digest(spec, templating.fingerprint()):
        current_layers().remember(digest, key)


def _asked(spec: Spec, source: str | None = None) -> _Asked:
    if source is None:
        source = templating.render(spec.template, spec.variables)
    options = standard_options(spec.target, spec.options)
    key = Key(spec.target.name, spec.entry, identity_of(source, options, spec.target.name))
    return _Asked(source, options, key)


def _rendered_once(spec: Spec, digest: str | None, source: str | None = None) -> _Asked:
    """Return what `_asked` does, remembered until it is built if a digest says what it is.

    Not if the templates are no longer what the digest says: of those something else was rendered.
    """
    known = None if digest is None else _rendered.get(digest)
    if known is None:
        known = _asked(spec, source)
        if digest is not None and digest == _digest(spec, templating.fingerprint()):
            with _lock:
                _rendered[digest] = known
                while len(_rendered) > _MOST_RENDERED:
                    del _rendered[next(iter(_rendered))]
    return known


def _keep(memory: dict[_K, CompiledKernel], key: _K, kernel: CompiledKernel) -> None:
    """Remember a kernel, and forget the oldest ones beyond the limit."""
    with _lock:
        memory[key] = kernel
        while len(memory) > MEMORY_LIMIT:
            del memory[next(iter(memory))]


def _build(spec: Spec) -> CompiledKernel:
    digest = _digest(spec, templating.fingerprint())
    recalled = _recalled(spec, digest, env.flag("GEMMJIT_DISABLE_JIT"))
    if recalled is not None:
        return recalled
    source, options, key = _rendered_once(spec, digest)
    with _lock:
        _rendered.pop(digest or "", None)
        known = _by_key.get(key)
        if known is not None:
            return _dressed(known, spec)
        pending = _pending.get(key)
        if pending is None:
            mine = _pending[key] = Future[CompiledKernel]()
    if pending is not None:
        error = pending.exception()
        if error is None or isinstance(error, Exception):
            return _dressed(pending.result(), spec)
        return _build(spec)  # the thread that built it was interrupted, not this one
    try:
        kernel = _obtain(spec, source, options, key)
        _keep(_by_key, key, kernel)
    except BaseException as error:
        with _lock:
            _pending.pop(key, None)
        mine.set_exception(error)
        raise
    with _lock:
        _pending.pop(key, None)
    mine.set_result(kernel)
    _remember(spec, digest, key)
    return kernel


def _dressed(kernel: CompiledKernel, spec: Spec) -> CompiledKernel:
    """Return a kernel as the build of a specification that renders to the same text."""
    return replace(
        kernel,
        name=spec.name,
        config=spec.config,
        variant=spec.variant,
        smem_bytes=spec.smem_bytes,
        threads=spec.threads,
    )


def _obtain(spec: Spec, source: str, options: tuple[str, ...], key: Key) -> CompiledKernel:
    """Return a kernel from the directories or, if none has it, from NVRTC."""
    layers = current_layers()
    allowed = not env.flag("GEMMJIT_DISABLE_JIT")
    own = installed_version()
    entry = layers.find(key, own, any_version=not allowed)
    if entry is not None:
        return kernel_of(entry, spec, key, from_cache=True)
    if not allowed:
        count("misses")
        raise MissingKernelError(
            f"kernel {spec.name} ({spec.entry}) for {spec.target}: GEMMJIT_DISABLE_JIT forbids to "
            f"compile it, and it is in none of: {layers.why_not(key)}. Compile it beforehand: "
            f"{spec.prewarm_command}"
        )
    compiler = None
    try:
        with layers.lock(key) as locked:
            # Whoever waited finds what the holder compiled, and need not even load NVRTC.
            entry = layers.find(key, own) if locked and own is not None else None
            if entry is None:
                compiler = get_compiler()
                if compiler.version != own:  # not the package's, but one from elsewhere
                    entry = layers.find(key, compiler.version)
            if entry is not None:
                return kernel_of(entry, spec, key, from_cache=True)
            assert compiler is not None
            count("misses")
            entry = compile_entry(compiler, spec, source, options)
            layers.publish(entry)
    except NvrtcNotFoundError as error:
        entry = layers.find(key, None, any_version=True)
        if entry is None:
            if compiler is None:
                count("misses")
            raise
        warn_once("build", ("nvrtc",), "kernels of another NVRTC are used meanwhile: %s", error)
        return kernel_of(entry, spec, key, from_cache=True)
    return kernel_of(entry, spec, key, from_cache=False)


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _pending.clear()  # their threads are not in this process


os.register_at_fork(after_in_child=_after_fork)
