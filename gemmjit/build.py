"""From a kernel's specification to a compiled kernel: memory, then cache, then NVRTC.

A kernel that was built before costs one dictionary lookup. Otherwise its template is rendered, and
the text, the options and the target say which kernel it is, whatever the names and times of files.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from concurrent.futures import Future
from dataclasses import asdict, replace
from importlib import metadata
from typing import TypeVar

from gemmjit import env, templating
from gemmjit.cache import Entry, Key, current_layers, identity_of
from gemmjit.cache.stats import count
from gemmjit.compiled import CompiledKernel, Spec
from gemmjit.compiler import (
    Resources,
    get_compiler,
    installed_version,
    read_resources,
    standard_options,
)
from gemmjit.errors import CompileError, MissingKernelError, NvrtcNotFoundError
from gemmjit.logs import logger, warn_once

__all__ = ["CompiledKernel", "Spec", "build", "clear_memory"]


#: Kernels that a process keeps in memory; a tuner may build any number.
MEMORY_LIMIT = 2048

_by_spec: dict[Spec, CompiledKernel] = {}
_by_key: dict[Key, CompiledKernel] = {}
_pending: dict[Key, Future[CompiledKernel]] = {}
_lock = threading.Lock()
_K = TypeVar("_K")


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


def clear_memory() -> None:
    """Forget every kernel that this process holds; the disk keeps its own."""
    with _lock:
        _by_spec.clear()
        _by_key.clear()


def _keep(memory: dict[_K, CompiledKernel], key: _K, kernel: CompiledKernel) -> None:
    """Remember a kernel, and forget the oldest ones beyond the limit."""
    with _lock:
        memory[key] = kernel
        while len(memory) > MEMORY_LIMIT:
            del memory[next(iter(memory))]


def _build(spec: Spec) -> CompiledKernel:
    source = templating.render(spec.template, spec.variables)
    options = standard_options(spec.target, spec.options)
    key = Key(spec.target.name, spec.entry, identity_of(source, options, spec.target.name))
    with _lock:
        known = _by_key.get(key)
        if known is not None:
            return _dressed(known, spec)
        pending = _pending.get(key)
        if pending is None:
            mine = _pending[key] = Future[CompiledKernel]()
    if pending is not None:
        return _dressed(pending.result(), spec)
    try:
        kernel = _obtain(spec, source, options, key)
    except BaseException as error:
        with _lock:
            _pending.pop(key, None)
        mine.set_exception(error)
        raise
    _keep(_by_key, key, kernel)
    with _lock:
        _pending.pop(key, None)
    mine.set_result(kernel)
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
        return _from_entry(entry, spec, key)
    if not allowed:
        count("misses")
        raise MissingKernelError(
            f"kernel {spec.name} ({spec.entry}) for {spec.target}: GEMMJIT_DISABLE_JIT forbids to "
            f"compile it, and it is in none of: {layers.describe()}. Compile it beforehand: "
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
                return _from_entry(entry, spec, key)
            count("misses")
            entry = _compile(spec, source, options)
            layers.publish(entry)
    except NvrtcNotFoundError as error:
        entry = layers.find(key, None, any_version=True)
        if entry is None:
            if compiler is None:
                count("misses")
            raise
        warn_once("build", ("nvrtc",), "kernels of another NVRTC are used meanwhile: %s", error)
        return _from_entry(entry, spec, key)
    return _kernel(entry, spec, key, from_cache=False)


def _compile(spec: Spec, source: str, options: tuple[str, ...]) -> Entry:
    done = get_compiler().compile(source, target=spec.target, name=spec.template, options=options)
    count("compiles")
    resources = read_resources(done.cubin, done.log).get(spec.entry)
    if resources is None:
        raise CompileError(
            f"template {spec.template}: expected a kernel named {spec.entry}; it has none",
            log=done.log,
            source=source,
        )
    entry = Entry(
        target=spec.target.name,
        entry=spec.entry,
        source=source,
        options=options,
        nvrtc_version=done.nvrtc_version,
        cubin=done.cubin,
        ptx=done.ptx,
        resources=asdict(resources),
        log=done.log,
        seconds=done.seconds,
        kernel=spec.name,
        config=str(spec.config),
        variant=str(spec.variant),
        gemmjit_version=_own_version(),
        created=time.time(),
    )
    logger("build").info(
        "compiled %s (%s) for %s in %.0f ms: %d registers, %d bytes spilled",
        spec.name,
        spec.entry,
        spec.target,
        done.seconds * 1e3,
        resources.registers,
        resources.spill_store_bytes + resources.spill_load_bytes,
    )
    return entry


def _from_entry(entry: Entry, spec: Spec, key: Key) -> CompiledKernel:
    logger("build").debug(
        "%s (%s) for %s comes from the cache, compiled by NVRTC %s",
        spec.name,
        spec.entry,
        spec.target,
        entry.nvrtc_version,
    )
    return _kernel(entry, spec, key, from_cache=True)


def _kernel(entry: Entry, spec: Spec, key: Key, *, from_cache: bool) -> CompiledKernel:
    kernel = CompiledKernel(
        name=spec.name,
        entry=spec.entry,
        target=spec.target,
        source=entry.source,
        ptx=entry.ptx,
        cubin=entry.cubin,
        resources=Resources(**entry.resources),
        nvrtc_version=entry.nvrtc_version,
        seconds=entry.seconds,
        from_cache=from_cache,
        identity=key.identity,
        config=spec.config,
        variant=spec.variant,
        smem_bytes=spec.smem_bytes,
        threads=spec.threads,
        log=entry.log,
    )
    if kernel.threads > kernel.resources.max_threads or kernel.occupancy == 0:
        raise CompileError(
            f"kernel {spec.name} ({spec.entry}) for {spec.target} can never be launched: "
            f"{kernel.threads} threads (compiled for {kernel.resources.max_threads}) with "
            f"{kernel.registers} registers each and {kernel.smem_bytes} + "
            f"{kernel.resources.smem_bytes} bytes of shared memory, where a multiprocessor has "
            f"{spec.target.limits.registers} registers and gives a block "
            f"{spec.target.limits.smem_per_block} bytes. Choose a smaller tile or fewer stages",
            log=entry.log,
            source=entry.source,
        )
    if kernel.spills:
        warn_once(
            "build",
            ("spill", key.identity),
            "%s (%s) for %s spills %d bytes of registers; it will be slow",
            spec.name,
            spec.entry,
            spec.target,
            kernel.spills,
        )
    return kernel


@functools.cache
def _own_version() -> str:
    try:
        return metadata.version("gemmjit")
    except metadata.PackageNotFoundError:  # run from a checkout that was never installed
        return ""


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _pending.clear()  # their threads are not in this process


os.register_at_fork(after_in_child=_after_fork)
