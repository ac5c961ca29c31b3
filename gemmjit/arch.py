"""GPU architectures: names, limits, and which compilation targets serve a device.

Everything here is arithmetic on published limits; no driver is asked. Architectures are compared
as numbers, never as text (``sm_100`` comes after ``sm_90``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, total_ordering

from gemmjit.errors import UnsupportedArchError

__all__ = ["DEFAULT_ARCH", "Arch", "ArchLimits", "devices_of", "targets_for"]

#: The architecture that NumPy calls and the command line use when none is named.
DEFAULT_ARCH = "sm_90a"

_PATTERN = re.compile(r"(?:sm_?|compute_?)?(\d{2,3})([af]?)", re.IGNORECASE)
_KNOWN = frozenset({75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121})
_ACCELERATED = frozenset({90, 100, 103, 110, 120, 121})  # have an 'a' target
_FAMILY = frozenset({100, 103, 110, 120, 121})  # have an 'f' target too


@dataclass(frozen=True, slots=True)
class ArchLimits:
    """Resource limits of one streaming multiprocessor.

    Sources: CUDA C++ Programming Guide, table of technical specifications per compute capability.

    Attributes
    ----------
    registers, max_warps, max_blocks : int
        32-bit registers, resident warps and resident blocks per multiprocessor.
    smem_per_sm, smem_per_block, smem_reserved : int
        Shared memory in bytes: per multiprocessor, the most that a block may ask for, and what
        the system takes per block.
    """

    registers: int
    max_warps: int
    max_blocks: int
    smem_per_sm: int
    smem_per_block: int
    smem_reserved: int


_KIB = 1024
_LIMITS = {
    75: ArchLimits(65536, 32, 16, 64 * _KIB, 64 * _KIB, 0),
    80: ArchLimits(65536, 64, 32, 164 * _KIB, 163 * _KIB, _KIB),
    86: ArchLimits(65536, 48, 16, 100 * _KIB, 99 * _KIB, _KIB),
    87: ArchLimits(65536, 48, 16, 164 * _KIB, 163 * _KIB, _KIB),
    88: ArchLimits(65536, 48, 24, 100 * _KIB, 99 * _KIB, _KIB),
    89: ArchLimits(65536, 48, 24, 100 * _KIB, 99 * _KIB, _KIB),
    90: ArchLimits(65536, 64, 32, 228 * _KIB, 227 * _KIB, _KIB),
    100: ArchLimits(65536, 64, 32, 228 * _KIB, 227 * _KIB, _KIB),
    103: ArchLimits(65536, 64, 32, 228 * _KIB, 227 * _KIB, _KIB),
    110: ArchLimits(65536, 48, 24, 228 * _KIB, 227 * _KIB, _KIB),
    120: ArchLimits(65536, 48, 24, 100 * _KIB, 99 * _KIB, _KIB),
    121: ArchLimits(65536, 48, 24, 100 * _KIB, 99 * _KIB, _KIB),
}


@total_ordering
@dataclass(frozen=True, slots=True)
class Arch:
    """One architecture name, as NVRTC takes it: ``sm_80``, ``sm_90a``, ``sm_100f``.

    Attributes
    ----------
    number : int
        Ten times major plus minor: 90 for compute capability 9.0, 103 for 10.3.
    suffix : str
        ``"a"`` (this exact capability), ``"f"`` (its family) or ``""``.
    """

    number: int
    suffix: str = ""

    @classmethod
    def parse(cls, text: str | Arch) -> Arch:
        """Read ``sm_90a``, ``sm90a``, ``90a`` or ``compute_90a``.

        Raises
        ------
        UnsupportedArchError
            If the text names no architecture that gemmjit knows.
        """
        if isinstance(text, Arch):
            return text
        if not isinstance(text, str):
            raise UnsupportedArchError(
                f"arch: expected a name such as sm_80, sm_90a or sm_100f; got {text!r}"
            )
        match = _PATTERN.fullmatch(text.strip())
        if match is None:
            raise UnsupportedArchError(
                f"arch: expected a name such as sm_80, sm_90a or sm_100f; got {text!r}. "
                "Correct the name"
            )
        number, suffix = int(match[1]), match[2].lower()
        if number not in _KNOWN:
            known = ", ".join(f"sm_{n}" for n in sorted(_KNOWN))
            raise UnsupportedArchError(
                f"arch: expected one of {known}; got {text!r}. gemmjit has no kernels for others"
            )
        allowed = {"": _KNOWN, "a": _ACCELERATED, "f": _FAMILY}[suffix]
        if number not in allowed:
            raise UnsupportedArchError(
                f"arch: expected an architecture with a suffix {suffix!r}; got {text!r}. "
                f"Use sm_{number}"
            )
        return cls(number, suffix)

    @classmethod
    def of_capability(cls, major: int, minor: int) -> Arch:
        """Return the plain architecture of a device's compute capability."""
        return cls(major * 10 + minor)

    @property
    def name(self) -> str:
        """The name as NVRTC takes it."""
        return f"sm_{self.number}{self.suffix}"

    @property
    def capability(self) -> tuple[int, int]:
        """Compute capability as (major, minor)."""
        return divmod(self.number, 10)

    @property
    def limits(self) -> ArchLimits:
        """Resource limits of this architecture.

        Raises
        ------
        UnsupportedArchError
            If the architecture is not in the table.
        """
        try:
            return _LIMITS[self.number]
        except KeyError:
            raise UnsupportedArchError(
                "arch: expected one whose resource limits are known, "
                + ", ".join(f"sm_{n}" for n in sorted(_LIMITS))
                + f"; got {self.name}. gemmjit has no kernels for others"
            ) from None

    def runs_on(self, device: Arch) -> bool:
        """Return whether a cubin for this target loads on a device.

        A plain cubin runs on its major version from its minor version on, an ``f`` cubin on its
        family likewise, an ``a`` cubin on exactly its capability (CUDA C++ Programming Guide,
        binary compatibility; PTX ISA, target directive).
        """
        if self.suffix == "a":
            return self.number == device.number
        return self.number // 10 == device.number // 10 and self.number % 10 <= device.number % 10

    def __lt__(self, other: Arch) -> bool:
        return (self.number, self.suffix) < (other.number, other.suffix)

    def __str__(self) -> str:
        return self.name


