"""Between NVRTC, an entry of the cache, and a compiled kernel."""

from __future__ import annotations

import functools
import time
from dataclasses import asdict

from gemmjit.cache import Entry, Key
from gemmjit.cache.stats import count
from gemmjit.compiled import CompiledKernel, Spec
from gemmjit.compiler import Compiler, Resources, read_resources
from gemmjit.errors import CompileError
from gemmjit.installed import installed
from gemmjit.logs import logger, warn_once

__all__ = ["compile_entry", "kernel_of"]


def compile_entry(compiler: Compiler, spec: Spec, source: str, options: tuple[str, ...]) -> Entry:
    """Compile what a specification renders to.

    One line is logged at level INFO; it ends with the command that compiles the kernel elsewhere.

    Raises
    ------
    CompileError, UnsupportedArchError, NvrtcNotFoundError
        As from the compiler, or if the template makes a kernel of another name.
    """
    done = compiler.compile(source, target=spec.target, name=spec.template, options=options)
    count("compiles")
    others = read_resources(done.cubin, done.log)
    resources = others.get(spec.entry)
    if resources is None:
        raise CompileError(
            f"template {spec.template}: expected a kernel named {spec.entry}; got "
            f"{', '.join(others) or 'none'}. Name it ${{entry}}",
            log=done.log,
            source=source,
        )
    logger("build").info(
        "compiled %s (%s) for %s in %.0f ms: %d registers, %d bytes spilled; %s",
        spec.name,
        spec.entry,
        spec.target,
        done.seconds * 1e3,
        resources.registers,
        resources.spill_store_bytes + resources.spill_load_bytes,
        spec.prewarm_command,
    )
    return Entry(
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


def kernel_of(entry: Entry, spec: Spec, key: Key, *, from_cache: bool) -> CompiledKernel:
    """Return an entry as the kernel of a specification.

    Parameters
    ----------
    entry : Entry
        Sound, as `gemmjit.cache` gives it.
    spec : Spec
    key : Key
        Of both.
    from_cache : bool
        Whether a directory had it; then one line is logged at level DEBUG.

    Raises
    ------
    CompileError
        If no multiprocessor of the target could run one block of it.
    """
    if from_cache:
        logger("build").debug(
            "%s (%s) for %s comes from the cache, compiled by NVRTC %s; %s",
            spec.name,
            spec.entry,
            spec.target,
            entry.nvrtc_version,
            spec.prewarm_command,
        )
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
        options=entry.options,
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
    found = installed("gemmjit")
    return "" if found is None else found[0]  # a checkout need not be installed
