"""The emulator's interface: memory, launches, reports.

Example
-------
    arena = DeviceMemory()
    x = arena.allocate(4 * n, values)
    report = emulate([KernelLaunch(ptx, "scale", (4,), (256,), args=[n, x], memory=arena)])
    arena.read(x, "float32", n)
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gemmjit.emulator.assumptions import Assumptions
from gemmjit.emulator.faults import Fault, MemoryFault
from gemmjit.emulator.grid import Grid
from gemmjit.emulator.kernel_launch import KernelLaunch, TensorMapValue, pack_arguments
from gemmjit.emulator.machine import Machine
from gemmjit.emulator.module import Variable
from gemmjit.emulator.program import Program, link, target_number
from gemmjit.emulator.shared_memory import SPAN
from gemmjit.emulator.trace import Trace

__all__ = ["KernelLaunch", "Report", "TensorMapValue", "emulate"]

Array = npt.NDArray[Any]
Dim3 = tuple[int, int, int]
# Bytes of shared memory that a block may use, by compute capability (CUDA programming guide,
# table "technical specifications per compute capability").
_SHARED_LIMITS = {
    75: 65536, 80: 166912, 86: 101376, 87: 166912, 89: 101376, 90: 232448, 100: 232448,
    103: 232448, 107: 232448, 110: 232448, 120: 101376, 121: 101376,
}  # fmt: skip
_DEFAULT_READINGS: Mapping[str, str] = {}
# Lanes that one wave may have: more would not be faster, only larger.
_WAVE_LANES = 8192


@dataclass(frozen=True)
class Report:
    """What an emulation did.

    Attributes
    ----------
    instructions : dict
        Opcode (full name) to the number of warp instructions.
    warp_instructions : int
        Their sum.
    issues : int
        Instructions issued by the emulator; one serves any number of warps.
    barriers : list of str
        State of every mbarrier when its block ended, as text.
    seconds : float
        Wall time.
    output : str
        What the kernels printed.
    async_operations : int
        Asynchronous operations that completed.
    warnings : list of str
        What is not an error on hardware but should be looked at.
    """

    instructions: dict[str, int]
    warp_instructions: int
    issues: int
    barriers: list[str]
    seconds: float
    output: str
    async_operations: int
    warnings: list[str]


def emulate(
    launches: Sequence[KernelLaunch],
    *,
    policy: str = "eager",
    seed: int = 0,
    numerics: str = "fp32",
    max_steps: int | None = None,
    resident_blocks: int | None = None,
    races: str = "error",
    unwaited_stores: str = "drain",
    unfenced_inits: str = "warn",
    unfenced_reads: str = "warn",
    unfenced_tmem: str = "warn",
    undecided: str = "warn",
    readings: Mapping[str, str] = _DEFAULT_READINGS,
    trace: Trace | None = None,
) -> Report:
    """Run kernels concurrently until all have finished.

    Parameters
    ----------
    launches : sequence of KernelLaunch
        They share one address space and run side by side, but for the order in `after`.
    policy : {"eager", "lazy", "random"}
        When asynchronous work completes; `random` also runs warps in random order.
    seed : int
        Of the random choices.
    numerics : {"fp32", "tensor_core"}
        Accumulation of matrix products: exact products summed in FP32, or the published model of
        the tensor cores.
    max_steps : int, optional
        Instructions that may be issued.
    resident_blocks : int, optional
        Blocks that a device holds at once; by default as many as one wave takes.
    races : {"error", "warn"}
        A missing fence, wait or barrier raises, or is a warning in the report. Hardware forgives
        some of them, and kernels in the field rely on that.
    unwaited_stores : {"drain", "error"}
        A block may exit before its bulk stores have read shared memory: hardware drains them, and
        known kernels rely on it. `"drain"` does so and leaves a warning, `"error"` raises.
    unfenced_inits : {"warn", "error"}
        An mbarrier on which a bulk copy completes must be made visible to the asynchronous proxy by
        fence.mbarrier_init or fence.proxy.async; compilers in the field leave that out within one
        block, and hardware forgives it.
    unfenced_reads : {"warn", "error"}
        Between reads of shared memory and an asynchronous write to it there must be a
        fence.proxy.async of every reading lane, or a barrier: an mbarrier alone lets the write
        overtake them. Kernels in the field leave the fence out, and hardware forgives it at times.
    unfenced_tmem : {"warn", "error"}
        Accesses of tensor memory by different threads need tcgen05.fence::before_thread_sync and
        ::after_thread_sync around what orders them; kernels in the field leave some out.
    undecided : {"warn", "error", "accept"}
        What happens when a kernel depends on something that no document and no known kernel
        decides; see :mod:`gemmjit.emulator.assumptions`.
    readings : mapping of str to str
        Answers to those questions that differ from the defaults, by name.
    trace : gemmjit.emulator.trace.Trace, optional
        Receives a timeline.

    Returns
    -------
    Report

    Raises
    ------
    gemmjit.errors.EmulatorError
        A fault, a race, a deadlock, or PTX that the emulator does not know; see
        :mod:`gemmjit.emulator.faults`.
    """
    start = time.perf_counter()
    arenas = list({id(launch.memory): launch.memory for launch in launches}.values())
    programs = [link(launch.ptx, launch.entry) for launch in launches]
    symbols = [
        _load_variables(program, launch) for program, launch in zip(programs, launches, strict=True)
    ]
    machine = Machine(arenas, policy, seed, numerics, max_steps)
    machine.resident_limit = resident_blocks
    machine.unwaited_stores = unwaited_stores
    machine.unfenced_inits = unfenced_inits
    machine.unfenced_reads = unfenced_reads
    machine.unfenced_tmem = unfenced_tmem
    machine.assumptions = Assumptions(machine, undecided, readings)
    machine.race_checks = races
    machine.trace = trace
    if trace is not None:
        trace.start(machine)
    for program, launch, addresses in zip(programs, launches, symbols, strict=True):
        for name, address in addresses.items():
            machine.symbols[launch.memory.device, id(program), name] = address
        machine.add(_make_grid(machine, program, launch, resident_blocks))
    for grid, launch in zip(machine.grids, launches, strict=True):
        for position, edge in launch.after:
            if edge not in ("serial", "programmatic"):
                raise Fault(f"after: expected 'serial' or 'programmatic', got {edge!r}")
            getattr(grid.dependencies, edge).append(machine.grids[position])
    try:
        machine.run()
    finally:
        if trace is not None:
            trace.stop()
    return _report(machine, time.perf_counter() - start)


def _report(machine: Machine, seconds: float) -> Report:
    counts: dict[str, int] = {}
    for grid in machine.grids:
        for pc, number in enumerate(grid.scheduler.executed()):
            if number:
                name = grid.program.instructions[pc].name
                counts[name] = counts.get(name, 0) + int(number)
    return Report(
        dict(sorted(counts.items(), key=lambda item: -item[1])),
        sum(counts.values()),
        machine.steps,
        [line for grid in machine.grids for line in grid.mbarriers.finished],
        seconds,
        "".join(machine.output),
        machine.engine.completed,
        machine.warnings,
    )


def _dim3(name: str, value: Sequence[int]) -> Dim3:
    padded = [int(v) for v in value] + [1] * (3 - len(value))
    if len(padded) != 3 or min(padded) < 1:
        raise Fault(f"{name}: expected one to three positive numbers, got {tuple(value)}")
    return padded[0], padded[1], padded[2]


def _make_grid(
    machine: Machine, program: Program, launch: KernelLaunch, resident: int | None
) -> Grid:
    grid, block = _dim3("grid", launch.grid), _dim3("block", launch.block)
    cluster = _cluster(program, launch)
    threads = block[0] * block[1] * block[2]
    limit = program.entry.directives.get("maxntid") or program.entry.directives.get("reqntid")
    allowed = int(np.prod(limit)) if limit else 1024
    if threads > allowed:
        raise Fault(f"block: {threads} threads, the kernel allows {allowed}")
    required = program.entry.directives.get("reqntid")
    if required and tuple([*required, 1, 1][:3]) != block:
        raise Fault(f"block: the kernel requires {required}, got {block}")
    if any(g % c for g, c in zip(grid, cluster, strict=True)):
        raise Fault(f"grid: {grid} is no multiple of the cluster {cluster}")
    size = cluster[0] * cluster[1] * cluster[2]
    total = program.dynamic_base - program.shared_base + launch.smem_bytes
    limit_bytes = _SHARED_LIMITS.get(target_number(launch.target or program.module.target), SPAN)
    if total > limit_bytes and program.shared_bytes + launch.smem_bytes > limit_bytes:
        raise MemoryFault(
            f"smem_bytes: {program.shared_bytes} static + {launch.smem_bytes} dynamic bytes of "
            f"shared memory, {launch.target or program.module.target} has {limit_bytes}"
        )
    blocks = grid[0] * grid[1] * grid[2]
    padded = -(-threads // 32) * 32
    slots = max(_WAVE_LANES // padded, 1) if resident is None else resident
    slots = max(min(slots, blocks) // size, 1) * size
    if resident is not None and size > resident:
        raise Fault(f"resident_blocks: {resident} is less than one cluster of {size}")
    made = Grid(
        machine, program, grid, block, cluster, launch.smem_bytes,
        pack_arguments(program, launch.args), launch.memory.device, slots,
    )  # fmt: skip
    made.entry_registers = launch.registers
    return made


def _cluster(program: Program, launch: KernelLaunch) -> Dim3:
    asked = _dim3("cluster", launch.cluster)
    declared = program.entry.directives.get("reqnctapercluster")
    if not declared:
        return asked
    fixed = _dim3("reqnctapercluster", declared)
    if asked not in ((1, 1, 1), fixed):
        raise Fault(f"cluster: the kernel requires {fixed}, got {asked}")
    return fixed


def _load_variables(program: Program, launch: KernelLaunch) -> dict[str, int]:
    """Place the module's variables in device memory; they live as long as the arena."""
    memory = launch.memory
    addresses: dict[str, int] = {}
    fresh: list[Variable] = []
    for variable in program.variables:
        if variable.space not in ("global", "const"):
            continue
        key = (launch.ptx, variable.name)
        if key not in memory.module_symbols:
            if variable.extern:
                raise MemoryFault(f"variable {variable.name} is extern and has no definition")
            memory.module_symbols[key] = memory.allocate(
                variable.nbytes, np.zeros(variable.nbytes, np.uint8), name=variable.name,
                writable=variable.space == "global",
            )  # fmt: skip
            fresh.append(variable)
        addresses[variable.name] = memory.module_symbols[key]
    for variable in fresh:
        place = memory.find(addresses[variable.name], 0)
        for offset, value, size in variable.initial:
            if isinstance(value, tuple):
                name, addend = value
                function = program.module.functions.get(name)
                if function is not None:
                    value = program.function_address(function)
                else:
                    value = addresses[name] + addend
            place.data[offset : offset + size] = np.frombuffer(
                value.to_bytes(size, "little"), np.uint8
            )
    return addresses
