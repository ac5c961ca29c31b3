"""A compiled kernel, and what a specification must say to become one."""

from __future__ import annotations

import re
import sys
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from hashlib import sha256
from importlib import resources
from typing import Any, Protocol

from gemmjit import env
from gemmjit.arch import Arch
from gemmjit.compiler import Resources, get_compiler
from gemmjit.compiler.sass import disassemble
from gemmjit.errors import CompileError, NvrtcNotFoundError, StalePickleError
from gemmjit.logs import logger
from gemmjit.occupancy import occupancy
from gemmjit.templating import templates_root

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

    A pickle of one is for the gemmjit that wrote it: another version, whose kernels take other
    arguments, refuses it with `gemmjit.errors.StalePickleError`.

    Attributes
    ----------
    name, entry : str
        Name in the ladder, and name in the cubin.
    target : Arch
    source, ptx : str
        CUDA source; the PTX that the cubin came from. `ptx_with_lines` gives it with positions.
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
    options : tuple of str
        Of the compiler.
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
    options: tuple[str, ...] = field(repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, _MARK: _version()}

    def __setstate__(self, state: Any) -> None:
        given, missing = "a version that did not say which", ""
        if isinstance(state, Mapping):
            given = state.get(_MARK, given)
            missing = ", ".join(f.name for f in fields(self) if f.name not in state)
        if given != _version() or missing:
            lacks = f" without {missing}" if missing else ""
            raise StalePickleError(
                f"pickle: expected a kernel of gemmjit {_version()}, whose arguments are those "
                f"that it launches with; got one of {given}{lacks}. Compile it again, with "
                "gemmjit.compile"
            )
        self.__dict__.update(state)
        del self.__dict__[_MARK]

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

    def ptx_with_lines(self) -> str:
        """Return the PTX with line information, whose positions name templates.

        It is compiled for it, to the same instructions. Where that cannot be, for want of the NVRTC
        that made the kernel or because ``GEMMJIT_DISABLE_JIT`` is set, it is `ptx` as it stands.
        """
        if _POSITION.search(self.ptx) is not None or env.flag("GEMMJIT_DISABLE_JIT"):
            return self.ptx
        try:
            compiler = get_compiler()
            if compiler.version != self.nvrtc_version:
                return self.ptx
            return compiler.ptx_with_lines(
                self.source, target=self.target, name=self.name, options=self.options
            )
        except (NvrtcNotFoundError, CompileError) as error:
            logger("build").debug("%s has PTX without lines: %s", self.name, error)
            return self.ptx

    def sass(self) -> str:
        """Return the disassembled cubin (needs ``pip install "gemmjit[inspect]"``)."""
        return disassemble(self.cubin)


#: A position in PTX that has line information.
_POSITION = re.compile(r"^\s*\.loc\s", re.MULTILINE)

#: Where a pickled kernel says which gemmjit made it.
_MARK = "gemmjit"

#: Files of the package that decide what a kernel is given and how it is launched, beside those in
#: ``kernels`` and the templates.
_LAUNCHING = (
    *("compiled.py", "config.py", "epilogue.py", "plan.py", "problem.py", "schedule.py"),
    *("tensormap.py", "variant.py", "ops/dispatch.py", "ops/planning.py"),
)


@cache
def _version() -> str:
    """Return gemmjit's version, and a digest of what a kernel and its launch must agree on."""
    number = sys.modules["gemmjit"].__version__  # it is loaded; its modules do not import it
    package = resources.files("gemmjit")
    texts = {name: package.joinpath(name).read_bytes() for name in _LAUNCHING}
    pending = [("kernels", package / "kernels"), ("templates", templates_root())]
    while pending:
        folder, place = pending.pop()
        for item in place.iterdir():
            if item.is_dir():
                pending.append((f"{folder}/{item.name}", item))
            elif item.name.endswith((".py", ".cuh", ".j2")):
                texts[f"{folder}/{item.name}"] = item.read_bytes()
    digest = sha256()
    for name in sorted(texts):
        digest.update(name.encode() + b"\0" + sha256(texts[name]).digest())
    return f"{number} ({digest.hexdigest()[:12]})"
