"""How kernels are emulated in this thread or task: policy, seed, numerics, strictness, timeline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gemmjit.emulator.executor import Report
    from gemmjit.emulator.trace import Trace

__all__ = ["Settings", "current", "emulating"]

_READINGS = {"ld_registers": "poison"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What `emulating` sets; the fields are those of `gemmjit.emulator.emulate`.

    Attributes
    ----------
    policy : {"eager", "lazy", "random"}
    seed : int
    numerics : {"fp32", "tensor_core"}
    max_steps, resident_blocks : int or None
    unwaited_stores : {"drain", "error"}
    unfenced_inits : {"error", "warn"}
    unfenced_reads : {"error", "warn"}
    unfenced_tmem : {"error", "warn"}
    undecided : {"error", "warn", "accept"}
    readings : mapping of str to str
        Registers of a tcgen05.ld that is not waited for are poison by default.
    trace : Trace or None
    num_sms : int
        Multiprocessors of the emulated device: persistent blocks are so many times as one holds.
    reports : list of Report
        Receives the report of every launch that came to its end.
    """

    policy: str = "eager"
    seed: int = 0
    numerics: str = "fp32"
    max_steps: int | None = None
    resident_blocks: int | None = None
    unwaited_stores: str = "drain"
    unfenced_inits: str = "error"
    unfenced_reads: str = "error"
    unfenced_tmem: str = "error"
    undecided: str = "error"
    readings: Mapping[str, str] = field(default_factory=lambda: dict(_READINGS))
    trace: Trace | None = None
    num_sms: int = 4
    reports: list[Report] = field(default_factory=list)


_CURRENT: ContextVar[Settings | None] = ContextVar("gemmjit_emulation", default=None)


def current() -> Settings | None:
    """Return the settings of the innermost `emulating` block, or None outside of all."""
    return _CURRENT.get()


@contextmanager
def emulating(
    policy: str = "eager",
    seed: int = 0,
    *,
    numerics: str = "fp32",
    max_steps: int | None = None,
    resident_blocks: int | None = None,
    unwaited_stores: str = "drain",
    unfenced_inits: str = "error",
    unfenced_reads: str = "error",
    unfenced_tmem: str = "error",
    undecided: str = "error",
    readings: Mapping[str, str] | None = None,
    trace: Trace | None = None,
    num_sms: int = 4,
) -> Iterator[list[Report]]:
    """Run the calls of a ``with`` block on NumPy arrays in the emulator, whatever their size.

    Parameters
    ----------
    policy, seed, numerics, max_steps, resident_blocks, trace
        As for `gemmjit.emulator.emulate`. They hold in this thread or task only.
    unwaited_stores, unfenced_inits, unfenced_reads, unfenced_tmem, undecided
        Likewise; a fence left out is an error by default, as gemmjit's kernels have them all, and
        so is a kernel that depends on what the emulator only assumes.
    readings
        Likewise; by default registers of a tcgen05.ld are poison until it is waited for.
    num_sms : int
        Multiprocessors of the emulated device. The fewer, the more tiles a persistent block takes.

    Yields
    ------
    list of Report
        One is added per launch.

    Examples
    --------
    >>> import numpy as np
    >>> a, w = np.ones((4, 64), np.float16), np.ones((2, 64, 64), np.float16)
    >>> with emulating("random", seed=7) as reports:
    ...     y = gemmjit.grouped_mm(a, w, offs=[1, 4], config="k3")
    >>> reports[0].warp_instructions > 0
    True
    """
    settings = Settings(
        policy=policy,
        seed=seed,
        numerics=numerics,
        max_steps=max_steps,
        resident_blocks=resident_blocks,
        unwaited_stores=unwaited_stores,
        unfenced_inits=unfenced_inits,
        unfenced_reads=unfenced_reads,
        unfenced_tmem=unfenced_tmem,
        undecided=undecided,
        readings=_READINGS if readings is None else readings,
        trace=trace,
        num_sms=num_sms,
    )
    token = _CURRENT.set(settings)
    try:
        yield settings.reports
    finally:
        _CURRENT.reset(token)
