"""How many blocks of a kernel a multiprocessor holds."""

from __future__ import annotations

from operator import index
from typing import SupportsIndex

from gemmjit.arch import Arch
from gemmjit.errors import InvalidConfigError

__all__ = ["occupancy", "register_budget", "registers_at_entry"]

_WARP = 32
_REGISTER_UNIT = 256  # registers are given to a warp in units of this many
_PARTITIONS = 4  # of a multiprocessor, each with a quarter of registers and warps
_SMEM_UNIT = 128  # shared memory is given to a block in units of this many bytes
_SMEM_UNIT_SM75 = 256
_MAX_THREADS = 1024
_MAX_REGISTERS = 255
_REGISTER_STEP = _REGISTER_UNIT // _WARP


def occupancy(registers: int, threads: int, smem_bytes: int, arch: Arch | str) -> int:
    """Return how many blocks are resident on one multiprocessor.

    Parameters
    ----------
    registers : int
        Registers of a thread, 1 to 255.
    threads : int
        Threads of a block, 1 to 1024.
    smem_bytes : int
        Shared memory of a block in bytes, static and dynamic, without what the system reserves.
    arch : Arch or str
        Architecture, as in ``sm_90a``.

    Returns
    -------
    int
        Resident blocks; 0 if the kernel cannot be launched at all.

    Raises
    ------
    InvalidConfigError
        If a number is out of range.
    UnsupportedArchError
        If the architecture is unknown.

    Notes
    -----
    After the CUDA occupancy calculator: a warp's registers are rounded up to 256 and come out of
    the quarter of the register file that its partition owns; shared memory is rounded up to 128
    bytes (256 on 7.5), the reserved part included; blocks, warps and blocks are limited as in the
    CUDA C++ Programming Guide's table of compute capabilities.

    Examples
    --------
    >>> occupancy(registers=95, threads=256, smem_bytes=0, arch="sm_90a")
    2
    """
    _check("registers", registers, 1, _MAX_REGISTERS)
    _check("threads", threads, 1, _MAX_THREADS)
    _check("smem_bytes", smem_bytes, 0, None)
    parsed = Arch.parse(arch)
    limits = parsed.limits
    if smem_bytes > limits.smem_per_block:
        return 0
    warps = -(-threads // _WARP)
    registers_of_warp = _up(registers * _WARP, _REGISTER_UNIT)
    resident_warps = limits.registers // _PARTITIONS // registers_of_warp * _PARTITIONS
    smem_unit = _SMEM_UNIT_SM75 if parsed.number == 75 else _SMEM_UNIT
    smem_of_block = _up(smem_bytes + limits.smem_reserved, smem_unit)
    by_smem = limits.smem_per_sm // smem_of_block if smem_of_block else limits.max_blocks
    return min(limits.max_blocks, limits.max_warps // warps, resident_warps // warps, by_smem)


def registers_at_entry(threads: int, blocks: int, arch: Arch | str) -> int:
    """Return the registers of a thread with which so many blocks are resident.

    Parameters
    ----------
    threads : int
        Threads of a block, 1 to 1024.
    blocks : int
        Blocks on one multiprocessor, 1 or more.
    arch : Arch or str

    Returns
    -------
    int
        A multiple of 8, at most 256: what the allocation of a kernel with such launch bounds can
        be, 255 and the one that goes lost by rounding.

    Notes
    -----
    The inverse of `occupancy`: a partition's quarter of the registers, over the most warps that
    any partition holds. ptxas 13.0 and 13.5 give a kernel that uses ``setmaxnreg`` just that many,
    if the instruction asks for as many: 168 with 288, 300 or 384 threads, 128 with 416 or 512, 96
    with 544 (2026-11-30).

    Examples
    --------
    >>> registers_at_entry(384, 1, "sm_90a")
    168
    """
    _check("threads", threads, 1, _MAX_THREADS)
    _check("blocks", blocks, 1, None)
    warps = -(-threads // _WARP) * blocks
    share = Arch.parse(arch).limits.registers // _PARTITIONS // -(-warps // _PARTITIONS)
    return min(share // _REGISTER_UNIT * _REGISTER_STEP, _up(_MAX_REGISTERS, _REGISTER_STEP))


def register_budget(threads: int, blocks: int, arch: Arch | str) -> int:
    """Return the registers that a thread may use so that some blocks are resident.

    Parameters
    ----------
    threads : int
        Threads of a block.
    blocks : int
        Blocks that are to be resident on a multiprocessor.
    arch : Arch or str

    Returns
    -------
    int
        At most 255; 0 if so many blocks are never resident.

    Notes
    -----
    This is what ``__launch_bounds__(threads, blocks)`` leaves to ptxas.
    """
    if occupancy(1, threads, 0, arch) < blocks:
        return 0
    return min(registers_at_entry(threads, blocks, arch), _MAX_REGISTERS)


def _check(name: str, value: object, low: int, high: int | None) -> None:
    # To ask for a protocol takes ten times as long, and a first call checks two dozen numbers.
    if type(value) is int or (isinstance(value, SupportsIndex) and not isinstance(value, bool)):
        number = index(value)
        if number >= low and (high is None or number <= high):
            return
    wanted = f"an integer from {low} to {high}" if high else f"an integer of at least {low}"
    raise InvalidConfigError(f"{name}: expected {wanted}; got {value!r}")


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
