"""`tcgen05.mma`: D = A x B (+ D) of one block or a pair, with operands as numbers.

A plan is made once for a kind and an instruction descriptor. It says where the operands are and
computes; it reads no memory itself. Sources: PTX ISA 9.1, sections 9.7.16.2.1 (shapes) and
9.7.16.10.4 (packing). Where D and A lie in tensor memory: :mod:`gemmjit.emulator.tcgen05_layouts`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemmjit.emulator import accumulate
from gemmjit.emulator.accumulate import Accumulation
from gemmjit.emulator.accumulate_scaled import scaled_accumulation, scaled_product
from gemmjit.emulator.box_copy import Indices
from gemmjit.emulator.faults import MemoryFault
from gemmjit.emulator.formats import decode, encode
from gemmjit.emulator.matrix_descriptor import MatrixDescriptor, chunk_indices, decode_tcgen05
from gemmjit.emulator.small_floats import SMALL_FLOATS, from_containers, from_packed, from_padded
from gemmjit.emulator.tcgen05_descriptor import (
    BLOCK_SCALED,
    InstructionDescriptor,
    decode_instruction,
)
from gemmjit.emulator.tcgen05_layouts import ResultLayout, result_layout
from gemmjit.tensormap import Swizzle

__all__ = ["Tcgen05Plan", "tcgen05_plan"]

Octets = NDArray[np.uint8]
Floats = NDArray[np.float32]

_SIZES = {"f16": 2, "bf16": 2, "tf32": 4}
#: Columns of A in tensor memory: K is 32 bytes long.
A_COLUMNS = 8


@dataclass(frozen=True, slots=True, eq=False)
class Tcgen05Plan:
    """One kind and instruction descriptor.

    Attributes
    ----------
    kind : str
    what : InstructionDescriptor
    blocks : int
        1, or 2 for a pair.
    layout : ResultLayout
    scales : int
        Scales of a row in K, 0 without.
    accumulation : Accumulation or None
        Parameters of the ``tensor_core`` model.
    """

    kind: str
    what: InstructionDescriptor
    blocks: int
    layout: ResultLayout
    scales: int
    accumulation: Accumulation | None

    # -- places -----------------------------------------------------------------------------

    @property
    def rows(self) -> int:
        """Rows of A and D of a block."""
        return self.what.m // self.blocks

    def check_lane(self, lane: int, what: str) -> None:
        """Check the lane of an address of D or A.

        Raises
        ------
        MemoryFault
            If it is not 0, nor 16 with M = 64.
        """
        half = self.layout.is_half
        if lane != 0 and not (half and lane == 16):
            allowed = "0 or 16" if half else "0"
            raise MemoryFault(
                f"tcgen05.mma: lane of {what}: expected {allowed} for M = {self.what.m}; got {lane}"
            )

    def chunks_of_a(self, bits: int) -> Indices:
        """Return the 16-byte chunks of a block's shared memory that A's descriptor names."""
        return self._chunks(bits, self.what.a_type, self.what.mn_major_a, self.rows)

    def chunks_of_b(self, bits: int) -> Indices:
        """Return the chunks of B's descriptor: N columns, or this block's half of them."""
        rows = self.what.n // self.blocks
        return self._chunks(bits, self.what.b_type, self.what.mn_major_b, rows)

    def _chunks(self, bits: int, name: str, mn_major: bool, rows: int) -> Indices:
        descriptor: MatrixDescriptor = decode_tcgen05(bits)
        size = _SIZES.get(name, 1)
        atom_32 = descriptor.swizzle is Swizzle.BYTES_128_ATOM_32
        if mn_major and atom_32 != (size == 4):
            needed = "only" if size == 4 else "all but"
            raise MemoryFault(
                f"tcgen05.mma: an MN-major matrix of {name}: expected {needed} the 128-byte "
                f"swizzle with 32-byte atoms; got {descriptor.swizzle.name}"
            )
        if mn_major and rows * size % 16:
            raise MemoryFault(
                f"tcgen05.mma: an MN-major matrix of {rows} {name}: expected whole 16 bytes"
            )
        return chunk_indices(descriptor, mn_major=mn_major, rows=rows, size=size)

    # -- numbers ----------------------------------------------------------------------------

    def a_from_chunks(self, data: Octets) -> Floats:
        """Return A, (rows, k), from the bytes of `chunks_of_a`, (outer, chunks, 16)."""
        matrix = self._elements(self.what.a_type, data)
        return _signed(matrix.T if self.what.mn_major_a else matrix, self.what.negate_a)

    def b_from_chunks(self, data: Octets) -> Floats:
        """Return B, (k, columns), from the bytes of `chunks_of_b`."""
        matrix = self._elements(self.what.b_type, data)
        return _signed(matrix if self.what.mn_major_b else matrix.T, self.what.negate_b)

    def a_from_columns(self, words: NDArray[np.uint32], containers: str) -> Floats:
        """Return A, (rows, k), from its columns of tensor memory, (rows, 8).

        4-bit elements of the kinds with 8-bit containers lie in bits 5 to 2 (``containers``
        ``"middle"``) or 3 to 0 (``"low"``).
        """
        name = self.what.a_type
        octets = np.ascontiguousarray(words).view(np.uint8).reshape(len(words), -1)
        if self.what.k == 64 or name not in SMALL_FLOATS:
            matrix = self._elements(name, octets.reshape(len(words), 2, 16))
        elif name == "e2m1" and containers == "low":
            matrix = decode(name, octets & np.uint8(15))
        else:
            matrix = from_containers(name, octets)
        return _signed(matrix, self.what.negate_a)

    def _elements(self, name: str, data: Octets) -> Floats:
        """Decode chunk bytes (outer, chunks, 16) to a matrix (outer, elements)."""
        outer = data.shape[0]
        data = np.ascontiguousarray(data)
        if self.what.k == 64:
            return from_packed(data.reshape(outer, -1))
        if name in SMALL_FLOATS:
            return from_padded(name, data).reshape(outer, -1)
        flat = data.reshape(outer, -1)
        if name in ("s8", "u8"):
            return flat.view(np.int8 if name == "s8" else np.uint8).astype(np.float32)
        return decode(name, flat.view(np.uint32 if name == "tf32" else np.uint16))

    def scales_from_words(self, words: NDArray[np.uint32], first: int) -> Floats:
        """Return scales, (rows, scales), from the words of the rows and their first byte."""
        octets = np.ascontiguousarray(words).view(np.uint8).reshape(len(words), 4)
        return decode(self.what.scale_type, octets[:, first : first + self.scales])

    def product(
        self, a: Floats, b: Floats, d: NDArray[Any], scales: tuple[Floats, Floats] | None
    ) -> NDArray[Any]:
        """Return ``a @ b + d`` of one block.

        Parameters
        ----------
        a : ndarray of float32, (rows, k)
        b : ndarray of float32, (k, n)
        d : ndarray of float32 or int32, (rows, n)
        scales : pair of ndarray of float32, (rows, scales) and (n, scales), or None

        Returns
        -------
        ndarray of float32 or int32, (rows, n)
            Float32 even if D is f16; `to_words` rounds.
        """
        what = self.what
        if what.d_type == "s32":
            # 32 products of 8-bit integers stay below 2^24: exact in float32.
            total: NDArray[Any] = accumulate.add_saturating(a @ b, d, what.saturate)
            return total
        if scales is not None:
            scaled: NDArray[Any] = scaled_product(
                a[None], b[None], d[None], scales[0][None], scales[1].T[None],
                types=(what.a_type, what.b_type, what.scale_type), accumulation=self.accumulation,
            )[0]  # fmt: skip
            return scaled
        result: NDArray[Any] = accumulate.matrix_product(
            a[None], b[None], d[None], a_type=what.a_type, b_type=what.b_type,
            accumulation=self.accumulation, half_result=what.d_type == "f16",
        )[0]  # fmt: skip
        return result

    # -- D in tensor memory -----------------------------------------------------------------

    def read_d(self, memory: NDArray[np.uint32], lane: int, column: int) -> NDArray[Any]:
        """Return D, (rows, n), from the tensor memory of a block, (lanes, columns)."""
        columns = slice(column, column + self.layout.columns)
        words = np.concatenate(
            [memory[lanes + lane, columns] for lanes, _ in self.layout.parts], axis=1
        )
        if self.what.d_type == "f16":
            return decode("f16", words.astype(np.uint16))
        return words.view(np.int32 if self.what.d_type == "s32" else np.float32)

    def write_d(
        self,
        memory: NDArray[np.uint32],
        lane: int,
        column: int,
        d: NDArray[Any],
        enabled: NDArray[np.bool_] | None,
    ) -> None:
        """Put D into the tensor memory of a block, but for the lanes that are disabled.

        A 16-bit element is the lower half of its column; the upper half becomes poison.
        """
        words = self._to_words(d)
        columns = slice(column, column + self.layout.columns)
        for lanes, part in self.layout.parts:
            if enabled is None:
                memory[lanes + lane, columns] = words[:, part]
            else:
                keep = enabled[lanes + lane]
                memory[lanes[keep] + lane, columns] = words[:, part][keep]

    def _to_words(self, d: NDArray[Any]) -> NDArray[np.uint32]:
        if self.what.d_type == "f16":
            return encode("f16", d).astype(np.uint32) | np.uint32(0xFFFF0000)
        return np.ascontiguousarray(d).view(np.uint32)


def _signed(matrix: Floats, negate: bool) -> Floats:
    return -matrix if negate else matrix


@lru_cache(maxsize=1024)
def tcgen05_plan(
    kind: str,
    bits: int,
    blocks: int,
    scales: int = 0,
    model: str = "fp32",
    stationary: bool = False,
) -> Tcgen05Plan:
    """Prepare products.

    Parameters
    ----------
    kind : str
        Without ``kind::``.
    bits : int
        The instruction descriptor.
    blocks : {1, 2}
        N of ``.cta_group::N``.
    scales : int
        Scales of a row in K.
    model : {"fp32", "tensor_core"}
        See `gemmjit.emulator.accumulate`.
    stationary : bool
        Whether it is `.ws`.

    Raises
    ------
    MemoryFault
        If the descriptor breaks a rule.
    UnknownInstruction
        If it asks for what is not emulated.
    """
    what = decode_instruction(kind, bits, blocks, scales, stationary)
    if kind in BLOCK_SCALED:
        accumulation = scaled_accumulation(model, what.k)
    elif kind == "i8":
        accumulation = None
    else:
        accumulation = accumulate.accumulation_model(model, 100, "tcgen05", what.a_type, what.k)
    layout = result_layout(what.m, what.n, blocks, stationary)
    return Tcgen05Plan(kind, what, blocks, layout, scales, accumulation)
