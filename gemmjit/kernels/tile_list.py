"""The scheduling kernel: builds the flat tile list from offsets on the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gemmjit.arch import Arch, targets_for

__all__ = ["TileListSpec"]


@dataclass(frozen=True, slots=True)
class TileListSpec:
    """What is compiled for ``Config.schedule == "compact"``, one kernel per architecture.

    Attributes
    ----------
    target : Arch
        Compilation target.
    """

    target: Arch

    @property
    def name(self) -> str:
        """Name of the kernel."""
        return "tile_list"

    @property
    def entry(self) -> str:
        """Name of the kernel in the cubin."""
        return "gemmjit_tile_list"

    @property
    def template(self) -> str:
        """Template, relative to ``templates/``."""
        return "kernels/tile_list.cu.j2"

    @property
    def variables(self) -> Mapping[str, object]:
        """Every variable of the template."""
        return {"entry": self.entry, "threads": self.threads}

    @property
    def options(self) -> tuple[str, ...]:
        """NVRTC options beyond the standard ones."""
        return ()

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 256

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory of a block in bytes."""
        return 0

    @property
    def config(self) -> None:
        """It has no tile."""
        return None

    @property
    def variant(self) -> None:
        """It has no variants."""
        return None

    @property
    def alternatives(self) -> tuple[TileListSpec, ...]:
        """The same for every target that serves the devices of this one, this one first."""
        return tuple(replace(self, target=target) for target in targets_for(self.target))

    @property
    def prewarm_command(self) -> str:
        """The command that compiles this kernel into the cache."""
        return f"gemmjit prewarm --arch {self.target} --kernel {self.name}"
