"""Which thread holds which matrix element: fragments of mma, ldmatrix, stmatrix and wgmma.

A fragment is described by two index arrays, so that packing and unpacking are one `take` each.
Source of all maps: PTX ISA 9.1, sections 9.7.14.5 (mma, ldmatrix, stmatrix, movmatrix) and
9.7.15.5.1 (wgmma). Below, ``g = lane // 4`` and ``t = lane % 4``.

The matrix movers work on rows: the machine fetches or stores 16-byte rows at the addresses that
`row_addresses` picks, and the functions here distribute them over lanes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemmjit.emulator.faults import UnknownInstruction

__all__ = [
    "Fragment",
    "accumulator",
    "multiplicand_a",
    "multiplicand_b",
    "octets_from_registers",
    "octets_to_registers",
    "row_addresses",
    "rows_from_registers",
    "rows_to_registers",
    "transpose_registers",
    "volta_accumulator",
    "volta_multiplicand",
    "wgmma_accumulator",
    "wgmma_multiplicand_a",
]

Indices = NDArray[np.intp]
_LANES = np.arange(32)
_GROUP, _THREAD = _LANES >> 2, _LANES & 3


@dataclass(frozen=True, slots=True, eq=False)
class Fragment:
    """The distribution of one matrix (or several of a shape) over the lanes of a warp or group.

    Attributes
    ----------
    shape : tuple of int
        Matrices, rows, columns.
    lanes, elements : int
        Threads, and elements that each holds, lowest register and lowest bits first.
    gather : ndarray of intp, (matrices * rows * columns,)
        ``lane * elements + element`` of each matrix element in row-major order.
    scatter : ndarray of intp, (lanes * elements,)
        Row-major position of each held element.
    pair_gather, pair_scatter : ndarray of intp, or None
        The same in units of two neighbours, where each lane holds such pairs.
    """

    shape: tuple[int, int, int]
    lanes: int
    elements: int
    gather: Indices
    scatter: Indices
    pair_gather: Indices | None
    pair_scatter: Indices | None

    def matrices(self, held: NDArray[Any]) -> NDArray[Any]:
        """Collect ``(warps, lanes * elements)`` to ``(warps * matrices, rows, columns)``."""
        _, rows, columns = self.shape
        return _take(held, self.gather, self.pair_gather).reshape(-1, rows, columns)

    def held(self, matrices: NDArray[Any]) -> NDArray[Any]:
        """Distribute ``(warps * matrices, rows, columns)`` to ``(warps, lanes * elements)``."""
        flat = matrices.reshape(-1, self.gather.size)
        return _take(flat, self.scatter, self.pair_scatter)


def _take(flat: NDArray[Any], single: Indices, pairs: Indices | None) -> NDArray[Any]:
    """Permute columns; 32-bit elements that stay in pairs move as 64 bits, in half the time."""
    if pairs is None or flat.itemsize != 4:
        return flat.take(single, axis=1)
    return np.ascontiguousarray(flat).view(np.uint64).take(pairs, axis=1).view(flat.dtype)


def _pairs(indices: Indices) -> Indices | None:
    first, second = indices[::2], indices[1::2]
    if len(first) != len(second) or (first % 2).any() or (second != first + 1).any():
        return None
    return first // 2


def _fragment(shape: tuple[int, int, int], matrix: Any, row: Any, column: Any) -> Fragment:
    """Build a `Fragment` from coordinates, each broadcastable to (lanes, elements)."""
    matrix, row, column = np.broadcast_arrays(matrix, row, column)
    lanes, elements = row.shape
    scatter = ((matrix * shape[1] + row) * shape[2] + column).ravel().astype(np.intp)
    size = shape[0] * shape[1] * shape[2]
    if not np.array_equal(np.sort(scatter), np.arange(size)):
        raise AssertionError(f"fragment of {shape} does not cover every element once")
    gather = np.argsort(scatter).astype(np.intp)
    gather.setflags(write=False)
    scatter.setflags(write=False)
    return Fragment(shape, lanes, elements, gather, scatter, _pairs(gather), _pairs(scatter))


def _packed(registers: int, per_register: int) -> tuple[Indices, Indices]:
    """Return register and position within it for the elements of a lane."""
    register, position = np.divmod(np.arange(registers * per_register), per_register)
    return register, position


@cache
def multiplicand_a(m: int, k: int, bits: int) -> Fragment:
    """Return the fragment of A (m x k, row-major) of every warp-wide `mma.sync`.

    A register holds ``e = 32 // bits`` neighbours in k (one for 64 bits). Register r holds row
    ``g + 8 * (r % 2)`` and columns from ``t * e + 4 * e * (r // 2)`` on; with m = 8 there is one
    row and r counts columns.
    """
    e = max(32 // bits, 1)
    register, position = _packed(m * k // (32 * e), e)
    halves = m // 8
    row = _GROUP[:, None] + 8 * (register % halves)
    column = _THREAD[:, None] * e + position + 4 * e * (register // halves)
    return _fragment((1, m, k), 0, row, column)


@cache
def multiplicand_b(k: int, n: int, bits: int) -> Fragment:
    """Return the fragment of B (k x n, column-major) of every warp-wide `mma.sync`.

    Register r holds column ``g`` and rows from ``t * e + 4 * e * r`` on, ``e = 32 // bits``.
    """
    e = max(32 // bits, 1)
    register, position = _packed(k * n // (32 * e), e)
    row = _THREAD[:, None] * e + position + 4 * e * register
    return _fragment((1, k, n), 0, row, np.broadcast_to(_GROUP[:, None], row.shape))


@cache
def accumulator(m: int, n: int) -> Fragment:
    """Return the fragment of C and D: row ``g + 8 * (i // 2)``, column ``2t + i % 2``."""
    i = np.arange(m * n // 32)
    return _fragment((1, m, n), 0, _GROUP[:, None] + 8 * (i >> 1), 2 * _THREAD[:, None] + (i & 1))


@cache
def volta_multiplicand(operand: str, layout: str) -> Fragment:
    """Return the fragment of A (8 x 4) or B (4 x 8) of ``mma.m8n8k4`` with f16.

    Four products at once: lanes 4q to 4q+3 and 16+4q to 19+4q hold matrix q. The four elements of
    a lane run along the row of a row-major operand and along the column of a column-major one.

    Parameters
    ----------
    operand : {"a", "b"}
    layout : {"row", "col"}
    """
    i = np.arange(4)
    along = np.broadcast_to(i, (32, 4))
    across = np.broadcast_to(_THREAD[:, None], (32, 4))
    high = 4 * (_LANES[:, None] >= 16)
    matrix = (_LANES[:, None] % 16) // 4
    row, column = (across, along) if layout == "row" else (along, across)
    if operand == "a":
        return _fragment((4, 8, 4), matrix, row + high, column)
    return _fragment((4, 4, 8), matrix, row, column + high)


@cache
def volta_accumulator(kind: str) -> Fragment:
    """Return the fragment of C and D (8 x 8) of ``mma.m8n8k4`` with f16.

    Parameters
    ----------
    kind : {"f16", "f32"}
        The two accumulator types are distributed differently.
    """
    i = np.arange(8)
    lane = _LANES[:, None]
    high = 4 * (lane >= 16)
    if kind == "f16":
        row, column = (lane % 4) + high + 0 * i, np.broadcast_to(i, (32, 8))
    else:
        row, column = (lane & 1) + (i & 2) + high, (i & 4) + (lane & 2) + (i & 1)
    return _fragment((4, 8, 8), (lane % 16) // 4, row, column)


@cache
def wgmma_accumulator(n: int) -> Fragment:
    """Return the fragment of D (64 x n) over the 128 threads of a warpgroup.

    Element i of lane l in warp w is row ``16w + g + 8 * (i // 2 % 2)``, column
    ``8 * (i // 4) + 2t + i % 2``.
    """
    thread = np.arange(128)[:, None]
    i = np.arange(n // 2)
    row = 16 * (thread >> 5) + ((thread & 31) >> 2) + 8 * ((i >> 1) & 1)
    return _fragment((1, 64, n), 0, row, 8 * (i >> 2) + 2 * (thread & 3) + (i & 1))


@cache
def wgmma_multiplicand_a(bits: int) -> Fragment:
    """Return the fragment of A (64 x 256 / bits) in registers: m16 fragments, 16 rows a warp."""
    k = 256 // bits
    warp = multiplicand_a(16, k, bits)
    row, column = np.divmod(warp.scatter.reshape(32, warp.elements), k)
    rows = np.concatenate([row + 16 * w for w in range(4)])
    return _fragment((1, 64, k), 0, rows, np.tile(column, (4, 1)))


def row_addresses(addresses: NDArray[Any], num: int) -> NDArray[Any]:
    """Pick the row addresses of ``ldmatrix`` or ``stmatrix`` ``.m8n8`` from all lanes.

    Parameters
    ----------
    addresses : ndarray, (warps, 32)
        The address operand of every lane.
    num : {1, 2, 4}
        Matrices; lane ``8j + i`` gives row i of matrix j, other lanes are ignored.

    Returns
    -------
    ndarray, (warps, num, 8)
        Addresses of 16-byte rows; each must be a multiple of 16.

    Raises
    ------
    UnknownInstruction
        If ``num`` is not 1, 2 or 4.
    """
    if num not in (1, 2, 4):
        raise UnknownInstruction(f"num: expected x1, x2 or x4; got x{num}")
    return addresses[:, : 8 * num].reshape(-1, num, 8)


def rows_to_registers(rows: NDArray[np.uint8], trans: bool) -> NDArray[np.uint32]:
    """Distribute loaded matrices of 16-bit elements over lanes (`ldmatrix`).

    Parameters
    ----------
    rows : ndarray of uint8, (warps, num, 8, 16), C-contiguous
        The rows at `row_addresses`.
    trans : bool
        Whether lanes receive columns: lane l gets rows 2t and 2t+1 of column g instead of
        columns 2t and 2t+1 of row g.

    Returns
    -------
    ndarray of uint32, (warps, num, 32)
        Register j of lane l is ``[:, j, l]``.
    """
    warps, num = rows.shape[:2]
    if trans:
        elements = rows.view(np.uint16).swapaxes(2, 3)
        return np.ascontiguousarray(elements).view(np.uint32).reshape(warps, num, 32)
    return rows.view(np.uint32).reshape(warps, num, 32)


def rows_from_registers(registers: NDArray[np.uint32], trans: bool) -> NDArray[np.uint8]:
    """Collect matrices of 16-bit elements from lanes (`stmatrix`): inverse of `rows_to_registers`.

    Parameters
    ----------
    registers : ndarray of uint32, (warps, num, 32), C-contiguous
    trans : bool

    Returns
    -------
    ndarray of uint8, (warps, num, 8, 16)
        Rows to be stored at `row_addresses`.
    """
    warps, num = registers.shape[:2]
    elements = registers.view(np.uint16).reshape(warps, num, 8, 8)
    if trans:
        elements = np.ascontiguousarray(elements.swapaxes(2, 3))
    return elements.view(np.uint8).reshape(warps, num, 8, 16)


def octets_to_registers(rows: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """Distribute loaded 16 x 16 matrices of bytes over lanes, transposed (`ldmatrix.m16n16.trans`).

    Byte e of register r of lane l is byte ``g + 8r`` of row ``4t + e`` (CUTLASS, copy_sm100.hpp and
    copy_traits_sm100.hpp).

    Parameters
    ----------
    rows : ndarray of uint8, (warps, num, 16, 16)
        The rows at the addresses of the lanes from 16 times the matrix on.

    Returns
    -------
    ndarray of uint32, (warps, 2 num, 32)
    """
    warps, num = rows.shape[:2]
    # (t, e, r, g) to (r, g, t, e)
    split = rows.reshape(warps, num, 4, 4, 2, 8).transpose(0, 1, 4, 5, 2, 3)
    return np.ascontiguousarray(split).view(np.uint32).reshape(warps, 2 * num, 32)


def octets_from_registers(registers: NDArray[np.uint32]) -> NDArray[np.uint8]:
    """Collect 16 x 8 matrices of bytes from lanes, transposed (`stmatrix.m16n8.trans`).

    Byte e of lane l goes to byte ``g + 8 * (e // 2)`` of row ``2t + e % 2`` (CUTLASS,
    copy_traits_sm100.hpp): lanes hold the matrix as an accumulator of `mma.m16n8`.

    Parameters
    ----------
    registers : ndarray of uint32, (warps, num, 32), C-contiguous

    Returns
    -------
    ndarray of uint8, (warps, num, 8, 16)
        Rows to be stored at `row_addresses`.
    """
    warps, num = registers.shape[:2]
    # (g, t, upper, odd) to (t, odd, upper, g)
    split = registers.view(np.uint8).reshape(warps, num, 8, 4, 2, 2).transpose(0, 1, 3, 5, 4, 2)
    return np.ascontiguousarray(split).reshape(warps, num, 8, 16)


def transpose_registers(registers: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Transpose an 8 x 8 matrix of 16-bit elements across the warp (`movmatrix`).

    Parameters
    ----------
    registers : ndarray of uint32, (warps, 32), C-contiguous

    Returns
    -------
    ndarray of uint32, (warps, 32)
    """
    rows = rows_from_registers(registers[:, None, :], trans=True)
    return rows_to_registers(rows, trans=False)[:, 0, :]