def devices_of(target: Arch) -> tuple[Arch, ...]:
    """Return the devices, as plain architectures, on which a cubin for a target loads."""
    return tuple(device for number in sorted(_KNOWN) if target.runs_on(device := Arch(number)))


@cache
def targets_for(device: Arch, accelerated: bool = False) -> tuple[Arch, ...]:
    """Return the compilation targets that serve a device, best first.

    Parameters
    ----------
    device : Arch
        The device's architecture; a suffix in it puts that target first, ``f`` alone.
    accelerated : bool
        Whether the kernel needs architecture-specific instructions, so that only ``a`` and ``f``
        targets will do.

    Returns
    -------
    tuple of Arch
        For 10.3 and a kernel that needs tcgen05: ``(sm_103a, sm_100f)``; for 8.6 and a plain
        kernel: ``(sm_86, sm_80)``; for 9.0: ``(sm_90a,)`` and, for plain kernels, ``sm_90``.
    """
    if device.suffix:
        found = [device]
        if device.suffix == "f":
            return tuple(found)
    else:
        found = [Arch(device.number, "a")] if device.number in _ACCELERATED else []
    major = device.number // 10
    lower = [n for n in sorted(_KNOWN, reverse=True) if n // 10 == major and n <= device.number]
    found += [Arch(n, "f") for n in lower if n in _FAMILY]
    if not accelerated:
        found += [Arch(n) for n in lower]
    return tuple(dict.fromkeys(found))
