"""Something that ``gemmjit doctor`` finds missing or wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Finding"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is missing or wrong.

    Attributes
    ----------
    what, mend : str
        The finding, and what to do about it.
    needed_to : str
    of_variable : bool
        Whether an environment variable has a value that it does not take.
    """

    what: str
    mend: str
    needed_to: Literal["compile", "run on a GPU", "keep kernels on disk", "run as asked"] = (
        "compile"
    )
    of_variable: bool = False

    @property
    def blocks_compiling(self) -> bool:
        """Whether no kernel can be compiled until it is mended."""
        return self.needed_to == "compile"
