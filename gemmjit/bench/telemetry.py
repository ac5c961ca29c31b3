"""Clocks, power and temperature beside the times. Only read, never set.

Sampled through NVML, as ``cuda.bindings`` offers it (it also carries ``cuda.core.system``), or
through ``nvidia-smi`` where that is missing. One sample is taken per round while the device works.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from statistics import median
from typing import Any

__all__ = ["FIELDS", "Nvml", "Provider", "Smi", "Telemetry", "driver_version_text", "find_provider"]

Sample = dict[str, float]

#: What a sample holds, where the device says it.
FIELDS = ("sm_clock_mhz", "memory_clock_mhz", "power_w", "temperature_c")

#: Reasons for a lowered clock, NVML's ``nvmlClocksEventReason*``.
_REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "thermal, software",
    0x40: "thermal, hardware",
    0x80: "power brake",
}

_SMI_SECONDS = 10.0
_QUICK_SECONDS = 0.002


class Provider(ABC):
    """One way to ask the device.

    Attributes
    ----------
    name : str
    quick : bool
        Whether a sample is taken so quickly that one in every round leaves no gap in the load.
    """

    name: str
    quick: bool = True

    @abstractmethod
    def read(self) -> Sample:
        """Return what the device says now; fields that it refuses are missing."""

    def reasons(self) -> list[str]:
        """Return why the clock is lowered now."""
        return []

    def power_limit_w(self) -> float | None:
        """Return the power limit in force."""
        return None


class Nvml(Provider):
    """NVML through ``cuda.bindings``.

    Parameters
    ----------
    pci_bus_id : str
        Which device; its number in this process may differ from NVML's.
    """

    name = "NVML"

    def __init__(self, pci_bus_id: str) -> None:
        self._api: Any = import_module("cuda.bindings.nvml")
        self._api.init_v2()
        self._handle = self._api.device_get_handle_by_pci_bus_id_v2(pci_bus_id)
        self.read()
        start = time.perf_counter()
        self.read()
        self.quick = time.perf_counter() - start < _QUICK_SECONDS

    def read(self) -> Sample:
        """Return clocks, power and temperature."""
        api, handle = self._api, self._handle
        clocks = api.ClockType
        asked: dict[str, Callable[[], Any]] = {
            "sm_clock_mhz": lambda: api.device_get_clock_info(handle, clocks.CLOCK_SM),
            "memory_clock_mhz": lambda: api.device_get_clock_info(handle, clocks.CLOCK_MEM),
            "power_w": lambda: api.device_get_power_usage(handle) / 1000.0,
            "temperature_c": lambda: api.device_get_temperature_v(
                handle, api.TemperatureSensors.TEMPERATURE_GPU
            ),
        }
        found: Sample = {}
        for field, ask in asked.items():
            with suppress(Exception):  # a field that this device does not offer
                found[field] = float(ask())
        return found

    def reasons(self) -> list[str]:
        """Return why the clock is lowered now."""
        with suppress(Exception):
            mask = int(self._api.device_get_current_clocks_event_reasons(self._handle))
            return [text for bit, text in _REASONS.items() if mask & bit]
        return []

    def power_limit_w(self) -> float | None:
        """Return the enforced limit."""
        with suppress(Exception):
            return float(self._api.device_get_enforced_power_limit(self._handle)) / 1000.0
        return None


class Smi(Provider):
    """``nvidia-smi``, a process per sample.

    Parameters
    ----------
    pci_bus_id : str
        Which device.
    """

    name = "nvidia-smi"
    quick = False

    _QUERY = "clocks.sm,clocks.mem,power.draw,temperature.gpu"

    def __init__(self, pci_bus_id: str) -> None:
        self._id = pci_bus_id
        if not self.read():
            raise RuntimeError("nvidia-smi says nothing")

    def read(self) -> Sample:
        """Return clocks, power and temperature."""
        return parse_smi(_smi(f"--query-gpu={self._QUERY}", f"--id={self._id}"))

    def power_limit_w(self) -> float | None:
        """Return the enforced limit."""
        with suppress(ValueError):
            return float(_smi("--query-gpu=enforced.power.limit", f"--id={self._id}"))
        return None


class Telemetry:
    """Samples of one cell.

    Parameters
    ----------
    provider : Provider or None
        None where nothing can be asked.
    """

    def __init__(self, provider: Provider | None) -> None:
        self._provider = provider
        self._samples: list[Sample] = []
        self._reasons: dict[str, int] = {}

    def sample(self) -> None:
        """Take a sample, if that is quick."""
        if self._provider is not None and self._provider.quick:
            self.take()

    def take(self) -> None:
        """Take a sample, however long it takes."""
        if self._provider is None:
            return
        self._samples.append(self._provider.read())
        for reason in self._provider.reasons():
            self._reasons[reason] = self._reasons.get(reason, 0) + 1

    def summary(self) -> dict[str, Any]:
        """Return median, least and most of each field, JSON-compatible."""
        result: dict[str, Any] = {
            "provider": self._provider.name if self._provider else None,
            "samples": len(self._samples),
            "clock_limited_by": {
                reason: count / len(self._samples) for reason, count in self._reasons.items()
            },
        }
        for field in FIELDS:
            values = [sample[field] for sample in self._samples if field in sample]
            result[field] = (
                {"median": median(values), "min": min(values), "max": max(values)}
                if values
                else None
            )
        return result


def find_provider(pci_bus_id: str) -> tuple[Provider | None, str]:
    """Return the best provider for a device, and why not a better one."""
    reasons: list[str] = []
    kinds: Sequence[type[Nvml] | type[Smi]] = (Nvml, Smi)
    for kind in kinds:
        try:
            return kind(pci_bus_id), "; ".join(reasons)
        except Exception as error:  # libraries missing in many ways
            reasons.append(f"{kind.name}: {error}")
    return None, "; ".join(reasons)


def parse_smi(line: str) -> Sample:
    """Read one line of ``nvidia-smi --format=csv,noheader,nounits``; refused fields are missing."""
    found: Sample = {}
    for field, text in zip(FIELDS, line.split(","), strict=False):
        with suppress(ValueError):
            found[field] = float(text)
    return found


def driver_version_text() -> str:
    """Return the version of the kernel driver, or an empty text."""
    with suppress(Exception):
        api = import_module("cuda.bindings.nvml")
        api.init_v2()
        return str(api.system_get_driver_version())
    return _smi("--query-gpu=driver_version", "--id=0")


def _smi(*arguments: str) -> str:
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            [program, *arguments, "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=_SMI_SECONDS,
            check=True,
        )
        return done.stdout.strip().split("\n")[0]
    return ""
