"""What a launch is made of, and its arguments as a kernel's parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from gemmjit.emulator.faults import Fault
from gemmjit.emulator.memory import DeviceMemory
from gemmjit.emulator.module import Variable
from gemmjit.emulator.program import Program
from gemmjit.emulator.ptx_types import PTX_TYPES

__all__ = ["KernelLaunch", "TensorMapValue", "pack_arguments"]

Array = npt.NDArray[Any]


class TensorMapValue(bytes):
    """The 128 bytes of a TensorMap argument (:mod:`gemmjit.emulator.tensormap_object`)."""


Argument = bytes | bytearray | memoryview | int | float | np.generic | Array


@dataclass(frozen=True, kw_only=True)
class KernelLaunch:
    """One kernel launch.

    Attributes
    ----------
    ptx : str
        The translation unit.
    entry : str
        Name of the kernel.
    grid, block, cluster : tuple of int
        Launch shape (1 to 3 numbers): blocks, threads, blocks per cluster. A cluster shape that the
        kernel declares itself need not be repeated.
    smem_bytes : int
        Dynamic shared memory of a block.
    args : sequence
        One per kernel parameter: bytes of its size, an integer, a float, or a NumPy scalar.
    memory : DeviceMemory
        Global memory of the device that it runs on.
    target : str
        `sm_*` whose limits hold; the PTX's own target when empty.
    registers : int
        Registers of a thread when the kernel starts, from its cubin, for `setmaxnreg`; 0 takes them
        from the PTX's own bounds (:mod:`gemmjit.emulator.register_pool`).
    after : sequence of (int, str)
        Positions of launches that come before this one, with `"serial"` (this one starts when that
        one has finished) or `"programmatic"` (it starts when that one's blocks have executed
        griddepcontrol.launch_dependents, and waits in griddepcontrol.wait).
    """

    ptx: str
    entry: str
    grid: Sequence[int]
    block: Sequence[int]
    cluster: Sequence[int] = (1, 1, 1)
    smem_bytes: int = 0
    args: Sequence[Argument] = ()
    memory: DeviceMemory = field(default_factory=DeviceMemory)
    target: str = ""
    registers: int = 0
    after: Sequence[tuple[int, str]] = ()


def pack_arguments(program: Program, args: Sequence[Argument]) -> Array:
    """Return the parameters of a kernel as its program lays them out."""
    params = [p for p in program.entry.params if isinstance(p, Variable)]
    if len(args) != len(params):
        raise Fault(f"args: {program.entry.name} takes {len(params)} parameters, got {len(args)}")
    packed = np.zeros(-(-max(program.param_bytes, 1) // 64) * 64, np.uint8)
    for parameter, value in zip(params, args, strict=True):
        raw = _argument_bytes(parameter, value)
        if len(raw) != parameter.nbytes:
            raise Fault(f"args: {parameter.name} has {parameter.nbytes} bytes, got {len(raw)}")
        packed[parameter.offset :][: parameter.nbytes] = np.frombuffer(raw, np.uint8)
    return packed


def _argument_bytes(parameter: Variable, value: Argument) -> bytes:
    kind = PTX_TYPES[parameter.type]
    if isinstance(value, bool | int):
        size = parameter.nbytes
        return (int(value) & ((1 << (8 * size)) - 1)).to_bytes(size, "little")
    if isinstance(value, float):
        return np.array(
            value, kind.dtype if kind.dtype.kind == "f" else f"f{kind.nbytes}"
        ).tobytes()
    if isinstance(value, np.ndarray | np.generic):
        return np.ascontiguousarray(value).tobytes()
    return bytes(value)
