"""The kernels that exist. A new one is one module, one entry here, one row of constraints."""

from __future__ import annotations

from gemmjit.errors import InvalidConfigError
from gemmjit.kernels.k0_simt import K0
from gemmjit.kernels.k1_sm80_mma import K1
from gemmjit.kernels.k2_sm90_tma_mma import K2
from gemmjit.kernels.k3_sm90_wgmma import K3
from gemmjit.kernels.kernel import Kernel

__all__ = ["KERNELS", "kernel"]

#: Every kernel by its name in the ladder, simplest first.
KERNELS: dict[str, Kernel] = {k.name: k for k in (K0(), K1(), K2(), K3())}

_BY_TEMPLATE = {k.template.rsplit("/", 1)[1].split(".", 1)[0]: k for k in KERNELS.values()}


def kernel(name: str, argument: str = "kernel") -> Kernel:
    """Return a kernel by its name (``k1``) or its template's (``sm80_mma_grouped_mm``).

    Messages call it `argument`.

    Raises
    ------
    InvalidConfigError
        If there is no such kernel.
    """
    found = KERNELS.get(name) or _BY_TEMPLATE.get(name)
    if found is None:
        known = ", ".join(f"{k.name} ({t})" for t, k in _BY_TEMPLATE.items())
        raise InvalidConfigError(f"{argument}: expected one of {known}; got {name!r}")
    return found
