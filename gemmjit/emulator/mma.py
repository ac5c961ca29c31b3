"""`mma.sync`: D = A x B + C over the registers of a warp, all dense shapes up to sm_90.

A plan is made once per instruction (its types, layouts and shape are constants of the PTX text)
and called with registers of any number of warps. Source: PTX ISA 9.1, section 9.7.14.5.14.

The forms with a kind (sm_120a) are in :mod:`gemmjit.emulator.mma_kinds`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemmjit.emulator import accumulate, fragments
from gemmjit.emulator.faults import UnknownInstruction
from gemmjit.emulator.formats import decode, encode
from gemmjit.emulator.fragments import Fragment

__all__ = ["MmaPlan", "mma_plan", "mma_sync", "pack", "unpack"]

_BITS = {
    "f64": 64, "tf32": 32, "f16": 16, "bf16": 16, "e4m3": 8, "e5m2": 8,
    "s8": 8, "u8": 8, "s4": 4, "u4": 4, "b1": 1,
}  # fmt: skip

# Shapes by type of A, from the syntax part of the manual's section; m8n8k4 f16 stands apart.
_SHAPES: dict[str, tuple[str, ...]] = {
    "f64": ("m8n8k4", "m16n8k4", "m16n8k8", "m16n8k16"),
    "tf32": ("m16n8k4", "m16n8k8"),
    "f16": ("m8n8k4", "m16n8k8", "m16n8k16"),
    "bf16": ("m16n8k8", "m16n8k16"),
    "e4m3": ("m16n8k16", "m16n8k32"),
    "s8": ("m8n8k16", "m16n8k16", "m16n8k32"),
    "s4": ("m8n8k32", "m16n8k32", "m16n8k64"),
    "b1": ("m8n8k128", "m16n8k128", "m16n8k256"),
}
_FAMILY = {"e5m2": "e4m3", "u8": "s8", "u4": "s4"}
_ACCUMULATORS = {
    "f64": ("f64",), "tf32": ("f32",), "f16": ("f16", "f32"), "bf16": ("f32",),
    "e4m3": ("f16", "f32"), "s8": ("s32",), "s4": ("s32",), "b1": ("s32",),
}  # fmt: skip


def unpack(name: str, registers: NDArray[Any]) -> NDArray[Any]:
    """Return the elements packed in registers, lowest bits first.

    Parameters
    ----------
    name : str
        Element type: a float format, ``s8``, ``u8``, ``s4``, ``u4``, ``b1``, ``f32``, ``s32``,
        ``f64``.
    registers : ndarray of uint32 (uint64 for f64), (warps, lanes, registers), C-contiguous

    Returns
    -------
    ndarray, (warps, lanes * elements)
        float32 for the small types (exact), int32 for ``s32``, float64 for ``f64``.
    """
    flat = registers.reshape(registers.shape[0], -1)
    if name in ("f32", "f64", "s32"):
        return flat.view({"f32": np.float32, "f64": np.float64, "s32": np.int32}[name])
    if name in ("f16", "bf16"):
        return decode(name, flat.view(np.uint16))
    if name == "tf32":
        return decode(name, flat)
    octets = flat.view(np.uint8)
    if name in ("e4m3", "e5m2"):
        return decode(name, octets)
    if name in ("s8", "u8"):
        return octets.view(np.int8 if name == "s8" else np.uint8).astype(np.float32)
    if name in ("s4", "u4"):
        nibbles = np.stack([octets & 15, octets >> 4], axis=-1).reshape(flat.shape[0], -1)
        if name == "s4":
            return ((nibbles ^ 8).astype(np.float32)) - np.float32(8)
        return nibbles.astype(np.float32)
    if name == "b1":
        return np.unpackbits(octets, axis=1, bitorder="little").astype(np.float32)
    raise UnknownInstruction(f"element type: expected one of {', '.join(_BITS)}; got {name!r}")


def pack(name: str, held: NDArray[Any], warps: int, lanes: int) -> NDArray[Any]:
    """Pack accumulator elements: the inverse of `unpack` for f16, f32, f64 and s32.

    Parameters
    ----------
    name : str
        Element type.
    held : ndarray, (warps, lanes * elements)
    warps, lanes : int

    Returns
    -------
    ndarray of uint32 (uint64 for f64), (warps, lanes, registers)
    """
    if name == "f16":
        held = encode("f16", held)
    words = np.ascontiguousarray(held).view(np.uint64 if name == "f64" else np.uint32)
    return words.reshape(warps, lanes, -1)


@dataclass(frozen=True, slots=True, eq=False)
class MmaPlan:
    """Everything about one `mma.sync` instruction that does not depend on register contents.

    Attributes
    ----------
    shape : tuple of int
        m, n, k.
    a_type, b_type, c_type, d_type : str
        Element types as PTX spells them.
    a, b, c, d : Fragment
        Where the elements are.
    registers : tuple of int
        32-bit registers (64-bit for f64) of A, B, C and D.
    product : callable
        ``(a, b, c) -> d`` on matrices.
    """

    shape: tuple[int, int, int]
    a_type: str
    b_type: str
    c_type: str
    d_type: str
    a: Fragment
    b: Fragment
    c: Fragment
    d: Fragment
    registers: tuple[int, int, int, int]
    product: Callable[[NDArray[Any], NDArray[Any], NDArray[Any]], NDArray[Any]]

    def __call__(self, a: NDArray[Any], b: NDArray[Any], c: NDArray[Any]) -> NDArray[Any]:
        """Compute D; see `mma_sync`."""
        warps = a.shape[0]
        a_matrix = self.a.matrices(unpack(self.a_type, a))
        b_matrix = self.b.matrices(unpack(self.b_type, b))
        c_matrix = self.c.matrices(unpack(self.c_type, c))
        d_matrix = self.product(a_matrix, b_matrix, c_matrix)
        return pack(self.d_type, self.d.held(d_matrix), warps, 32)


def _integer_product(
    satfinite: bool,
) -> Callable[[NDArray[Any], NDArray[Any], NDArray[Any]], NDArray[Any]]:
    # 64 products of 4-bit or 32 of 8-bit integers stay below 2^24: exact in float32.
    def product(a: NDArray[Any], b: NDArray[Any], c: NDArray[Any]) -> NDArray[Any]:
        return accumulate.add_saturating(np.matmul(a, b), c, satfinite)

    return product


def _bit_product(
    bit_op: str,
) -> Callable[[NDArray[Any], NDArray[Any], NDArray[Any]], NDArray[Any]]:
    def product(a: NDArray[Any], b: NDArray[Any], c: NDArray[Any]) -> NDArray[Any]:
        both = np.matmul(a, b)
        if bit_op == "and":
            return accumulate.add_saturating(both, c, False)
        either = a.sum(axis=2, keepdims=True) + b.sum(axis=1, keepdims=True)
        return accumulate.add_saturating(either - 2 * both, c, False)

    return product


def _float_product(
    plan_k: int, a_type: str, b_type: str, d_type: str, model: str, arch_number: int
) -> Callable[[NDArray[Any], NDArray[Any], NDArray[Any]], NDArray[Any]]:
    if a_type == "f64":
        return lambda a, b, c: np.matmul(a, b) + c
    accumulation = accumulate.accumulation_model(model, arch_number, "mma", a_type, plan_k)

    def product(a: NDArray[Any], b: NDArray[Any], c: NDArray[Any]) -> NDArray[Any]:
        return accumulate.matrix_product(
            a,
            b,
            c,
            a_type=a_type,
            b_type=b_type,
            accumulation=accumulation,
            half_result=d_type == "f16",
        )

    return product


def _check(
    shape: str, types: tuple[str, str, str, str], layouts: tuple[str, str], bit_op: str | None
) -> str:
    """Check a combination against the manual and return the family of A."""
    a_type, b_type, c_type, d_type = types
    family = _FAMILY.get(a_type, a_type)
    text = f"{shape}.{layouts[0]}.{layouts[1]}.{d_type}.{a_type}.{b_type}.{c_type}"
    if family not in _SHAPES or shape not in _SHAPES[family]:
        known = "; ".join(f"{t}: {', '.join(s)}" for t, s in _SHAPES.items())
        raise UnknownInstruction(
            f"mma.sync {text}: expected a shape of {known}; got {shape} {a_type}"
        )
    mixes = family in ("e4m3", "s8", "s4")
    if _FAMILY.get(b_type, b_type) != family or (b_type != a_type and not mixes):
        raise UnknownInstruction(
            f"mma.sync {text}: B has type {b_type}, which cannot meet {a_type}"
        )
    if c_type not in _ACCUMULATORS[family] or d_type not in _ACCUMULATORS[family]:
        expected = " or ".join(_ACCUMULATORS[family])
        raise UnknownInstruction(
            f"mma.sync {text}: expected accumulators of {expected}; got D {d_type}, C {c_type}"
        )
    volta = shape == "m8n8k4" and family == "f16"
    if c_type != d_type and not (volta and c_type == "f16"):
        raise UnknownInstruction(f"mma.sync {text}: expected equal types of C and D")
    if layouts != ("row", "col") and not volta:
        raise UnknownInstruction(f"mma.sync {text}: only m8n8k4 f16 has layouts other than row.col")
    if (family == "b1") != (bit_op in ("and", "xor")):
        raise UnknownInstruction(
            f"mma.sync {text}: expected .and or .xor for b1 only; got {bit_op}"
        )
    return family


@lru_cache(maxsize=256)
def mma_plan(
    shape: str,
    a_type: str,
    b_type: str,
    c_type: str,
    d_type: str,
    *,
    a_layout: str = "row",
    b_layout: str = "col",
    satfinite: bool = False,
    bit_op: str | None = None,
    model: str = "fp32",
    arch_number: int = 90,
) -> MmaPlan:
    """Prepare an instruction; the parameters are those of `mma_sync`.

    Raises
    ------
    UnknownInstruction
        If the manual does not list the combination.
    """
    types = (a_type, b_type, c_type, d_type)
    family = _check(shape, types, (a_layout, b_layout), bit_op)
    if satfinite and family not in ("s8", "s4"):
        raise UnknownInstruction(
            f"mma.sync {shape}: .satfinite is for s8, u8, s4 and u4; got {a_type}"
        )
    m, n, k = (int(x) for x in re.findall(r"\d+", shape))
    bits = _BITS[a_type]
    if shape == "m8n8k4" and family == "f16":
        a, b = (fragments.volta_multiplicand(x, y) for x, y in (("a", a_layout), ("b", b_layout)))
        c, d = fragments.volta_accumulator(c_type), fragments.volta_accumulator(d_type)
    else:
        a, b = fragments.multiplicand_a(m, k, bits), fragments.multiplicand_b(k, n, bits)
        c = d = fragments.accumulator(m, n)
    if family in ("s8", "s4"):
        product = _integer_product(satfinite)
    elif bit_op is not None:
        product = _bit_product(bit_op)
    else:
        product = _float_product(k, a_type, b_type, d_type, model, arch_number)
    accumulator_bits = {"f64": 32, "f16": 16}  # in units of registers of 32 (f64: 64) bits
    widths = (min(bits, 32),) * 2 + tuple(accumulator_bits.get(t, 32) for t in (c_type, d_type))
    counts = [f.elements * w // 32 for f, w in zip((a, b, c, d), widths, strict=True)]
    return MmaPlan(
        (m, n, k), *types, a, b, c, d, (counts[0], counts[1], counts[2], counts[3]), product
    )


def mma_sync(
    shape: str,
    a_type: str,
    b_type: str,
    c_type: str,
    d_type: str,
    a: NDArray[Any],
    b: NDArray[Any],
    c: NDArray[Any],
    *,
    a_layout: str = "row",
    b_layout: str = "col",
    satfinite: bool = False,
    bit_op: str | None = None,
    model: str = "fp32",
    arch_number: int = 90,
) -> NDArray[Any]:
    """Execute `mma.sync` for a batch of warps.

    Parameters
    ----------
    shape : str
        ``m16n8k16`` and so on.
    a_type, b_type, c_type, d_type : str
        Types as PTX spells them. The order in an opcode is D, A, B, C.
    a, b, c : ndarray of uint32 (uint64 for f64), (warps, 32, registers), C-contiguous
        Registers of all lanes, in the order of the operand list.
    a_layout, b_layout : {"row", "col"}
        Only ``m8n8k4`` with f16 has others than row and col.
    satfinite : bool
        Clamp integer sums instead of wrapping.
    bit_op : {"and", "xor"}, optional
        For b1 only.
    model : {"fp32", "tensor_core"}
        See `gemmjit.emulator.accumulate`.
    arch_number : int
        Ten times the compute capability that the ``tensor_core`` model follows.

    Returns
    -------
    ndarray of uint32 (uint64 for f64), (warps, 32, registers)
        D.

    Raises
    ------
    UnknownInstruction
        If the manual does not list the combination.
    """
    plan = mma_plan(
        shape, a_type, b_type, c_type, d_type,
        a_layout=a_layout, b_layout=b_layout, satfinite=satfinite, bit_op=bit_op,
        model=model, arch_number=arch_number,
    )  # fmt: skip
    return plan(a, b, c)
