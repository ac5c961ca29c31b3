"""A compiled kernel, and what a specification must say to become one."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from gemmjit.arch import Arch
from gemmjit.compiler import Resources
from gemmjit.compiler.sass import disassemble
from gemmjit.occupancy import occupancy

__all__ = ["CompiledKernel", "Spec"]


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
