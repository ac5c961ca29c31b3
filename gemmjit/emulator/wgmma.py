"""`wgmma.mma_async`: D = A x B (+ D) by the 128 threads of a warpgroup (sm_90a).

A plan is made once per instruction. When the product is due (it is asynchronous, so the machine
decides when) the operands are read through a callable that the machine provides, and which checks
bounds and proxies. Source: PTX ISA 9.1, section 9.7.15.5.2.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemmjit.emulator import accumulate, fragments
from gemmjit.emulator.accumulate import Accumulation
from gemmjit.emulator.box_copy import Indices
from gemmjit.emulator.faults import UnknownInstruction
from gemmjit.emulator.fragments import Fragment
from gemmjit.emulator.matrix_descriptor import chunk_indices, decode_wgmma
from gemmjit.emulator.mma import pack, unpack

__all__ = ["SmemReader", "WgmmaPlan", "wgmma_plan"]

#: Reads shared memory: (warpgroup, chunk numbers) -> uint8 of shape (*chunk numbers, 16).
SmemReader = Callable[[int, Indices], NDArray[np.uint8]]

_M = 64
_K = {"f16": 16, "bf16": 16, "tf32": 8, "e4m3": 32, "e5m2": 32, "s8": 32, "u8": 32, "b1": 256}
_RESULTS = {
    "f16": ("f16", "f32"), "bf16": ("f32",), "tf32": ("f32",), "e4m3": ("f16", "f32"),
    "e5m2": ("f16", "f32"), "s8": ("s32",), "u8": ("s32",), "b1": ("s32",),
}  # fmt: skip
_MIXES = ({"e4m3", "e5m2"}, {"s8", "u8"})
_SIZES = {"f16": 2, "bf16": 2, "tf32": 4}


@dataclass(frozen=True, slots=True, eq=False)
class WgmmaPlan:
    """Everything about one `wgmma.mma_async` that does not depend on memory and registers.

    Attributes
    ----------
    n, k : int
        Extents; m is 64.
    a_type, b_type, d_type : str
        Element types as PTX spells them.
    scale_a, scale_b : int
        1, or -1 to negate an operand.
    trans_a, trans_b : bool
        Whether the operand in shared memory is M-major (N-major) instead of K-major.
    satfinite : bool
        Clamp integer sums.
    accumulation : Accumulation or None
        Parameters of the ``tensor_core`` model.
    a_fragment, d_fragment : Fragment
        Where A (in registers) and D are.
    d_registers : int
        32-bit registers of D a thread.
    """

    n: int
    k: int
    a_type: str
    b_type: str
    d_type: str
    scale_a: int
    scale_b: int
    trans_a: bool
    trans_b: bool
    satfinite: bool
    accumulation: Accumulation | None
    a_fragment: Fragment
    d_fragment: Fragment
    d_registers: int

    def chunks_of_a(self, descriptor: int) -> Indices:
        """Return the 16-byte chunks of shared memory that A's 64-bit descriptor names."""
        return chunk_indices(
            decode_wgmma(descriptor),
            mn_major=self.trans_a,
            rows=_M,
            size=_SIZES.get(self.a_type, 1),
        )

    def chunks_of_b(self, descriptor: int) -> Indices:
        """Return the 16-byte chunks of shared memory that B's 64-bit descriptor names."""
        return chunk_indices(
            decode_wgmma(descriptor),
            mn_major=self.trans_b,
            rows=self.n,
            size=_SIZES.get(self.b_type, 1),
        )

    def a_from_chunks(self, data: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return A (64, k) from the bytes of `chunks_of_a`."""
        matrix = _elements(self.a_type, data)
        return _signed(matrix.T if self.trans_a else matrix, self.scale_a)

    def b_from_chunks(self, data: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return B (k, n) from the bytes of `chunks_of_b`."""
        matrix = _elements(self.b_type, data)
        return _signed(matrix if self.trans_b else matrix.T, self.scale_b)

    def a_from_registers(self, registers: NDArray[np.uint32]) -> NDArray[np.float32]:
        """Return A (warpgroups, 64, k) from registers (warpgroups, 128, 4)."""
        matrices = self.a_fragment.matrices(unpack(self.a_type, registers))
        return _signed(matrices, self.scale_a)

    def d_from_registers(self, registers: NDArray[np.uint32]) -> NDArray[Any]:
        """Return D (warpgroups, 64, n), float32 or int32, from (warpgroups, 128, registers)."""
        return self.d_fragment.matrices(unpack(self.d_type, registers))

    def d_to_registers(self, matrices: NDArray[Any]) -> NDArray[np.uint32]:
        """Return registers (warpgroups, 128, registers) from D (warpgroups, 64, n)."""
        held = self.d_fragment.held(matrices)
        return pack(self.d_type, held, held.shape[0], 128)

    def product(
        self, a: NDArray[np.float32], b: NDArray[np.float32], d: NDArray[Any] | None
    ) -> NDArray[Any]:
        """Return ``a @ b + d`` for one warpgroup; without d (scale-d false) ``a @ b``.

        Parameters
        ----------
        a : ndarray of float32, (64, k)
        b : ndarray of float32, (k, n)
        d : ndarray of float32 or int32, (64, n), or None

        Returns
        -------
        ndarray of float32 or int32, (64, n)
            Float32 even if D is f16, but then representable in f16.
        """
        if self.d_type == "s32":
            # 32 products of 8-bit integers, or 256 of bits, stay below 2^24: exact in float32.
            old = np.zeros((_M, self.n), np.int32) if d is None else d
            return accumulate.add_saturating(a @ b, old, self.satfinite)
        if self.accumulation is None:
            with np.errstate(invalid="ignore", over="ignore", under="ignore"):
                result: NDArray[Any] = a @ b
                if d is not None:
                    result += d
            accumulate.canonical(result)
        else:
            addend = np.zeros((_M, self.n), np.float32) if d is None else d
            result = accumulate.matrix_product(
                a[None],
                b[None],
                addend[None],
                a_type=self.a_type,
                b_type=self.b_type,
                accumulation=self.accumulation,
                half_result=self.d_type == "f16",
            )[0]
        if self.d_type == "f16":
            with np.errstate(over="ignore", under="ignore"):
                return result.astype(np.float16).astype(np.float32)
        return result

    def __call__(
        self,
        a: Sequence[int] | NDArray[np.uint32],
        b: Sequence[int],
        d: NDArray[np.uint32],
        scale_d: Sequence[bool],
        read: SmemReader,
    ) -> NDArray[np.uint32]:
        """Execute for a batch of warpgroups.

        Parameters
        ----------
        a : sequence of int, or ndarray of uint32 (warpgroups, 128, 4)
            Descriptors, or A in registers.
        b : sequence of int
            Descriptors, one a warpgroup.
        d : ndarray of uint32, (warpgroups, 128, registers), C-contiguous
            Accumulators.
        scale_d : sequence of bool
            Whether D is added, for each warpgroup.
        read : callable
            Reads chunks of the shared memory of a warpgroup's block.

        Returns
        -------
        ndarray of uint32, (warpgroups, 128, registers)
        """
        in_registers = isinstance(a, np.ndarray) and a.ndim == 3
        a_held = self.a_from_registers(a) if in_registers else None  # type: ignore[arg-type]
        old = self.d_from_registers(d) if any(scale_d) else None
        out = np.empty((len(b), _M, self.n), np.int32 if self.d_type == "s32" else np.float32)
        for i, descriptor in enumerate(b):
            if a_held is None:
                a_matrix = self.a_from_chunks(read(i, self.chunks_of_a(int(a[i]))))
            else:
                a_matrix = a_held[i]
            b_matrix = self.b_from_chunks(read(i, self.chunks_of_b(int(descriptor))))
            addend = old[i] if old is not None and scale_d[i] else None
            out[i] = self.product(a_matrix, b_matrix, addend)
        return self.d_to_registers(out)


def _elements(name: str, data: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Decode chunk bytes (outer, chunks, 16) to a matrix (outer, elements)."""
    flat = np.ascontiguousarray(data).reshape(data.shape[0], -1)
    words = flat.view(np.uint32)
    return unpack(name, words[:, None, :])


def _signed(matrix: NDArray[np.float32], sign: int) -> NDArray[np.float32]:
    return matrix if sign == 1 else -matrix


@lru_cache(maxsize=256)
def wgmma_plan(
    shape: str,
    d_type: str,
    a_type: str,
    b_type: str,
    *,
    scale_a: int = 1,
    scale_b: int = 1,
    trans_a: int = 0,
    trans_b: int = 0,
    satfinite: bool = False,
    model: str = "fp32",
) -> WgmmaPlan:
    """Prepare an instruction.

    Parameters
    ----------
    shape : str
        ``m64n256k16`` and so on.
    d_type, a_type, b_type : str
        In the order of the opcode.
    scale_a, scale_b : {1, -1}
        ``imm-scale-a`` and ``imm-scale-b``.
    trans_a, trans_b : {0, 1}
        ``imm-trans-a`` and ``imm-trans-b``.
    satfinite : bool
        Of the integer forms.
    model : {"fp32", "tensor_core"}
        See `gemmjit.emulator.accumulate`.

    Raises
    ------
    UnknownInstruction
        If the manual does not list the combination.
    """
    text = f"wgmma.mma_async.{shape}.{d_type}.{a_type}.{b_type}"
    match = re.fullmatch(r"m64n(\d+)k(\d+)", shape)
    if a_type not in _K or match is None:
        raise UnknownInstruction(f"{text}: expected a shape m64nNkK and a type of {', '.join(_K)}")
    n, k = int(match[1]), int(match[2])
    if k != _K[a_type]:
        raise UnknownInstruction(f"{text}: expected k{_K[a_type]} for {a_type}; got k{k}")
    integer = d_type == "s32"
    if not 8 <= n <= 256 or n % 8 or (integer and n > 32 and n % 16):
        raise UnknownInstruction(
            f"{text}: expected n a multiple of 8 from 8 to 256 (integers: of 16 above 32); got {n}"
        )
    if b_type != a_type and not any({a_type, b_type} <= mix for mix in _MIXES):
        raise UnknownInstruction(f"{text}: B has type {b_type}, which cannot meet {a_type}")
    if d_type not in _RESULTS[a_type]:
        expected = " or ".join(_RESULTS[a_type])
        raise UnknownInstruction(f"{text}: expected D of type {expected}; got {d_type}")
    if (trans_a or trans_b) and a_type not in ("f16", "bf16"):
        raise UnknownInstruction(f"{text}: only f16 and bf16 can be transposed")
    for name, value, allowed in (
        ("imm-scale-a", scale_a, (1, -1)),
        ("imm-scale-b", scale_b, (1, -1)),
        ("imm-trans-a", trans_a, (0, 1)),
        ("imm-trans-b", trans_b, (0, 1)),
        ("satfinite", satfinite, (False, True) if integer and a_type != "b1" else (False,)),
    ):
        if value not in allowed:
            raise UnknownInstruction(f"{text}: {name}: expected one of {allowed}; got {value}")
    bits = 256 // k
    return WgmmaPlan(
        n=n,
        k=k,
        a_type=a_type,
        b_type=b_type,
        d_type=d_type,
        scale_a=scale_a,
        scale_b=scale_b,
        trans_a=bool(trans_a),
        trans_b=bool(trans_b),
        satfinite=satfinite,
        accumulation=accumulate.accumulation_model(model, 90, "wgmma", a_type, k),
        a_fragment=fragments.wgmma_multiplicand_a(bits),
        d_fragment=fragments.wgmma_accumulator(n),
        d_registers=n // 4 if d_type == "f16" else n // 2,
    )
