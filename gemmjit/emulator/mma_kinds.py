"""`mma.sync` with a kind (sm_120a): small floats of mixed formats, and block scales.

Source: PTX ISA 9.1, sections 9.7.14.3 (block scaling) and 9.7.14.5.10, .11 and .14. The fragments
are those of the 8-bit and 4-bit shapes, the elements lie as :mod:`gemmjit.emulator.small_floats`
says. Scales: of a quad of lanes (those of row and column ``g``) thread-id-a chooses a pair, of
which the even lane gives the scales of row g and the odd one those of row g + 8; thread-id-b
chooses the lane that gives those of column g; byte-id is the first byte (which lane of a pair has
which row: CUTLASS).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemmjit.emulator import accumulate, fragments
from gemmjit.emulator.accumulate import Accumulation
from gemmjit.emulator.accumulate_scaled import scaled_accumulation, scaled_product
from gemmjit.emulator.faults import UnknownInstruction
from gemmjit.emulator.formats import decode
from gemmjit.emulator.fragments import Fragment
from gemmjit.emulator.mma import pack, unpack
from gemmjit.emulator.small_floats import SMALL_FLOATS, from_containers, from_packed, padding_of

__all__ = ["KindPlan", "ScaleSelector", "kind_plan"]

_M, _N = 16, 8
# Kind: K, scales of a row in K that it can have, by the type of a scale.
_SCALED: dict[str, tuple[int, dict[str, tuple[int, ...]]]] = {
    "mxf8f6f4": (32, {"ue8m0": (1,)}),
    "mxf4": (64, {"ue8m0": (2,)}),
    "mxf4nvf4": (64, {"ue8m0": (2, 4), "ue4m3": (4,)}),
}


@dataclass(frozen=True, slots=True)
class ScaleSelector:
    """byte-id and thread-id of one operand."""

    byte: int
    thread: int


@dataclass(frozen=True, slots=True, eq=False)
class KindPlan:
    """Everything about one instruction that does not depend on register contents.

    Attributes
    ----------
    k : int
        32 or 64; m is 16, n is 8.
    a_type, b_type, d_type : str
        Element types as PTX spells them; C has that of D.
    scale_type : str
        ``ue8m0`` or ``ue4m3``, or empty without block scales.
    scales : int
        Scales of a row in K, 0 without.
    a, b, d : Fragment
    registers : tuple of int
        32-bit registers of A, B, C and D.
    accumulation : Accumulation or None
        Parameters of the ``tensor_core`` model.
    """

    k: int
    a_type: str
    b_type: str
    d_type: str
    scale_type: str
    scales: int
    a: Fragment
    b: Fragment
    d: Fragment
    registers: tuple[int, int, int, int]
    accumulation: Accumulation | None

    def has_padding(self, a: NDArray[np.uint32], b: NDArray[np.uint32]) -> bool:
        """Whether a bit that holds no part of an element is set."""
        if self.k == 64:
            return False
        pairs = ((self.a_type, a), (self.b_type, b))
        return any(bool((held & (padding_of(name) * 0x01010101)).any()) for name, held in pairs)

    def __call__(
        self,
        a: NDArray[np.uint32],
        b: NDArray[np.uint32],
        c: NDArray[np.uint32],
        scales: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None,
    ) -> NDArray[Any]:
        """Return D's registers, (warps, 32, registers), for operands of that form.

        Parameters
        ----------
        a, b, c : ndarray of uint32, (warps, 32, registers), C-contiguous
        scales : pair of ndarray of float32, (warps, 16, scales) and (warps, scales, 8), optional
            See `scales_of_a` and `scales_of_b`.
        """
        a_matrix = self.a.matrices(self._elements(self.a_type, a))
        b_matrix = self.b.matrices(self._elements(self.b_type, b))
        c_matrix = self.d.matrices(unpack(self.d_type, c))
        if scales is None:
            d = accumulate.matrix_product(
                a_matrix, b_matrix, c_matrix, a_type=self.a_type, b_type=self.b_type,
                accumulation=self.accumulation, half_result=self.d_type == "f16",
            )  # fmt: skip
        else:
            d = scaled_product(
                a_matrix, b_matrix, c_matrix, *scales,
                types=(self.a_type, self.b_type, self.scale_type), accumulation=self.accumulation,
            )  # fmt: skip
        return pack(self.d_type, self.d.held(d), a.shape[0], 32)

    def _elements(self, name: str, registers: NDArray[np.uint32]) -> NDArray[np.float32]:
        octets = registers.reshape(registers.shape[0], -1).view(np.uint8)
        return from_packed(octets) if self.k == 64 else from_containers(name, octets)

    def check(self, which: str, selector: ScaleSelector) -> None:
        """Check byte-id and thread-id.

        Raises
        ------
        UnknownInstruction
            If the manual (table 37) does not list them: the behaviour is undefined.
        """
        allowed = {1: (0, 1, 2, 3), 2: (0, 2), 4: (0,)}[self.scales]
        if selector.byte not in allowed:
            raise UnknownInstruction(
                f"mma.sync: byte-id-{which}: expected one of {allowed} for scale_vec::"
                f"{self.scales}X; got {selector.byte}"
            )
        limit = 2 if which == "a" else 4
        if not 0 <= selector.thread < limit:
            raise UnknownInstruction(
                f"mma.sync: thread-id-{which}: expected 0 to {limit - 1}; got {selector.thread}"
            )

    def scales_of_a(self, held: NDArray[np.uint32], selector: ScaleSelector) -> NDArray[np.float32]:
        """Return the scales of A, (warps, 16, scales), from (warps, 32) words."""
        first = np.arange(8) * 4 + 2 * selector.thread
        rows = np.concatenate([held[:, first], held[:, first + 1]], axis=1)
        return self._scales(rows, selector)

    def scales_of_b(self, held: NDArray[np.uint32], selector: ScaleSelector) -> NDArray[np.float32]:
        """Return the scales of B, (warps, scales, 8), from (warps, 32) words."""
        columns = self._scales(held[:, np.arange(8) * 4 + selector.thread], selector)
        return columns.swapaxes(1, 2)

    def _scales(self, words: NDArray[np.uint32], selector: ScaleSelector) -> NDArray[np.float32]:
        octets = np.ascontiguousarray(words).view(np.uint8).reshape(*words.shape, 4)
        chosen = octets[..., selector.byte : selector.byte + self.scales]
        return decode(self.scale_type, chosen)


@lru_cache(maxsize=256)
def kind_plan(
    kind: str,
    shape: str,
    d_type: str,
    a_type: str,
    b_type: str,
    c_type: str,
    *,
    scale_type: str = "",
    scales: int = 0,
    model: str = "fp32",
) -> KindPlan:
    """Prepare an instruction.

    Parameters
    ----------
    kind : str
        ``f8f6f4``, ``mxf8f6f4``, ``mxf4`` or ``mxf4nvf4``.
    shape : str
        ``m16n8k32`` or ``m16n8k64``.
    d_type, a_type, b_type, c_type : str
        In the order of the opcode.
    scale_type : str
        Of the block-scaled kinds.
    scales : int
        N of ``.scale_vec::NX``; 0 where the opcode does not say.
    model : {"fp32", "tensor_core"}
        See `gemmjit.emulator.accumulate`.

    Raises
    ------
    UnknownInstruction
        If the manual does not list the combination.
    """
    text = f"mma.sync.{shape}.kind::{kind}.{d_type}.{a_type}.{b_type}.{c_type}.{scale_type}"
    k, known = _SCALED.get(kind, (32, dict[str, tuple[int, ...]]()))
    if kind != "f8f6f4" and kind not in _SCALED:
        raise UnknownInstruction(f"{text}: expected a kind f8f6f4, {', '.join(_SCALED)}")
    if shape != f"m16n8k{k}":
        raise UnknownInstruction(f"{text}: expected shape m16n8k{k}; got {shape}")
    elements = SMALL_FLOATS if k == 32 else ("e2m1",)
    if a_type not in elements or b_type not in elements:
        raise UnknownInstruction(f"{text}: expected elements of {', '.join(elements)}")
    results = ("f16", "f32") if kind == "f8f6f4" else ("f32",)
    if d_type not in results or c_type != d_type:
        raise UnknownInstruction(f"{text}: expected C and D both of {' or '.join(results)}")
    if kind == "f8f6f4":
        if scale_type or scales:
            raise UnknownInstruction(f"{text}: kind f8f6f4 has no scales")
        accumulation = accumulate.accumulation_model(model, 120, "mma", a_type, k)
    else:
        allowed = known.get(scale_type, ())
        if scales == 0 and kind != "mxf4nvf4" and allowed:
            scales = allowed[0]
        if scales not in allowed:
            raise UnknownInstruction(
                f"{text}: expected scales of {known}; got {scale_type} and {scales} scales"
            )
        accumulation = scaled_accumulation(model, k)
    bits = 4 if k == 64 else 8
    halves = 2 if d_type == "f16" else 4
    return KindPlan(
        k, a_type, b_type, d_type, scale_type, scales,
        fragments.multiplicand_a(_M, k, bits), fragments.multiplicand_b(k, _N, bits),
        fragments.accumulator(_M, _N), (4, 2, halves, halves), accumulation,
    )  # fmt: skip
