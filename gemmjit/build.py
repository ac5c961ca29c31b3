"""From a kernel's specification to a compiled kernel: memory, then cache, then NVRTC.

A kernel that was built before costs one dictionary lookup. Otherwise its template is rendered, and
the text, the options and the target say which kernel it is, whatever the names and times of files.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Hashable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

from gemmjit import templating
from gemmjit.arch import Arch
from gemmjit.compiler import Resources, get_compiler, read_resources, standard_options
from gemmjit.compiler.sass import disassemble
from gemmjit.errors import CompileError
from gemmjit.logs import logger
from gemmjit.occupancy import occupancy

__all__ = ["CompiledKernel", "Spec", "build", "clear_memory"]


class Spec(Hashable, Protocol):
    """What `build` asks of a kernel's specification; equal specifications are one kernel."""

    @property
    def name(self) -> str:
        """Name of the kernel, as in ``k1``."""

    @property
    def entry(self) -> str:
        """Name of the kernel in the cubin: a C identifier."""

    @property
    def template(self) -> str:
        """Name of the template."""

    @property
    def variables(self) -> Mapping[str, object]:
        """A value for every variable of the template."""

    @property
    def target(self) -> Arch:
        """What to compile for."""

    @property
    def options(self) -> tuple[str, ...]:
        """NVRTC options beyond the standard ones."""

    @property
    def threads(self) -> int:
        """Threads of a block."""

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory of a block in bytes."""

    @property
    def config(self) -> object:
        """The tile configuration."""

    @property
    def variant(self) -> object:
        """The variant: element types, memory orders, form."""

    @property
    def prewarm_command(self) -> str:
        """The command that compiles this kernel into the cache."""


@dataclass(frozen=True)
class CompiledKernel:
    """A kernel for one target, ready to be loaded or emulated.

    Attributes
    ----------
    name, entry : str
        Name in the ladder, and name in the cubin.
    target : Arch
    source, ptx : str
        CUDA source; PTX with line information.
    cubin : bytes
    resources : Resources
    nvrtc_version : str
        Of the compiler that made the cubin.
    seconds : float
        What compiling took.
    from_cache : bool
        Whether the disk had it.
    identity : str
        SHA-256 of what decides the cubin, NVRTC aside.
    config, variant : object
        As in the specification.
    smem_bytes : int
        Dynamic shared memory of a block in bytes.
    threads : int
        Threads of a block.
    log : str
        The compiler's log.
    """

    name: str
    entry: str
    target: Arch
    source: str = field(repr=False)
    ptx: str = field(repr=False)
    cubin: bytes = field(repr=False)
    resources: Resources
    nvrtc_version: str
    seconds: float
    from_cache: bool
    identity: str
    config: object
    variant: object
    smem_bytes: int
    threads: int
    log: str = field(repr=False)

    @property
    def registers(self) -> int:
        """Registers of a thread."""
        return self.resources.registers

    @property
    def spills(self) -> int:
        """Bytes that a thread spills, stores and loads together."""
        return self.resources.spill_store_bytes + self.resources.spill_load_bytes

    @property
    def occupancy(self) -> int:
        """Blocks resident on one multiprocessor of the target."""
        total = self.smem_bytes + self.resources.smem_bytes
        return occupancy(self.registers, self.threads, total, self.target)

    def sass(self) -> str:
        """Return the disassembled cubin (needs ``pip install "gemmjit[inspect]"``)."""
        return disassemble(self.cubin)


_by_spec: dict[Spec, CompiledKernel] = {}
_by_identity: dict[str, CompiledKernel] = {}
_pending: dict[str, Future[CompiledKernel]] = {}
_lock = threading.Lock()


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
        _by_spec[spec] = kernel
    return kernel


def clear_memory() -> None:
    """Forget every kernel that this process holds; the disk keeps its own."""
    with _lock:
        _by_spec.clear()
        _by_identity.clear()


def _build(spec: Spec) -> CompiledKernel:
    source = templating.render(spec.template, spec.variables)
    options = standard_options(spec.target, spec.options)
    identity = f"{spec.entry} {options} {source}"
    with _lock:
        known = _by_identity.get(identity)
        if known is not None:
            return known
        pending = _pending.get(identity)
        if pending is None:
            mine = _pending[identity] = Future[CompiledKernel]()
    if pending is not None:
        return pending.result()
    try:
        kernel = _compile(spec, source, options, identity)
    except BaseException as error:
        with _lock:
            del _pending[identity]
        mine.set_exception(error)
        raise
    with _lock:
        _by_identity[identity] = kernel
        del _pending[identity]
    mine.set_result(kernel)
    return kernel


def _compile(spec: Spec, source: str, options: tuple[str, ...], identity: str) -> CompiledKernel:
    done = get_compiler().compile(source, target=spec.target, name=spec.template, options=options)
    resources = read_resources(done.cubin, done.log)
    if spec.entry not in resources:
        raise CompileError(
            f"template {spec.template}: expected a kernel {spec.entry}; "
            f"got {', '.join(resources) or 'none'}",
            log=done.log,
            source=source,
        )
    kernel = CompiledKernel(
        name=spec.name,
        entry=spec.entry,
        target=spec.target,
        source=source,
        ptx=done.ptx,
        cubin=done.cubin,
        resources=resources[spec.entry],
        nvrtc_version=done.nvrtc_version,
        seconds=done.seconds,
        from_cache=False,
        identity=identity,
        config=spec.config,
        variant=spec.variant,
        smem_bytes=spec.smem_bytes,
        threads=spec.threads,
        log=done.log,
    )
    logger("build").info(
        "compiled %s (%s) for %s in %.0f ms: %d registers, %d bytes spilled",
        spec.name,
        spec.entry,
        spec.target,
        done.seconds * 1e3,
        kernel.registers,
        kernel.spills,
    )
    return kernel


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _pending.clear()  # their threads are not in this process


os.register_at_fork(after_in_child=_after_fork)
