"""Kernel arguments as bytes: C layout on the host side, constants filled in once."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from gemmjit.dtypes import F32, F64, I32, I64, DType
from gemmjit.errors import LaunchError
from gemmjit.plan import Argument, Pointer, Scalar, Struct, TensorMapArgument, WorkspacePointer
from gemmjit.tensormap import TensorMap

__all__ = ["PACKING_ALIGNMENT", "MapSlot", "PackedArguments", "Slot", "pack"]

#: Every parameter starts on a multiple of this, so that a TensorMap may.
PACKING_ALIGNMENT = 64

_TENSOR_MAP_BYTES = 128

_CODES: dict[DType, str] = {I32: "i", I64: "q", F32: "f", F64: "d"}


@dataclass(frozen=True, slots=True)
class Slot:
    """Eight bytes that hold an address known only at the call.

    Attributes
    ----------
    offset : int
        Byte offset in the packed arguments.
    name : str
        Operand or workspace.
    is_workspace : bool
    displacement : int
        Added to the address of the workspace, in bytes.
    """

    offset: int
    name: str
    is_workspace: bool = False
    displacement: int = 0


@dataclass(frozen=True, slots=True)
class MapSlot:
    """128 bytes that hold a TensorMap, encoded when the address of its operand is known.

    Attributes
    ----------
    offset : int
        Byte offset in the packed arguments.
    name : str
        Operand.
    tensor_map : TensorMap
    displacement : int
        Added to the operand's address, in bytes.
    """

    offset: int
    name: str
    tensor_map: TensorMap
    displacement: int = 0


@dataclass(frozen=True, slots=True)
class PackedArguments:
    """All arguments of a launch in one buffer.

    Attributes
    ----------
    image : bytes
        Every argument, constants in place, addresses zero.
    starts : tuple of int
        Where each kernel parameter begins in the image.
    slots : tuple of Slot
        Where addresses go.
    map_slots : tuple of MapSlot
        Where TensorMaps go.
    """

    image: bytes
    starts: tuple[int, ...]
    slots: tuple[Slot, ...]
    map_slots: tuple[MapSlot, ...] = ()


def pack(arguments: Sequence[Argument]) -> PackedArguments:
    """Lay out the arguments of a launch.

    Each parameter starts on `PACKING_ALIGNMENT`; inside a struct every field is on its natural
    alignment, as in C.

    Raises
    ------
    LaunchError
        If an argument is of a kind that this executor cannot pass.
    """
    image = bytearray()
    starts: list[int] = []
    slots: list[Slot] = []
    map_slots: list[MapSlot] = []
    for argument in arguments:
        image += bytes(-len(image) % PACKING_ALIGNMENT)
        starts.append(len(image))
        if isinstance(argument, TensorMapArgument):
            map_slots.append(
                MapSlot(len(image), argument.operand, argument.tensor_map, argument.displacement)
            )
            image += bytes(_TENSOR_MAP_BYTES)
            continue
        fields = argument.fields if isinstance(argument, Struct) else (argument,)
        for part in fields:
            if isinstance(part, Scalar):
                raw = struct.pack("<" + _CODES[part.dtype], part.value)
                image += bytes(-(len(image) - starts[-1]) % len(raw)) + raw
                continue
            image += bytes(-(len(image) - starts[-1]) % 8)
            if isinstance(part, Pointer):
                slots.append(Slot(len(image), part.operand))
            elif isinstance(part, WorkspacePointer):
                slots.append(Slot(len(image), part.workspace, True, part.offset))
            else:
                raise LaunchError(f"argument: {type(part).__name__} cannot be packed")
            image += bytes(8)
        if isinstance(argument, Struct):
            image += bytes(-(len(image) - starts[-1]) % 8)
    return PackedArguments(bytes(image), tuple(starts), tuple(slots), tuple(map_slots))
