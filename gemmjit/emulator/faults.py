"""What stops an emulated kernel: one exception per kind of fault.

::

    EmulatorError
    ├── PtxSyntaxError          text that is not PTX, or a directive that is not known
    ├── UnknownInstruction      an opcode, or a form of it, that has no semantics here
    ├── UndecidedSemantics      the kernel depends on what the emulator only assumes
    ├── MemoryFault             bounds, alignment, the wrong window, an exited block
    ├── TensorMapFault          a TensorMap that breaks a rule, a box that faults on hardware
    ├── BarrierFault            mbarrier and bar misuse: counts, transaction bytes, no init
    ├── ConvergenceFault        `.aligned` or `.sync` executed by a part of a warp
    ├── RaceError               a missing fence, wait or barrier
    ├── Deadlock                nothing can run any more
    ├── StepBudgetExceeded      `max_steps` instructions were issued
    └── Trap                    `trap`, `brkpt` or a failed assertion of the kernel

Handlers raise them with the bare reason; the machine adds the instruction, its PTX line, the source
line of the template and the threads (:meth:`Fault.locate`).
"""

from __future__ import annotations

from gemmjit.errors import EmulatorError

__all__ = [
    "BarrierFault",
    "ConvergenceFault",
    "Deadlock",
    "Fault",
    "MemoryFault",
    "PtxSyntaxError",
    "RaceError",
    "StepBudgetExceeded",
    "TensorMapFault",
    "Trap",
    "UndecidedSemantics",
    "UnknownInstruction",
]


class Fault(EmulatorError):
    """Base of the faults that a running kernel can cause.

    Attributes
    ----------
    reason : str
        What went wrong, without the position.
    where : str
        Instruction, PTX line and source line; empty until the machine has located the fault.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.where = ""

    def locate(self, where: str) -> None:
        """Add the position, once: the innermost caller knows it best."""
        if not self.where:
            self.where = where
            self.args = (f"{self.reason}\n  at {where}",)


class PtxSyntaxError(Fault):
    """The text is not PTX as this parser knows it."""


class UnknownInstruction(Fault):
    """The opcode, or this form of it, has no semantics in the emulator."""


class UndecidedSemantics(Fault):
    """The kernel depends on what no document and no known kernel decides."""


class MemoryFault(Fault):
    """An access out of bounds, misaligned, through the wrong window or to an exited block."""


class TensorMapFault(MemoryFault):
    """A TensorMap that breaks a rule, or a box that faults on hardware."""


class BarrierFault(Fault):
    """An mbarrier or a bar used against its rules."""


class ConvergenceFault(Fault):
    """A `.sync` or `.aligned` instruction that a part of its warp did not execute."""


class RaceError(Fault):
    """A missing fence, wait or barrier between two accesses."""


class Deadlock(Fault):
    """No thread can run, nothing asynchronous is pending, and not every block has exited."""


class StepBudgetExceeded(Fault):
    """The kernel issued more instructions than `max_steps`."""


class Trap(Fault):
    """The kernel executed `trap`, `brkpt` or a failed assertion."""
