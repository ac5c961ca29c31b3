"""What a compiled kernel takes from a multiprocessor, read without a GPU.

Registers, spills, stack and shared memory come from the log of ``ptxas -v``, which alone knows
spills; the block size that a kernel was compiled for comes from the cubin.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass

from gemmjit.elf import read_kernels
from gemmjit.errors import CompileError

__all__ = ["Resources", "check_advisories", "read_resources"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """Resources of one kernel.

    Attributes
    ----------
    registers : int
        32-bit registers of a thread.
    spill_store_bytes, spill_load_bytes : int
        Bytes that a thread stores to and loads from local memory for want of registers.
    stack_bytes : int
        Stack of a thread in bytes, that of called functions included.
    smem_bytes : int
        Static shared memory of a block in bytes, without what the system reserves.
    barriers : int
        Named barriers.
    max_threads : int
        Threads of a block that the kernel was compiled for.
    """

    registers: int
    spill_store_bytes: int
    spill_load_bytes: int
    stack_bytes: int
    smem_bytes: int
    barriers: int
    max_threads: int


_log = logging.getLogger("gemmjit.compiler")

# Advisories of ptxas after which the kernel is not what its source says.
_ADVISORIES = {
    "C7504": "setmaxnreg is ignored: a function was not inlined",
    "C7508": "setmaxnreg is ignored: no launch bounds fix the registers at entry",
    "C7514": "wgmma instructions are serialised",
    "C7517": "a wait for wgmma was inserted: an accumulator is used before its wait",
    "C7519": "wgmma instructions are serialised",
}
# There are more numbers for it, one for each reason, and versions number them differently.
_SERIALISED = "wgmma.mma_async instructions are serialized"
# So it does around a call, as of printf: such a kernel is slow, and right.
_AT_A_CALL = "at a function call"
_ADVISORY = re.compile(r"\((C\d{4})\)")
_ENTRY = re.compile(r"Compiling entry function '([^']+)' for '")
_FUNCTION = re.compile(r"Function properties for (\S+)")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers\b(.*)")


def check_advisories(log: str, source: str = "") -> None:
    """Raise if the log holds an advisory that means a slow or a wrong kernel.

    Raises
    ------
    CompileError
        Naming each such line of the log.
    """
    found = []
    for line in log.splitlines():
        match = _ADVISORY.search(line)
        meaning = None if match is None else _ADVISORIES.get(match[1])
        if _SERIALISED in line:
            meaning = "wgmma instructions are serialised"
            if _AT_A_CALL in line and "printf" in source:
                _log.warning("a kernel that prints is slow: %s", line.strip())
                continue
        if meaning is not None:
            found.append(f"{meaning}\n    {line.strip()}")
    if found:
        raise CompileError(
            "ptxas compiled the kernel into something else than its source says:\n  "
            + "\n  ".join(found),
            log=log,
            source=source,
        )


def read_resources(cubin: bytes, log: str) -> dict[str, Resources]:
    """Return the resources of every kernel of a cubin.

    Parameters
    ----------
    cubin : bytes
    log : str
        The log of the compilation, made with ``-Xptxas=-v``.

    Raises
    ------
    CompileError
        If the cubin cannot be read, or cubin and log do not belong together.
    """
    try:
        in_elf = read_kernels(cubin)
    except ValueError as error:
        raise CompileError(f"resources: {error}", log=log) from error
    frames: dict[str, tuple[int, int, int]] = {}
    used: dict[str, tuple[int, int, int, int]] = {}
    function = entry = ""
    for line in log.splitlines():
        if match := _ENTRY.search(line):
            entry = match[1]
        elif match := _FUNCTION.search(line):
            function = match[1]
        elif match := _FRAME.search(line):
            frames[function] = (int(match[1]), int(match[2]), int(match[3]))
        elif match := _USED.search(line):
            rest = match[2]
            used[entry] = (
                int(match[1]),
                _number(rest, r"used (\d+) barriers"),
                _number(rest, r"(\d+)(?:\+\d+)? bytes smem"),
                _number(rest, r"(\d+) bytes cumulative stack size"),
            )
    # A function that was not inlined may be called by any kernel: its spills count for each.
    called = [frame for name, frame in frames.items() if name not in used]
    resources = {}
    for name, kernel in in_elf.items():
        if name not in used or name not in frames or used[name][0] != kernel.registers:
            raise CompileError(
                f"resources: the log of ptxas does not describe kernel {name} with "
                f"{kernel.registers} registers; compile with -Xptxas=-v",
                log=log,
            )
        registers, barriers, smem_bytes, cumulative = used[name]
        stack, stores, loads = frames[name]
        resources[name] = Resources(
            registers=registers,
            spill_store_bytes=stores + sum(frame[1] for frame in called),
            spill_load_bytes=loads + sum(frame[2] for frame in called),
            stack_bytes=max(stack, cumulative),
            smem_bytes=smem_bytes,
            barriers=barriers,
            max_threads=kernel.max_threads,
        )
    return resources


def _number(text: str, pattern: str) -> int:
    match = re.search(pattern, text)
    return int(match[1]) if match else 0
