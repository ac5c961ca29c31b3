"""What no document and no kernel that is known to be right decides, and how the emulator reads it.

A kernel that depends on such a reading is reported once an assumption: a warning, or an error where
the caller asks for that. Of some there are several readings to choose from, so that a kernel can be
shown not to depend on the choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gemmjit.emulator.faults import Fault, UndecidedSemantics

if TYPE_CHECKING:
    from gemmjit.emulator.machine import Machine

__all__ = ["ASSUMPTIONS", "Assumption", "Assumptions"]


@dataclass(frozen=True, slots=True)
class Assumption:
    """One open question.

    Attributes
    ----------
    question : str
    readings : tuple of str
        The answers that can be chosen; the first one is the default.
    why : str
        What the default rests on.
    """

    question: str
    readings: tuple[str, ...]
    why: str


#: All open questions by name.
ASSUMPTIONS: dict[str, Assumption] = {
    "scale_selector": Assumption(
        "which scales mma.sync takes when a byte-id or thread-id is not 0",
        ("document",),
        "PTX ISA 9.7.14.3; known kernels write 0 and replicate the scales",
    ),
    "scale_lanes": Assumption(
        "whether lanes of a quad that mma.sync is not told to take scales from are ignored",
        ("document",),
        "PTX ISA 9.7.14.3; known kernels replicate the scales over the quad",
    ),
    "container_padding": Assumption(
        "what the unused bits of a byte that holds a 4-bit or 6-bit element do",
        ("ignored",),
        "known kernels leave them 0",
    ),
    "scale_quadrant": Assumption(
        "from which lanes tcgen05.mma reads a scale that the four quadrants do not share",
        ("first", "own"),
        "PTX ISA 9.7.16.10.7: scales need to be duplicated to all quadrants; known kernels do so",
    ),
    "scale_b_pair": Assumption(
        "from which block of a pair tcgen05.mma reads scales of B that the two do not share",
        ("own", "leader"),
        "known kernels keep all scales of B in both",
    ),
    "scale_parts": Assumption(
        "where block scales lie with M = 128 of a pair, whose D is in two parts",
        ("parts",),
        "CUTLASS: the quadrants of a part hold the scales of its columns of B, and of the block's "
        "64 rows of A; no kernel is known that uses it",
    ),
    "zero_column_spans": Assumption(
        "what the skip span of a zero-column mask counts",
        ("examples", "table"),
        "PTX ISA 9.7.16.4.3: zeroed columns in its examples, used ones in its table",
    ),
    "tmem_quadrant": Assumption(
        "which lanes tcgen05.ld and .st touch when the address names another warp's quadrant",
        ("warp",),
        "DeepGEMM leaves the bits 0 in all warps and is right on hardware",
    ),
    "ld_registers": Assumption(
        "whether a register of a tcgen05.ld may be used before tcgen05.wait::ld",
        ("dependent", "poison"),
        "PTX ISA 9.7.16.6.4.5 respects true register dependencies, and Triton's kernels use them; "
        "poison is for kernels that are meant to wait",
    ),
    "pack_16b": Assumption(
        "which columns .pack::16b joins and .unpack::16b parts",
        ("adjacent",),
        "columns 2c (low half) and 2c + 1, as CUTLASS's layouts have it; no known kernel uses it",
    ),
    "tmem_containers": Assumption(
        "where 4-bit elements of A lie in the bytes of tensor memory",
        ("middle", "low"),
        "bits 5 to 2, as in mma.sync; the figures 195 and 199 of the manual were not seen",
    ),
    "cp_4x256b": Assumption(
        "to which lanes tcgen05.cp.4x256b copies its four rows",
        ("quadrants",),
        "one row a quadrant, at the lane of the address, as CUTLASS's layout has it; no known "
        "kernel uses it",
    ),
    "shift_down": Assumption(
        "which way tcgen05.shift.down moves the rows of 32 lanes",
        ("next", "previous"),
        "lane i takes what lane i + 1 holds; the manual says downwards, except the last",
    ),
}

_MODES = ("warn", "error", "accept")


class Assumptions:
    """The readings of one machine.

    Parameters
    ----------
    machine : Machine
        Receives the warnings.
    mode : {"warn", "error", "accept"}
        What happens when a kernel depends on one.
    readings : mapping
        Chosen readings by name; the others are the defaults.

    Raises
    ------
    Fault
        If a mode, a name or a reading is unknown.
    """

    def __init__(self, machine: Machine, mode: str, readings: Mapping[str, str]) -> None:
        if mode not in _MODES:
            raise Fault(f"undecided: expected one of {', '.join(_MODES)}; got {mode!r}")
        for name, reading in readings.items():
            known = ASSUMPTIONS.get(name)
            if known is None:
                raise Fault(f"readings: expected names of {', '.join(ASSUMPTIONS)}; got {name!r}")
            if reading not in known.readings:
                expected = ", ".join(known.readings)
                raise Fault(f"readings: {name}: expected one of {expected}; got {reading!r}")
        self.machine = machine
        self.mode = mode
        self.chosen = dict(readings)
        self.relied_on: set[str] = set()

    def reading(self, name: str) -> str:
        """Return the reading of a question, which the kernel may not depend on."""
        return self.chosen.get(name, ASSUMPTIONS[name].readings[0])

    def rely(self, name: str, detail: str) -> str:
        """Return the reading of a question that the kernel depends on, and tell the caller.

        Raises
        ------
        UndecidedSemantics
            If the mode is `"error"`.
        """
        reading = self.reading(name)
        if self.mode != "accept" and name not in self.relied_on:
            self.relied_on.add(name)
            known = ASSUMPTIONS[name]
            message = (
                f"{detail}: undecided ({name}): {known.question}; read as {reading!r} ({known.why})"
            )
            if self.mode == "error":
                raise UndecidedSemantics(message)
            self.machine.warn(message)
        return reading
