"""What is to be launched, without any executor: launches, their arguments, workspaces, order.

A plan holds no pointer. Its arguments name operands (``"mat_a"``) and workspaces, which an executor
binds to addresses at each call; so a plan can be kept and used again, and the same plan runs on a
GPU and in the emulator.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from gemmjit.build import CompiledKernel
from gemmjit.dtypes import DType
from gemmjit.tensormap import TensorMap

__all__ = [
    "Argument",
    "Attributes",
    "Edge",
    "Launch",
    "Plan",
    "Pointer",
    "PointerTable",
    "Scalar",
    "Struct",
    "TensorMapArgument",
    "Workspace",
    "WorkspacePointer",
]


@dataclass(frozen=True, slots=True)
class Scalar:
    """A number of a C type."""

    dtype: DType
    value: int | float


@dataclass(frozen=True, slots=True)
class Pointer:
    """The address of an operand; null where the call has no such operand."""

    operand: str


@dataclass(frozen=True, slots=True)
class PointerTable:
    """The address of a table in device memory that holds the addresses of operands."""

    operands: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WorkspacePointer:
    """An address inside a workspace of the plan."""

    workspace: str
    offset: int = 0


@dataclass(frozen=True, slots=True)
class TensorMapArgument:
    """A TensorMap over an operand, passed by value.

    It begins `displacement` bytes after the operand's first element (before it, if negative).
    """

    operand: str
    tensor_map: TensorMap
    displacement: int = 0


@dataclass(frozen=True, slots=True)
class Struct:
    """A C struct of other arguments, in order, each on its natural alignment."""

    fields: tuple[Scalar | Pointer | WorkspacePointer, ...]


Argument = Scalar | Pointer | PointerTable | WorkspacePointer | TensorMapArgument | Struct


@dataclass(frozen=True, slots=True)
class Workspace:
    """Scratch memory of one call, taken from the framework's pool; or counters that last.

    Attributes
    ----------
    name : str
        What arguments call it.
    nbytes : int
        Size in bytes.
    alignment : int
        Alignment in bytes.
    zeroed : bool
        Whether it must be zero before the first launch.
    contents : numpy.ndarray or None
        Host data to copy there before the first launch.
    lasting : bool
        Whether it is kept from call to call: zero at first, and left zero by every call. Calls
        that may run at the same time have one each.
    """

    name: str
    nbytes: int
    alignment: int = 128
    zeroed: bool = False
    contents: npt.NDArray[np.int32] | None = None
    lasting: bool = False


@dataclass(frozen=True, slots=True)
class Edge:
    """A launch waits for an earlier one.

    Attributes
    ----------
    launch : int
        Index of the earlier launch.
    kind : {"serial", "programmatic"}
        Wait for its end, or start early and wait inside (programmatic dependent launch).
    """

    launch: int
    kind: Literal["serial", "programmatic"] = "serial"


@dataclass(frozen=True, slots=True)
class Attributes:
    """Launch attributes beyond the shape."""

    cooperative: bool = False


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch.

    Attributes
    ----------
    kernel : CompiledKernel
    grid, cluster, block : tuple of int
        Blocks, blocks per cluster, and threads per block, each as (x, y, z).
    smem_bytes : int
        Dynamic shared memory of a block.
    arguments : tuple of Argument
        In the order of the kernel's parameters.
    after : tuple of Edge
        What it waits for; launches without edges between them may overlap.
    device : int
        Index into the devices of the call.
    """

    kernel: CompiledKernel
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    arguments: tuple[Argument, ...]
    smem_bytes: int = 0
    cluster: tuple[int, int, int] = (1, 1, 1)
    after: tuple[Edge, ...] = ()
    attributes: Attributes = field(default_factory=Attributes)
    device: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """The launches of one call, and the scratch memory that they share."""

    launches: tuple[Launch, ...]
    workspaces: tuple[Workspace, ...] = ()

    def operands(self) -> Iterator[str]:
        """Yield the name of each operand that an argument refers to, once."""
        seen: dict[str, None] = {}
        for launch in self.launches:
            for argument in launch.arguments:
                parts = argument.fields if isinstance(argument, Struct) else (argument,)
                for part in parts:
                    if isinstance(part, Pointer | TensorMapArgument):
                        seen.setdefault(part.operand)
                    elif isinstance(part, PointerTable):
                        for name in part.operands:
                            seen.setdefault(name)
        yield from seen
