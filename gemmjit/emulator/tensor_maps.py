"""Tensor maps in the machine's memories: reading them, tensormap.replace, cp_fenceproxy.

A map lies in kernel parameters, constant or global memory; an edited copy may be prepared in shared
memory. PTX ISA 5.5.8, 9.7.9.28 and 9.7.13.16. The 128 bytes are the emulator's own
(:mod:`gemmjit.emulator.tensormap_object`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gemmjit.emulator.dispatch import instruction, reject
from gemmjit.emulator.faults import TensorMapFault
from gemmjit.emulator.lanes import WARP, LaneSet
from gemmjit.emulator.memory import GLOBAL_WINDOW, PARAM_WINDOW
from gemmjit.emulator.module import Immediate, Instruction
from gemmjit.emulator.operands import Operands
from gemmjit.emulator.spaces import Space, space_named
from gemmjit.emulator.steps import LaneOp, Step
from gemmjit.emulator.tensormap_object import OBJECT_BYTES, decode, replace
from gemmjit.tensormap import TensorMap

if TYPE_CHECKING:
    from gemmjit.emulator.grid import Grid

__all__ = ["MAP_ALIGNMENT", "read_map"]

Array = npt.NDArray[Any]

#: Alignment of a tensor map in bytes (driver API, ``cuTensorMapEncodeTiled``).
MAP_ALIGNMENT = 64

_ORDINAL_FIELDS = ("box_dim", "global_dim", "global_stride", "element_stride")
_WIDE_FIELDS = ("global_address", "global_stride")


def read_map(grid: Grid, address: int) -> tuple[TensorMap, int]:
    """Return the map at a generic address, and the address of its tensor.

    Raises
    ------
    TensorMapFault
        If the address is misaligned, lies in shared or local memory, or holds no map.
    """
    if address % MAP_ALIGNMENT:
        raise TensorMapFault(
            f"tensor map: expected an address that is a multiple of {MAP_ALIGNMENT}; "
            f"got {address:#x}"
        )
    if address >= GLOBAL_WINDOW:
        data = grid.machine.memory.bytes_at(address, OBJECT_BYTES)
    elif PARAM_WINDOW <= address < PARAM_WINDOW + (1 << 32):
        data = grid.parameter_bytes(address - PARAM_WINDOW, OBJECT_BYTES)
    else:
        raise TensorMapFault(
            "tensor map: expected an address in parameters, constant or global memory; "
            f"got {address:#x}"
        )
    return decode(data.tobytes())


def _load(space: Space, lanes: LaneSet, addresses: Array) -> Array:
    """Load a map for every lane, in two halves: it need only be aligned to 64 bytes."""
    octet = np.dtype(np.uint8)
    halves = [space.load(lanes, addresses + i, octet, MAP_ALIGNMENT) for i in (0, MAP_ALIGNMENT)]
    return np.concatenate(halves, axis=-1)


def _store(space: Space, lanes: LaneSet, addresses: Array, maps: Array) -> None:
    octet = np.dtype(np.uint8)
    for i in (0, MAP_ALIGNMENT):
        half = maps[..., i : i + MAP_ALIGNMENT]
        space.store(lanes, addresses + i, half, octet, MAP_ALIGNMENT)


@instruction("tensormap.replace.tile")
def build_replace(operands: Operands, found: Instruction) -> Step:
    """`tensormap.replace.tile.field{.global|.shared::cta}.b1024.type [addr], {ord,} new_val`."""
    field, type_name = found.mods[2], found.mods[-1]
    expected = "b64" if field in _WIDE_FIELDS else "b32"
    if "b1024" not in found.mods or type_name != expected:
        raise reject(found, f"expected .b1024.{expected}")
    ordinal = None
    if field in _ORDINAL_FIELDS:
        literal = found.operands[1]
        if not isinstance(literal, Immediate) or not isinstance(literal.value, int):
            raise reject(found, "the ordinal must be a literal")
        ordinal = literal.value
    if len(found.operands) != (2 if ordinal is None else 3):
        raise reject(found, f"{len(found.operands)} operands")
    space_name = next((m for m in found.mods if m in ("global", "shared::cta")), "generic")
    space = space_named(operands.grid, space_name)
    address = operands.address(found.operands[0])
    row = operands.source(found.operands[-1], "u64" if expected == "b64" else "u32")

    def run(lanes: LaneSet) -> None:
        addresses = address.values(lanes)
        if (addresses % MAP_ALIGNMENT).any():
            raise TensorMapFault(f"tensormap.replace: the map is not {MAP_ALIGNMENT}-byte aligned")
        maps = _load(space, lanes, addresses)
        values = lanes.get(row)
        changed = np.empty_like(maps)
        for position in np.ndindex(*values.shape):
            data = replace(maps[position].tobytes(), field, int(values[position]), ordinal)
            changed[position] = np.frombuffer(data, np.uint8)
        _store(space, lanes, addresses, changed)

    return LaneOp(run)


@instruction("tensormap.cp_fenceproxy")
def build_cp_fenceproxy(operands: Operands, found: Instruction) -> Step:
    """`tensormap.cp_fenceproxy.global.shared::cta.(fence).sync.aligned [d], [s], 128`."""
    size = found.operands[2] if len(found.operands) == 3 else None
    if not isinstance(size, Immediate) or size.value != OBJECT_BYTES:
        raise reject(found, "the size must be 128")
    if found.mods[1:3] not in (("global", "shared::cta"), ("global", "shared")):
        raise reject(found)
    target, source = (operands.address(x) for x in found.operands[:2])
    to, origin = (space_named(operands.grid, name) for name in ("global", "shared"))

    def run(lanes: LaneSet) -> None:
        # All lanes of a warp name the same map: the first one copies it.
        first = lanes.select(np.arange(lanes.count) % WARP == 0)
        assert first is not None
        addresses = target.values(first)
        if (addresses % OBJECT_BYTES).any():
            raise TensorMapFault("tensormap.cp_fenceproxy: the target is not 128-byte aligned")
        _store(to, first, addresses, _load(origin, first, source.values(first)))

    return LaneOp(run, sync=WARP)
