"""Runs plans in the emulator: host memory attached in place, arguments packed, PTX interpreted."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gemmjit.arrays import ArrayView
from gemmjit.dtypes import F32, F64, I32, I64, DType
from gemmjit.emulator.executor import KernelLaunch, Report, emulate
from gemmjit.emulator.faults import Fault
from gemmjit.emulator.memory import DeviceMemory
from gemmjit.emulator.positions import add_positions, located
from gemmjit.emulator.program import link
from gemmjit.emulator.settings import Settings, current
from gemmjit.emulator.tensormap_object import encode
from gemmjit.errors import EmulatorError
from gemmjit.plan import (
    Argument,
    Plan,
    Pointer,
    Scalar,
    Struct,
    TensorMapArgument,
    WorkspacePointer,
)

__all__ = ["run"]

_CODES: dict[DType, str] = {I32: "<i4", I64: "<i8", F32: "<f4", F64: "<f8"}


def run(
    plan: Plan,
    operands: Mapping[str, ArrayView],
    settings: Settings | None = None,
) -> list[Report]:
    """Run the launches of a plan one after the other.

    Parameters
    ----------
    plan : Plan
    operands : mapping of str to ArrayView
        Views of host memory; a kernel may touch the bytes of their elements and no others.
    settings : Settings, optional
        Policy, seed and so on; by default those of the `gemmjit.emulator.emulating` block that this
        is called in, if any.

    Returns
    -------
    list of Report
        One per launch.

    Raises
    ------
    EmulatorError
        If a kernel does something that is wrong; the message names instruction and source line.
    """
    chosen = settings or current() or Settings()
    memory = DeviceMemory()
    addresses = {name: _attach(memory, name, view) for name, view in operands.items()}
    for workspace in plan.workspaces:
        data: npt.NDArray[Any] | None = workspace.contents
        if data is None and (workspace.zeroed or workspace.lasting):
            data = np.zeros(workspace.nbytes, np.uint8)
        addresses[workspace.name] = memory.allocate(workspace.nbytes, data, name=workspace.name)
    reports = []
    for launch in plan.launches:
        kernel = launch.kernel
        program = link(kernel.ptx, kernel.entry)
        if chosen.trace is not None:  # its spans are named by positions
            add_positions(program, kernel.ptx_with_lines)
        described = KernelLaunch(
            ptx=kernel.ptx,
            entry=kernel.entry,
            grid=launch.grid,
            block=launch.block,
            cluster=launch.cluster,
            smem_bytes=launch.smem_bytes,
            args=[_pack(argument, addresses) for argument in launch.arguments],
            memory=memory,
            target=kernel.target.name,
            registers=kernel.registers,
        )
        try:
            report = emulate(
                [described],
                policy=chosen.policy,
                seed=chosen.seed,
                numerics=chosen.numerics,
                max_steps=chosen.max_steps,
                resident_blocks=chosen.resident_blocks,
                unwaited_stores=chosen.unwaited_stores,
                unfenced_inits=chosen.unfenced_inits,
                unfenced_reads=chosen.unfenced_reads,
                unfenced_tmem=chosen.unfenced_tmem,
                undecided=chosen.undecided,
                readings=chosen.readings,
                trace=chosen.trace,
            )
        except Fault as fault:
            bare = [fault.reason, fault.where, str(fault)]
            fault.reason, fault.where, told = located(bare, program, kernel.ptx_with_lines)
            fault.args = (told,)
            raise
        warnings = located(report.warnings, program, kernel.ptx_with_lines)
        reports.append(replace(report, warnings=warnings))
        chosen.reports.append(reports[-1])
    for workspace in plan.workspaces:
        if workspace.lasting and any(
            memory.read(addresses[workspace.name], count=workspace.nbytes)
        ):
            raise EmulatorError(f"workspace {workspace.name}: not left zero for the next call")
    return reports


def _attach(memory: DeviceMemory, name: str, view: ArrayView) -> int:
    """Map the bytes that a view's elements touch; addresses keep their alignment."""
    low, high = view.byte_range()
    if low == high:
        return 0
    raw = (ctypes.c_uint8 * (high - low)).from_address(low)
    base = memory.attach(np.ctypeslib.as_array(raw), alignment_offset=low % 256, name=name)
    return base + view.pointer - low


def _pack(argument: Argument, addresses: Mapping[str, int]) -> bytes:
    if isinstance(argument, Struct):
        image = bytearray()
        for part in argument.fields:
            raw = _pack(part, addresses)
            image += bytes(-len(image) % len(raw)) + raw
        return bytes(image + bytes(-len(image) % 8))
    if isinstance(argument, Scalar):
        return np.array(argument.value, _CODES[argument.dtype]).tobytes()
    if isinstance(argument, TensorMapArgument):
        return encode(argument.tensor_map, addresses[argument.operand] + argument.displacement)
    if isinstance(argument, Pointer):
        return addresses.get(argument.operand, 0).to_bytes(8, "little")
    if isinstance(argument, WorkspacePointer):
        return (addresses[argument.workspace] + argument.offset).to_bytes(8, "little")
    raise EmulatorError(f"argument: {type(argument).__name__} cannot be passed yet")
