"""Contiguous runs of global memory: what tensor copies read and write.

All runs of a copy have one length. Bounds are checked against allocations; nothing else is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemmjit.emulator.faults import MemoryFault
from gemmjit.emulator.memory import AddressSpace, Allocation

__all__ = ["read_runs", "write_runs"]

Bytes = NDArray[np.uint8]


def _parts(
    memory: AddressSpace, addresses: NDArray[np.int64], nbytes: int
) -> Iterator[tuple[Allocation, NDArray[Any], NDArray[Any] | None]]:
    """Yield allocation, offsets in it, and positions of the runs (None for all)."""
    low, high = int(addresses.min()), int(addresses.max()) + nbytes
    single = memory.holder(low, high, None)
    if single is not None:
        yield single, addresses - single.base, None
        return
    if low < 0:
        raise MemoryFault(f"a copy reaches global address {low:#x}")
    for allocation, positions in memory.partition(addresses.astype(np.uint64), nbytes):
        yield allocation, addresses[positions] - allocation.base, positions


def _windows(allocation: Allocation, nbytes: int) -> Bytes:
    """View an allocation as all its (overlapping) runs of a length."""
    count = allocation.nbytes - nbytes + 1
    return np.ndarray((count, nbytes), np.uint8, allocation.data.data, 0, (1, 1))


def read_runs(memory: AddressSpace, addresses: NDArray[np.int64], nbytes: int) -> Bytes:
    """Read runs.

    Parameters
    ----------
    memory : AddressSpace
    addresses : ndarray of int64, (runs,)
    nbytes : int
        Length of every run.

    Returns
    -------
    ndarray of uint8, (runs, nbytes)

    Raises
    ------
    MemoryFault
        If a run does not lie in one allocation.
    """
    if not addresses.size or not nbytes:
        return np.empty((addresses.size, nbytes), np.uint8)
    out: Bytes | None = None
    for allocation, offsets, positions in _parts(memory, addresses, nbytes):
        data: Bytes = _windows(allocation, nbytes)[offsets]
        if positions is None:
            return data
        if out is None:
            out = np.empty((addresses.size, nbytes), np.uint8)
        out[positions] = data
    assert out is not None
    return out


def write_runs(memory: AddressSpace, addresses: NDArray[np.int64], data: Bytes) -> None:
    """Write runs: ``data[i]`` at ``addresses[i]``.

    Raises
    ------
    MemoryFault
        If a run does not lie in one allocation, or that is read-only.
    """
    nbytes = data.shape[1]
    if not addresses.size or not nbytes:
        return
    parts = list(_parts(memory, addresses, nbytes))
    for allocation, _, _ in parts:
        if not allocation.writable:
            raise MemoryFault(f"a copy writes into read-only memory {allocation.name}")
    for allocation, offsets, positions in parts:
        _windows(allocation, nbytes)[offsets] = data if positions is None else data[positions]
